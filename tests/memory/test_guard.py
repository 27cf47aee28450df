"""A gateway near its memory limit stays under it, and goes on serving what it has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from gateway.ops.process_memory import container_limit_bytes, resident_bytes
from tests.memory.process import BOUND_S, MIB, Gateway
from tests.scenarios.hostile import Asked, HostileOrigin, part_of_stream
from tests.scenarios.wire import Dropped, Wire
from tests.waiting import eventually

LIMIT: Final = 192 * MIB
LARGE: Final = bytes(range(256)) * (4 * MIB // 256)


@pytest.fixture
async def origin() -> AsyncIterator[HostileOrigin]:
    """Any number of streams of 4 MiB, and a small one."""

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
                await good.ask("/small?offset=-1")
                assert (await good.answer()).body == b"small"
                served += 1

        async def some_are_dropped() -> bool:
            name = 'durable_gateway_clients_shed_total{reason="memory"}'
            return await asyncio.to_thread(gateway.metric, name) > 0

        await eventually(some_are_dropped, look_s=0.1)
        for _ in range(5):
            await good.ask("/small?offset=-1")
            assert (await good.answer()).body == b"small"
    assert served == 35
    assert await asyncio.to_thread(gateway.stop) < LIMIT


def test_the_limit_of_a_container_is_the_least_of_its_groups(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/a.slice/b.service\n")
    assert container_limit_bytes(tmp_path, own) is None
    (tmp_path / "a.slice" / "b.service").mkdir(parents=True)
    (tmp_path / "memory.max").write_text("max\n")
    assert container_limit_bytes(tmp_path, own) is None
    (tmp_path / "a.slice" / "memory.max").write_text("2000000\n")
    assert container_limit_bytes(tmp_path, own) == 2_000_000
    (tmp_path / "a.slice" / "b.service" / "memory.max").write_text("1000000\n")
    assert container_limit_bytes(tmp_path, own) == 1_000_000
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert container_limit_bytes(tmp_path, own) == 1_000_000


def test_resident_memory_is_that_of_the_process() -> None:
    before = resident_bytes()
    block = bytearray(64 * MIB)
    block[::4_096] = b"x" * len(block[::4_096])
    assert 48 * MIB < resident_bytes() - before < 96 * MIB
