"""The reserve: streams that are kept when others are given up, as long as together they take no more than a bound.

An operator, or a plan made of the traffic, wishes for streams, the most worthwhile first.  What is here of them is kept
while there is room within the bound; where they grow past it, the least worthwhile are let go until the rest fits.  One
that is past it alone is let go alone: nothing that the others could give up would be enough.  Who was let go is a
stream like any other from then on, until it is used again at a time when there is room.

The reserve says who is kept, and does nothing: the tape store, which owns it, tells it what each of them costs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from gateway.tape.stream import StreamKey

_NONE: Final[tuple[StreamKey, ...]] = ()


class PinnedTapes:
    """Costs of those that are kept.  Owner: the `TapeStore`."""

    def __init__(self) -> None:
        self._ranks: dict[StreamKey, int] = {}
        self._wished: list[StreamKey] = []
        """By rank."""
        self._kept: dict[StreamKey, int] = {}
        self._last: list[int] = []
        """A heap of ranks, negative, so that the least worthwhile comes first: of all who are kept, and of some who
        were until a while ago."""
        self._listed: set[int] = set()
        """Ranks that are in it, each once."""
        self.cost = 0
        """Of all that are kept."""
        self.limit = 0
        """Most that they may cost together."""

    def __bool__(self) -> bool:
        """Whether anything is wished for."""
        return bool(self._ranks)

    def __contains__(self, key: object) -> bool:
        """Whether `key` is kept now."""
        return key in self._kept

    def __len__(self) -> int:
        """How many are kept now."""
        return len(self._kept)

    @property
    def wished(self) -> Iterable[StreamKey]:
        """All that are wished for, the most worthwhile first."""
        return self._ranks.keys()

    def wish(self, keys: Iterable[StreamKey], limit: int) -> list[StreamKey]:
        """Wish for these and no others, from here on; those that are let go for it."""
        self._wished = list(dict.fromkeys(keys))
        self._ranks = {key: rank for rank, key in enumerate(self._wished)}
        self.limit = limit
        gone = [key for key in self._kept if key not in self._ranks]
        for key in gone:
            self.forget(key)
        self._listed = {self._ranks[key] for key in self._kept}
        self._last = [-rank for rank in self._listed]
        heapq.heapify(self._last)
        return [*gone, *self._excess()]

    def bound(self, limit: int) -> list[StreamKey]:
        """Have another bound; those that are let go for it."""
        self.limit = limit
        return self._excess()

    def take(self, key: StreamKey, cost: int) -> bool:
        """Keep `key`, which costs so much; whether it is kept, because it is wished for and there is room."""
        if key in self._kept:
            return True
        if key not in self._ranks or self.cost + cost > self.limit:
            return False
        self._kept[key] = cost
        self.cost += cost
        rank = self._ranks[key]
        if rank not in self._listed:
            self._listed.add(rank)
            heapq.heappush(self._last, -rank)
        return True

    def changed(self, key: StreamKey, delta: int) -> list[StreamKey] | tuple[StreamKey, ...]:
        """`key` costs so much more; those that are let go for it, which it may be itself."""
        if key not in self._kept:
            return _NONE
        self._kept[key] += delta
        self.cost += delta
        if self.cost <= self.limit:
            return _NONE
        if self._kept[key] > self.limit:
            self.forget(key)
            return [key, *self._excess()]
        return self._excess()

    def forget(self, key: StreamKey) -> None:
        """`key` is gone."""
        self.cost -= self._kept.pop(key, 0)

    def pop_last(self) -> StreamKey | None:
        """The least worthwhile of those that are kept, let go now."""
        while self._last:
            rank = -heapq.heappop(self._last)
            self._listed.discard(rank)
            last = self._wished[rank]
            if last in self._kept:
                self.forget(last)
                return last
        return None

    def _excess(self) -> list[StreamKey]:
        gone: list[StreamKey] = []
        while self.cost > self.limit and (last := self.pop_last()) is not None:
            gone.append(last)
        return gone
