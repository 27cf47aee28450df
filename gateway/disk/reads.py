"""Reads of records.

A record is read on the loop if the kernel has it in memory (`RWF_NOWAIT`), and in a thread otherwise.  Reads of the
same record at the same time are one read.

The disk may hang.  After a read that has taken `READ_S`, no thread reads for `REST_S`, so the other reads ask the
origin at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from gateway.aio.clock import Clock, wait_until
from gateway.disk.record import Record, decode
from gateway.disk.writer import Place, segment_path

_log = logging.getLogger("gateway.store")

READ_S: Final = 2.0
"""How long a read waits for the disk before it asks the origin."""
REST_S: Final = 30.0
"""How long no thread reads after the disk has not answered."""
MOST_FILES: Final = 64
"""The most segments that are open for reading on the loop."""
_LOOP_BYTES: Final = 1 << 19
"""Larger records are read and checked in a thread."""
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class NotRead(Exception):
    """The record could not be read, which says nothing about the record."""


class Reads:
    """The reads under way, and the open segments."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._files: dict[int, int] = {}
        """The descriptors of segments that the loop has read."""
        # A disk that hangs must not take the threads of the loop's other work.
        self._threads = ThreadPoolExecutor(2, "store-reader")
        self._reading: dict[Place, asyncio.Future[Any]] = {}
        self._resume_at = 0.0

    def __repr__(self) -> str:
        return f"<Reads {len(self._reading)} under way, {len(self._files)} files>"

    async def read(self, place: Place) -> Record | None:
        """Return the record at a place; None if it is damaged or gone.  Raises NotRead."""
        data = self._cached(place)
        if data is not None:
            return decode(data)
        reading = self._reading.get(place)
        if reading is None:
            if self._clock.now() < self._resume_at:
                raise NotRead
            path = segment_path(self._folder, place.segment)
            reading = asyncio.get_running_loop().run_in_executor(self._threads, _read, path, place)
            self._reading[place] = reading
            reading.add_done_callback(lambda done: self._ended(place, done))
        if not await wait_until(reading, self._clock, READ_S):
            self._rest()
        if reading.cancelled() or not reading.done() or reading.exception() is not None:
            raise NotRead
        record: Record | None = reading.result()
        return record

    def _ended(self, place: Place, reading: asyncio.Future[Any]) -> None:
        self._reading.pop(place, None)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            # For example, the process may have too many open files.
            _log.warning("the store on disk could not be read: %s", error)

    def _rest(self) -> None:
        """Have no thread read for a while.  Reads that wait for a thread are not done."""
        now = self._clock.now()
        if now >= self._resume_at:
            self._resume_at = now + REST_S
            _log.error("the store on disk does not answer reads, and is not read for %g s", REST_S)
        for reading in tuple(self._reading.values()):
            reading.cancel()

    def _cached(self, place: Place) -> bytearray | None:
        """Read a record without waiting.  Returns None if a thread has to read it."""
        if not _NOWAIT or place.size > _LOOP_BYTES:
            return None
        try:
            file = self._files.get(place.segment)
            if file is None:
                if len(self._files) >= MOST_FILES:
                    os.close(self._files.pop(next(iter(self._files))))
                path = segment_path(self._folder, place.segment)
                file = self._files[place.segment] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            data = bytearray(place.size)
            if os.preadv(file, [data], place.position, _NOWAIT) < place.size:
                return None
        except OSError:
            # The bytes are not in the kernel's memory, or this kind of file system cannot tell.
            return None
        return data

    def forget(self, segment: int) -> None:
        """Close a segment that is being deleted."""
        if (file := self._files.pop(segment, None)) is not None:
            os.close(file)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for segment in tuple(self._files):
            self.forget(segment)


def _read(path: Path, place: Place) -> Record | None:
    """Read a record, in a thread.  Returns None if it is damaged or gone.  Raises OSError."""
    try:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), place.size, place.position)
    except FileNotFoundError:
        return None
    return decode(data)
