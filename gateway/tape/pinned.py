"""Pinned tapes: streams that are not evicted for others while together they fit a byte bound.

An operator, or a plan derived from traffic, prefers streams, the most valuable first.  A preferred stream in memory is
pinned while there is room within the bound.  When pinned streams outgrow the bound, the least valuable are unpinned
until the rest fits.  A stream that exceeds the bound by itself is the only one unpinned, because unpinning the others
would not make it fit.  An unpinned stream is evictable like any other until it is used again while there is room.

`PinnedTapes` only decides; the tape store, its owner, reports the cost of each stream and acts on the answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from gateway.protocol.sharing import StreamKey

_NONE: Final[tuple[StreamKey, ...]] = ()


class PinnedTapes:
    """The pinned streams and their costs.  Owner: the `TapeStore`."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether any stream is preferred."""
        self._ranks: dict[StreamKey, int] = {}
        self._preferred: list[StreamKey] = []
        """The preferred keys by rank."""
        self._costs: dict[StreamKey, int] = {}
        self._heap: list[int] = []
        """A heap of negated ranks, the least valuable first: all pinned streams, and some that were pinned before."""
        self._in_heap: set[int] = set()
        """The ranks in the heap, each once."""
        self.cost = 0
        """The cost of all pinned streams."""
        self.limit = 0
        """The most that they may cost together."""

    def __bool__(self) -> bool:
        """Whether any stream is preferred."""
        return self.is_used

    def __contains__(self, key: object) -> bool:
        """Whether `key` is pinned now."""
        return key in self._costs

    def __len__(self) -> int:
        """The number of streams pinned now."""
        return len(self._costs)

    def __repr__(self) -> str:
        return f"<PinnedTapes {len(self)} of {len(self._ranks)}, {self.cost} of {self.limit} bytes>"

    @property
    def preferred(self) -> Iterable[StreamKey]:
        """The preferred keys, the most valuable first."""
        return self._ranks.keys()

    def prefer(self, keys: Iterable[StreamKey], limit: int) -> list[StreamKey]:
        """Prefer exactly these keys from now on; return the keys this unpins."""
        self._preferred = list(dict.fromkeys(keys))
        self._ranks = {key: rank for rank, key in enumerate(self._preferred)}
        self.is_used = bool(self._ranks)
        self.limit = limit
        gone = [key for key in self._costs if key not in self._ranks]
        for key in gone:
            self.forget(key)
        self._in_heap = {self._ranks[key] for key in self._costs}
        self._heap = [-rank for rank in self._in_heap]
        heapq.heapify(self._heap)
        return [*gone, *self._excess()]

    def set_limit(self, limit: int) -> list[StreamKey]:
        """Set the bound; return the keys this unpins."""
        self.limit = limit
        return self._excess()

    def pin(self, key: StreamKey, cost: int) -> bool:
        """Pin `key` at this cost if it is preferred and fits; return whether it is pinned."""
        if key in self._costs:
            return True
        if key not in self._ranks or self.cost + cost > self.limit:
            return False
        self._costs[key] = cost
        self.cost += cost
        rank = self._ranks[key]
        if rank not in self._in_heap:
            self._in_heap.add(rank)
            heapq.heappush(self._heap, -rank)
        return True

    def add_cost(self, key: StreamKey, delta: int) -> list[StreamKey] | tuple[StreamKey, ...]:
        """Add `delta` to the cost of `key`; return the keys this unpins, which may include `key`."""
        if key not in self._costs:
            return _NONE
        self._costs[key] += delta
        self.cost += delta
        if self.cost <= self.limit:
            return _NONE
        if self._costs[key] > self.limit:
            self.forget(key)
            return [key, *self._excess()]
        return self._excess()

    def forget(self, key: StreamKey) -> None:
        """Remove `key`, which is no longer in memory."""
        self.cost -= self._costs.pop(key, 0)

    def pop_last(self) -> StreamKey | None:
        """Unpin and return the least valuable pinned key; None if there is none."""
        while self._heap:
            rank = -heapq.heappop(self._heap)
            self._in_heap.discard(rank)
            last = self._preferred[rank]
            if last in self._costs:
                self.forget(last)
                return last
        return None

    def _excess(self) -> list[StreamKey]:
        gone: list[StreamKey] = []
        while self.cost > self.limit and (last := self.pop_last()) is not None:
            gone.append(last)
        return gone
