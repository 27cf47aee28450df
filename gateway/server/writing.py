"""How answers are written over HTTP/1.1 (RFC 9112): whole ones, those that come in pieces, and live ones."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Final

from multidict import CIMultiDict

from gateway.server.clients import Clients
from gateway.server.deadlines import Phase, TimedConnection
from gateway.server.followed import Followed
from gateway.server.head import CONTINUE, response_head
from gateway.server.request import LiveAnswer, Note, Request
from gateway.telemetry.access_record import CloseReason

_LAST_CHUNK: Final = b"0\r\n\r\n"
_BODILESS: Final = frozenset({204, 304})


class WritingConnection(TimedConnection, ABC):
    """The writing half of a client's connection: a `gateway.server.request.Channel`."""

    __slots__ = (
        "_followed",
        "_is_bodiless",
        "_is_chunked",
        "_keeps",
        "_live",
        "_now",
        "_room",
        "live_bytes",
        "live_first_byte_s",
    )

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._now = clients.now
        self._room: asyncio.Future[None] | None = None
        """What the handler waits for when the client is to read first."""
        self._is_bodiless = False
        """Whether the answer has no body whatever its head says (RFC 9110 section 6.4.1)."""
        self._is_chunked = True
        self._keeps = True
        """Whether the connection is kept after the live answer."""
        self._live: LiveAnswer | None = None
        """Who gives the live answer."""
        self._followed: Followed | None = None
        """The account of the live answer, where it is one over SSE."""
        self.live_bytes = 0
        """Body bytes of the live answer."""
        self.live_first_byte_s = 0.0
        """How long after the request was read the live answer's head was written."""

    @abstractmethod
    def _resume(self) -> None:
        """Take the next request."""

    @property
    def unsent_bytes(self) -> int:
        """What the client has left unread, as far as this process holds it."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    # -- answers by a handler

    def proceed(self) -> None:
        """Tell the client to go on with its body (RFC 9110 section 15.2.1)."""
        if self.transport is not None:
            self.transport.write(CONTINUE)

    def respond(self, request: Request, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        """Write a whole answer; UpstreamBroken, with nothing written, for headers that must not be."""
        self._decide_keep_alive(request)
        if status in _BODILESS:
            body = b""
        elif body or request.method != "HEAD":
            headers["Content-Length"] = str(len(body))
        head = response_head(status, headers, self._clients.wall(), keeps=request.keeps_alive)
        request.has_begun = True
        if self.transport is not None:
            self.transport.write(head + body if body and request.method != "HEAD" else head)

    def begin(
        self, request: Request, status: int, reason: str | None, headers: CIMultiDict[str], length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes, None where that is not known yet."""
        self._decide_keep_alive(request)
        self._is_bodiless = status in _BODILESS or request.method == "HEAD"
        self._is_chunked = False
        if status == 204:
            # RFC 9110 section 8.6, whatever the origin says.
            headers.popall("Content-Length", None)
        if length is not None and not self._is_bodiless:
            headers["Content-Length"] = str(length)
        elif length is None and not self._is_bodiless and "Content-Length" not in headers:
            if request.version == "1.0":
                # The end of the body is that of the connection.
                request.keeps_alive = False
            else:
                self._is_chunked = True
                headers["Transfer-Encoding"] = "chunked"
        head = response_head(status, headers, self._clients.wall(), keeps=request.keeps_alive, reason=reason)
        request.has_begun = True
        if self.transport is not None:
            self.transport.write(head)

    def _decide_keep_alive(self, request: Request) -> None:
        """Decide whether the connection is kept, before its client is told."""
        is_read = request.body is None or request.body.is_whole
        if not is_read or self._clients.is_leaving:
            # What is left of the body is not worth reading: the connection goes with this answer.
            request.keeps_alive = False

    def send_part(self, piece: bytes) -> None:
        """Write a piece of the body."""
        if self.transport is None or self._is_bodiless or not piece:
            return
        if self._is_chunked:
            self.transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
        else:
            self.transport.write(piece)

    def end(self) -> None:
        """The body is whole."""
        if self.transport is not None and self._is_chunked and not self._is_bodiless:
            self.transport.write(_LAST_CHUNK)

    async def drained(self) -> None:
        """Wait until the client has taken enough for more to be written.  ConnectionError when it is gone, or takes
        nothing for too long."""
        while self.is_full and self.transport is not None:
            self._room = self._clients.loop.create_future()
            try:
                async with asyncio.timeout(self._clients.limits.client_write_timeout_s):
                    await self._room
            except TimeoutError:
                self._clients.metrics.slow_consumer()
                self.abort()
                raise ConnectionResetError("the client does not read") from None
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client has gone")

    def _has_room(self, error: ConnectionError | None = None) -> None:
        """The client has taken enough, or will never."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            if error is None:
                room.set_result(None)
            else:
                room.set_exception(error)

    def hand_over(self, answering: LiveAnswer) -> None:
        """The answer is given by `answering`, who is told of room and of the client's end, until `answered`."""
        self.phase = Phase.GIVEN
        self._live = answering

    # -- live answers

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """The answer is given by `live` from here on, until `release`."""
        self.phase = Phase.LIVE
        self._live = live
        self._keeps = keeps
        self._is_chunked = is_chunked
        self.live_bytes = 0

    def release(self) -> None:
        """The live answer has ended: the connection is free for the next request, or goes."""
        self._live = None
        self.phase = Phase.IDLE
        if not self._keeps or self._clients.is_leaving:
            self._close()
        else:
            self._resume()

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """An SSE answer is given by `live` from here on, until `over`."""
        self.park(live, keeps=keeps, is_chunked=is_chunked)
        self._followed = Followed(self._clients, route, began, note)

    def write_head(self, head: bytes) -> None:
        """Write the head of a live answer."""
        assert self._followed is not None
        self.live_first_byte_s = self._now() - self._followed.began
        if self.transport is not None:
            self.transport.write(head)

    def send(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of a live body, framed as a chunk."""
        transport = self.transport
        if transport is None:
            return
        if not self._is_chunked:
            chunk = chunk[chunk.index(b"\r\n") + 2 : -2]
        transport.write(chunk)
        self.live_bytes += size
        self._clients.sent_bytes += size

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """The live body is whole; or it is not, and never will be."""
        if self.transport is not None:
            if not in_order:
                # Only the end of the connection tells a part from the whole.
                self.transport.abort()
            elif self._is_chunked:
                self.transport.write(_LAST_CHUNK)
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.close(self, reason, in_order=in_order)
        self.release()

    def write_response(self, response: bytes, body_bytes: int) -> None:
        """Write a whole live answer, where the client is still there; `release` is owed."""
        if self.transport is not None:
            self.transport.write(response)
            self.live_bytes += body_bytes
            self._clients.sent_bytes += body_bytes
