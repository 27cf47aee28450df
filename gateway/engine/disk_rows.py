"""Keeps a worker's store on disk in step with the removals of the other workers.

A worker applies the other workers' writes when it next uses a path (`gateway.engine.others_writes`).  For the store on
disk that is not enough: the worker may die before that, and a purge must not come back.  So each worker also goes over
the *rows* (paths with equal hashes) that it has on disk, as soon as removals have been counted in shared memory
(`gateway.workers.removals`).  For a row with new removals it applies the records of the write log.  When the disk has
recorded the result, the worker notes in shared memory that its disk has done these removals.

A store that was just opened has *unchecked* rows.  A row is checked before a stream of it is used, or in the first
pass.  If removals have been counted that the disk had not done when the earlier worker ended, all streams of the row
are dropped: the records may be lost, and a stream that is fetched again costs requests and nothing else.  A purge that
the disk has not done drops all streams, and so does a purge that ends without having reached this worker, because the
worker hung or was not asked.

A pass may take several turns of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from gateway.disk.index import Holder
from gateway.protocol.sharing import Group
from gateway.workers.removals import Removals

ROWS_IN_A_TURN: Final = 4_096
"""The most rows of a turn of the loop, which take some 3 ms."""
_CHECK_COST: Final = 8
"""To check a row takes as long as to visit so many other rows."""


class KeptPaths(Protocol):
    """The store on disk: `gateway.disk.store.DiskStore`."""

    def withdraw_group(self, group: Group) -> None: ...

    def when_done(self, done: Callable[[bool], object], holder: Holder | None) -> None: ...


class DiskRows:
    """The rows on disk, and which removals the disk has done."""

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
        is the worker that has used the store before, if it counted in the same memory."""
        self._disk = disk
        self._removals = removals
        self._row_of = row_of
        self._look_at_row = look_at_row
        self._paths: dict[int, set[Group]] = dict(rows)
        self._unchecked: set[int] = set(rows)
        self._base = holder.place if holder is not None else removals.place
        """The place whose disk has done what this store knows."""
        self._applied: dict[int, bytes] = {}
        """For each row, the counts of the removals that have been applied to the store (`Removals.cells`)."""
        self._undone: dict[int, int] = {}
        """The rows whose removals were applied since they were last noted as done."""
        self._queue: deque[int] = deque()
        """The rows that the present pass has yet to visit."""
        self._pass: tuple[int, int] | None = None
        """The counts of removals and purges at the beginning of the latest pass; None before the first."""
        self._is_waiting = False
        """Whether the disk has yet to record the latest changes."""
        self._needs_note = True
        """Whether the end of the latest pass has yet to be noted."""
        purges = removals.purges
        self._purges = purges.ended
        """How many purges may have ended without any that this worker has missed."""
        if purges.under_way or purges.ended != removals.done_purges(self._base):
            self.drop_all()

    def __repr__(self) -> str:
        return f"<DiskRows {len(self._paths)} rows, {len(self._unchecked)} unchecked, {len(self._queue)} to visit>"

    @property
    def is_settled(self) -> bool:
        """Whether all removals so far are noted as done."""
        return not (self._queue or self._is_waiting or self._needs_note) and self._counts() == self._pass

    def in_row(self, row: int) -> Collection[Group]:
        """Return the paths of a row that may be on disk."""
        return tuple(self._paths.get(row, ()))

    def is_unchecked(self, group: Group) -> bool:
        """Return whether a path may be on disk in a row that is not checked yet."""
        return bool(self._unchecked) and self._row_of(group) in self._unchecked

    def check(self, group: Group) -> None:
        """Drop a path's streams if the disk has missed a removal.  Must be called before one of them is used."""
        if self.is_unchecked(group):
            self._check(self._row_of(group))

    def path_added(self, group: Group) -> None:
        """Note that a path has come to the disk."""
        row = self._row_of(group)
        paths = self._paths.get(row)
        if paths is None:
            self._paths[row] = {group}
            self._queue.append(row)
            self._needs_note = True
        else:
            paths.add(group)

    def path_removed(self, group: Group) -> None:
        """Note that a path has left the disk."""
        row = self._row_of(group)
        if (paths := self._paths.get(row)) is not None:
            paths.discard(group)
            if not paths:
                del self._paths[row]
                self._applied.pop(row, None)

    def purged(self) -> None:
        """Note that this worker has carried out a purge, which is still counted as under way.  Other purges that are
        under way are taken to reach this worker as well."""
        purges = self._removals.purges
        self._look_at_purges(purges.ended)
        self._purges = max(self._purges, purges.ended + purges.under_way)

    def step(self, most: int = ROWS_IN_A_TURN) -> None:
        """Visit the next rows, and have the disk record what they have lost.  Begins a pass if removals have been
        counted since the latest one."""
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
        """Have the next step note the end of the latest pass again, if nothing has changed since."""
        self._needs_note = True

    def _counts(self) -> tuple[int, int]:
        return self._removals.total.ended, self._removals.purges.ended

    def _visit(self, row: int) -> None:
        if row in self._unchecked:
            self._check(row)
        elif row in self._paths and (cells := self._removals.cells(row)) != self._applied.get(row):
            ended = self._removals.of(row).ended
            # Whoever sees a removal counted finds its record.
            self._look_at_row(row)
            self._note(row, cells, ended)

    def _check(self, row: int) -> None:
        self._unchecked.discard(row)
        # Read the records up to now first.  A removal with a record among them is counted, or under way.
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
        holder = Holder(self._removals.memory, self._removals.place) if counts is not None else None
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
