"""The writer: the only thread that writes the segment files and the index of the store on disk.

The loop decides which runs are written (`gateway.disk.store`).  The writer appends their records to segments.  When the
store is full, the writer deletes the oldest segment.  It adds a run to the index only after the run's record is in a
segment.  Commits of the index are synced, but segments are not.  A crash of the machine may therefore lose or damage
the latest records.  Their checksums show this damage.

A process never appends to a segment of an earlier process, because the last record of that segment may be incomplete.

If a write fails, for example because the disk is full, the writer drops all further writes for `PAUSE_S`.  Then it
writes again.  Withdrawals are never dropped, and are done before the writes in the queue.  If the index cannot record a
withdrawal, the writer overwrites the heads of the stream's records, which needs no space.  The writer then repeats the
change of the index after later jobs.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, assert_never

from gateway.config.store import StoreConfig
from gateway.disk.index import Facts, Index, RunRow, StoredKey
from gateway.disk.logger import StoreLog
from gateway.disk.record import encode
from gateway.tape.block import Block

PAUSE_S: Final = 30.0
"""The seconds for which writes are dropped after a failed write."""
_MOST_JOBS: Final = 64
"""The maximum number of jobs in one transaction of the index."""
_MOST_WITHDRAWALS: Final = 1_000
"""The maximum number of streams that are withdrawn in one transaction."""
_SPOILED: Final = bytes(16)
"""The bytes that overwrite the beginning of a withdrawn record, so that the record cannot be decoded."""


class Place(NamedTuple):
    """The location of a record: its segment, its position there, and its size in bytes."""

    segment: int
    position: int
    size: int


class Write(NamedTuple):
    """Write a run."""

    stream: int
    key: StoredKey
    facts: Facts
    check: str
    written_at: float
    block: Block
    done: Callable[[Place | None], object]
    """Called on the loop with the place of the record, or with None if the record was not written."""


class Describe(NamedTuple):
    """Record the current metadata of a stream."""

    stream: int
    key: StoredKey
    facts: Facts


class Withdraw(NamedTuple):
    """Drop a stream.  `places` are the known places of its records."""

    stream: int
    places: Sequence[Place]


class DropRun(NamedTuple):
    """Drop a damaged run."""

    place: Place


class DropOldest(NamedTuple):
    """Delete the oldest segment, then call `done` on the loop."""

    done: Callable[[], object]


class Finish(NamedTuple):
    """Commit everything before this job, then call `done` on the loop."""

    done: Callable[[bool], object]
    """Its argument states whether all withdrawals so far would survive a crash."""


class Work(NamedTuple):
    """Do other work on the folder or the index, for example set a mark.  A failure counts as a failed write."""

    work: Callable[[Index], None]


class Stop(NamedTuple):
    """End the thread."""


@dataclass(slots=True)
class _Withdrawal:
    """A withdrawn stream that is still in the index."""

    places: set[Place]
    """The known places of its records that are not overwritten yet."""
    is_complete: bool = False
    """Whether the places of all its records are known."""

    @property
    def is_readable(self) -> bool:
        """Whether a later process could read bytes of the stream."""
        return bool(self.places) or not self.is_complete


Job = Write | Describe | Withdraw | DropRun | DropOldest | Finish | Work | Stop


def segment_path(folder: Path, segment: int) -> Path:
    """Return the path of a segment file."""
    return folder / f"{segment:08d}.segment"


class Writer:
    """The thread and its state.  After `start`, only the thread uses the state."""

    def __init__(
        self,
        folder: Path,
        index: Index,
        sizes: dict[int, int],
        following: int,
        config: StoreConfig,
        now: Callable[[], float],
        log: StoreLog,
    ) -> None:
        """`sizes` are the sizes of the existing segments by number, and `following` is the number of the next segment.
        `now` returns monotonic seconds."""
        self._folder = folder
        self._index = index
        self._sizes = sizes
        self._max_bytes = config.max_bytes
        self._segment_bytes = config.segment_bytes
        self._now = now
        self._log = log
        self.total_bytes = sum(sizes.values())
        """The bytes in all segments.  Other threads may read it."""
        self.errors = 0
        """The number of failed writes.  Other threads may read it."""
        self._next = following
        self._file = -1
        self._resume_at = 0.0
        self._is_failing = False
        self._uncommitted: list[tuple[int, Place]] = []
        """The records written since the last commit, with the numbers of their streams."""
        self._withdrawn: dict[int, _Withdrawal] = {}
        """The withdrawn streams that are still in the index, by number."""
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._urgent: deque[Withdraw] = deque()
        """The withdrawals that are not done yet.  Each is also in `_jobs`, where it is the last job of its stream."""
        self._overtaken: set[int] = set()
        """The numbers of withdrawn streams that may still have jobs in the queue.  The writer skips these jobs."""
        self._thread = threading.Thread(target=self._run, name="store", daemon=True)
        self.tell: Callable[[Callable[[], object]], None] = lambda event: None
        """Runs a function on the loop.  The owner sets it before `start`."""
        self.segment_dropped: Callable[[int], object] = lambda segment: None
        """Called on the loop before a segment file is deleted."""
        if self.total_bytes > self._max_bytes:
            # The limit was lowered, or is now divided among more workers.
            self.put(Work(lambda index: self._shrink(0)))

    def __repr__(self) -> str:
        counts = f"{len(self._withdrawn)} withdrawals to record, {len(self._overtaken)} with jobs in the queue"
        return f"<Writer {len(self._sizes)} segments, {counts}>"

    def start(self) -> None:
        self._thread.start()

    @property
    def is_paused(self) -> bool:
        """Whether writes are dropped, because a write has failed less than `PAUSE_S` ago.  Other threads may read
        it."""
        return self._is_failing and self._now() < self._resume_at

    def put(self, job: Job) -> None:
        """Add a job, which the thread does after all earlier jobs.  The thread does a withdrawal before all other jobs
        in the queue.  No other job of a stream may follow the withdrawal of this stream."""
        if isinstance(job, Withdraw):
            self._urgent.append(job)
        self._jobs.put(job)

    def stop(self, within_s: float) -> bool:
        """End the thread after all earlier jobs.  Returns whether the thread has ended within `within_s` seconds."""
        self._jobs.put(Stop())
        self._thread.join(within_s)
        if self._thread.is_alive():
            return False
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        return True

    def _run(self) -> None:
        jobs = 0
        while True:
            try:
                job = self._jobs.get(timeout=PAUSE_S if self._withdrawn else None)
            except queue.Empty:
                self._withdraw_again()
                continue
            self._withdraw_urgent()
            if isinstance(job, Stop):
                self._commit()
                self._withdraw_again()
                if any(one.is_readable for one in self._withdrawn.values()):
                    self._log.error(
                        "the store on disk has not recorded all withdrawals: purge it, or delete its folder"
                    )
                break
            self._do(job)
            jobs += 1
            if self._jobs.empty() or jobs >= _MOST_JOBS:
                self._commit()
                jobs = 0
                if not self.is_paused:
                    self._withdraw_again()

    def _withdraw_urgent(self) -> None:
        """Do all withdrawals in `_urgent`."""
        while count := min(len(self._urgent), _MOST_WITHDRAWALS):
            withdrawals = [self._urgent.popleft() for _ in range(count)]
            self._overtaken.update(job.stream for job in withdrawals)
            self._withdraw(withdrawals)

    def _do(self, job: Write | Describe | Withdraw | DropRun | DropOldest | Finish | Work) -> None:
        match job:
            case Write():
                self._write(job)
            case Describe(stream, key, facts):
                if stream not in self._overtaken:
                    self._change(lambda index: index.put_stream(stream, key, facts))
            case Withdraw(stream):
                # The stream was already withdrawn as an urgent job, and no further job of this stream follows.
                self._overtaken.discard(stream)
            case DropRun(place):
                self._change(lambda index: index.drop_run(place.segment, place.position))
            case DropOldest(done):
                self._try(self._drop_oldest)
                self.tell(done)
            case Work(work):
                self._change(work)
            case Finish(finished):
                self._commit()
                self._withdraw_again()
                is_withdrawn = not any(one.is_readable for one in self._withdrawn.values())
                self.tell(lambda: finished(is_withdrawn))
            case _:
                assert_never(job)

    def _write(self, job: Write) -> None:
        place: Place | None = None
        if not self.is_paused and job.stream not in self._overtaken:

            def write() -> None:
                nonlocal place
                found = self._append(b"".join(encode(job.key.owner_in(self._index.store), job.written_at, job.block)))
                self._index.begin()
                self._index.put_stream(job.stream, job.key, job.facts)
                block = job.block
                self._uncommitted.append((job.stream, found))
                self._index.put_run(RunRow(job.stream, block.start, block.end, job.check, block.size, *found))
                place = found

            if self._try(write) and self._is_failing:
                self._is_failing = False
                self._log.warning("the store on disk is written again")
        self.tell(lambda: job.done(place))

    def _append(self, data: bytes) -> Place:
        """Append a record to the current segment, or to a new one.  Raises OSError, sqlite3.Error."""
        segment = self._next - 1
        if self._file < 0 or self._sizes[segment] + len(data) > self._segment_bytes:
            segment = self._open_segment()
        self._shrink(len(data))
        position = written = self._sizes[segment]
        try:
            view = memoryview(data)
            while view:
                count = os.pwrite(self._file, view, written)
                written += count
                view = view[count:]
        except OSError:
            os.ftruncate(self._file, position)
            raise
        self._sizes[segment] = written
        self.total_bytes += len(data)
        return Place(segment, position, len(data))

    def _shrink(self, size: int) -> None:
        """Delete the oldest segments until the store has room for `size` more bytes.  Raises OSError, sqlite3.Error."""
        while self.total_bytes + size > self._max_bytes and len(self._sizes) > 1:
            self._drop_oldest()

    def _open_segment(self) -> int:
        segment = self._next
        file = os.open(segment_path(self._folder, segment), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file, self._next = file, segment + 1
        self._sizes[segment] = 0
        return segment

    def _drop_oldest(self) -> None:
        segment = min(self._sizes, default=None)
        if segment is None or (segment == self._next - 1 and self._file >= 0):
            return
        self._index.begin()
        self._index.drop_segment(segment)
        self._index.commit()
        self.tell(lambda: self.segment_dropped(segment))
        segment_path(self._folder, segment).unlink(missing_ok=True)
        self.total_bytes -= self._sizes.pop(segment)

    def _withdraw(self, jobs: Sequence[Withdraw]) -> None:
        # Withdrawals have their own transaction, so that the failure of another job cannot undo them.
        uncommitted = list(self._uncommitted)
        self._commit()
        for job in jobs:
            self._withdrawn[job.stream] = _Withdrawal(set(job.places))
        for stream, place in uncommitted:
            if stream in self._withdrawn:
                self._withdrawn[stream].places.add(place)
        self._withdraw_again()

    def _withdraw_again(self) -> None:
        """Drop the withdrawn streams that are still in the index.  If that fails, overwrite their records."""
        if not self._withdrawn:
            return

        def drop(index: Index) -> None:
            for stream in self._withdrawn:
                index.drop_stream(stream)

        if self._change(drop) and self._commit():
            self._withdrawn.clear()
            return
        for stream, withdrawal in self._withdrawn.items():
            if not withdrawal.is_complete:
                withdrawal.is_complete = self._try(partial(self._complete, stream, withdrawal))
            for place in tuple(withdrawal.places):
                if self._try(partial(self._overwrite, place)):
                    withdrawal.places.discard(place)

    def _complete(self, stream: int, withdrawal: _Withdrawal) -> None:
        """Add the places of the stream's runs in the index.  A run whose write was in the queue at the time of the
        withdrawal has a place only there.  Raises sqlite3.Error."""
        withdrawal.places.update(map(Place._make, self._index.places(stream)))

    def _overwrite(self, place: Place) -> None:
        """Overwrite the head of a record.  Raises OSError."""
        try:
            with segment_path(self._folder, place.segment).open("r+b", buffering=0) as file:
                file.seek(place.position)
                file.write(_SPOILED)
                os.fsync(file.fileno())
        except FileNotFoundError:
            # The segment was deleted, so the record does not exist any more.
            return

    def _change(self, change: Callable[[Index], None]) -> bool:
        """Change the index in a transaction, without a commit; return whether that succeeded."""

        def begun() -> None:
            self._index.begin()
            change(self._index)

        return self._try(begun)

    def _commit(self) -> bool:
        is_committed = self._try(self._index.commit)
        if is_committed:
            self._uncommitted.clear()
        return is_committed

    def _try(self, work: Callable[[], None]) -> bool:
        """Do the work; return whether it succeeded."""
        try:
            work()
        except Exception as error:
            # The thread must continue after every error.
            self._failed(error)
            return False
        return True

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        self._resume_at = self._now() + PAUSE_S
        if not self._is_failing:
            self._is_failing = True
            self._log.error("the store on disk is not written for now: %s", error)
        if isinstance(error, OSError):
            # A file operation has failed, so the uncommitted changes of the index are still valid.
            return
        try:
            self._index.roll_back()
        except sqlite3.Error:
            self._log.exception("the index of the store on disk could not undo a change")
