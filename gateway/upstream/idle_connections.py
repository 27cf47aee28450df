"""The idle connections of HTTP/1.1 of one pool: at rest, or free for the next request.

The most recently used connection is taken first, so that superfluous connections grow idle and are closed.  A
connection that has carried a HEAD carries only HEADs from then on: an origin that sends a body to a HEAD may send it
late.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import chain
from typing import Final

from gateway.upstream.call import Endpoint
from gateway.upstream.connection import Connection

_SHELVES: Final = (False,)
_SHELVES_FOR_HEAD: Final = (True, False)
"""Whether the connections on a shelf are for HEADs; a HEAD may take another one, too."""


class _Shelf:
    """The idle connections of one endpoint and purpose, in the order in which they became idle."""

    __slots__ = ("rested", "resting")

    def __init__(self) -> None:
        # Of a plain dict the first key is slow to find once many have been removed before it.
        self.resting: OrderedDict[Connection, None] = OrderedDict()
        self.rested: dict[Connection, None] = {}


class IdleConnections:
    """Owner of the idle connections of a pool."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[Endpoint, bool], _Shelf] = {}
        """Empty ones are kept until another one is made: that of a busy endpoint is often empty."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Connection]:
        return chain.from_iterable(chain(shelf.rested, shelf.resting) for shelf in self._shelves.values())

    def __repr__(self) -> str:
        return f"<IdleConnections {self._count}>"

    def add_connection(self, connection: Connection) -> None:
        """A connection has become idle; it rests until `connection.rests_until`."""
        key = connection.endpoint, connection.is_for_heads
        shelf = self._shelves.get(key)
        if shelf is None:
            self._shelves = {other: kept for other, kept in self._shelves.items() if kept.rested or kept.resting}
            shelf = self._shelves[key] = _Shelf()
        shelf.resting[connection] = None
        self._count += 1

    def take_connection(
        self, endpoint: Endpoint, now: float, named: frozenset[str] | None, *, is_head: bool
    ) -> Connection | None:
        """The most recently used connection that has rested and is usable, or None.  Connections that are not usable
        are dropped on the way.  `named` are the addresses that the endpoint's name leads to, if known."""
        for is_for_heads in _SHELVES_FOR_HEAD if is_head else _SHELVES:
            shelf = self._shelves.get((endpoint, is_for_heads))
            if shelf is None:
                continue
            resting, rested = shelf.resting, shelf.rested
            while resting and (first := next(iter(resting))).rests_until <= now:
                del resting[first]
                rested[first] = None
            while rested:
                connection, _ = rested.popitem()
                self._count -= 1
                if connection.may_carry(now, named):
                    return connection
                connection.drop()
        return None

    def take_resting(
        self, endpoint: Endpoint, now: float, named: frozenset[str] | None, *, is_head: bool
    ) -> Connection | None:
        """The usable connection that has rested for longest, though not for its time, or None."""
        for is_for_heads in _SHELVES_FOR_HEAD if is_head else _SHELVES:
            while (shelf := self._shelves.get((endpoint, is_for_heads))) is not None and shelf.resting:
                connection, _ = shelf.resting.popitem(last=False)
                self._count -= 1
                if connection.may_carry(now, named):
                    return connection
                connection.drop()
        return None

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; returns whether it was here."""
        shelf = self._shelves.get((connection.endpoint, connection.is_for_heads))
        if shelf is None:
            return False
        for part in (shelf.rested, shelf.resting):
            if connection in part:
                del part[connection]
                self._count -= 1
                return True
        return False

    def longest_idle(self) -> Iterator[Connection]:
        """For each endpoint the connection that became idle first."""
        every = (next(chain(shelf.rested, shelf.resting), None) for shelf in self._shelves.values())
        return (connection for connection in every if connection is not None)
