"""Run a gateway from start to stop, in front of an origin that counts every byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin, start_origin
from loadtest.plan_demo.traffic import Stream, archives, body, rooms

_HIT: Final = "; hit"
_READERS: Final = 16
_BOUND_S: Final = 20.0


class WrongBytes(RuntimeError):
    """A reader got other bytes than the stream's; the text is one line."""


@dataclass(slots=True)
class Life:
    """Record of one gateway from its start to its stop."""

    hits: list[bool] = field(default_factory=list)
    """For each read, in order, whether it was answered from memory."""
    origin_bytes: list[int] = field(default_factory=list)
    """What the origin had sent when that read was over, the gateway's own warming included."""
    origin_requests: int = 0
    sent_bytes: int = 0


@asynccontextmanager
async def origin() -> AsyncIterator[RunningOrigin]:
    """An origin with every stream of the experiment in it."""
    running = await start_origin()
    try:
        async with aiohttp.ClientSession() as session:
            for stream in (*rooms(), *archives()):
                await _put(session, running.url, stream)
        yield running
    finally:
        await running.stop()


async def _put(session: aiohttp.ClientSession, url: str, stream: Stream) -> None:
    headers = {"Content-Type": "application/octet-stream", "Stream-Closed": "true"}
    async with session.put(url + stream.path, data=body(stream), headers=headers) as reply:
        reply.raise_for_status()


async def live(config: GatewayConfig, behind: RunningOrigin, paths: Iterable[str], per_s: float) -> Life:
    """One life: start, serve these reads at that rate, stop.  What does not come within a bound ends the experiment."""
    behind.origin.counters.reset()
    gateway = await start_gateway(config)
    life = Life()
    try:
        await _read_all(gateway, behind, paths, per_s, life)
    finally:
        await gateway.stop()
    life.origin_requests = behind.origin.counters.total_requests
    return life


async def _read_all(
    gateway: RunningGateway, behind: RunningOrigin, paths: Iterable[str], per_s: float, life: Life
) -> None:
    turns = iter(enumerate(paths))
    sizes = {stream.path: stream.size for stream in (*rooms(), *archives())}
    began = time.monotonic()

    async def reader(session: aiohttp.ClientSession) -> None:
        for number, path in turns:
            await asyncio.sleep(max(0.0, began + number / per_s - time.monotonic()))
            async with session.get(f"{gateway.gateway_url}{path}?offset=-1") as reply:
                reply.raise_for_status()
                got = len(await reply.read())
                if got != sizes[path]:
                    raise WrongBytes(f"{path} has {sizes[path]} bytes, and a reader was given {got}")
                life.sent_bytes += got
                life.hits.append(_HIT in reply.headers["Cache-Status"])
            life.origin_bytes.append(behind.origin.counters.total_body_bytes)

    bound = aiohttp.ClientTimeout(total=_BOUND_S)
    async with aiohttp.ClientSession(timeout=bound) as session, asyncio.TaskGroup() as readers:
        for _ in range(_READERS):
            readers.create_task(reader(session))
