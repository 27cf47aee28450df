"""An HTTP/1.1 connection to an origin, which carries one exchange after the other.

A connection is busy from the first byte of a request to the last byte of its reply, and idle at other times.  After an
exchange the connection calls the method `freed` of its owner.  The connection is closed instead if the start of the
next reply would be uncertain: after a truncated reply, after bytes that no request asked for, or if a request body was
not sent completely.  After each reply the connection rests for a moment before it is used again
(`gateway.upstream.kept_connections`).

An `IncomingReply` collects the reply.  Above the high-water mark, the connection stops reading.  It reads again when
the reader has taken the data and the connection's turn to read has come (`gateway.upstream.incoming`).

The connection has one deadline, which moves: for a reply's head, for the next part of a body, or for the end of the
idle time.  When the deadline passes, the connection is closed.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from math import inf
from typing import Final, Protocol, cast

from multidict import istr

from gateway.aio.timers import Deadline
from gateway.errors import bare
from gateway.http.framing import State
from gateway.http.reply_parser import ReplyBroken, ReplyParser
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.incoming import IncomingReply, Intake, send_body
from gateway.upstream.kept_connections import ABANDONED_S, KeepAlive, outlasts_abandoned
from gateway.upstream.origin_call import Endpoint

_KEEP_ALIVE: Final = istr("Keep-Alive")
_CLOSED: Final = State.CLOSED
_READS: Final = (b"GET ", b"HEAD ")
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which the kernel resets the connection when its socket is closed."""
_JOINED_BYTES: Final = 1 << 14
"""A body up to this size is joined with its head, for a single write."""


class ConnectionOwner(Protocol):
    """The owner of a connection, which is notified of its changes."""

    keep_alive: KeepAlive
    intake: Intake

    def retired(self, connection: OriginConnection) -> None:
        """The connection takes no further exchange, because its server is about to shut down."""

    def freed(self, connection: OriginConnection) -> None:
        """An exchange has ended, and the connection can carry another one."""

    def lost(self, connection: OriginConnection) -> None:
        """The connection has ended.  Called once."""


class OriginConnection(asyncio.Protocol):
    """An HTTP/1.1 connection.  Owner of its transport and of the task that uploads a streamed body."""

    __slots__ = (
        "_drained",
        "_incoming",
        "_is_lost",
        "_is_read",
        "_is_retired",
        "_is_writing",
        "_loop",
        "_now",
        "_owner",
        "_parser",
        "_poll",
        "_transport",
        "_upload",
        "address",
        "deadline",
        "endpoint",
        "is_for_heads",
        "is_reading",
        "is_reused",
        "made_at",
        "new_parser",
        "outdated_at",
        "rests_until",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: ConnectionOwner, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.made_at = loop.time()
        self.is_reused = False
        """Whether the connection has carried a complete exchange."""
        self.is_for_heads = False
        """Whether the connection's latest request was a HEAD.  The pool then keeps the connection for HEADs only."""
        self.address = ""
        """The server's address, from the resolver."""
        self.outdated_at = inf
        """When the connection is too old for another exchange (the loop's clock)."""
        self.rests_until = 0.0
        """When an idle connection may be used again (the loop's clock)."""
        self.deadline: Deadline
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        """Polls the socket for input that the event loop has not reported yet; None without a socket."""
        self._is_read = False
        """Whether the latest request is a GET or HEAD, so that `drop` may reset the connection."""
        self._loop = loop
        self._now = loop.time
        self._owner = owner
        self.new_parser: Callable[[], ReplyParser] = ReplyParser
        """Makes the parser of the connection's replies."""
        self._parser: ReplyParser
        self._transport: asyncio.Transport | None = None
        self._incoming: IncomingReply | None = None
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_writing = True
        self.is_reading = True
        """False while the connection does not read, because the reader has to take the data that has arrived.  Also
        True while the connection waits for its turn to read."""
        self._is_lost = False
        self._is_retired = False
        """Whether the connection takes no further exchange."""

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "idle" if self._incoming is None else "busy"
        return f"<OriginConnection {self.endpoint} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether the connection is open, as far as is known."""
        return not self._is_lost and self._transport is not None and not self._transport.is_closing()

    def may_carry(self, now: float, named: frozenset[str] | None) -> bool:
        """Return whether the idle connection can carry another exchange.

        The connection must be open and not too old at `now`.  If `named` has the host's current addresses, the
        connection's address must be among them.  The socket must also have no input, because input would be the
        origin's close or bytes that no request asked for.
        """
        transport = self._transport
        if self._is_lost or transport is None or transport.is_closing():
            return False
        # Any connection may carry one exchange, however small the age bound is.  Otherwise requests could dial for
        # ever.
        if (now >= self.outdated_at and self.is_reused) or (named is not None and self.address not in named):
            return False
        return self._poll is None or not self._poll(0)

    # -- one exchange

    def ask(
        self, request: bytes, body: bytes | None, by: float, *, is_head: bool, is_upload: bool = False
    ) -> IncomingReply:
        """Send a request.  The head of its reply must arrive by `by` (the loop's clock)."""
        transport = self._transport
        assert self._incoming is None
        assert transport is not None
        incoming = self._incoming = IncomingReply(self, self)
        self._parser.expect(is_head=is_head)
        self.is_for_heads = is_head
        self._is_read = request.startswith(_READS)
        self.deadline.move(by)
        if not body:
            transport.write(request)
        elif len(body) <= _JOINED_BYTES:
            transport.write(request + body)
        else:
            transport.writelines((request, body))
        return incoming

    def uploading(self, task: asyncio.Task[None]) -> None:
        """Become the owner of the task that runs `send_body`.  The task is cancelled if the exchange ends first."""
        self._upload = task
        task.add_done_callback(self._uploaded)

    async def send_body(self, chunks: AsyncIterator[bytes], length: int | None) -> bool:
        """Send a body of `length` bytes, or chunked if None; return whether all of it was sent.

        If the iterator raises or the length is wrong, the exchange fails.
        """
        failure = await send_body(chunks, length, self._write if length is not None else self._write_chunk)
        if failure is None and length is None:
            await self._write(b"0\r\n\r\n")
        elif failure is not None:
            self.fail(failure)
            return False
        return not self._is_lost

    async def _write_chunk(self, data: bytes) -> None:
        await self._write(b"%x\r\n%b\r\n" % (len(data), data))

    async def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._is_lost:
            self._transport.write(data)
        if not self._is_writing and not self._is_lost:
            self._drained = self._loop.create_future()
            await self._drained

    def _uploaded(self, task: asyncio.Task[None]) -> None:
        self._upload = None
        if task.cancelled():
            self.fail(UploadFailed("broken off"))
        elif self._incoming is not None and self._incoming.has_ended:
            self._finish(self._now())

    def resume(self) -> None:
        """Read again when the connection's turn comes, because the reader has taken the received data."""
        if not self._is_lost:
            self.is_reading = True
            self._owner.intake.resume_later(self)

    def read_on(self) -> None:
        """Read again now.  Called by the intake."""
        if self._transport is not None and not self._is_lost and self.is_reading:
            self._transport.resume_reading()

    def _finish(self, now: float) -> None:
        """End the exchange, whose request and reply are complete, and keep or close the connection."""
        incoming, self._incoming = self._incoming, None
        head = None
        if incoming is not None:
            incoming.connection, head = None, incoming.head
        transport = self._transport
        if self._is_retired or self._parser.state is _CLOSED or transport is None or transport.is_closing():
            self.drop()
            return
        if not self.is_reading:
            self.resume()
        keep_alive = self._owner.keep_alive
        kept_s = keep_alive.idle_s
        if head is not None:
            # Look for Keep-Alive in the shape, the part of the head that replies have in common.  All fields about the
            # connection belong to the shape.
            headers = head.headers if head.shape is None else head.shape.headers
            if (hint := headers.get(_KEEP_ALIVE)) is not None:
                kept_s = keep_alive.kept_s(hint)
        if kept_s <= keep_alive.rest_s:
            # The idle time would be over before the rest ends, so the connection could never be used again.
            self.drop()
            return
        self.is_reused = True
        self.rests_until = now + keep_alive.rest_s
        self.deadline.move(now + kept_s)
        self._owner.freed(self)

    # -- the end

    def may_repeat(self) -> bool:
        """Return whether a request without any byte of a reply may be sent again on another connection."""
        return self.is_reused

    def abandon(self) -> None:
        """Abandon the reply.  The connection is kept if the reply is short and ends soon."""
        assert self._incoming is not None
        self._incoming.is_left = True
        self.deadline.move(self._loop.time() + ABANDONED_S)

    def fail(self, error: BaseException) -> None:
        """Close the connection, and end its exchange, if there is one, with this error."""
        incoming, self._incoming = self._incoming, None
        # Close first, because the reader may start a new request when it is notified.
        self.drop()
        if incoming is not None:
            incoming.fail(error)

    def retire(self) -> None:
        """Close the connection after the current exchange, because its server is about to shut down.

        The owner is notified, because other connections may lead to the same server.
        """
        self._is_retired = True
        if self._incoming is None:
            self.drop()
        self._owner.retired(self)

    def drop(self) -> None:
        """Close the connection at once.

        If a read has no answer yet, reset the connection: an origin that is about to answer may not notice a regular
        close.  During a write the connection is not reset, because the origin might lose the request.
        """
        transport = self._transport
        if transport is not None:
            if self._is_read and self._parser.is_awaited and (sock := transport.get_extra_info("socket")) is not None:
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            transport.abort()
        self._on_lost()

    def _on_lost(self) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        # Do not poll the descriptor any more, because the kernel may give it to another socket from now on.
        self._poll = None
        if self._transport is not None:
            self.deadline.close()
            self._parser.close()
        if self._upload is not None:
            self._upload.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._owner.lost(self)

    def _timed_out(self) -> None:
        self.fail(TimeoutError())

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Create the deadline and the parser only now, because they refer to the connection.  A failed attempt to
        # connect does not call `connection_lost`, and would leave the reference cycle behind.
        self.deadline = Deadline(self._loop, self._timed_out)
        self._parser = self.new_parser()
        self._transport = cast("asyncio.Transport", transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            poller = select.poll()
            poller.register(sock.fileno(), select.POLLIN)
            self._poll = poller.poll

    def data_received(self, data: bytes) -> None:
        incoming, parser = self._incoming, self._parser
        if incoming is None:
            # Close the connection: no request is pending, so these bytes would be read as the next reply.
            self.drop()
            return
        incoming.has_received = True
        broken: ReplyBroken | None = None
        now = self._now()
        try:
            events = parser.feed(data, now)
        except ReplyBroken as error:
            broken = bare(error)
        if broken is not None:
            # Fail outside the `except` block, so that the error does not become the context of other exceptions.
            self.fail(broken)
            return
        if parser.interim:
            self._informed(incoming)
            if self._incoming is not incoming:
                # The requester has ended the exchange when it got the interim reply.
                return
        if not events:
            return
        incoming.received(events)
        if incoming.is_left:
            self._drop_reply(incoming)
            return
        self.deadline.at = inf
        if incoming.has_ended:
            if self._upload is None:
                self._finish(now)
        elif incoming.is_full and self.is_reading and self._transport is not None:
            self.is_reading = False
            self._transport.pause_reading()
        incoming.on_change()

    def _informed(self, incoming: IncomingReply) -> None:
        """Pass interim replies to the requester."""
        arrived, self._parser.interim = self._parser.interim, []
        for interim in arrived:
            incoming.on_interim(interim)

    def _drop_reply(self, incoming: IncomingReply) -> None:
        """Handle the arrival of more data of an abandoned reply."""
        head = incoming.head
        if incoming.has_ended:
            self._finish(self._now())
        elif not outlasts_abandoned(incoming.unread_bytes, head.content_length if head is not None else None):
            self.drop()

    def eof_received(self) -> bool:
        incoming = self._incoming
        if incoming is None:
            self.drop()
            return False
        try:
            events = self._parser.feed_eof()
        except ReplyBroken:
            events = None
        if events is None:
            self.fail(ConnectionLost())
        else:
            incoming.received(events)
            self._finish(self._now())
            incoming.on_change()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        incoming, self._incoming = self._incoming, None
        self._on_lost()
        self._transport = None
        if incoming is not None:
            lost = ConnectionLost()
            lost.__cause__ = error
            incoming.fail(lost)

    def pause_writing(self) -> None:
        self._is_writing = False

    def resume_writing(self) -> None:
        self._is_writing = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
