"""Reads of records.

A record is read on the loop if it is in the kernel's page cache (`RWF_NOWAIT`).  Otherwise a thread reads it.
Concurrent reads of the same record by threads share one read.

The disk may hang.  The loop therefore reads only segments that a thread has opened.  If a read takes longer than
`READ_S`, no new read by a thread begins for `REST_S`.  During this time, requests for such records go to the origin at
once.  The process does not wait for the threads when it exits.
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
"""The maximum number of seconds that a read waits for the disk.  After that, the bytes are fetched from the origin."""
REST_S: Final = 30.0
"""The seconds for which no new read by a thread begins after a read has taken longer than `READ_S`."""
MOST_FILES: Final = 64
"""The maximum number of segments that are open for reads on the loop."""
_THREADS: Final = 2
_LOOP_BYTES: Final = 1 << 19
"""Larger records are read and checked in a thread."""
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)


class NotRead(Exception):
    """The record could not be read.  The record itself may be good."""


class _Asked(NamedTuple):
    """A read for a thread."""

    place: Place
    opens: bool
    """Whether the thread also opens the segment for the loop."""
    done: Future[Record | None]


class Reads:
    """The reads in progress, and the open segments."""

    def __init__(self, folder: Path, clock: Clock, log: StoreLog | None = None) -> None:
        self._log = log or StoreLog()
        self._folder = folder
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._files: dict[int, int] = {}
        """The descriptors of the segments that the loop reads."""
        self._opening: set[int] = set()
        """The segments that threads are opening for the loop."""
        # Do not use the loop's default executor: a disk that hangs would block its threads, which have other work too.
        self._threads: list[threading.Thread] = []
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._reading: dict[Place, asyncio.Future[Any]] = {}
        self._resume_at = 0.0

    def __repr__(self) -> str:
        return f"<Reads {len(self._reading)} under way, {len(self._files)} files>"

    async def read(self, place: Place) -> Record | None:
        """Return the record at a place; None if it is damaged or its segment was deleted.  Raises NotRead."""
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
            # At its exit, the interpreter waits for all threads except daemon threads.
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
        """Read records until `close`.  Runs in a thread."""
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
        """Open a segment, and pass its descriptor to the loop.  Runs in a thread.

        Passes -1 if `path` is None, or if the segment cannot be opened.
        """
        file = -1
        try:
            if path is not None:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # The segment was deleted, or the process has too many open files.
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
            # The segment was deleted, or `close` was called, while the thread opened the segment.
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
        """Begin no new read by a thread for `REST_S`, and cancel all reads in progress."""
        now = self._clock.now()
        if now >= self._resume_at:
            self._resume_at = now + REST_S
            self._log.error("the store on disk does not answer reads, and is not read for %g s", REST_S)
        for reading in tuple(self._reading.values()):
            reading.cancel()

    def _cached(self, place: Place) -> bytearray | None:
        """Read a record without waiting for the disk.  Returns None if a thread must read the record."""
        file = self._files.get(place.segment)
        if file is None or not _is_for_loop(place):
            return None
        try:
            data = bytearray(place.size)
            if os.preadv(file, [data], place.position, _NOWAIT) < place.size:
                return None
        except OSError:
            # The bytes are not in the page cache, or the file system does not support `RWF_NOWAIT`.
            return None
        return data

    def forget(self, segment: int) -> None:
        """Close a segment that is being deleted."""
        self._opening.discard(segment)
        if (file := self._files.pop(segment, None)) is not None:
            os.close(file)

    def close(self) -> None:
        """Cancel all reads, and close all segments.  The threads end after their current reads.  This method does not
        wait for them."""
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
    """Read a record.  Runs in a thread.  Returns None if the record is damaged or its segment was deleted.  Raises
    OSError."""
    try:
        with path.open("rb", buffering=0) as file:
            data = os.pread(file.fileno(), place.size, place.position)
    except FileNotFoundError:
        return None
    return decode(data)
