"""One connection to an origin: one exchange after the other, on a bare transport.

A connection is idle, or busy with one exchange from the first byte of its request to the last byte of its reply.  Then
it reports to its owner that it is free.  It is never reused if the start of the next reply would be uncertain: after an
early end, unrequested bytes, or a request body that was not sent completely.  After each reply it rests for a moment
(`gateway.upstream.incoming`).

A reply is collected in an `IncomingReply`.  Above its high-water mark the connection pauses until the reader has taken
the data.

There is one moving deadline: for a reply's head, for the next piece of its body, or for an idle connection.  When it
passes, the connection is dropped.
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
from gateway.http.reply import ReplyBroken, ReplyParser
from gateway.upstream.call import Endpoint
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.incoming import IncomingReply
from gateway.upstream.keep_alive import KeepAlive
from gateway.upstream.upload import send_body

_KEEP_ALIVE: Final = istr("Keep-Alive")
_CLOSED: Final = State.CLOSED
_READS: Final = (b"GET ", b"HEAD ")
_NO_LINGER: Final = struct.pack("ii", 1, 0)
"""Has the kernel reset the connection when its socket is closed."""
LEFT_S: Final = 0.25
"""Seconds in which the reply to an abandoned read may arrive."""
MOST_LEFT_BYTES: Final = 1 << 16
"""Bytes of such a reply that are read and dropped."""
_JOINED_BYTES: Final = 1 << 14
"""A body up to this size is joined with its head, for one write without a list."""


class ConnectionOwner(Protocol):
    """Receives the connections that are free or lost."""

    keep_alive: KeepAlive

    def retired(self, connection: Connection) -> None:
        """The connection takes no further exchange, because its server is about to leave."""

    def freed(self, connection: Connection) -> None:
        """An exchange has ended, and the connection may be used for another."""

    def lost(self, connection: Connection) -> None:
        """The connection is gone.  Called once."""


class Connection(asyncio.Protocol):
    """One connection.  Owns its transport and the task that uploads a streamed body."""

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
        "outdated_at",
        "rests_until",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, owner: ConnectionOwner, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.made_at = loop.time()
        self.is_reused = False
        """Whether an exchange has completed on it."""
        self.is_for_heads = False
        """Whether its requests are HEADs."""
        self.address = ""
        """The address that it leads to, as the resolver gave it."""
        self.outdated_at = inf
        """When it is too old for a further exchange, in seconds of the loop's clock."""
        self.rests_until = 0.0
        """When it may be used again, in seconds of the loop's clock."""
        self.deadline: Deadline
        self._poll: Callable[[int], list[tuple[int, int]]] | None = None
        """Polls the socket for what the event loop has not reported yet; None without one."""
        self._is_read = False
        """Whether the latest request only reads."""
        self._loop = loop
        self._now = loop.time
        self._owner = owner
        self._parser: ReplyParser
        self._transport: asyncio.Transport | None = None
        self._incoming: IncomingReply | None = None
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_writing = True
        self.is_reading = True
        """False while reading is paused until the reader has taken what has arrived."""
        self._is_lost = False
        self._is_retired = False
        """Whether it takes no further exchange."""

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "idle" if self._incoming is None else "busy"
        return f"<Connection {self.endpoint} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent on it, as far as is known."""
        return not self._is_lost and self._transport is not None and not self._transport.is_closing()

    def may_carry(self, now: float, named: frozenset[str] | None) -> bool:
        """Whether it is open, not too old at `now`, and leads to one of the addresses `named`, if these are known; and
        nothing has arrived that the event loop has not reported yet: bytes that no request asked for, or the origin's
        close."""
        transport = self._transport
        if self._is_lost or transport is None or transport.is_closing():
            return False
        # One exchange it may carry at any age, or requests would dial for ever.
        if (now >= self.outdated_at and self.is_reused) or (named is not None and self.address not in named):
            return False
        return self._poll is None or not self._poll(0)

    # -- one exchange

    def ask(
        self, request: bytes, body: bytes | None, by: float, *, is_head: bool, is_upload: bool = False
    ) -> IncomingReply:
        """Send a request whose reply head must arrive by `by`, in seconds of the loop's clock."""
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
        """Adopt the task that sends the request's body by `send_body`; it ends with the exchange."""
        self._upload = task
        task.add_done_callback(self._uploaded)

    async def send_body(self, chunks: AsyncIterator[bytes], length: int | None) -> bool:
        """Send a body of `length` bytes, or chunked if None; returns whether it was sent.  A body that breaks off or
        has another length ends the exchange."""
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
        """Resume reading."""
        if self._transport is not None and not self._is_lost:
            self.is_reading = True
            self._transport.resume_reading()

    def _finish(self, now: float) -> None:
        """The reply is complete, and nothing is left to send."""
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
            # The shape has each field for the connection alone.
            headers = head.headers if head.shape is None else head.shape.headers
            if (hint := headers.get(_KEEP_ALIVE)) is not None:
                kept_s = keep_alive.kept_s(hint)
        if kept_s <= keep_alive.rest_s:
            # It would be closed before it could be used.
            self.drop()
            return
        self.is_reused = True
        self.rests_until = now + keep_alive.rest_s
        self.deadline.move(now + kept_s)
        self._owner.freed(self)

    # -- its end

    def may_repeat(self) -> bool:
        """Whether a request that got no byte of an answer may be sent once more, on another connection."""
        return self.is_reused

    def abandon(self) -> None:
        """Abandon the reply: drop what comes of it.  The connection is kept if the reply ends soon."""
        assert self._incoming is not None
        self._incoming.is_left = True
        self.deadline.move(self._loop.time() + LEFT_S)

    def fail(self, error: BaseException) -> None:
        """End the exchange, if there is one, with this error; drop the connection."""
        incoming, self._incoming = self._incoming, None
        # Drop first: the reader may start a new request when it is notified.
        self.drop()
        if incoming is not None:
            incoming.fail(error)

    def retire(self) -> None:
        """Take no further exchange: close once the one under way is over.  Drop idle connections to the same host, too,
        because they may lead to the same server."""
        self._is_retired = True
        if self._incoming is None:
            self.drop()
        self._owner.retired(self)

    def drop(self) -> None:
        """Close the connection at once.  It is reset if a read is not answered yet: an origin may not notice an orderly
        close while it answers.  A write is never reset, because the origin might lose it."""
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
        # The descriptor's number may be that of another socket from now on.
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
        # Not earlier: both refer to the connection, and a failed attempt to connect does not call `connection_lost`.
        self.deadline = Deadline(self._loop, self._timed_out)
        self._parser = ReplyParser()
        self._transport = cast("asyncio.Transport", transport)
        if (sock := transport.get_extra_info("socket")) is not None:
            poller = select.poll()
            poller.register(sock.fileno(), select.POLLIN)
            self._poll = poller.poll

    def data_received(self, data: bytes) -> None:
        incoming, parser = self._incoming, self._parser
        if incoming is None:
            # No request is pending: these bytes could not be told from the next reply.
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
            # Outside the handler, where the error would become the context of further exceptions.
            self.fail(broken)
            return
        if parser.interim:
            self._informed(incoming)
            if self._incoming is not incoming:
                # The reader has ended the exchange.
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
        """Pass interim replies on."""
        arrived, self._parser.interim = self._parser.interim, []
        for interim in arrived:
            incoming.on_interim(interim)

    def _drop_reply(self, incoming: IncomingReply) -> None:
        """More has arrived of an abandoned reply."""
        head = incoming.head
        if incoming.has_ended:
            self._finish(self._now())
        elif max(incoming.unread_bytes, (head and head.content_length) or 0) > MOST_LEFT_BYTES:
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
