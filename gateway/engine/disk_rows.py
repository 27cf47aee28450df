"""Applies the removals of the other workers to a worker's store on disk.

A worker applies the other workers' writes when it next uses a path (`gateway.engine.others_writes`).  The store on disk
needs more, because the worker may die before it next uses the path.  Purged bytes must not be served again after that.
So each worker makes *passes* over the *rows* (paths with equal hashes) that it has on disk.  A pass begins when new
removals have been counted in shared memory (`gateway.workers.removals`), and may take several turns of the loop.  For
each row with new removals, the worker applies the records of the write log.  When the disk has recorded the result, the
worker notes in shared memory that its disk has done these removals.

All rows of a store that was just opened are *unchecked*.  A row is checked before one of its streams is used, or in the
first pass.  The check compares the number of removals that have ended with the number that the disk had done when the
previous worker ended.  If the numbers differ, or if a removal is under way, all streams of the row are dropped, because
the records of these removals may be lost.  The only cost is that the streams are fetched again.

When the store is opened, all streams are dropped if the disk has not done all purges.  Later, all streams are dropped
if a purge has ended that this worker has not carried out, because the worker hung or was not asked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from gateway.disk.index import Holder
from gateway.protocol.sharing import Group
from gateway.workers.removals import Removals

ROWS_IN_A_TURN: Final = 4_096
"""The maximum number of rows visited in one turn of the loop.  This many rows take about 3 ms."""
_CHECK_COST: Final = 8
"""The check of one row takes as long as visits to this many checked rows."""


class KeptPaths(Protocol):
    """The store on disk: `gateway.disk.store.DiskStore`."""

    def withdraw_group(self, group: Group) -> None: ...

    def when_done(self, done: Callable[[bool], object], holder: Holder | None) -> None: ...


class DiskRows:
    """The rows on disk, and the removals that the disk has done."""

    def __init__(
        self,
        disk: KeptPaths,
        rows: Mapping[int, set[Group]],
        removals: Removals,
        row_of: Callable[[Group], int],
        look_at_row: Callable[[int], object],
        holder: Holder | None,
    ) -> None:
        """`rows` are the paths on disk, by row.  `look_at_row` applies the other workers' records of a row.  `holder`
        is the previous worker of the store; None if its counts are not in this shared memory."""
        self._disk = disk
        self._removals = removals
        self._row_of = row_of
        self._look_at_row = look_at_row
        self._paths: dict[int, set[Group]] = dict(rows)
        self._unchecked: set[int] = set(rows)
        base = removals.place if holder is None else removals.place_of(holder.tenure)
        self._base = removals.place if base is None else base
        """The place in shared memory whose counts state which removals this disk has done."""
        self._applied: dict[int, bytes] = {}
        """For each row, the counts of the removals that have been applied to the store (`Removals.cells`)."""
        self._undone: dict[int, int] = {}
        """The rows whose removals were applied but are not noted as done yet.  The values are the numbers of ended
        removals."""
        self._queue: deque[int] = deque()
        """The rows that the current pass has not visited yet."""
        self._pass: tuple[int, int] | None = None
        """The counts of removals and purges at the beginning of the latest pass; None before the first."""
        self._is_waiting = False
        """Whether the disk has not recorded the latest changes yet."""
        self._needs_note = True
        """Whether the end of the latest pass is not noted yet."""
        purges = removals.purges
        self._purges = purges.ended
        """The number of purges that this worker has carried out or is expected to carry out.  If more purges have
        ended, this worker has missed one."""
        if base is None or purges.under_way or purges.ended != removals.done_purges(base):
            # Without a base, a version that used the store has ended, and a later one, which did not, has its place.
            self.drop_all()

    def __repr__(self) -> str:
        return f"<DiskRows {len(self._paths)} rows, {len(self._unchecked)} unchecked, {len(self._queue)} to visit>"

    @property
    def is_settled(self) -> bool:
        """Whether all removals that have ended are noted as done."""
        return not (self._queue or self._is_waiting or self._needs_note) and self._counts() == self._pass

    def in_row(self, row: int) -> Collection[Group]:
        """Return the paths of a row that may be on disk."""
        return tuple(self._paths.get(row, ()))

    def is_unchecked(self, group: Group) -> bool:
        """Return whether the row of a path has not been checked yet."""
        return bool(self._unchecked) and self._row_of(group) in self._unchecked

    def check(self, group: Group) -> None:
        """Drop a path's streams on disk if the disk has missed a removal.  Must be called before one of these streams
        is used."""
        if self.is_unchecked(group):
            self._check(self._row_of(group))

    def path_added(self, group: Group) -> None:
        """Note that a stream of a path is now on disk."""
        row = self._row_of(group)
        paths = self._paths.get(row)
        if paths is None:
            self._paths[row] = {group}
            self._queue.append(row)
            self._needs_note = True
        else:
            paths.add(group)

    def path_removed(self, group: Group) -> None:
        """Note that the last stream of a path has been removed from disk."""
        row = self._row_of(group)
        if (paths := self._paths.get(row)) is not None:
            paths.discard(group)
            if not paths:
                del self._paths[row]
                self._applied.pop(row, None)
                # No pass visits a row that is not on disk.
                self._unchecked.discard(row)

    def purged(self) -> None:
        """Note that this worker has carried out a purge.  Must be called before the purge is counted as ended.

        Other purges that are under way are expected to reach this worker too.
        """
        purges = self._removals.purges
        self._look_at_purges(purges.ended)
        self._purges = max(self._purges, purges.ended + purges.under_way)

    def step(self, most: int = ROWS_IN_A_TURN) -> None:
        """Visit the next rows, and tell the disk to record the changes.  Begins a pass if removals have ended since the
        latest pass."""
        counts = self._counts()
        self._look_at_purges(counts[1])
        if self._is_waiting:
            return
        if not self._queue and counts != self._pass:
            self._pass, self._needs_note = counts, True
            self._queue.extend(self._paths)
        while self._queue and most > 0:
            row = self._queue.popleft()
            most -= _CHECK_COST if row in self._unchecked else 1
            self._visit(row)
        if self._undone or (self._needs_note and not self._queue):
            self._record()

    def note_again(self) -> None:
        """Let the next step note the end of the latest pass again, even if nothing has changed since that pass."""
        self._needs_note = True

    def _counts(self) -> tuple[int, int]:
        return self._removals.total.ended, self._removals.purges.ended

    def _visit(self, row: int) -> None:
        if row in self._unchecked:
            self._check(row)
        elif row in self._paths and (cells := self._removals.cells(row)) != self._applied.get(row):
            ended = self._removals.of(row).ended
            # The record of each ended removal is already in the write log.
            self._look_at_row(row)
            self._note(row, cells, ended)

    def _check(self, row: int) -> None:
        self._unchecked.discard(row)
        # Apply the records before reading the counts.  Each removal with such a record is counted by then, as ended or
        # as under way.
        self._look_at_row(row)
        cells, found = self._removals.cells(row), self._removals.of(row)
        if found.under_way or found.ended != self._removals.done(row, self._base):
            self._drop(row)
        self._note(row, cells, found.ended)

    def _look_at_purges(self, ended: int) -> None:
        """Drop all streams if a purge has ended that this worker has not carried out."""
        if ended > self._purges:
            self._purges = ended
            self.drop_all()

    def drop_all(self) -> None:
        """Drop all streams."""
        for row in tuple(self._paths):
            self._drop(row)

    def _drop(self, row: int) -> None:
        for group in self.in_row(row):
            self._disk.withdraw_group(group)

    def _note(self, row: int, cells: bytes, ended: int) -> None:
        self._undone[row] = ended
        if row in self._paths:
            self._applied[row] = cells

    def _record(self) -> None:
        undone, self._undone = self._undone, {}
        counts = self._pass if not self._queue and not self._unchecked else None
        holder = Holder(self._removals.memory, self._removals.tenure) if counts is not None else None
        self._is_waiting = True

        def done(is_done: bool) -> None:
            self._is_waiting = False
            if not is_done:
                self._undone = {**undone, **self._undone}
                return
            for row, ended in undone.items():
                if self._removals.done(row, self._removals.place) != ended:
                    self._removals.set_done(row, ended)
            if counts is not None and holder is not None:
                self._removals.set_all_done(*counts)
                self._base = self._removals.place
                self._needs_note = bool(self._queue)

        self._disk.when_done(done, holder)
