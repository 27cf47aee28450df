"""The idle HTTP/1.1 connections of one pool.

After a reply a connection rests for a moment, and is then free for the next request.  The most recently used connection
is taken first, so that surplus connections stay idle until they are closed.  A connection that has carried a HEAD is
kept for HEADs only, because a faulty origin may send a body after the reply to a HEAD.
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
"""The kinds of shelves to search for a HEAD, which may use any connection.  True stands for the shelf of connections
that are kept for HEADs.
"""


class _Shelf:
    """The idle connections to one endpoint, for HEADs or for other requests, the longest idle first."""

    __slots__ = ("rested", "resting")

    def __init__(self) -> None:
        # In a plain `dict` the first key is slow to find after many removals at the front.
        self.resting: OrderedDict[Connection, None] = OrderedDict()
        self.rested: dict[Connection, None] = {}


class IdleConnections:
    """Owner of the idle connections of a pool."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[Endpoint, bool], _Shelf] = {}
        """The shelves.  Empty shelves are removed only when a new shelf is created, because the shelf of a busy
        endpoint is often empty for a moment.
        """
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Connection]:
        return chain.from_iterable(chain(shelf.rested, shelf.resting) for shelf in self._shelves.values())

    def __repr__(self) -> str:
        return f"<IdleConnections {self._count}>"

    def add_connection(self, connection: Connection) -> None:
        """Add a connection that has become idle.  It rests until `connection.rests_until`."""
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
        """Remove and return the most recently used connection that has rested.  Return None if no usable connection has
        rested.

        Connections that cannot be used any more are closed.  `named` has the endpoint's addresses, if known.
        """
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
        """Remove and return the connection that has rested the longest but still rests; None if no connection rests."""
        for is_for_heads in _SHELVES_FOR_HEAD if is_head else _SHELVES:
            while (shelf := self._shelves.get((endpoint, is_for_heads))) is not None and shelf.resting:
                connection, _ = shelf.resting.popitem(last=False)
                self._count -= 1
                if connection.may_carry(now, named):
                    return connection
                connection.drop()
        return None

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; return whether it was idle."""
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
        """Return the longest idle connection of each shelf."""
        every = (next(chain(shelf.rested, shelf.resting), None) for shelf in self._shelves.values())
        return (connection for connection in every if connection is not None)
