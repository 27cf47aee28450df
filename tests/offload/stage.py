"""The setting of every case: an origin that counts, a gateway in front of it, two writers, and a crowd.

All run on one loop, so that the origin's counts can be awaited.  Only a gateway with workers (`use_workers`) is a
program of its own.  `append` goes to the origin itself, because an acknowledgement that passes through the gateway
would tell it the new tail, which other writers do not.  `write` goes through the gateway.  Requests and answers of
writers are not counted with the clients'.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from gateway.aio.clock import Clock, ManualClock, SystemClock
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from tests.offload.crowd import BOUND_S, Client, Tally
from tests.offload.gateways import Gateway, GatewayHere, Members, Workers
from tests.waiting import eventually, pause
from tests.workers.clock import SharedClock

READS = (Kind.CATCHUP, Kind.LONGPOLL, Kind.SSE, Kind.HEAD)
LIVE = (Kind.LONGPOLL, Kind.SSE)

JSON = "application/json"
BINARY = "application/octet-stream"
TEXT = "text/plain"

_FILES = 8_192
"""Sockets per client: both ends are in this process."""

T = TypeVar("T")

_workers = 0
_members = 1


def use_workers(count: int, members: int = 1) -> None:
    """Have every case from now on run with the program and so many workers; 0 is a gateway in this process.  With
    several members, it is a fleet of such programs."""
    global _workers, _members
    _workers, _members = count, members


def manual_clock() -> ManualClock | SharedClock:
    """A clock of the gateway that a case moves."""
    return SharedClock.create() if _workers else ManualClock()


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: the clients' requests, and those that reached the origin."""

    case: str
    clients: int
    asked: int
    """Requests that the clients sent."""
    given_bytes: int
    """Body bytes that the clients received."""
    fetches: int
    """Catch-up reads and HEADs at the origin."""
    live_requests: int
    """Long-polls and SSE requests at the origin."""
    live_peak: int
    """Live requests open at the origin at one time."""
    connections: int
    """TCP connections that the gateway opened."""
    origin_bytes: int
    """Body bytes that left the origin."""
    stream_bytes: int
    """Bytes of the streams that were read, each counted once."""

    attempts: int = 0
    """Connections attempted while the origin's address only reset them."""
    refused: int = 0
    """Requests answered 503 during an outage."""
    back_s: float = 0.0
    """Seconds from the end of an outage to the first answer of the origin that a client received."""

    @property
    def reads(self) -> int:
        """All reads at the origin."""
        return self.fetches + self.live_requests


class Stage:
    """One case's origin, gateway, writer and crowd."""

    def __init__(self, origin: RunningOrigin, gateway: Gateway, clock: Clock, writer: Client, author: Client) -> None:
        self.origin = origin
        self.gateway = gateway
        self.clock = clock
        """The gateway's."""
        self.counters = origin.origin.counters
        self.tally = Tally()
        self.attempts = 0
        self._began = time.monotonic()
        self._passed_s = 0.0
        self._writer = writer
        self._author = author
        self._crashed: asyncio.Server | None = None
        self._clients: list[Client] = []

    async def create(self, path: str, content_type: str) -> None:
        """A new empty stream at the origin."""
        reply = await self._writer.send("PUT", path, {"Content-Type": content_type})
        assert reply.status == 201, reply

    async def append(self, path: str, content_type: str, body: bytes) -> str:
        """Append at the origin; returns the new tail."""
        reply = await self._writer.send("POST", path, {"Content-Type": content_type}, body)
        assert reply.status in (200, 204), reply
        return reply.next_offset

    async def write(self, path: str, content_type: str, body: bytes) -> str:
        """Append through the gateway; returns the new tail."""
        reply = await self._author.send("POST", path, {"Content-Type": content_type}, body)
        assert reply.status in (200, 204), reply
        return reply.next_offset

    async def close_stream(self, path: str) -> None:
        reply = await self._writer.send("POST", path, {"Stream-Closed": "true"})
        assert reply.status == 204, reply

    async def crash(self) -> None:
        """Stop the origin as a crash would; later connections to its address are counted and reset."""
        await self.origin.stop(grace_s=0)

        def counted() -> asyncio.Protocol:
            self.attempts += 1
            return _Reset()

        loop = asyncio.get_running_loop()
        self._crashed = await loop.create_server(counted, self.origin.host, self.origin.port, reuse_address=True)

    async def recover(self) -> None:
        """Start the origin again at its address, with its streams."""
        assert self._crashed is not None
        self._crashed.close()
        await self._crashed.wait_closed()
        self._crashed = None
        self.origin = await start_origin(OriginSettings(port=self.origin.port), origin=self.origin.origin)
        self._writer.close()
        self._writer = await Client.open(self.origin.url, Tally())

    async def clients(self, count: int) -> list[Client]:
        """`count` new clients of the gateway."""
        opened = await asyncio.gather(*(Client.open(self.gateway.url, self.tally) for _ in range(count)))
        self._clients += opened
        return opened

    async def waiting(self, path: str, readers: int) -> None:
        """Wait until `readers` live readers wait at the stream's tail, and so does the follower at the origin."""

        await eventually(lambda: self.gateway.all_wait(path, readers))
        await bounded(self.counters.until(lambda counters: counters.parked >= 1))

    async def brought(self, path: str, end: str, *, is_closed: bool) -> None:
        """Wait until a followed stream's live request has delivered the bytes up to `end`, and the closure if any."""

        await eventually(lambda: self.gateway.has_brought(path, end, is_closed=is_closed))

    def figure(self, case: str, stream_bytes: int) -> Figure:
        """The counts so far."""
        counted = self.counters
        return Figure(
            case,
            len(self._clients),
            self.tally.requests,
            self.tally.body_bytes,
            counted.requests[Kind.CATCHUP] + counted.requests[Kind.HEAD],
            sum(counted.requests[kind] for kind in LIVE),
            counted.live_peak,
            counted.connections,
            sum(counted.body_bytes[kind] for kind in READS),
            stream_bytes,
            self.attempts,
        )

    async def pass_time(self, seconds: float) -> None:
        """Move the gateway's clock.  With workers it moves no faster than the machine's: their messages to each other
        take real time, and would seem late."""
        assert isinstance(self.clock, ManualClock | SharedClock)
        self.clock.advance(seconds)
        self._passed_s += seconds
        if _workers:
            await pause(max(0.0, self._passed_s - (time.monotonic() - self._began)))

    async def leave(self) -> None:
        """Stop the crowd, the gateway and the origin, in this order."""
        if self._crashed is not None:
            self._crashed.close()
        self._writer.close()
        self._author.close()
        for client in self._clients:
            client.close()
        await self.gateway.stop()
        await self.origin.stop(grace_s=0)


class _Reset(asyncio.Protocol):
    """A connection that is reset at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).abort()


async def bounded(work: Awaitable[T]) -> T:
    """`work`, with a bound that loopback never needs."""
    async with asyncio.timeout(BOUND_S):
        return await work


async def together(work: Iterable[Awaitable[T]]) -> Sequence[T]:
    """Run all concurrently; the first failure cancels the rest."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_as_coroutine(one)) for one in work]
    return [task.result() for task in tasks]


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work


@asynccontextmanager
async def stage(
    *,
    max_chunk_bytes: int = 1 << 20,
    clock: Clock | None = None,
    origin_clock: Clock | None = None,
    **gateway_settings: Any,
) -> AsyncIterator[Stage]:
    """An origin and a gateway before it; `clock` is the gateway's."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < _FILES and hard > 0 else _FILES, hard))
    origin = await start_origin(OriginSettings(max_chunk_bytes=max_chunk_bytes), clock=origin_clock)
    # All clients share one address.
    defaults = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "client_new_streams_per_s": 0}
    settings = {**defaults, "shutdown_timeout_s": 2.0, **gateway_settings}
    config = GatewayConfig.for_origin(origin.url, **settings)
    gateway: Gateway
    if _workers:
        assert clock is None or isinstance(clock, SharedClock)
        if _members > 1:
            gateway = await Members.start(config, _members, _workers, clock)
        else:
            gateway = await Workers.start(config, _workers, clock)
    else:
        gateway = await GatewayHere.start(config, clock or SystemClock())
    writer, author = await Client.open(origin.url, Tally()), await Client.open(gateway.url, Tally())
    # Once the writer has an answer, its connection is accepted; it must not count as the gateway's.
    await writer.send("HEAD", "/")
    origin.origin.counters.reset()
    set_up = Stage(origin, gateway, clock or SystemClock(), writer, author)
    try:
        yield set_up
    finally:
        await set_up.leave()
        if isinstance(clock, SharedClock):
            clock.close()
