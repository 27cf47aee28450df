"""The pool: connections to all origins, kept for the next request, and a bound on how many are busy.

Who finds no place waits in line: the longest-waiting one whose host has room is next, so one host's crowd does not hold
up the others.  A place is a busy connection, from the first attempt to make it.  Idle connections have none, but busy
and idle ones together are never more than places: the longest idle one makes room.

An upload holds its place for as long as its client takes to send the body, which is nothing that a gateway can hurry.
So uploads whose bodies are still on their way take three quarters of the places at most, a host's and all together,
and wait in a line of their own: reads and small writes always pass.

All decisions here are plain functions; `place` alone waits, and what it waits with ends with its caller's bound.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import NamedTuple

from gateway.upstream.connection import Connection
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.failures import NotConnected


def most_of(places: int) -> int:
    """How many places those may take who are to leave some for others: three quarters, and one at least."""
    return max(1, places * 3 // 4)


class Connections(NamedTuple):
    """Connections of one pool: how many are in use, how many wait for a request, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


_Line = deque[tuple[int, asyncio.Future[None]]]
"""Those who wait, by when they came."""


class _Host:
    """One host's part of a pool."""

    __slots__ = ("idle", "places", "uploads", "uploads_waiting", "waiting")

    def __init__(self) -> None:
        self.places = 0
        self.uploads = 0
        """How many places are held by requests whose bodies are still on their way."""
        self.idle: dict[Connection, None] = {}
        """In the order in which they became idle."""
        self.waiting: _Line = deque()
        self.uploads_waiting: _Line = deque()

    def line(self, *, is_upload: bool) -> _Line:
        """Where such a request waits."""
        return self.uploads_waiting if is_upload else self.waiting

    def sweep(self) -> int:
        """Forget those at the request handler of a line who have left it; how many."""
        swept = 0
        for line in (self.waiting, self.uploads_waiting):
            while line and line[0][1].done():
                line.popleft()
                swept += 1
        return swept


class ConnectionPool:
    """Owner of all its connections and of the line of those who wait for one.

    `limit` is how many connections may be busy, 0 for no bound.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._host_limit = limit
        self._hosts: dict[Endpoint, _Host] = {}
        self._taken = 0
        self._uploads = 0
        self._busy: dict[Connection, None] = {}
        self._idle_count = 0
        self._waiting = 0
        """Places in lines, those too that were left and not swept yet."""
        self._numbers = itertools.count()
        self._is_closed = False

    def __repr__(self) -> str:
        waiting = sum(len(host.waiting) + len(host.uploads_waiting) for host in self._hosts.values())
        return f"<ConnectionPool {self._taken} busy, {self._idle_count} idle, {waiting} waiting>"

    def __len__(self) -> int:
        """Places that are taken."""
        return self._taken

    def leave_room(self, hosts: int) -> None:
        """Let one of several hosts take three quarters of the places at most: one that hangs would take all."""
        self._host_limit = self._limit if hosts < 2 else most_of(self._limit)
        self._let_in()

    def look(self, now: float) -> Connections:
        """The connections as they are now.  One that is being made has a place, and no age."""
        idle = [connection for host in self._hosts.values() for connection in host.idle]
        ages = [now - connection.made_at for connection in (*self._busy, *idle)]
        return Connections(len(self._busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    # -- places

    def take(self, endpoint: Endpoint, *, is_upload: bool = False) -> Connection | None:
        """An idle connection that is as good as new, and a place for it; None where there is none of either.

        With a place for an upload `uploaded` is owed."""
        host = self._hosts.get(endpoint)
        if host is None or not host.idle or not self._may_enter(host, is_upload=is_upload):
            return None
        connection = self._idle(host)
        if connection is not None:
            self._enter(host, is_upload=is_upload)
        return connection

    async def place(self, endpoint: Endpoint, *, is_upload: bool = False) -> None:
        """Wait for a place, which is then the caller's: to be given to a connection, or given back.  NotConnected once
        the pool is closed.

        With a place for an upload `uploaded` is owed."""
        if self._is_closed:
            raise NotConnected("the pool is closed")
        host = self._hosts.get(endpoint)
        if host is None:
            host = self._hosts[endpoint] = _Host()
        if self._may_enter(host, is_upload=is_upload):
            self._enter(host, is_upload=is_upload)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        host.line(is_upload=is_upload).append((next(self._numbers), granted))
        self._waiting += 1
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.leave_place(endpoint)
                if is_upload:
                    self.uploaded(endpoint)
            else:
                # In the middle of the line it is passed over when its turn comes.
                granted.cancel()
                self._waiting -= host.sweep()
                self._forget(endpoint, host)
            raise

    def leave_place(self, endpoint: Endpoint) -> None:
        """Give a place back that no connection has."""
        self._leave(endpoint, self._hosts[endpoint])

    def uploaded(self, endpoint: Endpoint) -> None:
        """The body of an upload that was given a place is on its way no more; the place may be held on."""
        host = self._hosts[endpoint]
        host.uploads -= 1
        self._uploads -= 1
        self._let_in()
        self._forget(endpoint, host)

    def idle(self, endpoint: Endpoint) -> Connection | None:
        """The connection that was used last, for a place that is taken; None where none is idle."""
        return self._idle(self._hosts[endpoint])

    def made(self, connection: Connection) -> None:
        """A new connection for a place that is taken."""
        self._busy[connection] = None
        if self._limit and self._idle_count and self._taken + self._idle_count > self._limit:
            longest = (next(iter(host.idle)) for host in self._hosts.values() if host.idle)
            min(longest, key=lambda one: one.deadline.at).drop()

    def _idle(self, host: _Host) -> Connection | None:
        while host.idle:
            connection, _ = host.idle.popitem()
            self._idle_count -= 1
            if connection.is_open:
                self._busy[connection] = None
                return connection
            connection.drop()
        return None

    def _has_room(self, host: _Host, *, is_upload: bool) -> bool:
        if not self._limit:
            return True
        if is_upload and (self._uploads >= most_of(self._limit) or host.uploads >= most_of(self._host_limit)):
            return False
        return self._taken < self._limit and host.places < self._host_limit

    def _may_enter(self, host: _Host, *, is_upload: bool) -> bool:
        """Whether there is a place, and nobody who has waited for it."""
        return not host.line(is_upload=is_upload) and self._has_room(host, is_upload=is_upload)

    def _enter(self, host: _Host, *, is_upload: bool) -> None:
        host.places += 1
        host.uploads += is_upload
        self._uploads += is_upload
        self._taken += 1

    def _leave(self, endpoint: Endpoint, host: _Host) -> None:
        host.places -= 1
        self._taken -= 1
        self._let_in()
        self._forget(endpoint, host)

    def _forget(self, endpoint: Endpoint, host: _Host) -> None:
        is_used = host.places or host.uploads or host.idle
        if not is_used and not host.waiting and not host.uploads_waiting:
            self._hosts.pop(endpoint, None)

    def _let_in(self) -> None:
        """Give free places to those who wait for them the longest."""
        while self._waiting and (not self._limit or self._taken < self._limit):
            first: tuple[int, bool, _Host] | None = None
            for host in self._hosts.values():
                if host.waiting or host.uploads_waiting:
                    self._waiting -= host.sweep()
                    for is_upload in (False, True):
                        line = host.line(is_upload=is_upload)
                        is_earlier = line and (first is None or line[0][0] < first[0])
                        if is_earlier and self._has_room(host, is_upload=is_upload):
                            first = line[0][0], is_upload, host
            if first is None:
                return
            _, is_upload, host = first
            _, granted = host.line(is_upload=is_upload).popleft()
            self._waiting -= 1
            self._enter(host, is_upload=is_upload)
            granted.set_result(None)

    # -- from connections

    def freed(self, connection: Connection) -> None:
        """Its exchange has ended: keep it for the next one."""
        host = self._hosts[connection.endpoint]
        del self._busy[connection]
        host.idle[connection] = None
        self._idle_count += 1
        host.places -= 1
        self._taken -= 1
        if self._waiting:
            self._let_in()
        if self._is_closed:
            connection.drop()

    def lost(self, connection: Connection) -> None:
        """It is no more."""
        host = self._hosts.get(connection.endpoint)
        if connection in self._busy:
            del self._busy[connection]
            self.leave_place(connection.endpoint)
        elif host is not None and connection in host.idle:
            del host.idle[connection]
            self._idle_count -= 1
            self._forget(connection.endpoint, host)

    def drop_idle(self) -> None:
        """Begin anew with every request that comes."""
        for connection in [one for host in self._hosts.values() for one in host.idle]:
            connection.drop()

    def close(self) -> None:
        """End all connections, and the waiting for one."""
        self._is_closed = True
        for host in tuple(self._hosts.values()):
            for _, granted in (*host.waiting, *host.uploads_waiting):
                if not granted.done():
                    granted.set_exception(NotConnected("the pool is closed"))
        self.drop_idle()
        for connection in tuple(self._busy):
            connection.drop()
