"""The connections of the admin port, bounded in number, in the size of request heads, and in time.

The admin port shares the process's open files with clients and origins, and its HTTP server does not bound its
connections.  Each accepted connection is a protocol of this module, which passes its input on to the server's own
protocol.

A connection is busy from the moment when its request reaches the application until the answer is written.  If there are
too many connections, a new connection replaces the connection that has been idle longest.  Connections that have never
sent a whole request are replaced first.  Idle connections can therefore never lock an operator out.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final, cast

from aiohttp import web

MOST_HEAD_BYTES: Final = 1 << 16
"""The largest request head: twice the longest request line."""
HEAD_S: Final = 10.0
"""The most seconds for a head, from the connection's beginning or from the request's first byte."""
IDLE_S: Final = 75.0
"""The longest pause between two requests, in seconds."""
WRITE_S: Final = 30.0
"""Seconds after which a connection is closed if its client has read too little of an answer."""

_HEAD_END: Final = b"\r\n\r\n"
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Closed(StrEnum):
    """The reason why a connection was closed."""

    LIMIT = "limit"
    """There were too many connections."""
    HEAD = "head"
    """A request's head was too large, or incomplete after its time."""
    WRITE = "write"
    """The client did not take an answer in time."""


class AdminConnections:
    """The open connections of the admin port, and the factory of their protocols.  `serve` makes the HTTP server's own
    protocol."""

    def __init__(self, serve: Callable[[], web.RequestHandler], most: int) -> None:
        self._serve = serve
        self._most = most
        self._open: dict[AdminConnection, None] = {}
        """The open connections, in the order in which they became idle."""
        self._by_handler: dict[object, AdminConnection] = {}
        self.closed: Counter[Closed] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def __repr__(self) -> str:
        return f"<AdminConnections {len(self)} of {self._most}, {self.closed.total()} closed>"

    def __call__(self) -> AdminConnection:
        return AdminConnection(self, self._serve())

    def figures(self) -> tuple[int, dict[str, int]]:
        """Return the number of open connections, and the number of closed connections by reason."""
        return len(self), {reason.value: self.closed[reason] for reason in Closed}

    def admit(self, connection: AdminConnection, handler: object) -> bool:
        """Register a new connection.  If there are too many connections, the new connection replaces an idle one.
        Returns False if all connections are busy.
        """
        if len(self._open) >= self._most:
            self.closed[Closed.LIMIT] += 1
            idle = [one for one in self._open if not one.is_busy]
            if not idle:
                return False
            min(idle, key=lambda one: one.has_asked).abort()
        self._open[connection] = None
        self._by_handler[handler] = connection
        return True

    def idles(self, connection: AdminConnection) -> None:
        """Record that the connection has answered a request."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def leave(self, connection: AdminConnection, handler: object) -> None:
        """Unregister a connection."""
        self._open.pop(connection, None)
        self._by_handler.pop(handler, None)

    def watch(self, application: web.Application) -> None:
        """Make the application report the beginning and the end of each request.  Call this before the application is
        served.
        """

        @web.middleware
        async def watched(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = self._by_handler.get(request.protocol)
            if connection is None:
                return await handler(request)
            connection.begins()
            try:
                return await handler(request)
            finally:
                connection.ends()

        application.middlewares.insert(0, watched)


class AdminConnection(asyncio.Protocol):
    """One connection.  It passes its input on, and enforces the bounds."""

    def __init__(self, connections: AdminConnections, handler: web.RequestHandler) -> None:
        self._connections = connections
        self._handler = handler
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        """Bytes of the next request that have arrived.  0 once its head is complete."""
        self._is_head_whole = False
        self._last = b""
        """The last bytes of an incomplete head, whose end may arrive in two pieces."""
        self._requests = 0
        """The number of requests being answered."""
        self.has_asked = False
        """Whether the client has ever sent a complete request."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered, or an answer has yet to be written."""
        return self._requests > 0 or self._write_deadline is not None

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._connections.leave(self, self._handler)

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's transports.
        self._transport = cast("asyncio.Transport", transport)
        if not self._connections.admit(self, self._handler):
            self._transport.abort()
            return
        self._set_deadline(HEAD_S)
        self._handler.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._requests == 0 and not self._is_head_whole:
            if self._head_bytes == 0 and self.has_asked:
                self._set_deadline(HEAD_S)
            end = (self._last + data).find(_HEAD_END)
            self._head_bytes += len(data) if end < 0 else 0
            if self._head_bytes > MOST_HEAD_BYTES or end > MOST_HEAD_BYTES:
                self._connections.closed[Closed.HEAD] += 1
                self._transport.write(_TOO_LARGE)
                self._transport.close()
                return
            self._is_head_whole = end >= 0
            self._last = b"" if end >= 0 else (self._last + data)[1 - len(_HEAD_END) :]
        self._handler.data_received(data)

    def eof_received(self) -> None:
        self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._write_deadline is None:
            self._write_deadline = asyncio.get_running_loop().call_later(WRITE_S, self._late, Closed.WRITE)
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._clear_write_deadline()
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._clear_write_deadline()
        self._connections.leave(self, self._handler)
        if self._transport is not None and self._handler.transport is not None:
            self._handler.connection_lost(exc)
        self._transport = None

    # -- called by the application

    def begins(self) -> None:
        """Called when a request has reached the application."""
        self._clear_deadline()
        self.has_asked = True
        self._requests += 1

    def ends(self) -> None:
        """Called when the application has answered."""
        self._requests -= 1
        self._head_bytes, self._is_head_whole = 0, False
        if self._transport is not None and self._requests == 0:
            self._connections.idles(self)
            self._set_deadline(IDLE_S)

    # -- deadlines

    def _set_deadline(self, delay_s: float) -> None:
        self._clear_deadline()
        self._deadline = asyncio.get_running_loop().call_later(delay_s, self._on_deadline)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _clear_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def _on_deadline(self) -> None:
        if self.has_asked and self._head_bytes == 0 and not self._is_head_whole:
            # The connection has been idle between two requests, which is the usual end of a kept connection.
            self.abort()
        else:
            self._late(Closed.HEAD)

    def _late(self, why: Closed) -> None:
        self._connections.closed[why] += 1
        self.abort()
