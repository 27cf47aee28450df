"""The memory cost of large streams: the tape's budget, a bounded buffer for each client, and little more.

The peak is the one that the process reports at its end, so that none is missed between two samples.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from tests.effort import examples
from tests.memory.process import BOUND_S, MIB, Gateway
from tests.scenarios.hostile import Asked, HostileOrigin, answer

REPLY_BYTES: Final = 4 * MIB
PERIOD: Final = 251 * 4_500
"""The stream repeats itself after so many bytes: not a power of two, so that bytes from a wrong position differ."""
PATTERN: Final = bytes(range(251)) * ((PERIOD + REPLY_BYTES) // 251)

REPLAYED: Final = examples(256, 1024) * MIB
HERD: Final = examples(150, 500)
STALLED: Final = examples(40, 100)


def stretch(start: int, size: int) -> bytes:
    """`size` bytes of the stream from `start` on, at most a reply."""
    skip = start % PERIOD
    return PATTERN[skip : skip + size]


def origin_of(total: int) -> HostileOrigin:
    """A closed stream of `total` bytes, generated on demand."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        found = re.search(r"offset=(\d+)", asked.target)
        start = int(found[1]) if found is not None else 0
        size = min(REPLY_BYTES, total - start) if asked.method == "GET" else 0
        end = start + size if asked.method == "GET" else total
        headers = {"Content-Type": "application/octet-stream", "Stream-Next-Offset": f"{end:012d}"}
        if end == total:
            headers |= {"Stream-Up-To-Date": "true", "Stream-Closed": "true"}
        writer.write(answer("200 OK", headers, stretch(start, size)))
        await writer.drain()

    return HostileOrigin(script, takes_head=True)


async def leave(writer: asyncio.StreamWriter) -> None:
    """Abort a connection, whatever is still in flight on it."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


class Reader:
    """One catch-up client, which checks every byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.at = 0
        self._left = 0
        self._next = 0
        self.is_closed = False

    async def ask(self) -> None:
        """Request the next part, and read the head of the answer."""
        offset = f"{self.at:012d}" if self.at else "-1"
        self._writer.write(f"GET /big?offset={offset} HTTP/1.1\r\nHost: edge\r\n\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("http/1.1 200"), head
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        self._left = int(fields["content-length"])
        self._next = int(fields["stream-next-offset"])
        self.is_closed = fields.get("stream-closed") == "true"

    async def read(self, most: int = 1 << 62) -> None:
        """Read up to `most` bytes of the answer."""
        while self._left and most > 0:
            data = await self._reader.read(min(self._left, most, MIB))
            assert data
            assert data == stretch(self.at, len(data))
            self.at += len(data)
            self._left -= len(data)
            most -= len(data)
        assert self._left or self.at == self._next

    async def close(self) -> None:
        await leave(self._writer)


Load = Callable[[Gateway], Coroutine[None, None, None]]


async def peak_of(origin: HostileOrigin, folder: Path, cache_mib: int, load: Load) -> int:
    # On a busy machine hundreds of readers in one process are slow, and hold what they hold long enough to be noticed.
    limits = 'client_write_timeout_s = 300\nclient_bytes = "1GiB"'
    gateway = await asyncio.to_thread(Gateway, origin.url, folder, cache_mib, limits=limits)
    try:
        async with asyncio.timeout(BOUND_S):
            await load(gateway)
    finally:
        peak = await asyncio.to_thread(gateway.stop)
    return peak


async def nothing(gateway: Gateway) -> None:
    """Serve one small answer; measures the baseline."""
    reader, writer = await gateway.connect()
    writer.write(b"GET /nowhere?offset=now HTTP/1.1\r\nHost: edge\r\nConnection: close\r\n\r\n")
    await reader.read()
    await leave(writer)


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> int:
    """The peak of a gateway that has served one small answer, whatever memory it may use for its cache."""

    async def measured() -> int:
        origin = origin_of(MIB)
        await origin.start()
        try:
            return await peak_of(origin, tmp_path_factory.mktemp("idle"), 128, nothing)
        finally:
            await origin.stop()

    return asyncio.run(measured())


@pytest.fixture
async def large() -> AsyncIterator[HostileOrigin]:
    origin = origin_of(REPLAYED)
    await origin.start()
    yield origin
    await origin.stop()


@pytest.fixture
async def middling() -> AsyncIterator[HostileOrigin]:
    origin = origin_of(100 * MIB)
    await origin.start()
    yield origin
    await origin.stop()


async def test_a_replay_of_a_large_stream_takes_little_more_than_the_tape(
    large: HostileOrigin, idle: int, tmp_path: Path
) -> None:
    async def replay(gateway: Gateway) -> None:
        reader = Reader(*await gateway.connect())
        while not reader.is_closed:
            await reader.ask()
            await reader.read()
        assert reader.at == REPLAYED
        await reader.close()

    peak = await peak_of(large, tmp_path, 32, replay)
    assert peak - idle < (32 + 24) * MIB, f"{(peak - idle) / MIB:.0f} MiB"


async def test_a_herd_on_a_large_stream_stays_within_its_buffers(
    middling: HostileOrigin, idle: int, tmp_path: Path
) -> None:
    clients, buffer_mib = HERD, 0.25

    async def herd(gateway: Gateway) -> None:
        first = Reader(*await gateway.connect())
        while not first.is_closed:
            await first.ask()
            await first.read()
        readers = [Reader(*await gateway.connect()) for _ in range(clients)]
        try:
            await read_on(readers)
        finally:
            for reader in [first, *readers]:
                await reader.close()

    async def read_on(readers: list[Reader]) -> None:
        # All readers have their heads and read no bytes: the gateway now holds the most that it ever holds for them.
        await asyncio.gather(*(reader.ask() for reader in readers))
        await asyncio.gather(*(reader.read(64 * 1024) for reader in readers))
        for reader in readers:
            await reader.read()
        # Half of them read on, from remembered answers, and the others stay where they are.
        await asyncio.gather(*(reader.ask() for reader in readers))
        for reader in readers[::2]:
            await reader.read()

    peak = await peak_of(middling, tmp_path, 128, herd)
    assert peak - idle < (128 + clients * buffer_mib) * MIB, f"{(peak - idle) / MIB:.0f} MiB"
    # Every byte left the origin once.
    assert len([asked for asked in middling.reads if "big" in asked.target]) == 25


async def test_stalled_replays_by_sse_stay_within_their_buffers(
    middling: HostileOrigin, idle: int, tmp_path: Path
) -> None:
    clients, buffer_mib = STALLED, 0.25

    async def stall(gateway: Gateway) -> None:
        first = Reader(*await gateway.connect())
        while not first.is_closed:
            await first.ask()
            await first.read()
        wires = [await gateway.connect() for _ in range(clients)]
        for reader, writer in wires:
            writer.write(b"GET /big?offset=-1&live=sse HTTP/1.1\r\nHost: edge\r\n\r\n")
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        for reader, _ in wires:
            await reader.readexactly(MIB)
        await first.close()
        for _, writer in wires:
            await leave(writer)

    peak = await peak_of(middling, tmp_path, 128, stall)
    # One event may exceed the bound: it is written whole.
    assert peak - idle < (128 + clients * (buffer_mib + 0.5)) * MIB, f"{(peak - idle) / MIB:.0f} MiB"
