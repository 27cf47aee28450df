"""One stream of an HTTP/2 connection as the channel of one request.

Handlers and live answers make heads and chunks in the form of HTTP/1.1.  The channel drops what concerns only that
version's connections and encodes the rest.  Bytes that are sent to many streams are converted once for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final, Protocol

from multidict import CIMultiDict, istr

from gateway.errors import BadRequest
from gateway.http.http2.blocks import block_of
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.head import VERSION, Http2Request
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
from gateway.http.outgoing import Fields, interim_head, response_head, state_length, states_length
from gateway.limits.accounts import Account
from gateway.limits.memory import Holding, SharedBytes
from gateway.protocol.client_address import Proxies
from gateway.server.client_connections import Clients
from gateway.server.handling import Handling
from gateway.server.phase import Phase
from gateway.server.request import Request
from gateway.server.request_body import RequestBody
from gateway.server.request_records import end_sse
from gateway.server.timeouts import WheelTimer
from gateway.telemetry.access_record import CloseReason

_log = logging.getLogger("gateway.server")

_CONTENT_LENGTH: Final = istr("Content-Length")
_IDLE, _ANSWERING = Phase.IDLE, Phase.ANSWERING
_BODILESS: Final = frozenset({204, 304})


@lru_cache(maxsize=2)
def _chunk_data(chunk: bytes) -> bytes:
    """The data of a chunk; cached because all readers of a stream are sent the same chunk."""
    return chunk[chunk.index(b"\r\n") + 2 : -2]


@lru_cache(maxsize=32)
def _split_response(response: bytes, body_bytes: int) -> tuple[bytes, tuple[bytes, ...]]:
    """Field block and body of a response; cached because a group of clients is sent the same response,
    or one for each web origin."""
    size = len(response) - body_bytes
    return block_of(response[:size]), (response[size:],) if body_bytes else ()


class StreamConnection(Protocol):
    """The part of its connection that a stream uses."""

    clients: Clients
    session: Session
    scheme: str
    use: Account | None
    """The account in which the connection is counted; None if it belongs to no net."""

    @property
    def client(self) -> str | None:
        """The client's address without its port."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""

    def wake(self) -> None:
        """Schedule the writing of the session's output."""

    def finish_and_close(self) -> None:
        """Answer what has been asked, nothing more, and close."""

    def check(self, channel: StreamChannel) -> None:
        """Remove the channel if it is over."""

    def reset(self, channel: StreamChannel, code: ErrorCode) -> None:
        """Reset one stream."""


class StreamChannel(Handling):
    """A `gateway.server.request.Channel`, and the `Flow` of its request's body."""

    __slots__ = (
        "_body",
        "_connection",
        "_generation",
        "_http2_request",
        "_is_bodiless",
        "_sent_bytes",
        "_waiting_to",
        "_write_timer",
        "cut_reason",
        "shared",
        "shared_bytes",
        "stream",
    )

    versions = frozenset({VERSION})

    def __init__(self, connection: StreamConnection, stream: Stream, http2_request: Http2Request) -> None:
        super().__init__(connection.clients)
        self._connection = connection
        self.stream = stream
        self._http2_request = http2_request
        self._generation = connection.clients.joins.generation
        """The generation of `Joins` when the request was read."""
        self._body: RequestBody | None = None
        self._write_timer: WheelTimer | None = None
        self._sent_bytes = 0
        """Bytes of the stream that had been sent at the last check for progress."""
        self._waiting_to = 0
        """Bytes of the stream that will have been sent once the client has taken everything that waited at the last
        check for progress."""
        self._is_bodiless = False
        """Whether the answer has no body, whatever its head says (RFC 9110 section 6.4.1)."""
        self.cut_reason: CloseReason | None = None
        """Why the gateway cuts the stream, if it does."""
        self.shared_bytes = 0
        """Bytes of a large answer, which are not this client's own."""
        self.shared: SharedBytes | None = None
        """The account of these bytes."""

    @property
    def use(self) -> Account | None:
        """The account of the connection's net; None if the connection belongs to no net."""
        return self._connection.use

    @property
    def is_full(self) -> bool:
        """Whether the client has so many unread bytes that no more may be written."""
        stream = self.stream
        # A stream that was reset is never full: writes to it are dropped, and no event would ever report room in it.
        return stream.reset_code is None and (stream.queued_bytes > 0 or self._connection.session.is_blocked)

    @property
    def is_live(self) -> bool:
        """Whether a live read is being answered."""
        return self.sse_route is not None or self.live_use is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen on the channel."""
        stream = self.stream
        is_released = self._task is None and self._live is None and not self._is_detached
        return is_released and (stream.is_ended or stream.reset_code is not None)

    @property
    def client(self) -> str | None:
        """The client's address without its port."""
        return self._connection.client

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are believed; None if no proxy is trusted."""
        return self._connection.proxies

    @property
    def scheme(self) -> str:
        """The scheme of the connection, as in a URL."""
        return self._connection.scheme

    @property
    def alias(self) -> bytes | None:
        """The request's bytes in HTTP/1.1, if it may be remembered."""
        return self._http2_request.alias if self._generation == self._clients.joins.generation else None

    def holdings(self) -> Iterator[Holding]:
        """The bytes that the channel refers to and that others may refer to as well."""
        if self.shared is not None:
            yield Holding(self.shared, min(self.shared_bytes, self.stream.queued_bytes))
        if self._live is not None:
            yield from self._live.holdings()
        elif self._request is not None and self._request.held is not None:
            yield from self._request.held.holdings()

    # -- the request

    def read_body(self) -> None:
        """Keep the request's body for the handler to read."""
        self._body = RequestBody(self, self._http2_request.head(has_body=True).length)

    def answer(self) -> None:
        """Answer the request as far as possible without waiting."""
        body = self._body
        self._begin_handling(Request(self, self._http2_request.head(has_body=body is not None), body))

    def _begin_handling(self, request: Request) -> None:
        self.enter_phase(_ANSWERING)
        self._request = request
        self._run(request, self._clients.handler)

    def _repeated(self, data: bytes | None) -> Request | None:
        if self.stream.reset_code is not None:
            return None
        return Request(self, self._http2_request.head(has_body=False), None)

    def response_written(self, request: Request) -> None:
        """The answer is written."""
        self.enter_phase(_IDLE)
        self._request = None
        if self.live_use is not None:
            self.end_live_use()
        if not request.keeps_alive:
            self._connection.finish_and_close()
        if self._body is not None:
            self._body = None
            self.unread(0)
        self._connection.check(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The request's task has ended, or was cancelled before it began."""
        if self._task is task:
            self._task = None
            self._connection.check(self)

    def feed(self, data: bytes, size: int) -> None:
        """Take a piece of the request's body, which has used `size` bytes of the client's window."""
        if self._body is not None:
            self._body.feed(data)
        self._connection.session.acknowledge(self.stream, size)

    def end_body(self) -> None:
        """The request's body is whole."""
        if self._body is not None:
            self._body.complete()

    def fail_body(self) -> None:
        """The client sends no more: fail the request's body, unless it is whole."""
        if self._body is not None:
            self._body.fail(BadRequest("Request body ended early"))

    def gone(self, *, is_by_client: bool) -> None:
        """The stream has been reset, or its connection has ended."""
        if self._write_timer is not None:
            self._write_timer.clear()
        body, self._body = self._body, None
        if body is not None:
            body.fail(BadRequest("Request body ended early" if is_by_client else "Malformed request body"))
        self._has_room(ConnectionResetError("the client has left"))
        self._client_left()
        if self.is_over:
            self.close()

    def unread(self, size: int) -> None:
        """`size` bytes of the request's body wait to be read."""
        session = self._connection.session
        session.unread(self.stream, size)
        if session.out_bytes:
            # Window updates.
            self._connection.wake()

    async def late(self) -> None:
        """Wait until the request's body, which has not arrived in time, may fail."""
        await self._clients.late_bodies.turn()

    # -- answers by a handler

    def inform(self, status: int, headers: CIMultiDict[str]) -> None:
        """Send an interim reply (RFC 9110 section 15.2), such as 100 Continue for the client to send its body.  Raises
        UpstreamBroken, with nothing written, for headers that must not be sent."""
        block = block_of(interim_head(status, headers))
        self._connection.session.send_head(self.stream, block, is_interim=True)
        self._connection.wake()

    def respond(self, request: Request, status: int, headers: Fields, body: bytes, reason: str | None = None) -> None:
        """Write a whole answer.  Raises UpstreamBroken, with nothing written, for headers that must not be sent."""
        if status in _BODILESS:
            body = b""
            if status == 204 and states_length(headers):
                # Required by RFC 9110 section 8.6, even if the origin sent one.
                del headers[_CONTENT_LENGTH]
        elif body or request.method != "HEAD":
            state_length(headers, len(body))
        head = response_head(status, headers, self._clients.wall(), keeps=True, reason=reason)
        request.has_begun = True
        self.send_answer(block_of(head), (body,) if body and request.method != "HEAD" else ())

    def send_answer(self, block: bytes, body: Collection[bytes]) -> None:
        """Write a whole answer: its field block and its body."""
        session, stream = self._connection.session, self.stream
        session.send_head(stream, block, ends=not body)
        left = len(body)
        for piece in body:
            left -= 1
            session.send_data(stream, piece, ends=not left)
        self._sent()

    def start_response(
        self, request: Request, status: int, reason: str | None, headers: Fields, length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes; None if the length is not known yet."""
        self._is_bodiless = status in _BODILESS or request.method == "HEAD"
        if status == 204 and states_length(headers):
            # Required by RFC 9110 section 8.6, even if the origin sent one.
            del headers[_CONTENT_LENGTH]
        if length is not None and not self._is_bodiless:
            headers["Content-Length"] = str(length)
        head = response_head(status, headers, self._clients.wall(), keeps=True, reason=reason)
        request.has_begun = True
        self._connection.session.send_head(self.stream, block_of(head), ends=self._is_bodiless)
        self._connection.wake()

    def send_part(self, piece: bytes) -> None:
        """Write a part of the body."""
        if piece and not self._is_bodiless:
            self._connection.session.send_data(self.stream, piece)
            self._sent()

    def end_response(self) -> None:
        """End the body."""
        self._connection.session.end_stream(self.stream)
        self._sent()

    def _sent(self) -> None:
        """Schedule what was written, and set the deadline for the client to take it."""
        self.watch()
        self._connection.wake()

    async def drained(self) -> None:
        """Wait until the client has taken enough for more to be written.  Raises ConnectionError if the client leaves,
        or takes too little within the write timeout."""
        while self.is_full and self.stream.reset_code is None:
            # `_check_progress` keeps the deadline of the stream, and the connection its own.
            self._room = self._clients.loop.create_future()
            await self._room
        if self.stream.reset_code is not None:
            raise ConnectionResetError("the client has left")

    def drain(self) -> None:
        """Go on writing, because there is room again."""
        if self.is_full:
            return
        self._has_room()
        if self._live is not None:
            self._live.pump()

    def watch(self) -> None:
        """Set the deadline if bytes wait for the client."""
        if self.stream.queued_bytes and (self._write_timer is None or not self._write_timer.is_set):
            self._set_deadline()

    def close(self) -> None:
        """Drop all references to the channel, because it is over."""
        self._request = None
        if self._write_timer is not None:
            self._write_timer.dispose()

    def _set_deadline(self) -> None:
        if self._write_timer is None:
            self._write_timer = WheelTimer(self._clients.wheel, self._check_progress)
        self._sent_bytes = self.stream.sent_bytes
        self._waiting_to = self.stream.sent_bytes + self.stream.queued_bytes
        self._write_timer.set(self._clients.limits.client_write_timeout_s)

    def _check_progress(self) -> None:
        """Check whether the client has taken enough of the stream since the last check; if not, abort."""
        stream = self.stream
        if not stream.queued_bytes:
            return
        # A quiet live read is not a slow one: there may have been no more bytes to take.
        has_taken_all = self.sse_route is not None and stream.sent_bytes >= self._waiting_to
        is_blocked = self._connection.session.is_blocked
        if has_taken_all or is_blocked or self._clients.keeps_up(stream.sent_bytes - self._sent_bytes):
            # If the connection is blocked, its own deadline applies.
            self._set_deadline()
            return
        self.cut_reason = CloseReason.SLOW
        self.abort()

    def abort(self) -> None:
        """Reset the stream, because a truncated body would look complete after an orderly end."""
        if self.stream.reset_code is None:
            self._connection.reset(self, ErrorCode.CANCEL if self.cut_reason else ErrorCode.INTERNAL_ERROR)

    # -- live answers

    def release(self, *, keeps: bool = True) -> None:
        """End a live answer."""
        self.enter_phase(_IDLE)
        if self.live_use is not None:
            self.end_live_use()
        self._connection.check(self)

    def write_head(self, head: bytes, chunk: bytes = b"", size: int = 0) -> None:
        """Write the head of a live answer, with the first piece of its body as in `send_chunk`, if there is one."""
        self.live_first_byte_s = self._clients.now() - self.sse_began
        self._connection.session.send_head(self.stream, block_of(head))
        self._connection.wake()
        if chunk:
            self.send_chunk(chunk, size)

    def write_first(self, joined: bytes, chunk: bytes, size: int) -> None:
        """Write `joined`, which is the head of a live answer and the first piece of its body; `chunk` is that piece, as
        in `send_chunk`."""
        self.write_head(joined[: -len(chunk)], chunk, size)

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write a piece of a live body, framed as a chunk; `size` is its number of body bytes."""
        if self.stream.reset_code is None:
            self._send_live(_chunk_data(chunk), size)

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of a live body without copying it, because many clients receive the same piece."""
        if self.stream.reset_code is None:
            self._send_live(piece, len(piece))

    def _send_live(self, data: bytes | memoryview, size: int) -> None:
        connection = self._connection
        connection.session.send_data(self.stream, data)
        if self.stream.queued_bytes and (self._write_timer is None or not self._write_timer.is_set):
            # A slow reader is not closed here: it goes back to reading the tape once its client has read.
            connection.clients.metrics.slow_consumer(is_closed=False)
            self._set_deadline()
        self.live_bytes += size
        connection.clients.sent_bytes += size
        connection.wake()

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """End the live body; `in_order` if it is whole."""
        if in_order:
            self.end_response()
        else:
            # Only a reset shows that the body is truncated.
            self.abort()
        if (route := self.sse_route) is not None:
            end_sse(self, self._clients, route, reason, in_order=in_order)
        self.release()

    def write_response(self, head: bytes, body: tuple[bytes, ...], body_bytes: int, shared: SharedBytes) -> None:
        """Write a whole live answer if the stream is still open; a call to `release` follows.  A small body is part of
        `head`; a large one is `body`, which belongs to `shared`."""
        if self.stream.reset_code is None:
            if body:
                self.shared, self.shared_bytes = shared, body_bytes
            block, pieces = _split_response(head, 0 if body else body_bytes)
            self.send_answer(block, body or pieces)
            self.live_bytes += body_bytes
            self._clients.sent_bytes += body_bytes
