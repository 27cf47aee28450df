"""One stream of a client's connection over HTTP/2: where the answer to one request goes.

Handlers, and those who give live answers, make heads and chunks as HTTP/1.1 has them; what is about that version's
connections is left out here, and what many streams are sent is taken apart once for all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import lru_cache
from typing import Final, Protocol

from multidict import CIMultiDict

from gateway.errors import BadRequest
from gateway.http.http2.blocks import block_of, status_block
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.head import VERSION, Http2Request
from gateway.http.http2.session import Session
from gateway.http.http2.streams import Stream
from gateway.protocol.proxies import Proxies
from gateway.server.alarm import Alarm
from gateway.server.body import RequestBody
from gateway.server.clients import Clients
from gateway.server.followed import Followed
from gateway.server.handling import Handling
from gateway.server.head import response_head
from gateway.server.request import LiveAnswer, Note, Request
from gateway.telemetry.access_record import CloseReason

_log = logging.getLogger("gateway.server")

_BODILESS: Final = frozenset({204, 304})
_CONTINUE: Final = status_block(b"100")


@lru_cache(maxsize=2)
def _payload(chunk: bytes) -> bytes:
    """What a chunk has in it: the same for all who are sent it."""
    return chunk[chunk.index(b"\r\n") + 2 : -2]


@lru_cache(maxsize=2)
def _taken_apart(response: bytes, body_bytes: int) -> tuple[bytes, bytes]:
    """The block and the body of a response that many are given."""
    size = len(response) - body_bytes
    return block_of(response[:size]), response[size:]


class Home(Protocol):
    """The connection, as far as a stream sees it."""

    clients: Clients
    session: Session
    scheme: str

    @property
    def client(self) -> str | None:
        """The client's address, without its port."""

    @property
    def proxies(self) -> Proxies | None:
        """Who is believed about whom they pass on; None where nobody is."""

    def wake(self) -> None:
        """Have what is written go out."""

    def check(self, channel: StreamChannel) -> None:
        """See whether the channel is over."""

    def reset(self, channel: StreamChannel, code: ErrorCode) -> None:
        """End one stream at once."""


class StreamChannel(Handling):
    """A `gateway.server.request.Channel`, and the `Flow` of its request's body."""

    __slots__ = (
        "_asked",
        "_body",
        "_clients",
        "_connection",
        "_followed",
        "_generation",
        "_is_bodiless",
        "_live",
        "_request",
        "_room",
        "_stuck",
        "_task",
        "_unsent",
        "live_bytes",
        "live_first_byte_s",
        "stream",
        "why_cut",
    )

    versions = frozenset({VERSION})

    def __init__(self, connection: Home, stream: Stream, asked: Http2Request) -> None:
        self._connection = connection
        self._clients = connection.clients
        self.stream = stream
        self._asked = asked
        self._generation = connection.clients.joins.generation
        """That of what is remembered when the request was read."""
        self._body: RequestBody | None = None
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None
        """The one that is being answered."""
        self._room: asyncio.Future[None] | None = None
        """What the handler waits for when the client is to read first."""
        self._stuck: Alarm | None = None
        self._unsent = 0
        """What the client had left to be sent when that was looked at last."""
        self._is_bodiless = False
        """Whether the answer has no body whatever its head says (RFC 9110 section 6.4.1)."""
        self._live: LiveAnswer | None = None
        """Who gives the answer, where that is told of room and of the client's end."""
        self._followed: Followed | None = None
        """The account of the live answer, where it is one over SSE."""
        self.live_bytes = 0
        """Body bytes of the live answer."""
        self.live_first_byte_s = 0.0
        """How long after the request was read the live answer's head was written."""
        self.why_cut: CloseReason | None = None
        """Why the stream is cut from this side, where it is."""

    @property
    def is_full(self) -> bool:
        """Whether the client has left so much unread that nothing more is to be written."""
        stream = self.stream
        # What is written to a stream that is gone goes nowhere, and nobody would tell of room there.
        return stream.gone is None and (stream.queued_bytes > 0 or self._connection.session.is_blocked)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen here."""
        stream = self.stream
        is_left = self._task is None and self._live is None and not self._is_detached
        return is_left and (stream.is_ended or stream.gone is not None)

    @property
    def _is_detached(self) -> bool:
        """Whether what was asked goes on although its client has gone."""
        return self._request is not None and self._request.is_detached

    @property
    def client(self) -> str | None:
        """The client's address, without its port."""
        return self._connection.client

    @property
    def proxies(self) -> Proxies | None:
        """Who is believed about whom they pass on; None where nobody is."""
        return self._connection.proxies

    @property
    def scheme(self) -> str:
        """As in a URL."""
        return self._connection.scheme

    @property
    def alias(self) -> bytes | None:
        """The request as HTTP/1.1 spells it, where it may be remembered."""
        return self._asked.alias if self._generation == self._clients.joins.generation else None

    # -- the request

    def read_body(self) -> None:
        """Have the request's body wait here for whoever answers."""
        self._body = RequestBody(self, self._asked.head(has_body=True))

    def answer(self) -> None:
        """Have the request answered, as far as nothing has to be waited for."""
        body = self._body
        request = self._request = Request(self, self._asked.head(has_body=body is not None), body)
        if (task := self._handle(request)) is not None:
            self._task = task

    def answered(self, request: Request) -> None:
        """The answer is out."""
        self._live = self._request = None
        if self._body is not None:
            self._body = None
            self.unread(0)
        self._connection.check(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What was left to be done has been, or was cancelled before it began."""
        self._task = None
        self._connection.check(self)

    def feed(self, data: bytes, size: int) -> None:
        """A piece of the request's body has come, for which the client gave `size` bytes of its window."""
        if self._body is not None:
            self._body.feed(data)
        self._connection.session.acknowledge(self.stream, size)

    def end_body(self) -> None:
        """The request's body is whole."""
        if self._body is not None:
            self._body.end()

    def gone(self, *, is_by_client: bool) -> None:
        """The stream has been reset, or its connection has ended."""
        self.close()
        body, self._body = self._body, None
        if body is not None:
            body.fail(BadRequest("Request body ended early" if is_by_client else "Malformed request body"))
        self._has_room(ConnectionResetError("the client has gone"))
        live, self._live = self._live, None
        if live is not None:
            live.left(self)
        if self._task is not None and live is None and not self._is_detached:
            self._task.cancel()

    def unread(self, size: int) -> None:
        """So many bytes of the request's body wait to be read."""
        session = self._connection.session
        session.unread(self.stream, size)
        if session.out_bytes:
            # Windows that are open again.
            self._connection.wake()

    # -- answers by a handler

    def proceed(self) -> None:
        """Tell the client to go on with its body (RFC 9110 section 15.2.1)."""
        self._connection.session.send_head(self.stream, _CONTINUE)
        self._connection.wake()

    def respond(self, request: Request, status: int, headers: CIMultiDict[str], body: bytes) -> None:
        """Write a whole answer; UpstreamBroken, with nothing written, for headers that must not be."""
        if status in _BODILESS:
            body = b""
        elif body or request.method != "HEAD":
            headers["Content-Length"] = str(len(body))
        head = response_head(status, headers, self._clients.wall(), keeps=True)
        request.has_begun = True
        self.give(block_of(head), (body,) if body and request.method != "HEAD" else ())

    def give(self, block: bytes, body: Collection[bytes]) -> None:
        """Write a whole answer."""
        session, stream = self._connection.session, self.stream
        session.send_head(stream, block, ends=not body)
        left = len(body)
        for piece in body:
            left -= 1
            session.send(stream, piece, ends=not left)
        self._sent()

    def begin(
        self, request: Request, status: int, reason: str | None, headers: CIMultiDict[str], length: int | None
    ) -> None:
        """Write the head of an answer whose body has `length` bytes, None where that is not known yet."""
        self._is_bodiless = status in _BODILESS or request.method == "HEAD"
        if status == 204:
            # RFC 9110 section 8.6, whatever the origin says.
            headers.popall("Content-Length", None)
        if length is not None and not self._is_bodiless:
            headers["Content-Length"] = str(length)
        head = response_head(status, headers, self._clients.wall(), keeps=True, reason=reason)
        request.has_begun = True
        self._connection.session.send_head(self.stream, block_of(head), ends=self._is_bodiless)
        self._connection.wake()

    def send_part(self, piece: bytes) -> None:
        """Write a piece of the body."""
        if piece and not self._is_bodiless:
            self._connection.session.send(self.stream, piece)
            self._sent()

    def end(self) -> None:
        """The body is whole."""
        self._connection.session.end(self.stream)
        self._sent()

    def _sent(self) -> None:
        """Something was written: have it go out, and see that the client takes it."""
        self.watch()
        self._connection.wake()

    async def drained(self) -> None:
        """Wait until the client has taken enough for more to be written.  ConnectionError when it is gone, or takes
        nothing for too long."""
        while self.is_full and self.stream.gone is None:
            # The deadline is kept by `_look`, or by the connection.
            self._room = self._clients.loop.create_future()
            await self._room
        if self.stream.gone is not None:
            raise ConnectionResetError("the client has gone")

    def drain(self) -> None:
        """There is room again."""
        if self.is_full:
            return
        self._has_room()
        if self._live is not None:
            self._live.pump()

    def _has_room(self, error: ConnectionError | None = None) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            if error is None:
                room.set_result(None)
            else:
                room.set_exception(error)

    def watch(self) -> None:
        """Keep the time where the client is to take something."""
        if self.stream.queued_bytes and (self._stuck is None or not self._stuck.is_set):
            self._watch()

    def close(self) -> None:
        """Nothing more will happen here."""
        if self._stuck is not None:
            self._stuck.clear()

    def _watch(self) -> None:
        if self._stuck is None:
            self._stuck = Alarm(self._clients.wheel, self._look)
        self._unsent = self.stream.queued_bytes
        self._stuck.set(self._clients.limits.client_write_timeout_s)

    def _look(self) -> None:
        """See whether the client has opened the stream's window at all."""
        stream = self.stream
        if not stream.queued_bytes:
            return
        if stream.queued_bytes < self._unsent or self._connection.session.is_blocked:
            # Or its connection is what is stuck, which has a deadline of its own.
            self._watch()
            return
        self._clients.metrics.slow_consumer()
        self.why_cut = CloseReason.SLOW
        self.abort()

    def abort(self) -> None:
        """Reset the stream: an orderly end would make a part look like the whole."""
        if self.stream.gone is None:
            self._connection.reset(self, ErrorCode.CANCEL if self.why_cut else ErrorCode.INTERNAL_ERROR)

    def hand_over(self, answering: LiveAnswer) -> None:
        """The answer is given by `answering`, who is told of room and of the client's end, until `answered`."""
        self._live = answering

    # -- live answers

    def park(self, live: LiveAnswer, *, keeps: bool, is_chunked: bool = True) -> None:
        """The answer is given by `live` from here on, until `release`."""
        self._live = live
        self.live_bytes = 0

    def release(self) -> None:
        """The live answer has ended."""
        self._live = None
        self._connection.check(self)

    def follow(
        self, live: LiveAnswer, route: str, began: float, note: Note | None, *, keeps: bool, is_chunked: bool
    ) -> None:
        """An SSE answer is given by `live` from here on, until `over`."""
        self.park(live, keeps=keeps, is_chunked=is_chunked)
        self._followed = Followed(self._clients, route, began, note)

    def write_head(self, head: bytes) -> None:
        """Write the head of a live answer."""
        assert self._followed is not None
        self.live_first_byte_s = self._clients.now() - self._followed.began
        self._connection.session.send_head(self.stream, block_of(head))
        self._connection.wake()

    def send(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of a live body, framed as a chunk."""
        connection = self._connection
        if self.stream.gone is not None:
            return
        connection.session.send(self.stream, _payload(chunk))
        if self.stream.queued_bytes and (self._stuck is None or not self._stuck.is_set):
            # It is sent no more until it has read: moved back to reading the tape.
            connection.clients.metrics.slow_consumer(is_closed=False)
            self._watch()
        self.live_bytes += size
        connection.clients.sent_bytes += size
        connection.wake()

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """The live body is whole; or it is not, and never will be."""
        if in_order:
            self.end()
        else:
            # Only an error tells a part from the whole.
            self.abort()
        followed, self._followed = self._followed, None
        if followed is not None:
            followed.close(self, reason, in_order=in_order)
        self.release()

    def write_response(self, response: bytes, body_bytes: int) -> None:
        """Write a whole live answer, where the client is still there; `release` is owed."""
        if self.stream.gone is None:
            block, body = _taken_apart(response, body_bytes)
            self.give(block, (body,) if body else ())
            self.live_bytes += body_bytes
            self._clients.sent_bytes += body_bytes
