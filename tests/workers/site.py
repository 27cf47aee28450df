"""An origin that counts, in the test's process, and a gateway with workers before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gateway.commands.dev_auth import local_rules
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin, start_origin
from tests.offload.crowd import Client, Reply, Tally
from tests.workers.process import GatewayProcess

WORKERS: Final = 3
JSON: Final = {"Content-Type": "application/json"}
_MOST_TRIES: Final = 40
_AT_ONCE: Final = 6


@dataclass
class Site:
    """The origin, the gateway, and connections to it."""

    origin: RunningOrigin
    gateway: GatewayProcess
    tally: Tally = field(default_factory=Tally)
    clients: list[Client] = field(default_factory=list)
    credential: dict[str, str] = field(default_factory=dict)
    """The headers that let the principal `reader` in; empty if the gateway has no rules of authorisation."""

    async def client(self) -> Client:
        """A connection to whichever worker accepts it."""
        client = await Client.open(self.gateway.url, self.tally)
        self.clients.append(client)
        return client

    async def origin_client(self) -> Client:
        """A connection to the origin itself."""
        client = await Client.open(self.origin.url, self.tally)
        self.clients.append(client)
        return client

    async def client_of_each(self) -> list[Client]:
        """A connection to each worker, in the order of their pids."""
        return [clients[0] for clients in await self.crowd_of_each(1)]

    async def crowd_of_each(self, count: int) -> list[list[Client]]:
        """At least so many connections to each worker, in the order of their pids."""
        found: dict[int, list[Client]] = {}
        for _ in range(_MOST_TRIES):
            opened = [await self.client() for _ in range(max(count, _AT_ONCE))]
            for client in opened:
                # A connection is passed to no other worker once it has had an answer.
                await client.send("HEAD", "/")
            workers = await self.gateway.workers_of(*(client.port for client in opened))
            for client in opened:
                found.setdefault(workers[client.port], []).append(client)
            if len(found) == self.gateway.workers and min(map(len, found.values())) >= count:
                return [found[pid] for pid in sorted(found)]
        raise AssertionError(f"{len(self.clients)} connections reach {sorted(found)}, and too few reach one of them")

    async def close(self) -> None:
        for client in self.clients:
            client.close()
        await self.gateway.stop()
        await self.origin.stop(grace_s=0)


@asynccontextmanager
async def made_site(
    mutant: str = "", workers: int = WORKERS, *, keys: Path | None = None, **settings: Any
) -> AsyncIterator[Site]:
    """A site whose gateway has these settings, and may be a mutant.  With a folder for keys, it has the rules of
    authorisation of `dev --auth` after those of the settings.
    """
    async with AsyncExitStack() as stack:
        credential = {}
        if keys is not None:
            rules = local_rules(keys, "http://origin", time.time())
            credential = {"Authorization": f"Bearer {rules.reader}"}
            auth = [*settings.get("auth", ()), *rules.auth]
            settings = {**settings, "auth": auth, "credentials": "shared"}
        origin = await start_origin()
        stack.push_async_callback(origin.stop, grace_s=0)
        defaults = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "client_new_streams_per_s": 0}
        config = GatewayConfig.for_origin(origin.url, **{**defaults, "shutdown_timeout_s": 0.5, **settings})
        site = Site(origin, await GatewayProcess.start(config, workers, mutant=mutant), credential=credential)
        stack.push_async_callback(site.close)
        yield site


@asynccontextmanager
async def followed(clients: Sequence[Client], path: str) -> AsyncIterator[None]:
    """Have each of these connections follow a stream by SSE inside the block, if it is there."""

    async def follow(client: Client, is_open: asyncio.Event) -> None:
        try:
            subscription = await client.subscribe(f"{path}?live=sse&offset=-1")
            async for _ in subscription.events():
                is_open.set()
        finally:
            is_open.set()

    opened = [asyncio.Event() for _ in clients]
    tasks = [asyncio.create_task(follow(*one)) for one in zip(clients, opened, strict=True)]
    try:
        for one in opened:
            await one.wait()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            client.close()


async def read_all(client: Client, path: str, offset: str = "-1") -> tuple[Reply, bytes]:
    """A catch-up read."""
    body = bytearray()
    reply = await client.send("GET", f"{path}?offset={offset}", take=body.extend)
    return reply, bytes(body)
