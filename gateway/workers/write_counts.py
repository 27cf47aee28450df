"""Counts of the writes that the workers of one gateway have relayed.  A member of a fleet sends these counts to other
members (`gateway.engine.fleet_writes`).

For each path hash there are two counts: of appends, and of other writes.  Each worker adds to the counts of its own
place in the shared memory, and the count of the gateway is the sum over all places.  The counts are therefore kept when
a worker dies, and in an upgrade to the next version of the gateway.
"""

from __future__ import annotations

from array import array

from gateway.workers.shared_memory import HASHES, SharedMemory


class WriteCounts:
    """The counts, as one worker uses them."""

    def __init__(self, shared: SharedMemory | None = None, slot: int = 0) -> None:
        """`shared` is the memory of the workers, and `slot` is this worker's slot.  `shared` is None if this process is
        the only worker."""
        self._words: array[int] | memoryview[int]
        if shared is None:
            self._words, self._at, self._places, self._place = array("Q", bytes(2 * 8 * HASHES)), 0, 1, 0
        else:
            self._words, self._at, self._places = shared.words, shared.counts_at >> 3, shared.places
            self._place = shared.first + slot

    def __repr__(self) -> str:
        return f"<WriteCounts of place {self._place} of {self._places}>"

    def of(self, index: int) -> tuple[int, int]:
        """Return two counts for the paths with this hash: of appends, and of other writes."""
        at, places = self._at + 2 * index * self._places, self._places
        return sum(self._words[at : at + places]), sum(self._words[at + places : at + 2 * places])

    def add(self, index: int, *, is_append: bool, number: int = 1) -> None:
        """Count a write of this worker by adding `number`."""
        row = 2 * index if is_append else 2 * index + 1
        self._words[self._at + row * self._places + self._place] += number
