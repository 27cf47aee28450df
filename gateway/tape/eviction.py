"""Eviction policies: which stream to give up when the byte budget is spent.

`TapeStore` decides when a stream must go, and `gateway.tape.pinned` which ones stay meanwhile.  A policy orders keys,
and knows neither their sizes nor what they stand for.  A key returned as a victim is no longer held; `admit` brings it
back.  Every call is O(1), amortised: passing over a key that stays is paid for by the touches that keep it.

`S3Fifo` is the default for two reasons.  A gateway must survive readers that scan every stream once (a crawler, a
nightly job, a client that replays its history).  And popularity is short-lived here: a chat is read by everyone for an
hour, then by no one.  `tests/tape/test_eviction_ratios.py` measures both, prints a table, and requires S3-FIFO to be no
worse than least-recently-used.  SIEVE is the simplest policy that beats LRU on skewed loads, but it suffers from scans.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from gateway.limits.memory import evict_oldest

K = TypeVar("K", bound=Hashable)

USE_S: Final = 1.0
"""Requests for a stream within this time of its last use belong to that use."""


class Eviction(Protocol[K]):
    """Decides the order in which keys are evicted."""

    def admit(self, key: K) -> None:
        """Make `key` evictable; do nothing if it already is."""

    def touch(self, key: K) -> None:
        """Record a use of `key`; do nothing if it is not held."""

    def forget(self, key: K) -> None:
        """Remove `key`, which is gone for another reason, and every memory of it."""

    def victim(self, spared: K) -> K | None:
        """Remove and return the key to evict now, never `spared`; None if no other key is held."""

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
    """A node of SIEVE's ring; it starts as its own neighbour."""

    __slots__ = ("is_visited", "key", "newer", "older")

    def __init__(self, key: K | None) -> None:
        self.key = key
        self.is_visited = False
        self.newer: _Node[K] = self
        self.older: _Node[K] = self


class Sieve(Generic[K]):
    """SIEVE (Zhang et al., NSDI 2024): a queue by age, and a hand that moves from the oldest key to the newest.

    The hand leaves a key touched since its last pass in place and evicts one that was not.  New keys are therefore
    tested soon after they arrive, and a touch costs one flag.  A node without a key closes the ring.
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

    New keys enter a small probation queue.  A key touched before it reaches the end moves to the main queue; the others
    are evicted after a short stay, which keeps a scan from washing out the rest.  The main queue gives a touched key
    another round, one for each touch up to `_ROUNDS`.  The hashes of evicted keys are remembered, as many as there are
    keys held; a key that returns among them goes straight to the main queue.

    A fixed share suits either loads that scan or loads with short-lived keys.  A returning key shows which queue was
    too small: the share grows when probation had evicted the key and shrinks when the main queue had.
    """

    _SHARE: Final = 0.1
    _LEAST_SHARE: Final = 0.05
    _MOST_SHARE: Final = 0.5
    _STEP: Final = 0.01
    """How far one return moves the share while both queues have evicted equally many."""
    _ROUNDS: Final = 2

    def __init__(self) -> None:
        self.probation_share = self._SHARE
        self._probation: OrderedDict[K, int] = OrderedDict()
        self._main: OrderedDict[K, int] = OrderedDict()
        """Keys with the touches that count for them, the next to be examined first."""
        self._probation_ghosts: OrderedDict[int, None] = OrderedDict()
        self._main_ghosts: OrderedDict[int, None] = OrderedDict()
        """Hashes of evicted keys, by the queue that evicted them; a stream's key is ten times as large as its hash."""

    @property
    def remembered(self) -> tuple[int, int]:
        """How many evicted keys each queue remembers: probation, main."""
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
        """The queue whose turn it is; it holds a key other than `spared`."""
        # The key is looked for only where it may be the last, because its hash takes long.
        probation, main = self._probation, self._main
        on_probation, on_main = len(probation), len(main)
        if on_probation <= 1 and on_probation == (spared in probation):
            return main
        if on_probation > self.probation_share * (on_probation + on_main):
            return probation
        return probation if on_main <= 1 and on_main == (spared in main) else main

    def _remember(self, key: K, ghosts: OrderedDict[int, None]) -> None:
        ghosts[hash(key)] = None
        evict_oldest(ghosts, len(self._probation) + len(self._main) + 1)

    def __contains__(self, key: object) -> bool:
        return key in self._probation or key in self._main

    def __len__(self) -> int:
        return len(self._probation) + len(self._main)


POLICIES: Final[Mapping[str, Callable[[], Eviction[Any]]]] = {
    "s3-fifo": S3Fifo,
    "sieve": Sieve,
    "lru": LeastRecentlyUsed,
}
"""The policies by their configuration names."""
