"""Which stream goes when the budget is spent: a seam, and least-recently-used behind it.

A policy orders keys and knows nothing else: not sizes, not what a key stands for.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)


class Eviction(Protocol[K]):
    """The order in which keys are given up."""

    def touch(self, key: K) -> None:
        """`key` was read or written."""

    def forget(self, key: K) -> None:
        """`key` is gone."""

    def victim(self, spared: K) -> K | None:
        """The key to give up next, `spared` last of all; None when there is no key."""


class LeastRecentlyUsed(Generic[K]):
    """Gives up the key that was touched longest ago."""

    def __init__(self) -> None:
        self._order: OrderedDict[K, None] = OrderedDict()

    def touch(self, key: K) -> None:
        self._order[key] = None
        self._order.move_to_end(key)

    def forget(self, key: K) -> None:
        self._order.pop(key, None)

    def victim(self, spared: K) -> K | None:
        for key in self._order:
            if key != spared:
                return key
        return spared if spared in self._order else None
