"""Eviction policies: they choose the stream to evict when the byte budget is exceeded.

A policy orders keys.  It has no access to the streams or their sizes.  The `TapeStore` decides when to evict, and
`gateway.tape.pinned` withholds pinned streams from the policy.  A policy forgets a key that it returns as a victim;
`admit` adds the key again.  The amortised cost of every call is O(1), because a search skips a key at most once for
each touch of the key.

`S3Fifo` is the default for two reasons.  First, some readers scan every stream once, for example a crawler or a nightly
job.  A scan must not evict popular streams.  Second, streams are popular only briefly: a chat is busy for an hour, then
idle.  `tests/tape/test_eviction_ratios.py` measures both loads, prints a table, and requires that S3-FIFO is no worse
than LRU.  SIEVE is the simplest policy with a higher hit ratio than LRU on skewed loads, but scans lower its hit ratio.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)

USE_S: Final = 1.0
"""Requests for a stream within this many seconds after a use count as the same use."""


class Eviction(Protocol[K]):
    """Chooses the next key to evict."""

    def admit(self, key: K) -> None:
        """Add `key`; do nothing if the policy has it."""

    def touch(self, key: K) -> None:
        """Record a use of `key`; do nothing if the policy does not have it."""

    def forget(self, key: K) -> None:
        """Remove `key` and its history, for a reason other than eviction."""

    def victim(self, spared: K) -> K | None:
        """Remove and return the key to evict, never `spared`; return None if there is no other key."""

    def __contains__(self, key: object) -> bool:
        """Whether `key` is evictable."""

    def __len__(self) -> int:
        """The number of evictable keys."""


class LeastRecentlyUsed(Generic[K]):
    """Evicts the key whose last touch is the oldest."""

    def __init__(self) -> None:
        self._order: OrderedDict[K, None] = OrderedDict()

    def admit(self, key: K) -> None:
        self._order.setdefault(key)

    def touch(self, key: K) -> None:
        if key in self._order:
            self._order.move_to_end(key)

    def forget(self, key: K) -> None:
        self._order.pop(key, None)

    def victim(self, spared: K) -> K | None:
        for key in self._order:
            if key != spared:
                del self._order[key]
                return key
        return None

    def __contains__(self, key: object) -> bool:
        return key in self._order

    def __len__(self) -> int:
        return len(self._order)


class _Node(Generic[K]):
    """A node of SIEVE's ring.  A new node is its own neighbour."""

    __slots__ = ("is_visited", "key", "newer", "older")

    def __init__(self, key: K | None) -> None:
        self.key = key
        self.is_visited = False
        self.newer: _Node[K] = self
        self.older: _Node[K] = self


class Sieve(Generic[K]):
    """SIEVE (Zhang et al., NSDI 2024): a queue by age, and a hand that moves from the oldest key to the newest.

    The hand evicts the first key that was not touched since the hand last passed.  Touched keys stay in place, and a
    touch only sets a flag.  The queue is a ring, closed by a sentinel node without a key.
    """

    def __init__(self) -> None:
        self._nodes: dict[K, _Node[K]] = {}
        self._sentinel: _Node[K] = _Node(None)
        self._hand = self._sentinel

    def admit(self, key: K) -> None:
        if key in self._nodes:
            return
        node = self._nodes[key] = _Node(key)
        node.newer, node.older = self._sentinel, self._sentinel.older
        node.older.newer = self._sentinel.older = node

    def touch(self, key: K) -> None:
        node = self._nodes.get(key)
        if node is not None:
            node.is_visited = True

    def forget(self, key: K) -> None:
        node = self._nodes.pop(key, None)
        if node is None:
            return
        if self._hand is node:
            self._hand = node.newer
        node.older.newer, node.newer.older = node.newer, node.older

    def victim(self, spared: K) -> K | None:
        if len(self._nodes) == (spared in self._nodes):
            return None
        while True:
            node, self._hand = self._hand, self._hand.newer
            if node.key is None or node.key == spared:
                continue
            if not node.is_visited:
                self.forget(node.key)
                return node.key
            node.is_visited = False

    def __contains__(self, key: object) -> bool:
        return key in self._nodes

    def __len__(self) -> int:
        return len(self._nodes)


class S3Fifo(Generic[K]):
    """S3-FIFO (Yang et al., SOSP 2023) with an adaptive size of its small queue.

    New keys enter a small queue, called probation.  At the end of probation, a key that was touched moves to the main
    queue, and any other key is evicted.  The keys of a scan therefore leave early, and the main queue is not affected.
    At the end of the main queue, a touched key is queued again, once for each touch up to `_ROUNDS`.  For each queue,
    the policy remembers the hashes of the latest keys that the queue has evicted.  The number of hashes is about the
    number of keys in the policy.  A key with a remembered hash enters the main queue at once.

    The original algorithm fixes the share of the probation queue.  No fixed share suits both scans and short-lived
    keys, so this share adapts.  The share grows when a key returns that probation has evicted.  The share shrinks when
    a key returns that the main queue has evicted.
    """

    _SHARE: Final = 0.1
    _LEAST_SHARE: Final = 0.05
    _MOST_SHARE: Final = 0.5
    _STEP: Final = 0.01
    """The change of the share for one returning key.  If more hashes are remembered for the other queue than for the
    key's queue, the change is multiplied by the ratio of these two numbers."""
    _ROUNDS: Final = 2

    def __init__(self) -> None:
        self.probation_share = self._SHARE
        self._probation: OrderedDict[K, int] = OrderedDict()
        self._main: OrderedDict[K, int] = OrderedDict()
        """Each key and the number of its touches, at most `_ROUNDS`.  The first key is examined next."""
        self._probation_ghosts: OrderedDict[int, None] = OrderedDict()
        self._main_ghosts: OrderedDict[int, None] = OrderedDict()
        """Each of the two `_ghosts` tables has the hashes of the keys that its queue has evicted.  The tables have no
        keys, because a key takes ten times the memory of its hash."""

    @property
    def remembered(self) -> tuple[int, int]:
        """The number of remembered hashes of each queue: probation, main."""
        return len(self._probation_ghosts), len(self._main_ghosts)

    def admit(self, key: K) -> None:
        if key in self._probation or key in self._main:
            return
        key_hash = hash(key)
        if key_hash in self._probation_ghosts:
            weight = max(1.0, len(self._main_ghosts) / len(self._probation_ghosts))
            self.probation_share = min(self._MOST_SHARE, self.probation_share + self._STEP * weight)
            del self._probation_ghosts[key_hash]
            self._main[key] = 0
        elif key_hash in self._main_ghosts:
            weight = max(1.0, len(self._probation_ghosts) / len(self._main_ghosts))
            self.probation_share = max(self._LEAST_SHARE, self.probation_share - self._STEP * weight)
            del self._main_ghosts[key_hash]
            self._main[key] = 0
        else:
            self._probation[key] = 0

    def touch(self, key: K) -> None:
        for queue in (self._main, self._probation):
            touches = queue.get(key)
            if touches is not None:
                if touches < self._ROUNDS:
                    queue[key] = touches + 1
                return

    def forget(self, key: K) -> None:
        self._probation.pop(key, None)
        self._main.pop(key, None)
        key_hash = hash(key)
        self._probation_ghosts.pop(key_hash, None)
        self._main_ghosts.pop(key_hash, None)

    def victim(self, spared: K) -> K | None:
        held = len(self._probation) + len(self._main)
        if held <= 1 and held == (spared in self):
            return None
        while True:
            queue = self._next_queue(spared)
            key, touches = queue.popitem(last=False)
            if key == spared:
                queue[key] = touches
            elif not touches:
                self._remember(key, self._main_ghosts if queue is self._main else self._probation_ghosts)
                return key
            elif queue is self._main:
                queue[key] = touches - 1
            else:
                self._main[key] = 0

    def _next_queue(self, spared: K) -> OrderedDict[K, int]:
        """Return the queue from which to evict.  This queue has a key other than `spared`."""
        # Hashing `spared` is slow, so search for `spared` only in a queue with at most one key.
        probation, main = self._probation, self._main
        on_probation, on_main = len(probation), len(main)
        if on_probation <= 1 and on_probation == (spared in probation):
            return main
        if on_probation > self.probation_share * (on_probation + on_main):
            return probation
        return probation if on_main <= 1 and on_main == (spared in main) else main

    def _remember(self, key: K, ghosts: OrderedDict[int, None]) -> None:
        ghosts[hash(key)] = None
        most = len(self._probation) + len(self._main) + 1
        while len(ghosts) > most:
            ghosts.popitem(last=False)

    def __contains__(self, key: object) -> bool:
        return key in self._probation or key in self._main

    def __len__(self) -> int:
        return len(self._probation) + len(self._main)


POLICIES: Final[Mapping[str, Callable[[], Eviction[Any]]]] = {
    "s3-fifo": S3Fifo,
    "sieve": Sieve,
    "lru": LeastRecentlyUsed,
}
"""The policies, by their names in the configuration."""
