"""Reads of records in threads: equal ones are one read, and a disk that hangs is left alone for a while."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.disk import reads as disk_reads
from gateway.disk.reads import READ_S, REST_S, NotRead, Reads
from gateway.disk.record import Record, encode
from gateway.disk.writer_thread import Place, segment_path
from gateway.tape.block import Block

RECORD = Record("owner", 1.0, Block("1", "2", [b"x"], False, 0.0))


class Disk:
    """Answers reads once it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked: list[Place] = []

    def read(self, _: Path, place: Place) -> Record | None:
        self.asked.append(place)
        assert self.go.wait(20)
        return RECORD


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(disk_reads, "_NOWAIT", 0)
    monkeypatch.setattr(disk_reads, "_read", disk.read)
    return disk


async def test_reads_of_one_record_are_one_read(disk: Disk, tmp_path: Path) -> None:
    reads = Reads(tmp_path, ManualClock())
    asking = [asyncio.create_task(reads.read(Place(1, 0, 9))) for _ in range(20)]
    await asyncio.sleep(0)
    disk.go.set()
    assert await asyncio.gather(*asking) == [RECORD] * 20
    assert disk.asked == [Place(1, 0, 9)]
    assert await reads.read(Place(1, 0, 9)) is RECORD
    # A read is forgotten at its end, so it keeps no memory, and the next read asks the disk.
    assert repr(reads) == "<Reads 0 under way, 0 files>"
    assert len(disk.asked) == 2
    reads.close()


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_the_loop_reads_a_segment_that_a_thread_has_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_deleted: bool
) -> None:
    segment_path(tmp_path, 1).write_bytes(b"".join(encode("owner", 1.0, RECORD.block)))
    place = Place(1, 0, segment_path(tmp_path, 1).stat().st_size)
    opened, open_file = [], os.open
    reads = Reads(tmp_path, ManualClock())

    def spied(*args: Any, **kwargs: Any) -> int:
        opened.append(threading.current_thread().name)
        if is_deleted:
            reads.forget(1)
        return open_file(*args, **kwargs)

    monkeypatch.setattr("os.open", spied)
    for _ in range(3):
        found = await reads.read(place)
        assert found is not None
        assert found.owner == "owner"
    assert "store-reader" in opened
    assert threading.current_thread().name not in opened
    # The thread's descriptor of a segment that is deleted meanwhile is not kept.
    assert repr(reads) == f"<Reads 0 under way, {0 if is_deleted else 1} files>"
    reads.close()


async def test_a_segment_that_is_gone_is_damage(tmp_path: Path) -> None:
    reads = Reads(tmp_path, ManualClock())
    assert await reads.read(Place(1, 0, 9)) is None
    reads.close()


async def test_the_end_of_the_process_does_not_wait_for_a_read(disk: Disk, tmp_path: Path) -> None:
    reads = Reads(tmp_path, ManualClock())
    asking = asyncio.create_task(reads.read(Place(1, 0, 9)))
    await asyncio.sleep(0)
    assert all(one.daemon for one in threading.enumerate() if one.name == "store-reader")
    reads.close()
    with pytest.raises(NotRead):
        await asking
    disk.go.set()


async def test_a_disk_that_hangs_is_not_asked_for_a_while(
    disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    reads = Reads(tmp_path, clock)
    asking = [asyncio.create_task(reads.read(Place(1, number, 9))) for number in range(20)]
    await asyncio.sleep(0)
    clock.advance(READ_S)
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(one, NotRead) for one in found)
    assert len(caplog.records) == 1
    with pytest.raises(NotRead):
        await reads.read(Place(2, 0, 9))
    disk.go.set()
    clock.advance(REST_S)
    assert await reads.read(Place(2, 0, 9)) is RECORD
    # Reads that were still waiting for a thread have not been done.
    assert len(disk.asked) <= 3
    reads.close()
