"""The idle connections of HTTP/1.1 of one pool: at rest, or free for the next request.

The most recently used connection is taken first, so that those beyond the need grow idle and are closed.  A connection
that has carried a HEAD carries only HEADs from then on: an origin that sends a body to a HEAD may send it late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple

from gateway.upstream.connection import Connection
from gateway.upstream.endpoint import Endpoint


class _Shelf(NamedTuple):
    """The idle connections of one endpoint and purpose, in the order in which they became idle."""

    resting: dict[Connection, None]
    rested: dict[Connection, None]


class IdleConnections:
    """Owner of the idle connections of a pool."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[Endpoint, bool], _Shelf] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Connection]:
        return chain.from_iterable(chain(shelf.rested, shelf.resting) for shelf in self._shelves.values())

    def __repr__(self) -> str:
        return f"<IdleConnections {self._count}>"

    def may_have(self, endpoint: Endpoint, *, is_head: bool) -> bool:
        """Whether there is a connection to this endpoint, at rest or not."""
        return (endpoint, is_head) in self._shelves or (endpoint, False) in self._shelves

    def add(self, connection: Connection) -> None:
        """A connection has become idle; it rests until `connection.rests_until`."""
        key = connection.endpoint, connection.is_for_heads
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = _Shelf({}, {})
        shelf.resting[connection] = None
        self._count += 1

    def take(
        self, endpoint: Endpoint, now: float, is_usable: Callable[[Connection], bool], *, is_head: bool
    ) -> Connection | None:
        """The most recently used connection that has rested and is usable, or None.  Connections that are not usable
        are dropped on the way."""
        for key in ((endpoint, True), (endpoint, False)) if is_head else ((endpoint, False),):
            shelf = self._shelves.get(key)
            if shelf is None:
                continue
            resting, rested = shelf
            while resting and (first := next(iter(resting))).rests_until <= now:
                del resting[first]
                rested[first] = None
            while rested:
                connection = next(reversed(rested))
                self.remove(connection)
                if is_usable(connection):
                    return connection
                connection.drop()
        return None

    def take_resting(
        self, endpoint: Endpoint, is_usable: Callable[[Connection], bool], *, is_head: bool
    ) -> Connection | None:
        """The usable connection that has rested for longest, though not for its time, or None."""
        for key in ((endpoint, True), (endpoint, False)) if is_head else ((endpoint, False),):
            while (shelf := self._shelves.get(key)) is not None and shelf.resting:
                connection = next(iter(shelf.resting))
                self.remove(connection)
                if is_usable(connection):
                    return connection
                connection.drop()
        return None

    def remove(self, connection: Connection) -> bool:
        """Remove a connection; returns whether it was here."""
        key = connection.endpoint, connection.is_for_heads
        shelf = self._shelves.get(key)
        if shelf is None:
            return False
        for part in shelf:
            if connection in part:
                del part[connection]
                self._count -= 1
                if not shelf.rested and not shelf.resting:
                    del self._shelves[key]
                return True
        return False

    def longest_idle(self) -> Iterator[Connection]:
        """For each endpoint the connection that became idle first."""
        return (next(chain(shelf.rested, shelf.resting)) for shelf in self._shelves.values())
