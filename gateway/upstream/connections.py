"""The pool: connections to all origins, kept for the next request, and a bound on how many are busy.

Who finds no place waits in line: the longest-waiting one whose host has room is next, so one host's crowd does not hold
up the others.  A place is a busy connection, from the first attempt to make it.  Idle connections have none, but busy
and idle ones together are never more than places: the longest idle one makes room.

All decisions here are plain functions; `place` alone waits, and what it waits with ends with its caller's bound.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from typing import NamedTuple

from gateway.upstream.connection import Connection
from gateway.upstream.endpoint import Endpoint


class Connections(NamedTuple):
    """Connections of one pool: how many are in use, how many wait for a request, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


class ConnectionPool:
    """Owner of all its connections and of the line of those who wait for one.

    `limit` is how many connections may be busy, 0 for no bound.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._host_limit = limit
        self._places: Counter[Endpoint] = Counter()
        self._taken = 0
        self._busy: dict[Connection, None] = {}
        self._idle: dict[Endpoint, dict[Connection, None]] = {}
        self._idle_count = 0
        self._waiting: dict[Endpoint, deque[tuple[int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()
        self._is_closed = False

    def __repr__(self) -> str:
        waiting = sum(map(len, self._waiting.values()))
        return f"<ConnectionPool {self._taken} busy, {self._idle_count} idle, {waiting} waiting>"

    def __len__(self) -> int:
        """Places that are taken."""
        return self._taken

    def leave_room(self, hosts: int) -> None:
        """Let one of several hosts take three quarters of the places at most: one that hangs would take all."""
        self._host_limit = self._limit if hosts < 2 else max(1, self._limit * 3 // 4)
        self._let_in()

    def look(self, now: float) -> Connections:
        """The connections as they are now.  One that is being made has a place, and no age."""
        idle = [connection for kept in self._idle.values() for connection in kept]
        ages = [now - connection.made_at for connection in (*self._busy, *idle)]
        return Connections(len(self._busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    # -- places

    def take(self, endpoint: Endpoint) -> Connection | None:
        """An idle connection that is as good as new, and a place for it; None where there is none of either."""
        kept = self._idle.get(endpoint)
        if not kept or endpoint in self._waiting or not self._has_room(endpoint):
            return None
        self._places[endpoint] += 1
        self._taken += 1
        connection = self.idle(endpoint)
        if connection is None:
            self.leave_place(endpoint)
        return connection

    async def place(self, endpoint: Endpoint) -> None:
        """Wait for a place, which is then the caller's: to be given to a connection, or given back."""
        if endpoint not in self._waiting and self._has_room(endpoint):
            self._places[endpoint] += 1
            self._taken += 1
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(endpoint, deque()).append((next(self._numbers), granted))
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled():
                self.leave_place(endpoint)
            else:
                # Those who wait are let in by their futures: a cancelled one is passed over.
                granted.cancel()
                self._sweep(endpoint)
            raise

    def leave_place(self, endpoint: Endpoint) -> None:
        """Give a place back that no connection has."""
        self._places[endpoint] -= 1
        if not self._places[endpoint]:
            del self._places[endpoint]
        self._taken -= 1
        if self._waiting:
            self._let_in()

    def idle(self, endpoint: Endpoint) -> Connection | None:
        """The connection that was used last, for a place that is taken; None where none is idle."""
        kept = self._idle.get(endpoint)
        while kept:
            connection, _ = kept.popitem()
            self._idle_count -= 1
            if connection.is_open:
                self._busy[connection] = None
                return connection
            connection.drop()
        return None

    def made(self, connection: Connection) -> None:
        """A new connection for a place that is taken."""
        self._busy[connection] = None
        if self._limit and self._idle_count and self._taken + self._idle_count > self._limit:
            oldest = min((next(iter(kept)) for kept in self._idle.values() if kept), key=lambda one: one.deadline.at)
            oldest.drop()

    def _has_room(self, endpoint: Endpoint) -> bool:
        return not self._limit or (self._taken < self._limit and self._places[endpoint] < self._host_limit)

    def _sweep(self, endpoint: Endpoint) -> None:
        line = self._waiting.get(endpoint)
        while line and line[0][1].done():
            line.popleft()
        if line is not None and not line:
            del self._waiting[endpoint]

    def _let_in(self) -> None:
        """Give free places to those who wait for them the longest."""
        while self._waiting and (not self._limit or self._taken < self._limit):
            for endpoint in tuple(self._waiting):
                self._sweep(endpoint)
            ready = [(line[0][0], endpoint) for endpoint, line in self._waiting.items() if self._has_room(endpoint)]
            if not ready:
                return
            _, endpoint = min(ready)
            _, granted = self._waiting[endpoint].popleft()
            self._sweep(endpoint)
            self._places[endpoint] += 1
            self._taken += 1
            granted.set_result(None)

    # -- from connections

    def freed(self, connection: Connection) -> None:
        """Its exchange has ended: keep it for the next one."""
        del self._busy[connection]
        self._idle.setdefault(connection.endpoint, {})[connection] = None
        self._idle_count += 1
        self.leave_place(connection.endpoint)
        if self._is_closed:
            connection.drop()

    def lost(self, connection: Connection) -> None:
        """It is no more."""
        if connection in self._busy:
            del self._busy[connection]
            self.leave_place(connection.endpoint)
            return
        kept = self._idle.get(connection.endpoint)
        if kept is not None and connection in kept:
            del kept[connection]
            self._idle_count -= 1
            if not kept:
                del self._idle[connection.endpoint]

    def close(self) -> None:
        """End all connections."""
        self._is_closed = True
        for connection in (*self._busy, *(one for kept in self._idle.values() for one in kept)):
            connection.drop()
