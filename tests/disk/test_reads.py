"""Reads of records in threads: equal ones are one read, and a disk that hangs is left alone for a while."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.aio.clock import ManualClock
from gateway.disk import reads as disk_reads
from gateway.disk.reads import READ_S, REST_S, NotRead, Reads
from gateway.disk.record import Record
from gateway.disk.writer import Place
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
    reads.close()


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
