"""Sinks of several workers that write one log.  Each sink has descriptors and a thread of its own, as in a process."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.ops.access_log.sinks.descriptor import DescriptorSink
from gateway.ops.access_log.sinks.file import FileSink
from gateway.ops.access_log.sinks.turns import WriteTurns
from tests.ops.log_reading import numbered, numbers_in

OpenFile = Callable[..., FileSink]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def open_file(tmp_path: Path, clock: ManualClock) -> AsyncIterator[OpenFile]:
    opened: list[FileSink] = []

    def open_one(rotate_bytes: int = 0, rotate_s: float = 0) -> FileSink:
        path = tmp_path / "access.log"
        opened.append(
            FileSink(path, clock, rotate_bytes=rotate_bytes, rotate_s=rotate_s, keep_files=1_000, is_shared=True)
        )
        return opened[-1]

    yield open_one
    for one in opened:
        await one.close()


def contents(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted(folder.iterdir())]


async def test_workers_write_whole_lines_and_each_full_file_is_rotated_once(
    open_file: OpenFile, tmp_path: Path
) -> None:
    most = 8 * len(numbered(range(100, 120)))
    sinks = [open_file(rotate_bytes=most) for _ in range(3)]

    async def write(sink: FileSink, first: int) -> None:
        for start in range(first, first + 600, 20):
            assert await sink.write(numbered(range(start, start + 20)))

    await asyncio.gather(*(write(sink, 1_000 * number) for number, sink in enumerate(sinks, 1)))
    files = contents(tmp_path)
    expected = [number for worker in (1, 2, 3) for number in range(1_000 * worker, 1_000 * worker + 600)]
    assert sorted(numbers_in(b"".join(files))) == expected
    assert all(0 < len(file) <= most for file in files)
    # Every file but the last is so full that no other batch fits.
    assert len(files) <= -(-sum(map(len, files)) // (most - len(numbered(range(1_000, 1_020))))) + 1


async def test_a_period_that_ends_rotates_the_file_once(
    open_file: OpenFile, tmp_path: Path, clock: ManualClock
) -> None:
    sinks = [open_file(rotate_s=3_600) for _ in range(2)]
    for number in range(4):
        if number == 2:
            clock.advance(4_000)
        assert await sinks[number % 2].write(numbered([number]))
        # The file's time is the test's time.
        os.utime(tmp_path / "access.log", (clock.wall(), clock.wall()))
    assert sorted(numbers_in(file) for file in contents(tmp_path)) == [[0, 1], [2, 3]]


async def test_the_half_line_of_a_worker_that_died_is_ended_before_the_next(
    open_file: OpenFile, tmp_path: Path
) -> None:
    sink = open_file()
    assert await sink.write(numbered([0]))
    with (tmp_path / "access.log").open("ab") as file:
        file.write(b'{"half')
    assert await sink.write(numbered([1]))
    assert (tmp_path / "access.log").read_bytes() == numbered([0]) + b'{"half\n' + numbered([1])


async def test_workers_take_turns_at_a_pipe(tmp_path: Path, clock: ManualClock) -> None:
    reading, writing = os.pipe()
    sinks = [DescriptorSink(clock, writing, turns=WriteTurns(tmp_path)) for _ in range(3)]
    found: list[bytes] = []

    def read() -> None:
        while data := os.read(reading, 1 << 16):
            found.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    # More than a pipe holds, so that each write takes several steps.
    batches = [numbered(range(10_000 * number, 10_000 * number + 6_000)) for number in range(1, 4)]
    assert await asyncio.gather(*(sink.write(batch) for sink, batch in zip(sinks, batches, strict=True))) == [True] * 3
    os.close(writing)
    await asyncio.to_thread(reader.join)
    os.close(reading)
    text = b"".join(found)
    assert len(text) == sum(map(len, batches))
    assert all(batch in text for batch in batches)
    for sink in sinks:
        await sink.close()


def test_a_turn_says_whether_the_process_before_has_died_within_its_turn(tmp_path: Path) -> None:
    first, second = WriteTurns(tmp_path), WriteTurns(tmp_path)
    with first.turn() as is_torn:
        assert not is_torn
    # As a process leaves it that is killed within its turn: the kernel releases the lock.
    with pytest.raises(RuntimeError), first.turn():
        raise RuntimeError
    with second.turn() as is_torn:
        assert is_torn
    with first.turn() as is_torn:
        assert not is_torn
    first.close()
    second.close()
