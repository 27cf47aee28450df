"""Counts of removals in shared memory, which tell each worker's store on disk that other workers have removed streams.

A *removal* is an event after which the earlier bytes of a path must not be used.  It is a write that has deleted or
re-created the stream, or may have done so, or a reply of the origin that shows the stream's end.  Each worker counts
its removals by path hash (*row*) and in total.  The counts outlive the worker.  A store whose worker was dead at the
time of a removal can therefore see the removal later.  Purges by the operator are counted too, without a row.

A count has two parts: the number of removals that have ended, and the number of removals that are under way.  A worker
begins a removal before it writes the removal's record to the write log, and ends the removal afterwards.  The record of
each ended removal is therefore in the write log.  The record of a removal that is under way may already be there too.

Each worker has a *place* in this memory.  There it also notes, for each row and in total, how many removals its disk
has *done*: after a crash, the disk would have none of the removed streams.  If a worker dies, its successor compares
the removals that have ended with the removals done, for each row that it has on disk.  If the numbers differ, the disk
has missed removals, and the row's streams are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from gateway.workers.shared_memory import DONE_PURGES, DONE_REMOVED, HASHES, OPENED, PURGES, REMOVED, SharedMemory

_ENDED: Final = 1 << 16
"""The number that one ended removal adds to a word.  The lower bits count the removals under way."""
_UNDER_WAY: Final = _ENDED - 1


class Removed(NamedTuple):
    """Numbers of removals, summed over all places."""

    ended: int
    under_way: int


class Removals:
    """The counts, as the worker of one slot uses them."""

    def __init__(self, shared: SharedMemory, slot: int) -> None:
        self._shared = shared
        self._words = shared.words
        self._at, self._places = shared.removals_at >> 3, shared.places
        self.place = shared.first + slot
        self.tenure: Final = shared.tenure(self.place)
        """Identifies the place, until another version uses it."""
        self.place_of: Final = shared.place_of
        self.memory: Final = shared.name
        """The name of the shared memory that has these counts."""

    def __repr__(self) -> str:
        return f"<Removals of place {self.place}, {self.total.ended} in total>"

    # -- this worker's removals

    def begin(self, row: int) -> None:
        """Count a removal as under way.  The caller must call `end` after it has written the removal's record."""
        self._words[self._cell(row)] += 1
        self._words[self._word(REMOVED)] += 1

    def end(self, row: int) -> None:
        """Count a removal as ended."""
        self._words[self._cell(row)] += _ENDED - 1
        self._words[self._word(REMOVED)] += _ENDED - 1

    @contextmanager
    def purging(self) -> Iterator[None]:
        """Count a purge as under way inside the `with` block, and as ended after the block.

        The purge counts as ended even if it has failed at some workers.  The answer to the operator states such a
        failure.
        """
        self._words[self._word(PURGES)] += 1
        try:
            yield
        finally:
            self._words[self._word(PURGES)] += _ENDED - 1

    def settle(self) -> None:
        """Count the removals and purges that a dead worker had under way as ended.

        Only the supervisor calls this method, and only before it starts the slot's next worker.
        """
        words, first = self._words, self._cell(0)
        for row in self._shared.used(first * 8, 2 * 8 * self._places, HASHES):
            cell = first + 2 * row * self._places
            if words[cell] & _UNDER_WAY:
                words[cell] = _ended(words[cell])
        for word in (REMOVED, PURGES):
            words[self._word(word)] = _ended(words[self._word(word)])

    # -- the removals of all workers

    def of(self, row: int) -> Removed:
        """Return the numbers of removals of a row."""
        at = self._at + 2 * row * self._places
        return _summed(self._words[at : at + self._places])

    def cells(self, row: int) -> bytes:
        """Return the current counts of a row at all places.  A comparison of these bytes is faster than a sum."""
        at = (self._at + 2 * row * self._places) * 8
        return self._shared.raw[at : at + 8 * self._places]

    @property
    def total(self) -> Removed:
        """The numbers of removals of all rows."""
        return self._summed_word(REMOVED)

    @property
    def purges(self) -> Removed:
        """The numbers of purges."""
        return self._summed_word(PURGES)

    # -- what the disk of a place has done

    def done(self, row: int, place: int) -> int:
        """Return how many removals of a row the disk of a place has done."""
        return self._words[self._cell(row, place) + self._places]

    def set_done(self, row: int, ended: int) -> None:
        """Note that this place's disk has done `ended` removals of a row."""
        self._words[self._cell(row) + self._places] = ended

    def done_purges(self, place: int) -> int:
        """Return how many purges the disk of a place has done."""
        return self._words[self._word(DONE_PURGES, place)]

    def set_all_done(self, removed: int, purges: int) -> None:
        """Note that this place's disk has done `removed` removals of all rows, and `purges` purges."""
        self._words[self._word(DONE_REMOVED)] = removed
        self._words[self._word(DONE_PURGES)] = purges

    def is_behind(self, slot: int, removed: int, purges: int) -> bool:
        """Return whether the disk of a slot of this version has done fewer than `removed` removals or fewer than
        `purges` purges."""
        place = self._shared.first + slot
        return self._words[self._word(DONE_REMOVED, place)] < removed or self.done_purges(place) < purges

    def slots_behind(self) -> list[int]:
        """Return the slots of this version whose disks have not done all removals and purges."""
        removed, purges = self.total.ended, self.purges.ended
        return [slot for slot in range(self._shared.workers) if self.is_behind(slot, removed, purges)]

    def set_open(self, generation: int) -> None:
        """Note that this worker has opened its store on disk.  `generation` is its number among the slot's workers."""
        self._words[self._word(OPENED)] = generation

    def is_open(self, slot: int) -> bool:
        """Return whether the present worker of a slot of this version has opened its store on disk."""
        return self._words[self._word(OPENED, self._shared.first + slot)] == self._shared.generation(slot)

    def _cell(self, row: int, place: int | None = None) -> int:
        return self._at + 2 * row * self._places + (self.place if place is None else place)

    def _word(self, word: int, place: int | None = None) -> int:
        return self._shared.place_word(self.place if place is None else place, word)

    def _summed_word(self, word: int) -> Removed:
        return _summed(self._words[self._word(word, place)] for place in range(self._places))


def _ended(word: int) -> int:
    return word + (word & _UNDER_WAY) * (_ENDED - 1)


def _summed(words: Iterable[int]) -> Removed:
    ended = under_way = 0
    for word in words:
        ended += word >> 16
        under_way += word & _UNDER_WAY
    return Removed(ended, under_way)
