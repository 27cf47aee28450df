"""A gateway near its memory limit stays under it, and goes on serving what it has."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from gateway.ops.process_memory import resident_bytes
from tests.memory.process import BOUND_S, MIB, Gateway
from tests.scenarios.hostile import Asked, HostileOrigin, part_of_stream
from tests.scenarios.wire import Dropped, Wire
from tests.waiting import eventually

LIMIT: Final = 256 * MIB * 9 // 10
"""What the gateway takes by itself in a container of 256 MiB."""
LARGE: Final = bytes(range(256)) * (2 * MIB // 256)


@pytest.fixture
async def origin() -> AsyncIterator[HostileOrigin]:
    """Any number of streams of 2 MiB, and a small one."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = b"small" if asked.target.startswith("/small") else LARGE
        is_first = "offset=-1" in asked.target
        writer.write(part_of_stream(body if is_first else b"", "0001", "application/octet-stream"))
        await writer.drain()

    running = HostileOrigin(script)
    await running.start()
    yield running
    await running.stop()


@pytest.fixture
def gateway(origin: HostileOrigin, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway whose cache alone may take more than its memory limit."""
    limits = f'memory_max_bytes = {LIMIT}\nclient_bytes = "1GiB"\nclient_write_timeout_s = 60'
    running = Gateway(origin.url, tmp_path, 512, limits=limits)
    yield running
    running.kill()


async def read(gateway: Gateway, target: str) -> int:
    """The status of one read."""
    wire = await Wire.open(gateway.url)
    try:
        await wire.ask(target)
        return (await wire.answer()).status
    except (Dropped, ConnectionError):
        return 0
    finally:
        await wire.closed()


async def is_served(good: Wire) -> bool:
    """Whether a small stream is answered; if not, the answer has to say when to come back."""
    await good.ask("/small?offset=-1")
    answer = await good.answer()
    assert answer.status in (200, 503)
    assert answer.status == 200 or answer.headers["Retry-After"] == "1"
    return answer.body == b"small"


async def test_a_cache_that_may_outgrow_the_limit_is_kept_below_it(gateway: Gateway) -> None:
    async with asyncio.timeout(BOUND_S):
        for number in range(80):
            assert await read(gateway, f"/large?number={number}&offset=-1") == 200
            assert await read(gateway, "/small?offset=-1") == 200
        held = await asyncio.to_thread(gateway.metric, "durable_gateway_cache_bytes")
    assert await asyncio.to_thread(gateway.stop) < LIMIT
    # It is used as far as it fits.
    assert held > 16 * MIB


async def test_clients_that_leave_much_unread_are_dropped_and_a_good_one_is_served(gateway: Gateway) -> None:
    async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
        good = await Wire.open(gateway.url)
        stack.push_async_callback(good.closed)
        served = 0
        for number in range(700):
            wire = await Wire.open(gateway.url, 16_384)
            stack.push_async_callback(wire.closed)
            try:
                # Each has an answer of its own, which is not remembered.
                await wire.ask(f"/large?number={number % 4}&offset=-1", {"Cache-Control": "no-cache"})
            except (Dropped, ConnectionError):
                continue
            if number % 20 == 0:
                served += await is_served(good)

        async def some_are_dropped() -> bool:
            name = 'durable_gateway_clients_shed_total{reason="memory"}'
            return await asyncio.to_thread(gateway.metric, name) > 0

        await eventually(some_are_dropped, look_s=0.1)
        # Its connection is kept all the time; what the cache had to give up is answered again as soon as there is room.
        await eventually(lambda: is_served(good), look_s=0.1)
    assert served > 15
    assert await asyncio.to_thread(gateway.stop) < LIMIT


def test_resident_memory_is_that_of_the_process() -> None:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # Both are read from counters that the kernel keeps per thread, so they differ by some pages.
    assert 8 * MIB < resident_bytes() < 1.1 * peak
