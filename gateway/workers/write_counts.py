"""Counts of the writes that the workers of one gateway have relayed.  A member of a fleet sends these counts to other
members (`gateway.engine.fleet_writes`).

For each path hash there are two counts: of appends, and of other writes.  Each worker adds to the counts of its own
place in the shared memory, and the count of the gateway is the sum over all places.  The counts are therefore kept when
a worker dies, and in an upgrade to the next version of the gateway.

All acknowledged appends of the gateway are numbered, whatever their paths, and the number of the latest one is kept for
each path hash.  Another member that knew the count of appends at some time can therefore tell which appends were
acknowledged before that time.  Two appends at the same time may have the same number, and numbers may be left out.  But
the number of an append is never greater than a count that is read after the append, and never less than a count that is
read before it.
"""

from __future__ import annotations

from array import array

from gateway.workers.shared_memory import HASHES, SharedMemory

_ROWS = 3


class WriteCounts:
    """The counts, as one worker uses them."""

    def __init__(self, shared: SharedMemory | None = None, slot: int = 0) -> None:
        """`shared` is the memory of the workers, and `slot` is this worker's slot.  `shared` is None if this process is
        the only worker."""
        self._words: array[int] | memoryview[int]
        if shared is None:
            self._words, self._at, self._places, self._place = array("Q", bytes((_ROWS * HASHES + 1) * 8)), 0, 1, 0
        else:
            self._words, self._at, self._places = shared.words, shared.counts_at >> 3, shared.places
            self._place = shared.first + slot
        self._appended_at = self._at + _ROWS * HASHES * self._places

    def __repr__(self) -> str:
        return f"<WriteCounts of place {self._place} of {self._places}>"

    def of(self, index: int) -> tuple[int, int, int]:
        """Return the counts of appends and of other writes to the paths with this hash, and the number of the latest
        acknowledged append to them; 0 if there is none."""
        words, places = self._words, self._places
        at = self._at + _ROWS * index * places
        appends, others = sum(words[at : at + places]), sum(words[at + places : at + 2 * places])
        # Read the number last: it is written first, so it is that of a counted append or of a later one.
        return appends, others, max(words[at + 2 * places : at + 3 * places])

    def appended(self) -> int:
        """Return the number of all acknowledged appends."""
        return sum(self._words[self._appended_at : self._appended_at + self._places])

    def add(self, index: int, *, is_append: bool, number: int = 1) -> None:
        """Count a write of this worker by adding `number`."""
        row = _ROWS * index if is_append else _ROWS * index + 1
        self._words[self._at + row * self._places + self._place] += number

    def number(self, index: int) -> None:
        """Number an acknowledged append of this worker, before the append is counted."""
        self._words[self._appended_at + self._place] += 1
        self._words[self._at + (_ROWS * index + 2) * self._places + self._place] = self.appended()
