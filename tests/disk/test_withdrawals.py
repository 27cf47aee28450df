"""Withdrawals: whatever fails, a withdrawn stream is not readable after a restart, or the store says so."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.store import StoreConfig
from gateway.disk import store as disk_store
from gateway.disk import writer_thread as disk_writer
from gateway.disk.index import Index
from gateway.disk.runs import Run
from gateway.disk.store import DiskStore
from gateway.disk.writer_thread import PAUSE_S, Write, Writer
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.stream_version import Edition, Version
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape

READERS = Partition("r")
GROUP = Group("http://o", "/s")


def opened(folder: Path, clock: ManualClock | None = None) -> DiskStore:
    config = StoreConfig(path=str(folder), max_bytes=8 << 20, segment_bytes=1 << 20)
    disk = DiskStore.open(config, clock or ManualClock())
    disk.take_routes({READERS: "all"})
    return disk


def stream_of(path: str, count: int = 60) -> Stream:
    key = StreamKey(Group("http://o", path), "", READERS)
    stream = Stream(key, Tape(), Version(Edition(path)), "text/plain")
    for number in range(count):
        stream.tape.store(f"{number:08}", f"{number + 1:08}", [f"{path} {number} ".encode() * 2_000], 0.0)
    return stream


async def readable(disk: DiskStore) -> int:
    """Count the runs that can be read."""
    return sum([await disk.read(stored, one) is not None for stored in disk.streams() for one in list[Run](stored)])


def segments_of(folder: Path) -> int:
    return len(list(folder.glob("*.segment")))


class Held:
    """Holds the writer before each of its writes until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        write: Callable[..., None] = Writer._write

        def held(writer: Writer, job: object) -> None:
            assert self.go.wait(20)
            write(writer, job)

        monkeypatch.setattr(Writer, "_write", held)


def refuse(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("is_queued", [True, False])
async def test_a_withdrawal_that_the_index_refuses_spoils_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_queued: bool
) -> None:
    held, disk, stream = Held(monkeypatch), opened(tmp_path), stream_of("/s")
    if not is_queued:
        held.go.set()
    disk.leaving(stream)
    if not is_queued:
        assert await disk.settled()
    with monkeypatch.context() as broken:
        broken.setattr(Index, "drop_stream", refuse)
        disk.withdraw(stream)
        held.go.set()
        # The runs are spoiled, so the stream is as good as withdrawn.
        assert await disk.settled()
        await disk.close([])
    disk = opened(tmp_path)
    assert await readable(disk) == 0
    await disk.close([])


async def test_a_withdrawal_that_the_disk_refuses_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, stream = opened(tmp_path), stream_of("/s")
    disk.leaving(stream)
    assert await disk.settled()
    with monkeypatch.context() as broken:
        broken.setattr(Index, "drop_stream", refuse)
        broken.setattr(Writer, "_overwrite", refuse)
        disk.withdraw(stream)
        assert not await disk.settled()
    assert await disk.settled()
    await disk.close([])
    disk = opened(tmp_path)
    assert not list(disk.streams())
    await disk.close([])


async def test_a_withdrawal_overtakes_the_writes_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, stream = opened(tmp_path), stream_of("/s")
    disk.leaving(stream)
    assert await disk.settled()
    written: list[tuple[str, int]] = []
    write = Writer._write

    def spied(writer: Writer, job: Write) -> None:
        if not written:
            began.set()
            assert go.wait(20)
        with closing(sqlite3.connect(tmp_path / "index.sqlite")) as database:
            found = database.execute("SELECT count(*) FROM streams WHERE id IN (1, 3)").fetchone()
        written.append((job.key.path, *found))
        write(writer, job)

    monkeypatch.setattr(Writer, "_write", spied)
    began, go = threading.Event(), threading.Event()
    other = stream_of("/t")
    disk.leaving(stream_of("/u"))
    disk.leaving(other)
    assert await asyncio.to_thread(began.wait, 20)
    # The facts of this stream are to be written too.
    other.surrogate_keys = frozenset({"key"})
    disk.leaving(other)
    disk.withdraw(stream)
    disk.withdraw(other)
    disk.leaving(stream_of("/s"))
    go.set()
    assert await disk.settled()
    # The first write was under way.  The withdrawals come next, and the writes of the withdrawn stream are left out.
    assert written[0] == ("/u", 1)
    assert all(found == 0 for _, found in written[1:])
    assert {stored.key.path for stored in disk.streams()} == {"/s", "/u"}
    assert await readable(disk) == sum(len(stored) for stored in disk.streams())
    assert disk.counts.dropped_bytes == 0
    assert repr(disk._writer) == "<Writer 3 segments, 0 withdrawals to record, 0 with jobs in the queue>"
    assert [number for number, _, _ in disk._index.streams()] == [2, 4]
    await disk.close([])
    disk = opened(tmp_path)
    assert {stored.key.path for stored in disk.streams()} == {"/s", "/u"}
    await disk.close([])


@pytest.mark.parametrize("ends", [True, False])
async def test_a_refused_withdrawal_is_tried_again_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """When the writer ends, or when it has nothing to do for a while."""
    disk, stream, dropped = opened(tmp_path), stream_of("/s"), threading.Event()
    disk.leaving(stream)
    assert await disk.settled()
    if not ends:
        monkeypatch.setattr(disk_writer, "PAUSE_S", 0.01)
    drop = Index.drop_stream
    refused: list[int] = []

    def refuse_once(index: Index, number: int) -> None:
        if not refused:
            refused.append(number)
            refuse()
        drop(index, number)
        dropped.set()

    monkeypatch.setattr(Index, "drop_stream", refuse_once)
    # The clock stands still, so the disk stays paused after the failure.
    disk.withdraw(stream)
    if not ends:
        assert await asyncio.to_thread(dropped.wait, 20)
    assert disk._writer.stop(20)
    assert dropped.is_set()
    assert not list(disk._index.streams())
    disk._index.close()


async def test_a_writer_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, disk = Held(monkeypatch), opened(tmp_path)
    disk.leaving(stream_of("/s"))
    assert not disk._writer.stop(0.01)
    held.go.set()
    assert disk._writer.stop(20)


async def test_too_many_runs_delete_one_segment_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = opened(tmp_path)
    for name in "abcdef":
        disk.leaving(stream_of(f"/{name}"))
    assert await disk.settled()
    segments = segments_of(tmp_path)
    runs = sum(len(stored) for stored in disk.streams())
    assert segments > 3
    monkeypatch.setattr(disk_store, "MOST_RUNS", runs)
    held = Held(monkeypatch)
    for name in "gh":
        disk.leaving(stream_of(f"/{name}"))
    held.go.set()
    assert await disk.settled()
    assert segments_of(tmp_path) >= segments
    assert sum(len(stored) for stored in disk.streams()) > runs / 2
    await disk.close([])


async def test_the_stop_waits_no_longer_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, disk = Held(monkeypatch), opened(tmp_path)
    await disk.close([stream_of("/s")], 0.01)
    held.go.set()
    assert await disk.settled()
    await disk.close([])


async def test_of_two_streams_of_one_key_in_the_index_the_latest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has refused to withdraw the earlier one, and the process is killed."""
    clock = ManualClock()
    disk = opened(tmp_path, clock)
    disk.leaving(stream_of("/s"))
    assert await disk.settled()
    with monkeypatch.context() as broken:
        broken.setattr(Index, "drop_stream", refuse)
        disk.withdraw_group(GROUP)
        assert await disk.settled()
        clock.advance(PAUSE_S)
        disk.leaving(stream_of("/s", 50))
        assert await disk.settled()
        await disk.close([])
    disk = opened(tmp_path)
    (stored,) = disk.streams()
    assert await disk.settled()
    assert [number for number, _, _ in disk._index.streams()] == [stored.number] == [2]
    assert await readable(disk) == len(stored)
    disk.withdraw_group(GROUP)
    assert await disk.settled()
    await disk.close([])
    disk = opened(tmp_path)
    assert not list(disk._index.streams())
    await disk.close([])
