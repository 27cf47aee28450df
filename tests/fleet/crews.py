"""A fleet whose members have workers: real processes before one origin that counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.fast_clock import CommonClock
from tests.fleet.site import SECRET
from tests.offload.crowd import Client, Tally
from tests.ports import kept_port
from tests.scenarios.wire import Dropped
from tests.waiting import eventually
from tests.workers.process import GatewayProcess
from tests.workers.site import Site

WORKERS: Final = 2
_JOIN_S: Final = 30.0
_LOOK_S: Final = 0.05
_SPEED: Final = 4.0
"""The speed of the members' clocks, for their probes."""


class Crews:
    """The members by name, each with the test's connections to it, and their origin."""

    def __init__(self, origin: RunningOrigin, urls: dict[str, str], workers: int) -> None:
        self.origin = origin
        self.counters = origin.origin.counters
        self.urls = urls
        self.workers = workers
        self.members: dict[str, Site] = {}
        self.tally = Tally()
        self._clock = CommonClock(_SPEED)

    @property
    def live_requests(self) -> int:
        """How many live requests the origin has had."""
        return self.counters.requests[Kind.SSE] + self.counters.requests[Kind.LONGPOLL]

    def config(self, name: str, **settings: Any) -> GatewayConfig:
        """The configuration of a member."""
        fleet = {
            "name": name,
            "listen": self.urls[name].removeprefix("http://"),
            "members": [{"name": one, "url": url} for one, url in self.urls.items()],
            "secret": SECRET,
        }
        fixed: dict[str, Any] = {
            "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "node_name": name, "client_new_streams_per_s": 0,
            "shutdown_timeout_s": 0.5, "fleet": fleet,
        }  # fmt: skip
        return GatewayConfig.for_origin(self.origin.url, **{**fixed, **settings})

    async def start(self, name: str, **settings: Any) -> Site:
        """Start a member."""
        process = await GatewayProcess.start(self.config(name, **settings), self.workers, clock=self._clock)
        self.members[name] = Site(self.origin, process, self.tally)
        return self.members[name]

    async def have_joined(self) -> bool:
        """Whether each worker of each member reaches each other member, and asks it for all of its streams."""
        try:
            texts = [await self.ready(name) for name in self.members]
        except (OSError, Dropped):
            return False
        lines = [line for text in texts for line in text.splitlines() if " member " in line]
        others = len(self.members) - 1
        return len(lines) == len(texts) * others and all(
            line.startswith("[+]") and "asked for" not in line for line in lines
        )

    async def ready(self, name: str) -> str:
        """What `/readyz?verbose` of a member says."""
        return (await self.members[name].gateway.admin("/readyz?verbose")).body.decode()

    async def until_joined(self) -> None:
        """Wait until the members reach each other, as their admin ports say several times."""
        for _ in range(2 * self.workers):
            await eventually(self.have_joined, within_s=_JOIN_S, look_s=_LOOK_S)

    async def clients(self) -> dict[str, list[Client]]:
        """A connection to each worker of each member."""
        return {name: await site.client_of_each() for name, site in self.members.items()}

    async def order(self, name: str, target: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of a member's admin port to a purge or a revocation."""
        answer = await self.members[name].gateway.admin(target, body)
        found: dict[str, Any] = json.loads(answer.body)
        return found

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for site in self.members.values():
                for client in site.clients:
                    client.close()
                stack.push_async_callback(site.gateway.stop)


@asynccontextmanager
async def crews(*names: str, workers: int = WORKERS, **settings: Any) -> AsyncIterator[Crews]:
    """A fleet of these members, which have joined."""
    async with AsyncExitStack() as stack:
        origin = await start_origin()
        stack.push_async_callback(origin.stop, grace_s=0)
        urls = {name: f"http://127.0.0.1:{stack.enter_context(kept_port())}" for name in names}
        made = Crews(origin, urls, workers)
        stack.push_async_callback(made.close)
        await asyncio.gather(*(made.start(name, **settings) for name in names))
        await made.until_joined()
        yield made
