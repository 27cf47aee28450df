"""Reads of records.

A record is read on the loop if the kernel has it in memory (`RWF_NOWAIT`), and in a thread otherwise.  Reads of the
same record at the same time are one read.

The disk may hang.  The loop reads only segments that a thread has opened.  After a read that has taken `READ_S`, no
thread reads for `REST_S`, so the other reads ask the origin at once.  The end of the process does not wait for the
threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, NamedTuple

from gateway.aio.clock import Clock, wait_until
from gateway.disk.logger import StoreLog
from gateway.disk.record import Record, decode
from gateway.disk.writer_thread import Place, segment_path

READ_S: Final = 2.0
"""How long a read waits for the disk before it asks the origin."""
REST_S: Final = 30.0
"""How long no thread reads after the disk has not answered."""
MOST_FILES: Final = 64
"""The most segments that are open for reading on the loop."""
_THREADS: Final = 2
_LOOP_BYTES: Final = 1 << 19
"""Larger records are read and checked in a thread."""
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class NotRead(Exception):
    """The record could not be read, which says nothing about the record."""


class _Asked(NamedTuple):
    """A read that a thread has to do."""

    place: Place
    opens: bool
    """Whether to open the segment for the loop."""
    done: Future[Record | None]


class Reads:
    """The reads under way, and the open segments."""

    def __init__(self, folder: Path, clock: Clock, log: StoreLog | None = None) -> None:
        self._log = log or StoreLog()
        self._folder = folder
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._files: dict[int, int] = {}
        """The descriptors of the segments that the loop reads."""
        self._opening: set[int] = set()
        """The segments that threads open for the loop."""
        # A disk that hangs must not take the threads of the loop's other work.
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
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
            reading = self._reading[place] = self._ask_thread(place)
            reading.add_done_callback(lambda done: self._ended(place, done))
        if not await wait_until(reading, self._clock, READ_S):
            self._rest()
        if reading.cancelled() or not reading.done() or reading.exception() is not None:
            raise NotRead
        record: Record | None = reading.result()
        return record

    def _ask_thread(self, place: Place) -> asyncio.Future[Any]:
        if len(self._threads) < _THREADS:
            # The interpreter waits at its end for all threads but daemons.
            thread = threading.Thread(target=self._serve, name="store-reader", daemon=True)
            self._threads.append(thread)
            thread.start()
        segment = place.segment
        opens = _is_for_loop(place) and segment not in self._files and segment not in self._opening
        if opens:
            self._opening.add(segment)
        done: Future[Record | None] = Future()
        self._asked.put(_Asked(place, opens, done))
        return asyncio.wrap_future(done, loop=self._loop)

    def _serve(self) -> None:
        """Read records, in a thread."""
        while (asked := self._asked.get()) is not None:
            path = segment_path(self._folder, asked.place.segment)
            is_wanted = asked.done.set_running_or_notify_cancel()
            found: Record | None = None
            failure: BaseException | None = None
            if is_wanted:
                try:
                    found = _read(path, asked.place)
                except BaseException as error:
                    failure = error
            if asked.opens:
                self._hand_over(asked.place.segment, path if is_wanted else None)
            if is_wanted and failure is not None:
                asked.done.set_exception(failure)
            elif is_wanted:
                asked.done.set_result(found)

    def _hand_over(self, segment: int, path: Path | None) -> None:
        """Open a segment for the loop, in a thread."""
        file = -1
        try:
            if path is not None:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # The segment is gone, or the process has too many open files.
            pass
        try:
            self._loop.call_soon_threadsafe(self._opened, segment, file)
        except RuntimeError:
            # The loop is closed.
            if file >= 0:
                os.close(file)

    def _opened(self, segment: int, file: int) -> None:
        is_expected = segment in self._opening
        self._opening.discard(segment)
        if file < 0:
            return
        if not is_expected:
            # The segment has been deleted meanwhile.
            os.close(file)
            return
        if len(self._files) >= MOST_FILES:
            os.close(self._files.pop(next(iter(self._files))))
        self._files[segment] = file

    def _ended(self, place: Place, reading: asyncio.Future[Any]) -> None:
        self._reading.pop(place, None)
        if not reading.cancelled() and (error := reading.exception()) is not None:
            # For example, the process may have too many open files.
            self._log.warning("the store on disk could not be read: %s", error)

    def _rest(self) -> None:
        """Have no thread read for a while.  Reads that wait for a thread are not done."""
        now = self._clock.now()
        if now >= self._resume_at:
            self._resume_at = now + REST_S
            self._log.error("the store on disk does not answer reads, and is not read for %g s", REST_S)
        for reading in tuple(self._reading.values()):
            reading.cancel()

    def _cached(self, place: Place) -> bytearray | None:
        """Read a record without waiting.  Returns None if a thread has to read it."""
        file = self._files.get(place.segment)
        if file is None or not _is_for_loop(place):
            return None
        try:
            data = bytearray(place.size)
            if os.preadv(file, [data], place.position, _NOWAIT) < place.size:
                return None
        except OSError:
            # The bytes are not in the kernel's memory, or this kind of file system cannot tell.
            return None
        return data

    def forget(self, segment: int) -> None:
        """Close a segment that is being deleted."""
        self._opening.discard(segment)
        if (file := self._files.pop(segment, None)) is not None:
            os.close(file)

    def close(self) -> None:
        """Close all segments, and end the threads after their present reads, without waiting for them."""
        for reading in tuple(self._reading.values()):
            reading.cancel()
        for _ in self._threads:
            self._asked.put(None)
        self._threads.clear()
        for segment in [*self._opening, *self._files]:
            self.forget(segment)


def _is_for_loop(place: Place) -> bool:
    """Return whether the loop may read this record."""
    return bool(_NOWAIT) and place.size <= _LOOP_BYTES


def _read(path: Path, place: Place) -> Record | None:
    """Read a record, in a thread.  Returns None if it is damaged or gone.  Raises OSError."""
    try:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), place.size, place.position)
    except FileNotFoundError:
        return None
    return decode(data)
