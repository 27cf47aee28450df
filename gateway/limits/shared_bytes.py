"""Bytes that several clients may hold at once: who is charged for them.

A body that many clients are sent is in memory once.  While the cache holds it too, its budget is charged for it, and
no client is.  Once the cache has dropped it, it belongs to the clients that have not taken it yet, in proportion to
what they hold: evicting a tape or an answer frees nothing as long as a connection refers to its bytes.

Nothing is counted where bytes are written.  `gateway.server.shedding` looks from time to time at what connections
refer to, and `charged` divides it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class SharedBytes:
    """Bytes in memory that several holders refer to."""

    __slots__ = ("in_cache", "size")

    def __init__(self, size: int, *, in_cache: bool = False) -> None:
        self.size = size
        """How many bytes there are, at most."""
        self.in_cache = in_cache
        """Whether the cache's budget is charged for them."""

    def __repr__(self) -> str:
        return f"<SharedBytes {self.size}{' in the cache' * self.in_cache}>"


class Holding(NamedTuple):
    """A holder's part of shared bytes."""

    shared: SharedBytes
    size: int
    """How many of them it refers to."""


NOTHING: tuple[Holding, ...] = ()


def charged(holdings: Iterable[tuple[int, Holding]], holders: int) -> Iterator[int]:
    """The bytes that each of `holders` is charged for, in their order.

    `holdings` are the bytes that they refer to, by the holder's number.  Bytes that several refer to are divided among
    them by how many each refers to.
    """
    charges = [0] * holders
    by_shared: dict[SharedBytes, list[tuple[int, int]]] = {}
    for number, (shared, size) in holdings:
        if size and not shared.in_cache:
            by_shared.setdefault(shared, []).append((number, size))
    for shared, parts in by_shared.items():
        total = sum(size for _, size in parts)
        for number, size in parts:
            charges[number] += size if total <= shared.size else size * shared.size // total
    yield from charges
