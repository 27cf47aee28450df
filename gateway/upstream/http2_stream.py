"""One exchange on a stream of an HTTP/2 connection.  An HTTP/1.1 `OriginConnection` has the same interface.

An exchange lasts until both the request and the reply have ended, or until either side resets the stream.  Body and
reply may be sent at the same time.  If the origin's flow-control windows are exhausted, the body waits in the session,
and the gateway reads no more of it from the client.  While a reply is not read, the stream's window is not extended.

Each exchange has a deadline.  When the deadline passes, the stream is reset, and the connection sends a PING to check
that the origin still answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from math import inf
from typing import Protocol

from gateway.aio.timers import Deadline
from gateway.http.framing import MOST_INTERIM
from gateway.http.http2.blocks import request_block
from gateway.http.http2.client_session import ClientSession
from gateway.http.http2.frames import ErrorCode
from gateway.http.http2.streams import Stream
from gateway.http.reply_parser import END, Event, Interim, ReplyBroken, TooManyInterim
from gateway.upstream.failures import ConnectionLost, RequestReset, Unprocessed, UploadFailed
from gateway.upstream.incoming import IncomingReply, send_body
from gateway.upstream.origin_call import Endpoint


class StreamOwner(Protocol):
    """The part of the connection that a stream uses."""

    endpoint: Endpoint
    made_at: float
    session: ClientSession

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""

    def add_stream(self, stream: Stream, carrier: Http2Stream) -> None:
        """Pass the stream's events to `carrier`."""

    def ended(self, carrier: Http2Stream, *, is_complete: bool) -> None:
        """Remove an exchange that has ended.  `is_complete`: its whole reply has arrived.  Called once."""

    @property
    def is_reused(self) -> bool:
        """Whether the connection has carried a complete exchange."""

    def take_repetition(self) -> bool:
        """Return whether a failed request may be repeated, and count the repetition."""

    def retire(self) -> None:
        """Start no more exchanges, and close the connection after the last one."""

    def doubt(self) -> None:
        """Check by a PING that the origin still answers, because an exchange has timed out."""

    def flush(self) -> None:
        """Write the session's output."""


class Http2Stream:
    """One exchange.  Owner of the task that uploads a streamed body."""

    __slots__ = (
        "_drained",
        "_incoming",
        "_interim",
        "_interim_count",
        "_is_over",
        "_loop",
        "_reset_code",
        "_upload",
        "connection",
        "deadline",
        "endpoint",
        "is_reading",
        "made_at",
        "stream",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: StreamOwner) -> None:
        self.endpoint = connection.endpoint
        self.made_at = connection.made_at
        self.deadline = Deadline(loop, self._timed_out)
        self.is_reading = True
        self._loop = loop
        self.connection = connection
        self.stream: Stream | None = None
        """The session's stream; None until the request is sent."""
        self._incoming: IncomingReply | None = None
        self._interim: list[Interim] = []
        """Interim replies that have not been passed to the requester yet."""
        self._interim_count = 0
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._reset_code: tuple[ErrorCode, bool] | None = None
        """The error code of a reset, and whether the origin sent it."""
        self._is_over = False

    def __repr__(self) -> str:
        return f"<Http2Stream {self.endpoint} {'over' if self._is_over else self.stream or 'unused'}>"

    @property
    def is_open(self) -> bool:
        """Whether the exchange is in progress and its connection is open, as far as is known."""
        return not self._is_over and self.connection.is_open

    @property
    def is_reused(self) -> bool:
        """Whether the connection has carried a complete exchange."""
        return self.connection.is_reused

    # -- the request

    def ask(
        self, request: bytes, body: bytes | None, by: float, *, is_head: bool, is_upload: bool = False
    ) -> IncomingReply:
        """Send a request.  `request` is its head in HTTP/1.1 syntax.  The reply's head must arrive by `by`."""
        assert self.stream is None
        connection, session = self.connection, self.connection.session
        block = request_block(request, self.endpoint.scheme)
        stream = self.stream = session.send_request(block, ends=not body and not is_upload, is_head=is_head)
        connection.add_stream(stream, self)
        if body:
            session.send_data(stream, body, ends=True)
        incoming = self._incoming = IncomingReply(self, self.connection)
        self.deadline.move(by)
        connection.flush()
        return incoming

    def uploading(self, task: asyncio.Task[None]) -> None:
        """Become the owner of the task that runs `send_body`.  The task is cancelled if the exchange ends first."""
        self._upload = task
        task.add_done_callback(self._uploaded)

    async def send_body(self, chunks: AsyncIterator[bytes], length: int | None) -> bool:
        """Send a body of `length` bytes, or of any length if None; return whether all of it was sent."""
        failure = await send_body(chunks, length, self._write)
        if failure is not None:
            self.fail(failure)
            return False
        if not self._is_over and self.stream is not None:
            self.connection.session.end_stream(self.stream)
            self.connection.flush()
            return True
        return False

    async def _write(self, data: bytes) -> None:
        stream = self.stream
        if stream is None or self._is_over:
            return
        self.connection.session.send_data(stream, data)
        self.connection.flush()
        while stream.is_full and not self._is_over:
            self._drained = self._loop.create_future()
            await self._drained

    def _uploaded(self, task: asyncio.Task[None]) -> None:
        self._upload = None
        if task.cancelled():
            self.fail(UploadFailed("broken off"))
        elif self._incoming is not None and self._incoming.has_ended:
            self._end(is_complete=True)

    def resume(self) -> None:
        """Extend the stream's window, because the reader has taken the received bytes."""
        self.is_reading = True
        if self.stream is not None and not self._is_over:
            self.connection.session.unread(self.stream, 0)
            self.connection.flush()

    # -- from the connection

    def drained(self) -> None:
        """Continue the upload, because the queued part of the body has been written."""
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def interim(self, interim: Interim) -> None:
        """Store an interim reply.  The caller then calls `notify`."""
        if self._incoming is not None:
            self._incoming.has_received = True
            self._interim.append(interim)
            self._interim_count += 1

    def received(self, event: Event) -> None:
        """Store a part of the reply.  The caller then calls `notify`."""
        incoming = self._incoming
        if incoming is not None:
            incoming.has_received = True
            incoming.received([event])

    def received_data(self, stream: Stream, data: bytes, size: int) -> None:
        """Store a part of the body, from a frame of `size` bytes.  The caller then calls `notify`."""
        session = self.connection.session
        if self._incoming is not None:
            self.received(data)
            self.is_reading = False
            session.unread(stream, self._incoming.unread_bytes)
        session.acknowledge(stream, size)

    def was_reset(self, code: ErrorCode, *, is_by_peer: bool) -> None:
        """Record that the stream was reset.  The caller then calls `notify`."""
        self._reset_code = code, is_by_peer

    def notify(self) -> None:
        """Notify the reader of the events since the last call."""
        if self._interim and self._incoming is not None:
            arrived, self._interim = self._interim, []
            for interim in arrived:
                self._incoming.on_interim(interim)
        incoming = self._incoming
        if incoming is None:
            return
        if self._reset_code is not None:
            if incoming.has_ended:
                # The reset is no failure: after its whole reply, the origin does not need the rest of the request (RFC
                # 9113 section 8.1).
                self._end(is_complete=True)
                incoming.on_change()
            else:
                self.fail(self._failure(*self._reset_code))
            return
        if incoming.head is None:
            return
        self.deadline.at = inf
        if incoming.has_ended and self._upload is None:
            self._end(is_complete=True)
        incoming.on_change()

    def received_end(self) -> None:
        """Record the end of the reply.  The caller then calls `notify`."""
        self.received(END)

    # -- the end

    def may_repeat(self) -> bool:
        """Return whether the request, which has got no byte of a reply, may be sent again."""
        return self.connection.take_repetition()

    def abandon(self) -> None:
        """Reset the stream, because its reply is no longer needed.  The connection stays open."""
        self.fail(ConnectionLost("left"))

    def fail(self, error: BaseException) -> None:
        """End the exchange with this error, and reset the stream."""
        incoming = self._incoming
        self._end(is_complete=False)
        if incoming is not None:
            incoming.fail(error)

    def drop(self) -> None:
        """End the exchange at once."""
        self.fail(ConnectionLost())

    def _end(self, *, is_complete: bool) -> None:
        if self._is_over:
            return
        self._is_over = True
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.connection = None
        self.deadline.close()
        if self._upload is not None:
            self._upload.cancel()
        self.drained()
        if self.stream is not None:
            self.connection.session.reset(self.stream, ErrorCode.CANCEL)
        self.connection.ended(self, is_complete=is_complete)
        self.connection.flush()

    def _timed_out(self) -> None:
        self.connection.doubt()
        self.fail(TimeoutError())

    def _failure(self, code: ErrorCode, is_by_peer: bool) -> Exception:
        if is_by_peer:
            return Unprocessed() if code is ErrorCode.REFUSED_STREAM else RequestReset()
        has_head = self._incoming is not None and self._incoming.head is not None
        if self._interim_count >= MOST_INTERIM and not has_head:
            return TooManyInterim("too many interim replies")
        return ReplyBroken("malformed reply")
