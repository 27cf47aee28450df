"""Withdrawals: whatever fails, a withdrawn stream is not readable after a restart, or the store says so."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.store import StoreConfig
from gateway.disk import store as disk_store
from gateway.disk.index import Index
from gateway.disk.runs import Run
from gateway.disk.store import DiskStore
from gateway.disk.writer import PAUSE_S, Writer
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
    assert [stored.number for stored in disk.streams()] == [2]
    assert await readable(disk) == len(stored)
    disk.withdraw_group(GROUP)
    assert await disk.settled()
    await disk.close([])
    disk = opened(tmp_path)
    assert not list(disk._index.streams())
    await disk.close([])
