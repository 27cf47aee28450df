"""One HTTP/2 stream as the channel of one request.

Handlers and live answers make heads and chunks in the form of HTTP/1.1.  The channel drops the parts that concern
HTTP/1.1 connections, and encodes the other parts.  Bytes that many streams send are converted once for all streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Final, Protocol

from multidict import CIMultiDict, istr

from gateway.errors import BadRequest
from gateway.http.http2.blocks import block_of, split_response
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
from gateway.server.turns import LOOK_AGAIN_S, InputWaits
from gateway.telemetry.access_record import CloseReason

_log = logging.getLogger("gateway.server")

_CONTENT_LENGTH: Final = istr("Content-Length")
_IDLE, _ANSWERING = Phase.IDLE, Phase.ANSWERING
_BODILESS: Final = frozenset({204, 304})


@lru_cache(maxsize=2)
def _chunk_data(chunk: bytes) -> bytes:
    """Return the data of a chunk.  Cached, because all readers of a stream get the same chunk."""
    return chunk[chunk.index(b"\r\n") + 2 : -2]


class StreamConnection(Protocol):
    """The part of the connection that its streams use."""

    clients: Clients
    session: Session
    scheme: str
    number: int
    """Identifies the connection among all connections of the process; never 0."""
    use: Account | None
    """The account of the client's network; None if the connection belongs to no network."""

    @property
    def waits(self) -> InputWaits:
        """Measures for how long the connection's input waits for its turn."""

    @property
    def client(self) -> str | None:
        """The client's address without its port."""

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""

    def wake(self) -> None:
        """Schedule the writing of the session's output."""

    def finish_and_close(self) -> None:
        """Answer the requests that have arrived, then close."""

    def check(self, channel: StreamChannel) -> None:
        """Remove the channel if it is over."""

    def reset(self, channel: StreamChannel, code: ErrorCode) -> None:
        """Reset one stream."""


class StreamChannel(Handling):
    """The `gateway.server.request.Channel` of one stream, and the `Flow` of its request's body."""

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
        """The value of `Joins.generation` when the request was read.  `Joins.generation` counts changes of the
        routes."""
        self._body: RequestBody | None = None
        self._write_timer: WheelTimer | None = None
        self._sent_bytes = 0
        """The value of `stream.sent_bytes` at the last check of progress."""
        self._waiting_to = 0
        """The value of `stream.sent_bytes` at which all bytes that waited at the last check of progress have been
        sent."""
        self._is_bodiless = False
        """Whether the answer has no body, whatever its head states (RFC 9110 section 6.4.1)."""
        self.cut_reason: CloseReason | None = None
        """The reason why the gateway cuts the stream; None while the stream is not cut."""
        self.shared_bytes = 0
        """Bytes of a large answer that other clients may share."""
        self.shared: SharedBytes | None = None
        """Divides the cost of the large answer's bytes among its clients."""

    @property
    def use(self) -> Account | None:
        """The account of the client's network; None if the connection belongs to no network."""
        return self._connection.use

    @property
    def carrier(self) -> int:
        return self._connection.number

    @property
    def is_full(self) -> bool:
        """Whether the client has so many unread bytes that no more may be written."""
        stream = self.stream
        # A stream that was reset is never full.  Writes to such a stream are dropped, and no event would report that
        # the stream has room again.
        return stream.reset_code is None and (stream.queued_bytes > 0 or self._connection.session.is_blocked)

    @property
    def is_live(self) -> bool:
        """Whether a live read is being answered."""
        return self.sse_route is not None or self.live_use is not None

    @property
    def is_over(self) -> bool:
        """Whether the channel is finished: its answer has ended, and no event can follow."""
        stream = self.stream
        is_released = self._task is None and self._live is None and not self._is_detached
        return is_released and (stream.is_ended or stream.reset_code is not None)

    @property
    def client(self) -> str | None:
        """The client's address without its port."""
        return self._connection.client

    @property
    def proxies(self) -> Proxies | None:
        """The proxies whose forwarding headers are trusted; None without trusted proxies."""
        return self._connection.proxies

    @property
    def scheme(self) -> str:
        """The scheme of the connection's URLs, http or https."""
        return self._connection.scheme

    @property
    def alias(self) -> bytes | None:
        """The bytes of the same request in HTTP/1.1, if an answer may be remembered under these bytes."""
        return self._http2_request.alias if self._generation == self._clients.joins.generation else None

    def holdings(self) -> Iterator[Holding]:
        """Return the buffers that the channel shares with other clients or with the cache."""
        if self.shared is not None:
            yield Holding(self.shared, min(self.shared_bytes, self.stream.queued_bytes))
        if self._live is not None:
            yield from self._live.holdings()
        elif self._request is not None and self._request.held is not None:
            yield from self._request.held.holdings()

    # -- the request

    def read_body(self) -> None:
        """Expect a request body, which the handler will read."""
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
        """Called when the answer is written, which frees the channel."""
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
        """Called when the request's task has ended, or was cancelled before it began."""
        if self._task is task:
            self._task = None
            self._connection.check(self)

    def feed(self, data: bytes, size: int) -> None:
        """Take a piece of the request's body.  The piece has used `size` bytes of the client's window."""
        if self._body is not None:
            self._body.feed(data)
        self._connection.session.acknowledge(self.stream, size)

    def end_body(self) -> None:
        """Mark the request's body as whole."""
        if self._body is not None:
            self._body.complete()

    def fail_body(self) -> None:
        """Fail the request's body unless it is whole, because the client sends no more."""
        if self._body is not None:
            self._body.fail(BadRequest("Request body ended early"))

    def gone(self, *, is_by_client: bool) -> None:
        """Called when the stream has been reset, or its connection has ended."""
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
        """Called with the number of the body's unread bytes, to adapt the client's window."""
        session = self._connection.session
        session.unread(self.stream, size)
        if session.out_bytes:
            # Write the window updates that `unread` has added to the output.
            self._connection.wake()

    def input_waited_s(self) -> float:
        """Return the seconds for which arrived input of the connection has waited for the gateway, in all."""
        return self._clients.turns.waited_s(self._connection.waits)

    async def late(self) -> None:
        """Wait until the late request body may fail."""
        await self._clients.late_bodies.turn()

    # -- answers by a handler

    def inform(self, status: int, headers: CIMultiDict[str]) -> None:
        """Send an interim reply (RFC 9110 section 15.2), such as 100 Continue.

        Raises UpstreamBroken for headers that must not be sent, before anything is written.
        """
        block = block_of(interim_head(status, headers))
        self._connection.session.send_head(self.stream, block, is_interim=True)
        self._connection.wake()

    def respond(self, request: Request, status: int, headers: Fields, body: bytes, reason: str | None = None) -> None:
        """Write a whole answer.  Raises UpstreamBroken for headers that must not be sent, before anything is
        written."""
        if status in _BODILESS:
            body = b""
            if status == 204 and states_length(headers):
                # RFC 9110 section 8.6 forbids a Content-Length in a 204, even if the origin has sent one.
                del headers[_CONTENT_LENGTH]
        elif body or request.method != "HEAD":
            state_length(headers, len(body))
        head = response_head(status, headers, self._clients.wall(), keeps=True, reason=reason)
        request.has_begun = True
        self.send_answer(block_of(head), (body,) if body and request.method != "HEAD" else ())

    def send_answer(self, block: bytes, body: Collection[bytes]) -> None:
        """Write a whole answer: its field block and its body."""
        self._connection.session.send_answer(self.stream, block, body)
        self._sent()

    def start_response(
        self, request: Request, status: int, reason: str | None, headers: Fields, length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes; None if the length is unknown."""
        self._is_bodiless = status in _BODILESS or request.method == "HEAD"
        if status == 204 and states_length(headers):
            # RFC 9110 section 8.6 forbids a Content-Length in a 204, even if the origin has sent one.
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
        """Schedule the writing, and set the deadline for the client to read."""
        self.watch()
        self._connection.wake()

    async def drained(self) -> None:
        """Wait until more may be written.  Raises ConnectionError if the client leaves, or reads too little within the
        write timeout."""
        while self.is_full and self.stream.reset_code is None:
            # This wait is bounded: by `_check_progress` for the stream, and by the connection's own deadline.
            self._room = self._clients.loop.create_future()
            await self._room
        if self.stream.reset_code is not None:
            raise ConnectionResetError("the client has left")

    def drain(self) -> None:
        """Continue writing, because there is room again."""
        if self.is_full:
            return
        self._has_room()
        if self._live is not None:
            self._live.pump()

    def watch(self) -> None:
        """Set the write deadline if bytes wait for the client."""
        if self.stream.queued_bytes and (self._write_timer is None or not self._write_timer.is_set):
            self._set_deadline()

    def close(self) -> None:
        """Drop the references that the channel holds, because the channel is over."""
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
        """Abort if the client has read too little of the stream since the last check."""
        stream, timer = self.stream, self._write_timer
        if not stream.queued_bytes or timer is None:
            return
        # A quiet live stream is not slow, because the client may have read everything that was sent.
        has_taken_all = self.sse_route is not None and stream.sent_bytes >= self._waiting_to
        is_blocked = self._connection.session.is_blocked
        may_be_slow = not has_taken_all and not is_blocked
        most_s = self._clients.limits.client_write_timeout_s
        if may_be_slow and self._connection.waits.is_waiting and timer.put_off_s < most_s:
            # The waiting input may contain frames that make room for the stream.  A client that keeps its input waiting
            # can only double the time.
            timer.put_off(LOOK_AGAIN_S)
            return
        if not may_be_slow or self._clients.keeps_up(stream.sent_bytes - self._sent_bytes):
            # While the whole connection is blocked, the deadline of the connection applies.
            self._set_deadline()
            return
        self.cut_reason = CloseReason.SLOW
        self.abort()

    def abort(self) -> None:
        """Reset the stream, because an orderly end would make a truncated body look complete."""
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
        """Write the head of a live answer.  `chunk` and `size` are the first piece of its body, as for `send_chunk`.
        An empty `chunk` means that there is no piece yet."""
        self.live_first_byte_s = self._clients.now() - self.live_began
        self._connection.session.send_head(self.stream, block_of(head))
        self._connection.wake()
        if chunk:
            self.send_chunk(chunk, size)

    def write_first(self, joined: bytes, chunk: bytes, size: int) -> None:
        """Write `joined`, the head of a live answer followed by the first piece of its body.  `chunk` and `size` are
        this piece, as for `send_chunk`."""
        self.write_head(joined[: -len(chunk)], chunk, size)

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write a piece of a live body, framed as a chunk with `size` bytes of data."""
        if self.stream.reset_code is None:
            self._send_live(_chunk_data(chunk), size)

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of a live body without a copy, because many clients receive the same piece."""
        if self.stream.reset_code is None:
            self._send_live(piece, len(piece))

    def _send_live(self, data: bytes | memoryview, size: int) -> None:
        connection = self._connection
        connection.session.send_data(self.stream, data)
        if self.stream.queued_bytes and (self._write_timer is None or not self._write_timer.is_set):
            # Do not close a slow reader here.  When its client has read, the reader continues from the tape, the
            # stream's bytes in memory.
            connection.clients.metrics.slow_consumer(is_closed=False)
            self._set_deadline()
        self.live_bytes += size
        connection.clients.sent_bytes += size
        connection.wake()

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """End the live answer.  `in_order` means that its body is complete."""
        if in_order:
            self.end_response()
        else:
            # Reset the stream, because only a reset shows the client that the body is truncated.
            self.abort()
        if (route := self.sse_route) is not None:
            end_sse(self, self._clients, route, reason, in_order=in_order)
        self.release()

    def write_response(self, head: bytes, body: tuple[bytes, ...], body_bytes: int, shared: SharedBytes) -> None:
        """Write a whole live answer.  The caller must then call `release`.  A small body is a part of `head`, and
        `body` is then empty.  `shared` counts the bytes of a large `body`.
        """
        if self.stream.reset_code is None:
            if body:
                self.shared, self.shared_bytes = shared, body_bytes
            block, pieces = split_response(head, 0 if body else body_bytes)
            self.send_answer(block, body or pieces)
            self.live_bytes += body_bytes
            self._clients.sent_bytes += body_bytes
