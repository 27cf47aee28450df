"""Counts of removals: how the store on disk of a worker learns that other workers have removed streams.

A *removal* is an event after which the earlier bytes of a path must not be used: a write that has deleted or re-created
the stream or may have done so, or a reply of the origin that shows its end.  Each worker counts its removals in shared
memory, by path hash (*row*) and in total.  These counts outlive the worker, and so they reach a store whose worker was
dead at that time.  Purges by the operator are counted too, without a row.

A count has two parts: how many removals have ended, and how many are under way.  A worker begins a removal before its
record in the write log, and ends it after that record.  Whoever sees the removal counted will therefore find its
record.  A removal that is under way may have its record already.

For each row, and in total, a place also notes how many removals its disk has *done*: the disk would show none of their
streams after a crash.  If a worker dies, its successor compares both numbers for each row that it has on disk.  If they
differ, removals have happened that the disk does not know, and the row's streams are dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from gateway.workers.shared_memory import DONE_PURGES, DONE_REMOVED, HASHES, OPENED, PURGES, REMOVED, SharedMemory

_ENDED: Final = 1 << 16
"""What one ended removal adds to a word.  The bits below count those under way."""
_UNDER_WAY: Final = _ENDED - 1


class Removed(NamedTuple):
    """Removals, summed over all places."""

    ended: int
    under_way: int


class Removals:
    """The counts, as the worker of one slot uses them."""

    def __init__(self, shared: SharedMemory, slot: int) -> None:
        self._shared = shared
        self._words = shared.words
        self._at, self._places = shared.removals_at >> 3, shared.places
        self.place = shared.first + slot
        self.memory: Final = shared.name
        """The name of the memory in which these counts are."""

    def __repr__(self) -> str:
        return f"<Removals of place {self.place}, {self.total.ended} in total>"

    # -- this worker's removals

    def begin(self, row: int) -> None:
        """Count a removal as under way.  `end` must follow once its record is written."""
        self._words[self._cell(row)] += 1
        self._words[self._word(REMOVED)] += 1

    def end(self, row: int) -> None:
        """Count a removal as ended."""
        self._words[self._cell(row)] += _ENDED - 1
        self._words[self._word(REMOVED)] += _ENDED - 1

    @contextmanager
    def purging(self) -> Iterator[None]:
        """Count a purge as under way inside the block, and as ended after it.  The purge may have failed at some
        workers, and the answer to the operator says so."""
        self._words[self._word(PURGES)] += 1
        try:
            yield
        finally:
            self._words[self._word(PURGES)] += _ENDED - 1

    def settle(self) -> None:
        """End the removals that a dead worker had under way.

        Only the supervisor calls this, and only before it starts the slot's next worker.
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
        """Return the removals of a row."""
        at = self._at + 2 * row * self._places
        return _summed(self._words[at : at + self._places])

    def cells(self, row: int) -> bytes:
        """Return the counts of a row as they are now.  To compare them is faster than to sum them."""
        at = (self._at + 2 * row * self._places) * 8
        return self._shared.raw[at : at + 8 * self._places]

    @property
    def total(self) -> Removed:
        """The removals of all rows."""
        return self._summed_word(REMOVED)

    @property
    def purges(self) -> Removed:
        """The purges."""
        return self._summed_word(PURGES)

    # -- what the disk of a place has done

    def done(self, row: int, place: int) -> int:
        """Return how many removals of a row the disk of a place has done."""
        return self._words[self._cell(row, place) + self._places]

    def set_done(self, row: int, ended: int) -> None:
        """Note that this place's disk has done so many removals of a row."""
        self._words[self._cell(row) + self._places] = ended

    def done_purges(self, place: int) -> int:
        """Return how many purges the disk of a place has done."""
        return self._words[self._word(DONE_PURGES, place)]

    def set_all_done(self, removed: int, purges: int) -> None:
        """Note that this place's disk has done so many removals of all rows, and so many purges."""
        self._words[self._word(DONE_REMOVED)] = removed
        self._words[self._word(DONE_PURGES)] = purges

    def is_behind(self, slot: int, removed: int, purges: int) -> bool:
        """Return whether the disk of a slot of this version has not done so many removals and purges."""
        place = self._shared.first + slot
        return self._words[self._word(DONE_REMOVED, place)] < removed or self.done_purges(place) < purges

    def slots_behind(self) -> list[int]:
        """Return the slots of this version whose disks have not done all removals and purges."""
        removed, purges = self.total.ended, self.purges.ended
        return [slot for slot in range(self._shared.workers) if self.is_behind(slot, removed, purges)]

    def set_open(self, generation: int) -> None:
        """Note that the worker with this number in its slot has opened its store on disk."""
        self._words[self._word(OPENED)] = generation

    def is_open(self, slot: int) -> bool:
        """Return whether the worker of a slot of this version has opened its store on disk."""
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
