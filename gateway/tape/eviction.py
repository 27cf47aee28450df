"""Which stream goes when the budget is spent: a seam, and three policies behind it.

A policy orders keys and knows nothing else: not sizes, not what a key stands for.  Whoever asks for a victim gets one
that the policy holds no more; what is given up comes back by `admit`.  Every call is O(1), amortised over the calls
before it: a pass over keys that are kept is paid for by the touches that keep them.

`S3Fifo` is the default, because what a gateway must survive is the reader that goes through everything once (a crawler,
a nightly job, a client that replays its history), and because popularity here is short-lived: a chat is read by all for
an hour and by nobody after.  `tests/tape/test_eviction_ratios.py` measures both, prints a table, and holds it to be no
worse than least-recently-used.  SIEVE is the simplest that beats it on skewed loads, and suffers from scans.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Eviction(Protocol[K]):
    """The order in which keys are given up."""

    def admit(self, key: K) -> None:
        """`key` can be given up from now on.  Nothing happens where that is known."""

    def touch(self, key: K) -> None:
        """`key` was asked for again.  Nothing happens where it is not held."""

    def forget(self, key: K) -> None:
        """`key` is gone for a reason of its own: not even its having been here is remembered."""

    def victim(self, spared: K) -> K | None:
        """The key to give up now, held no more; None when none is held beside `spared`."""

    def __contains__(self, key: object) -> bool:
        """Whether `key` can be given up."""

    def __len__(self) -> int:
        """How many keys can be given up."""


class LeastRecentlyUsed(Generic[K]):
    """Gives up the key that was touched longest ago."""

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
    """A place in SIEVE's ring; a place begins alone, as its own neighbour."""

    __slots__ = ("is_visited", "key", "newer", "older")

    def __init__(self, key: K | None) -> None:
        self.key = key
        self.is_visited = False
        self.newer: _Node[K] = self
        self.older: _Node[K] = self


class Sieve(Generic[K]):
    """SIEVE (Zhang et al., NSDI 2024): a queue by age, and a hand that goes from the oldest to the newest.

    The hand spares who was touched since it last came by, where he stands, and gives up who was not; so newcomers are
    sieved soon after they came, and a touch costs one flag.  The ring is closed by a place that holds no key.
    """

    def __init__(self) -> None:
        self._nodes: dict[K, _Node[K]] = {}
        self._gate: _Node[K] = _Node(None)
        self._hand = self._gate

    def admit(self, key: K) -> None:
        if key in self._nodes:
            return
        node = self._nodes[key] = _Node(key)
        node.newer, node.older = self._gate, self._gate.older
        node.older.newer = self._gate.older = node

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
    """S3-FIFO (Yang et al., SOSP 2023), with the share of its small queue found out as it goes.

    Newcomers are on probation in a small queue.  Who was touched by the time he reaches its end goes over to the main
    queue, the others are given up after a short stay, which is what keeps a scan from washing out the rest.  The main
    queue gives whoever was touched another round, once for each touch up to `_ROUNDS`.  The hashes of those given up
    are remembered, as many as there are keys held; who comes back among them goes to the main queue at once.

    A fixed share suits either loads that scan or loads whose keys live shortly.  So who comes back tells which queue
    was too small: the share grows with each that probation gave up too soon, and shrinks with each of the main queue's.
    """

    _SHARE: Final = 0.1
    _LEAST_SHARE: Final = 0.05
    _MOST_SHARE: Final = 0.5
    _STEP: Final = 0.01
    """How far one return moves the share, as long as both queues give up alike."""
    _ROUNDS: Final = 2

    def __init__(self) -> None:
        self.probation_share = self._SHARE
        self._probation: OrderedDict[K, int] = OrderedDict()
        self._main: OrderedDict[K, int] = OrderedDict()
        """Keys, next to be judged first, with the touches that count for them."""
        self._left_probation: OrderedDict[int, None] = OrderedDict()
        self._left_main: OrderedDict[int, None] = OrderedDict()
        """Hashes of keys given up, by the queue that did: a stream's key is ten times as large."""

    @property
    def remembered(self) -> tuple[int, int]:
        """How many keys are remembered of those that the small and the main queue gave up."""
        return len(self._left_probation), len(self._left_main)

    def admit(self, key: K) -> None:
        if key in self:
            return
        mark = hash(key)
        if mark in self._left_probation:
            weight = max(1.0, len(self._left_main) / len(self._left_probation))
            self.probation_share = min(self._MOST_SHARE, self.probation_share + self._STEP * weight)
            del self._left_probation[mark]
            self._main[key] = 0
        elif mark in self._left_main:
            weight = max(1.0, len(self._left_probation) / len(self._left_main))
            self.probation_share = max(self._LEAST_SHARE, self.probation_share - self._STEP * weight)
            del self._left_main[mark]
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
        mark = hash(key)
        self._left_probation.pop(mark, None)
        self._left_main.pop(mark, None)

    def victim(self, spared: K) -> K | None:
        if len(self) == (spared in self):
            return None
        while True:
            queue = self._queue_to_judge(spared)
            key, touches = queue.popitem(last=False)
            if key == spared:
                queue[key] = touches
            elif not touches:
                self._remember(key, self._left_main if queue is self._main else self._left_probation)
                return key
            elif queue is self._main:
                queue[key] = touches - 1
            else:
                self._main[key] = 0

    def _queue_to_judge(self, spared: K) -> OrderedDict[K, int]:
        """The queue whose turn it is; it holds another key than `spared`."""
        on_probation = len(self._probation)
        if on_probation == (spared in self._probation):
            return self._main
        is_over = on_probation > self.probation_share * len(self)
        return self._probation if is_over or len(self._main) == (spared in self._main) else self._main

    def _remember(self, key: K, left: OrderedDict[int, None]) -> None:
        left[hash(key)] = None
        while len(left) > len(self) + 1:
            left.popitem(last=False)

    def __contains__(self, key: object) -> bool:
        return key in self._probation or key in self._main

    def __len__(self) -> int:
        return len(self._probation) + len(self._main)


POLICIES: Final[Mapping[str, Callable[[], Eviction[Any]]]] = {
    "s3-fifo": S3Fifo,
    "sieve": Sieve,
    "lru": LeastRecentlyUsed,
}
"""Policies by the names that the configuration gives them."""
