"""A fleet whose members have workers: real processes before one origin that counts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Collection
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
from tests.workers.process import GatewayProcess, samples
from tests.workers.site import Site

WORKERS: Final = 2
_JOIN_S: Final = 30.0
_LOOK_S: Final = 0.05
_SHARE: Final = "durable_gateway_fleet_member_share"
_WORKERS: Final = "durable_gateway_fleet_member_workers"
_SPEED: Final = 4.0
"""The speed of the members' clocks, for their probes."""


def views_in(exposition: str) -> dict[str, tuple[float, float]]:
    """For each other member in a member's metrics: the part of its streams for which it is asked, and its workers."""
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in samples(exposition):
        if name in (_SHARE, _WORKERS):
            found.setdefault(name, {})[labels.removeprefix('member="').removesuffix('"')] = float(value)
    workers = found.get(_WORKERS, {})
    return {member: (share, workers[member]) for member, share in found.get(_SHARE, {}).items()}


class Crews:
    """The members by name, each with the test's connections to it, and their origin."""

    def __init__(
        self,
        origin: RunningOrigin,
        urls: dict[str, str],
        workers: int,
        fleet: dict[str, Any],
        settings: dict[str, Any],
    ) -> None:
        """`fleet` has further settings of the fleet."""
        self.origin = origin
        self.counters = origin.origin.counters
        self.urls = urls
        self.workers = workers
        self.members: dict[str, Site] = {}
        self.tally = Tally()
        self._fleet = fleet
        self._settings = settings
        self.clock = CommonClock(_SPEED)

    @property
    def live_requests(self) -> int:
        """How many live requests the origin has had."""
        return self.counters.requests[Kind.SSE] + self.counters.requests[Kind.LONGPOLL]

    def config(self, name: str, listed: Collection[str] | None = None) -> GatewayConfig:
        """The configuration of a member whose list has these members; None stands for all."""
        fleet = {
            "name": name,
            "listen": self.urls[name].removeprefix("http://"),
            "members": [{"name": one, "url": url} for one, url in self.urls.items() if listed is None or one in listed],
            "secret": SECRET,
            **self._fleet,
        }
        fixed: dict[str, Any] = {
            "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "node_name": name, "client_new_streams_per_s": 0,
            "shutdown_timeout_s": 0.5, "fleet": fleet,
        }  # fmt: skip
        return GatewayConfig.for_origin(self.origin.url, **{**fixed, **self._settings})

    async def start(self, name: str) -> Site:
        """Start a member."""
        process = await GatewayProcess.start(self.config(name), self.workers, clock=self.clock)
        self.members[name] = Site(self.origin, process, self.tally)
        return self.members[name]

    async def views(self, name: str) -> dict[str, tuple[float, float]]:
        """For each other member, the part of its streams for which it is asked, and how many workers it is known to
        have.  Both are the least of the views of this member's workers."""
        try:
            return views_in(await self.members[name].gateway.exposition())
        except (OSError, Dropped):
            return {}

    async def kill(self, name: str) -> None:
        """End all processes of a member at once by SIGKILL."""
        gateway = self._left(name).gateway
        pids = gateway.worker_pids()
        os.kill(gateway.pid, signal.SIGKILL)
        for pid in pids:
            gateway.kill(pid)
        await gateway.kill_all()

    async def stop(self, name: str) -> None:
        """End a member in order."""
        await self._left(name).gateway.stop()

    def _left(self, name: str) -> Site:
        """Take a member that ends out of `members`, and close the test's connections to it."""
        site = self.members.pop(name)
        for client in site.clients:
            client.close()
        return site

    async def have_joined(self) -> bool:
        """Whether each worker of each member asks each other member for all of its streams, and knows its workers."""
        for name in self.members:
            if await self.views(name) != {other: (1.0, self.workers) for other in self.members if other != name}:
                return False
        return True

    async def until_joined(self) -> None:
        """Wait until all workers of all members have the same view of the fleet."""
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
async def crews(
    *names: str, workers: int = WORKERS, fleet: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Crews]:
    """A fleet of these members, which have joined.  `fleet` has further settings of the fleet."""
    async with AsyncExitStack() as stack:
        origin = await start_origin()
        stack.push_async_callback(origin.stop, grace_s=0)
        urls = {name: f"http://127.0.0.1:{stack.enter_context(kept_port())}" for name in names}
        made = Crews(origin, urls, workers, fleet or {}, settings)
        stack.push_async_callback(made.close)
        await asyncio.gather(*(made.start(name) for name in names))
        await made.until_joined()
        yield made
