"""Pinned streams, which are not evicted while their total cost is within a bound.

An operator, or a plan derived from traffic, lists preferred streams in order of value.  The most valuable stream is
first.  A preferred stream in memory is pinned if it fits into the bound.  When pinned streams grow beyond the bound,
the least valuable streams are unpinned until the remaining streams fit.  If one stream alone exceeds the bound, only
this stream is unpinned.

An unpinned stream can be evicted.  If there is room at its next use, the stream is pinned again.

`PinnedTapes` chooses the pinned streams.  Its owner, `EvictionOrder`, passes all other streams to the eviction policy.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from gateway.protocol.sharing import StreamKey
from gateway.tape.eviction import Eviction
from gateway.tape.stream import Stream

_NONE: Final[tuple[StreamKey, ...]] = ()


class PinnedTapes:
    """The pinned streams and their costs.  Owner: the `EvictionOrder`."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether any stream is preferred."""
        self._ranks: dict[StreamKey, int] = {}
        self._preferred: list[StreamKey] = []
        """The preferred keys by rank."""
        self._costs: dict[StreamKey, int] = {}
        self._heap: list[int] = []
        """A heap of negated ranks, so that the least valuable stream comes first.  The heap has the ranks of all pinned
        streams.  It may also have ranks of streams that are no longer pinned."""
        self._in_heap: set[int] = set()
        """The ranks in the heap, each once."""
        self.cost = 0
        """The cost of all pinned streams."""
        self.limit = 0
        """The bound for `cost`."""

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
        """Replace the preferred keys; return the keys that are no longer pinned."""
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
        """Set the bound; return the keys that are no longer pinned."""
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
        """Add `delta` to the cost of `key`; return the keys that are no longer pinned, which may include `key`."""
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
        """Unpin `key`, if it is pinned."""
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


class EvictionOrder:
    """Chooses the next stream to evict among the streams that are not pinned.  Owner: the `TapeStore`."""

    def __init__(self, policy: Eviction[StreamKey], find: Callable[[StreamKey], Stream | None]) -> None:
        self.pinned = PinnedTapes()
        self.touch: Final = policy.touch
        self.forget: Final = policy.forget
        self.victim: Final = policy.victim
        self._policy = policy
        self._find = find
        self._share = 0.0
        """The fraction of the budget that pinned streams may take."""

    def admit(self, stream: Stream, cost: int) -> None:
        """Pin the stream if it is preferred and fits; otherwise make it evictable.

        `cost` is the number of bytes that the budget has been charged for the stream so far.
        """
        key = stream.key
        if not self.pinned.is_used:
            stream.is_ranked = True
            self._policy.admit(key)
        elif key not in self.pinned:
            stream.is_ranked = not self.pinned.pin(key, cost)
            if stream.is_ranked:
                self._policy.admit(key)
            else:
                self._policy.forget(key)

    def resize(self, budget_bytes: int) -> None:
        """Unpin streams until the pinned streams fit into their share of the new budget."""
        if self.pinned:
            self.unpin(self.pinned.set_limit(int(budget_bytes * self._share)))

    def prefer(self, keys: Iterable[StreamKey], share: float, budget_bytes: int) -> None:
        """Replace the preferred streams, and pin as many of them as fit into `share` of the budget.  The most valuable
        stream is first in `keys`."""
        # Unpin all streams first.  Otherwise streams that are pinned now could take the room of streams that rank
        # higher in the new order.
        self.unpin(self.pinned.prefer((), 0))
        self._share = share
        self.pinned.prefer(keys, int(budget_bytes * share))
        for key in self.pinned.preferred:
            if (stream := self._find(key)) is not None:
                self.admit(stream, stream.cost)

    def add_cost(self, key: StreamKey, delta: int) -> None:
        """Add `delta` bytes to the cost of the stream, and unpin streams that no longer fit."""
        self.unpin(self.pinned.add_cost(key, delta))

    def unpin(self, keys: Iterable[StreamKey]) -> None:
        """Make these streams evictable again."""
        for key in keys:
            if (stream := self._find(key)) is not None:
                stream.is_ranked = True
                self._policy.admit(key)

    def unpin_last(self) -> bool:
        """Unpin the least valuable stream; return False if none is pinned."""
        key = self.pinned.pop_last()
        if key is None:
            return False
        self.unpin([key])
        return True
