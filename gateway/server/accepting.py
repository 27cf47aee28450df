"""The descriptors that accept the connections of a listening socket.

libuv accepts one connection of a descriptor in each turn of the loop.  In a crowd, each turn would then run all of the
code of accepting, reading and leaving once, between system calls that empty the processor's caches.  Several
descriptors of one socket accept several connections in a turn.

A further descriptor is not free: it wakes for each connection, and takes some 4 µs to find that another one has taken
it.  There are as many as connections have waited at each of the latest looks, so a client that comes alone is accepted
by one.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Final, Self

from gateway.server.sockets import adopt, serve_on

ARRIVALS_PER_LOOK: Final = 32
"""New connections after which the kernel's queue is looked at: a look costs some microseconds."""
MOST_FURTHER: Final = 15
"""The most further descriptors of all sockets: they are some of the open files kept for other uses than connections
(`gateway.limits.memory.SPARE`)."""
_LOOKS: Final = 3
"""Looks of which the shortest queue counts: a burst is soon over."""
_UNACKED: Final = 24
"""Where TCP_INFO of a listening socket has the length of its queue, in four bytes (tcp(7))."""


def waiting(listening: socket.socket) -> int:
    """How many connections wait to be accepted; 0 where the system does not say it."""
    if sys.platform != "linux" or listening.family == socket.AF_UNIX:
        return 0
    info = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNACKED + 4)
    return int.from_bytes(info[_UNACKED:], sys.byteorder)


class AcceptQueue:
    """The connections that wait at one server.  Owner of the further descriptors of its socket."""

    def __init__(self, first: asyncio.Server, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> None:
        self._first = first
        self._factory = factory
        self._backlog = backlog
        self._further: list[asyncio.Server] = []
        self._seen: list[int] = []
        """How many connections waited at the latest looks."""

    @classmethod
    async def on(cls, sock: socket.socket, factory: Callable[[], asyncio.BaseProtocol], backlog: int) -> Self:
        """Accept connections on a socket."""
        return cls(await serve_on(sock, factory, backlog), factory, backlog)

    def __repr__(self) -> str:
        return f"<AcceptQueue {1 + len(self._further)} descriptors>"

    @property
    def further(self) -> int:
        """The number of further descriptors."""
        return len(self._further)

    @property
    def servers(self) -> list[asyncio.Server]:
        """The server, and those of the further descriptors."""
        return [self._first, *self._further]

    async def look(self, most: int = MOST_FURTHER) -> None:
        """Have as many further descriptors as connections have waited lately, `most` of them at most.  Raises OSError
        without files to open."""
        if not (sockets := self._first.sockets):
            return
        self._seen.append(waiting(sockets[0]))
        if len(self._seen) < _LOOKS:
            return
        wanted = min(most, *self._seen)
        self._seen.clear()
        while len(self._further) > wanted:
            self._further.pop().close()
        while len(self._further) < wanted and self._first.is_serving():
            server = await serve_on(adopt(sockets[0].fileno()), self._factory, self._backlog)
            self._further.append(server)
