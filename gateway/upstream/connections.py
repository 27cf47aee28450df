"""The connection pool: idle connections kept for reuse, and a bound on the busy ones.

A slot is the right to one busy connection, from the first attempt to make it.  A request without a slot queues.  The
longest-waiting request whose host has room is next, so one crowded host does not block the others.  Idle connections
hold no slots, but busy and idle ones together never exceed the number of slots: a new connection replaces the one that
has been idle for longest.

An upload holds its slot for as long as its client takes to send the body, which the gateway cannot influence.  Uploads
with unfinished bodies therefore get at most three quarters of the slots, per host and in total, and have their own
queue, so that reads and small writes always pass.

All decisions are plain functions.  Only `acquire` waits, and its caller bounds the wait.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import NamedTuple

from gateway.upstream.connection import Connection
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.failures import NotConnected


def shared_limit(slots: int) -> int:
    """The share of the slots for requests that must leave some to others: three quarters, at least one."""
    return max(1, slots * 3 // 4)


class Connections(NamedTuple):
    """The connections of one pool: the number in use, the number idle, and their ages in seconds."""

    busy: int
    idle: int
    oldest_s: float
    mean_s: float


_Queue = deque[tuple[int, asyncio.Future[None]]]
"""Waiting requests: arrival number, and the future that is resolved with the slot."""


class _Host:
    """One host's part of a pool."""

    __slots__ = ("idle", "slots", "uploads", "uploads_waiting", "waiting")

    def __init__(self) -> None:
        self.slots = 0
        self.uploads = 0
        """Slots held by requests whose bodies are not completely sent."""
        self.idle: dict[Connection, None] = {}
        """In the order in which they became idle."""
        self.waiting: _Queue = deque()
        self.uploads_waiting: _Queue = deque()

    def queue(self, *, is_upload: bool) -> _Queue:
        """The queue for such a request."""
        return self.uploads_waiting if is_upload else self.waiting

    def drop_cancelled(self) -> int:
        """Drop the cancelled requests at the front of both queues; returns their number."""
        dropped = 0
        for queue in (self.waiting, self.uploads_waiting):
            while queue and queue[0][1].done():
                queue.popleft()
                dropped += 1
        return dropped


class ConnectionPool:
    """Owns the connections of all hosts and the queues for them.

    `limit` is the most connections that may be busy; 0 means no bound.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._host_limit = limit
        self._hosts: dict[Endpoint, _Host] = {}
        self._slots_taken = 0
        self._uploads = 0
        self._busy: dict[Connection, None] = {}
        self._idle_count = 0
        self._waiting = 0
        """Requests in queues, including cancelled ones that were not dropped yet."""
        self._numbers = itertools.count()
        self._is_closed = False

    def __repr__(self) -> str:
        waiting = sum(len(host.waiting) + len(host.uploads_waiting) for host in self._hosts.values())
        return f"<ConnectionPool {self._slots_taken} busy, {self._idle_count} idle, {waiting} waiting>"

    def __len__(self) -> int:
        """Slots in use."""
        return self._slots_taken

    def limit_per_host(self, hosts: int) -> None:
        """Limit each of several hosts to three quarters of the slots: one that hangs would take them all."""
        self._host_limit = self._limit if hosts < 2 else shared_limit(self._limit)
        self._grant_slots()

    def look(self, now: float) -> Connections:
        """A snapshot of the connections.  A connection in the making has a slot but no age."""
        idle = [connection for host in self._hosts.values() for connection in host.idle]
        ages = [now - connection.made_at for connection in (*self._busy, *idle)]
        return Connections(len(self._busy), len(idle), max(ages, default=0.0), sum(ages) / max(1, len(ages)))

    # -- slots

    def take_idle(self, endpoint: Endpoint, *, is_upload: bool = False) -> Connection | None:
        """An open idle connection and a slot for it; None unless both are available.

        For an upload the caller must call `upload_done`."""
        host = self._hosts.get(endpoint)
        if host is None or not host.idle or not self._can_take_slot(host, is_upload=is_upload):
            return None
        connection = self._idle(host)
        if connection is not None:
            self._take_slot(host, is_upload=is_upload)
        return connection

    async def acquire(self, endpoint: Endpoint, *, is_upload: bool = False) -> None:
        """Wait for a slot.  The caller must pass it to a connection (`made`, `idle`) or give it back (`release`).
        Raises NotConnected once the pool is closed.

        For an upload the caller must call `upload_done`."""
        if self._is_closed:
            raise NotConnected("the pool is closed")
        host = self._hosts.get(endpoint)
        if host is None:
            host = self._hosts[endpoint] = _Host()
        if self._can_take_slot(host, is_upload=is_upload):
            self._take_slot(host, is_upload=is_upload)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        host.queue(is_upload=is_upload).append((next(self._numbers), granted))
        self._waiting += 1
        try:
            await granted
        except BaseException:
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                self.release(endpoint)
                if is_upload:
                    self.upload_done(endpoint)
            else:
                # In the middle of the queue it is skipped when its turn comes.
                granted.cancel()
                self._waiting -= host.drop_cancelled()
                self._forget(endpoint, host)
            raise

    def release(self, endpoint: Endpoint) -> None:
        """Give back a slot that no connection holds."""
        self._free_slot(endpoint, self._hosts[endpoint])

    def upload_done(self, endpoint: Endpoint) -> None:
        """An upload's body is no longer being sent; the request may still hold its slot."""
        host = self._hosts[endpoint]
        host.uploads -= 1
        self._uploads -= 1
        self._grant_slots()
        self._forget(endpoint, host)

    def idle(self, endpoint: Endpoint) -> Connection | None:
        """The most recently used idle connection, for a slot in hand; None if there is none."""
        return self._idle(self._hosts[endpoint])

    def made(self, connection: Connection) -> None:
        """Use the slot in hand for a new connection."""
        self._busy[connection] = None
        if self._limit and self._idle_count and self._slots_taken + self._idle_count > self._limit:
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
        if is_upload and (self._uploads >= shared_limit(self._limit) or host.uploads >= shared_limit(self._host_limit)):
            return False
        return self._slots_taken < self._limit and host.slots < self._host_limit

    def _can_take_slot(self, host: _Host, *, is_upload: bool) -> bool:
        """Whether there is a free slot that no earlier request waits for."""
        return not host.queue(is_upload=is_upload) and self._has_room(host, is_upload=is_upload)

    def _take_slot(self, host: _Host, *, is_upload: bool) -> None:
        host.slots += 1
        host.uploads += is_upload
        self._uploads += is_upload
        self._slots_taken += 1

    def _free_slot(self, endpoint: Endpoint, host: _Host) -> None:
        host.slots -= 1
        self._slots_taken -= 1
        self._grant_slots()
        self._forget(endpoint, host)

    def _forget(self, endpoint: Endpoint, host: _Host) -> None:
        is_used = host.slots or host.uploads or host.idle
        if not is_used and not host.waiting and not host.uploads_waiting:
            self._hosts.pop(endpoint, None)

    def _grant_slots(self) -> None:
        """Grant free slots to the requests that have waited longest."""
        while self._waiting and (not self._limit or self._slots_taken < self._limit):
            first: tuple[int, bool, _Host] | None = None
            for host in self._hosts.values():
                if host.waiting or host.uploads_waiting:
                    self._waiting -= host.drop_cancelled()
                    for is_upload in (False, True):
                        queue = host.queue(is_upload=is_upload)
                        is_earlier = queue and (first is None or queue[0][0] < first[0])
                        if is_earlier and self._has_room(host, is_upload=is_upload):
                            first = queue[0][0], is_upload, host
            if first is None:
                return
            _, is_upload, host = first
            _, granted = host.queue(is_upload=is_upload).popleft()
            self._waiting -= 1
            self._take_slot(host, is_upload=is_upload)
            granted.set_result(None)

    # -- from connections

    def freed(self, connection: Connection) -> None:
        """An exchange has ended: keep the connection for the next one."""
        host = self._hosts[connection.endpoint]
        del self._busy[connection]
        host.idle[connection] = None
        self._idle_count += 1
        host.slots -= 1
        self._slots_taken -= 1
        if self._waiting:
            self._grant_slots()
        if self._is_closed:
            connection.drop()

    def lost(self, connection: Connection) -> None:
        """The connection is gone."""
        host = self._hosts.get(connection.endpoint)
        if connection in self._busy:
            del self._busy[connection]
            self.release(connection.endpoint)
        elif host is not None and connection in host.idle:
            del host.idle[connection]
            self._idle_count -= 1
            self._forget(connection.endpoint, host)

    def drop_idle(self) -> None:
        """Drop the idle connections, so that new requests open new ones."""
        for connection in [one for host in self._hosts.values() for one in host.idle]:
            connection.drop()

    def close(self) -> None:
        """End all connections and fail all queued requests."""
        self._is_closed = True
        for host in tuple(self._hosts.values()):
            for _, granted in (*host.waiting, *host.uploads_waiting):
                if not granted.done():
                    granted.set_exception(NotConnected("the pool is closed"))
        self.drop_idle()
        for connection in tuple(self._busy):
            connection.drop()
