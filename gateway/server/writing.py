"""Writes answers over HTTP/1.1 (RFC 9112): whole, streamed and live."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Final

from multidict import CIMultiDict, istr

from gateway.http.outgoing import JOINED_BYTES, Fields, interim_head, response_head, state_length, states_length
from gateway.limits.memory import SharedBytes
from gateway.server.client_connections import Clients
from gateway.server.phase import Phase
from gateway.server.request import LiveAnswer, Request
from gateway.server.request_records import end_sse
from gateway.server.timeouts import TimedConnection
from gateway.telemetry.access_record import CloseReason

_CONTENT_LENGTH: Final = istr("Content-Length")
_TRANSFER_ENCODING: Final = istr("Transfer-Encoding")
_LAST_CHUNK: Final = b"0\r\n\r\n"
_BODILESS: Final = frozenset({204, 304})
_MOST_ZEROS: Final = 8
"""The most zeros written as probes on one connection.  The zeros become leading zeros of a chunk size, and some parsers
accept at most 16 digits of a size.
"""

# Module names are faster to look up than enum members, and every request needs these members.
_IDLE, _LIVE = Phase.IDLE, Phase.LIVE


class WritingConnection(TimedConnection):
    """The part of a client's connection that writes answers.  It implements most of
    `gateway.server.request.Channel`."""

    __slots__ = (
        "_is_bodiless",
        "_is_chunked",
        "_keeps",
        "_now",
        "_zeros",
    )

    def __init__(self, clients: Clients) -> None:
        super().__init__(clients)
        self._now = clients.now
        self._is_bodiless = False
        """Whether the answer has no body, whatever its head states (RFC 9110 section 6.4.1)."""
        self._is_chunked = True
        self._keeps = True
        """Whether the connection stays open after the live answer."""
        self._zeros = 0
        """Leading zeros written as probes."""

    @abstractmethod
    def _resume(self) -> None:
        """Begin the next request."""

    def _probe(self) -> None:
        transport, request = self.transport, self._request
        if transport is None:
            return
        has_head = self.sse_route is not None if self.phase is _LIVE else request is not None and request.has_begun
        if not has_head and (request is None or request.version != "1.0"):
            # Probe by an interim answer, because a client has to accept any number of them (RFC 9110 section 15.2).
            transport.write(interim_head(100, CIMultiDict()))
        elif has_head and self._is_chunked and not self._is_bodiless and self._zeros < _MOST_ZEROS:
            # Probe by a zero that begins the next chunk, because a chunk's size may have leading zeros (RFC 9112
            # section 7.1).
            self._zeros += 1
            transport.write(b"0")

    @property
    def unsent_bytes(self) -> int:
        """Bytes that this process holds because the client has not read them."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    # -- answers of a handler

    def inform(self, status: int, headers: CIMultiDict[str]) -> None:
        """Send an interim reply (RFC 9110 section 15.2), such as 100 Continue.

        Raises UpstreamBroken for headers that must not be sent, before anything is written.
        """
        head = interim_head(status, headers)
        if self.transport is not None:
            self.transport.write(head)

    def respond(self, request: Request, status: int, headers: Fields, body: bytes, reason: str | None = None) -> None:
        """Write a whole answer.  Raises UpstreamBroken for headers that must not be sent, before anything is
        written."""
        self._decide_keep_alive(request)
        if status in _BODILESS:
            body = b""
            if status == 204 and states_length(headers):
                # RFC 9110 section 8.6 forbids a Content-Length in a 204, even if the origin has sent one.
                del headers[_CONTENT_LENGTH]
        elif body or request.method != "HEAD":
            state_length(headers, len(body))
        head = response_head(status, headers, self._clients.wall(), keeps=request.keeps_alive, reason=reason)
        request.has_begun = True
        if self.transport is None:
            return
        if len(body) > JOINED_BYTES and request.method != "HEAD":
            # Do not copy the body, because other clients may get the same bytes.
            self.transport.writelines((head, body))
        else:
            self.transport.write(head + body if body and request.method != "HEAD" else head)

    def start_response(
        self, request: Request, status: int, reason: str | None, headers: Fields, length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes.  With None, the length is unknown and the body is
        sent in chunks."""
        self._decide_keep_alive(request)
        self._is_bodiless = status in _BODILESS or request.method == "HEAD"
        self._is_chunked = False
        if status == 204 and states_length(headers):
            # RFC 9110 section 8.6 forbids a Content-Length in a 204, even if the origin has sent one.
            del headers[_CONTENT_LENGTH]
        if length is not None and not self._is_bodiless:
            headers["Content-Length"] = str(length)
        elif length is None and not self._is_bodiless and _CONTENT_LENGTH not in headers:
            if request.version == "1.0":
                # HTTP/1.0 has no chunks, so the end of the connection ends the body.
                request.keeps_alive = False
            else:
                self._is_chunked = True
                headers.add(_TRANSFER_ENCODING, "chunked")
        head = response_head(status, headers, self._clients.wall(), keeps=request.keeps_alive, reason=reason)
        request.has_begun = True
        if self.transport is not None:
            self.transport.write(head)

    def _decide_keep_alive(self, request: Request) -> None:
        """Decide whether the connection stays open, before the head states it."""
        is_read = request.body is None or request.body.is_whole
        if not is_read or self._clients.is_draining:
            # Do not spend work on the rest of a request body that the answer did not need.
            request.keeps_alive = False

    def send_part(self, piece: bytes) -> None:
        """Write a part of the body."""
        if self.transport is None or self._is_bodiless or not piece:
            return
        if self._is_chunked:
            self.transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
        else:
            self.transport.write(piece)

    def end_response(self) -> None:
        """End the body."""
        if self.transport is not None and self._is_chunked and not self._is_bodiless:
            self.transport.write(_LAST_CHUNK)

    async def drained(self) -> None:
        """Wait until more may be written.  Raises ConnectionError if the client leaves, or reads too little within the
        write timeout."""
        while self.is_full and self.transport is not None:
            # This wait is bounded, because a full connection has a deadline at which it is dropped.
            self._room = self._clients.loop.create_future()
            await self._room
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client has left")

    def _give_up(self, transport: asyncio.Transport) -> None:
        self._has_room(ConnectionResetError("the client reads too slowly"))
        super()._give_up(transport)

    # -- live answers

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """Let `live` give the answer, until `release` is called."""
        self.enter_phase(_LIVE, live)
        self.live_bytes = 0
        if self._shared is not None and self.transport is not None:
            # Count as shared at most the bytes that are unsent now, because all later bytes belong to this client
            # alone.
            self._shared_bytes = min(self._shared_bytes, self.transport.get_write_buffer_size())
        self._keeps = keeps
        self._is_chunked = is_chunked

    def release(self, *, keeps: bool = True) -> None:
        """End the phase of a live answer: take the next request, or close the connection."""
        self.enter_phase(_IDLE)
        if self.live_use is not None:
            self.end_live_use()
        if self.transport is None:
            return
        if not (self._keeps and keeps):
            self._close()
        else:
            self._resume()

    def write_head(self, head: bytes, chunk: bytes = b"", size: int = 0) -> None:
        """Write the head of a live answer.  `chunk` and `size` are the first piece of its body, as for `send_chunk`.
        An empty `chunk` means that there is no piece yet."""
        self.live_first_byte_s = self._now() - self.live_began
        if self.transport is None:
            return
        if not self._is_chunked:
            chunk = _unframed(chunk)
        self.transport.write(head + chunk)
        self.live_bytes += size
        self._clients.sent_bytes += size

    def write_first(self, joined: bytes, chunk: bytes, size: int) -> None:
        """Write `joined`, the head of a live answer followed by the first piece of its body.  `chunk` and `size` are
        this piece, as for `send_chunk`."""
        self.live_first_byte_s = self._now() - self.live_began
        if self.transport is not None:
            self.transport.write(joined)
            self.live_bytes += size
            self._clients.sent_bytes += size

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write a piece of a live body, already framed as a chunk, with `size` bytes of data."""
        transport = self.transport
        if transport is None:
            return
        if not self._is_chunked:
            chunk = _unframed(chunk)
        transport.write(chunk)
        self.live_bytes += size
        self._clients.sent_bytes += size

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of a live body without a copy, because many clients receive the same piece."""
        transport = self.transport
        if transport is None:
            return
        size = len(piece)
        if self._is_chunked:
            transport.writelines((b"%x\r\n" % size, piece, b"\r\n"))
        else:
            transport.write(piece)
        self.live_bytes += size
        self._clients.sent_bytes += size

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """End the live answer.  `in_order` means that its body is complete."""
        if self.transport is not None:
            if not in_order:
                # Abort, because only a broken connection shows the client that the body is truncated.
                self.transport.abort()
            elif self._is_chunked:
                self.transport.write(_LAST_CHUNK)
        if (route := self.sse_route) is not None:
            end_sse(self, self._clients, route, reason, in_order=in_order)
        self.release()

    def write_response(self, head: bytes, body: tuple[bytes, ...], body_bytes: int, shared: SharedBytes) -> None:
        """Write a whole live answer.  The caller must then call `release`.  A small body is a part of `head`, and
        `body` is then empty.  `shared` counts the bytes of a large `body`.
        """
        if self.transport is not None:
            if body:
                self._shared_bytes, self._shared = body_bytes, shared
                self.transport.writelines((head, *body))
            else:
                self.transport.write(head)
            self.live_bytes += body_bytes
            self._clients.sent_bytes += body_bytes


def _unframed(chunk: bytes) -> bytes:
    """Return the data of a framed chunk (RFC 9112 section 7.1)."""
    return chunk[chunk.index(b"\r\n") + 2 : -2] if chunk else chunk
