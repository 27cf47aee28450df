"""One connection to an origin: one exchange after the other, on a bare transport.

A connection is idle, or busy with one exchange from the first byte of its request to the last byte of its reply; then
it tells its keeper that it is free.  It is never used again after anything that leaves in doubt where the next reply
would begin: an end in the middle, bytes that nobody asked for, a request body that was not sent to its end.

What comes of a reply gathers in an `Incoming`, which the reader holds and which outlives the exchange here: a small
reply gives the connection back before anybody has looked at it.  Above a high-water mark the connection reads nothing
more until the reader has taken what is there.

There is one deadline, which moves: for a reply's head, for a piece of its body, for how long an idle connection is
kept.  When it comes, the connection is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from math import inf
from typing import Final, Protocol, cast

from gateway.http.reply import END, Event, Head, ReplyBroken, ReplyParser
from gateway.upstream.deadline import Deadline
from gateway.upstream.endpoint import Endpoint
from gateway.upstream.failures import ConnectionLost, UploadFailed

KEEP_S: Final = 15.0
"""How long an idle connection is kept."""
HIGH_WATER_BYTES: Final = 1 << 18


class Pool(Protocol):
    """Whoever hands connections out."""

    def freed(self, connection: Connection) -> None:
        """An exchange has ended, and the connection may be used for another one."""

    def lost(self, connection: Connection) -> None:
        """The connection is no more; called once."""


class Incoming:
    """A reply on its way, for one reader at a time.

    Dropped by `end`, which ends the connection unless the whole reply has come.
    """

    __slots__ = ("_pieces", "_size", "connection", "error", "has_ended", "has_heard", "head", "on_change")

    def __init__(self, connection: Connection) -> None:
        self.connection: Connection | None = connection
        """None once the exchange is over."""
        self.head: Head | None = None
        self.has_heard = False
        """Whether anything at all has come."""
        self.has_ended = False
        """Whether all of the reply has come."""
        self.error: BaseException | None = None
        """Why no more of it will come: TimeoutError, ConnectionLost, ReplyBroken or UploadFailed."""
        self.on_change: Callable[[], object] = nothing
        """Called when more of it has come, and when no more will; by then the connection is as it will be."""
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self) -> bytes | None:
        """What has come of the body and was not taken yet, empty at its end; None where that is still to come.  Raises
        its error once all that came before it has been taken."""
        pieces = self._pieces
        if pieces:
            taken = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            self._pieces = []
            self._size = 0
            if self.connection is not None and not self.connection.is_reading:
                self.connection.resume()
            return taken
        if self.has_ended:
            return b""
        if self.error is not None:
            raise self.error
        return None

    def expect(self, by: float) -> None:
        """Have it fail unless more has come by then, in seconds of the loop's clock."""
        if self.connection is not None:
            self.connection.deadline.move(by)

    async def changed(self) -> None:
        """Wait for the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_change = partial(_wake, waiter)
        try:
            await waiter
        finally:
            self.on_change = nothing

    # -- from the connection

    def heard(self, events: list[Event]) -> None:
        """Take what has come."""
        for event in events:
            if event is END:
                self.has_ended = True
            elif type(event) is bytes:
                self._pieces.append(event)
                self._size += len(event)
            else:
                self.head = cast("Head", event)

    @property
    def is_full(self) -> bool:
        """Whether so much is here that no more should be read."""
        return self._size >= HIGH_WATER_BYTES

    def fail(self, error: BaseException) -> None:
        """Nothing more comes."""
        self.connection = None
        if not self.has_ended and self.error is None:
            self.error = error
            self.on_change()

    # -- from the reader

    def give_up(self) -> None:
        """Have it fail as if its time were over."""
        self.end(TimeoutError())

    def end(self, error: BaseException) -> None:
        """Have it fail by this error unless all of it has come, and drop the connection that it comes by."""
        connection = self.connection
        if connection is not None:
            connection.fail(error)


def nothing() -> None:
    """Nobody waits."""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Connection(asyncio.Protocol):
    """One connection.  Owner of its transport, and of the task that sends a body which comes piece by piece."""

    __slots__ = (
        "_drained",
        "_incoming",
        "_is_lost",
        "_is_writing",
        "_keeper",
        "_loop",
        "_parser",
        "_transport",
        "_upload",
        "deadline",
        "endpoint",
        "is_reading",
        "is_used",
        "made_at",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, keeper: Pool, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.made_at = loop.time()
        self.is_used = False
        """Whether an exchange has ended well on it."""
        self.deadline = Deadline(loop, self._timed_out)
        self._loop = loop
        self._keeper = keeper
        self._parser = ReplyParser()
        self._transport: asyncio.Transport | None = None
        self._incoming: Incoming | None = None
        self._upload: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._is_writing = True
        self.is_reading = True
        """Whether it takes what comes, or waits for its reader to take what has come."""
        self._is_lost = False

    def __repr__(self) -> str:
        state = "lost" if self._is_lost else "idle" if self._incoming is None else "busy"
        return f"<Connection {self.endpoint} {state}>"

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent on it, as far as anybody has heard."""
        return not self._is_lost and self._transport is not None and not self._transport.is_closing()

    # -- one exchange

    def ask(self, request: bytes, body: bytes | None, by: float, *, is_head: bool) -> Incoming:
        """Send a request, the head of whose reply is to be here by then."""
        assert self._incoming is None
        assert self._transport is not None
        incoming = self._incoming = Incoming(self)
        self._parser.expect(is_head=is_head)
        self.deadline.move(by)
        if not body:
            self._transport.write(request)
        else:
            self._transport.writelines((request, body))
        return incoming

    def uploading(self, task: asyncio.Task[None]) -> None:
        """A task sends the request's body by `send`, and ends with the exchange."""
        self._upload = task
        task.add_done_callback(self._uploaded)

    async def send(self, chunks: AsyncIterator[bytes], length: int | None) -> bool:
        """Send a body, of so many bytes or in chunks; whether that was done.  One that breaks off or has another length
        ends the exchange."""
        left = length
        try:
            async for chunk in chunks:
                if left is not None:
                    left -= len(chunk)
                    if left < 0:
                        raise UploadFailed("longer than announced")
                if chunk:
                    await self._write(chunk if left is not None else b"%x\r\n%b\r\n" % (len(chunk), chunk))
            if left:
                raise UploadFailed("shorter than announced")
            if left is None:
                await self._write(b"0\r\n\r\n")
        except Exception as error:
            failure = error if isinstance(error, UploadFailed) else UploadFailed("broken off")
            failure.__cause__ = None if failure is error else error
            self.fail(failure)
            return False
        return not self._is_lost

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
            self._over()

    def resume(self) -> None:
        """Read on after a pause."""
        if self._transport is not None and not self._is_lost:
            self.is_reading = True
            self._transport.resume_reading()

    def _over(self) -> None:
        """The exchange has come to its end, with nothing left to send."""
        incoming, self._incoming = self._incoming, None
        if incoming is not None:
            incoming.connection = None
        if not self._parser.is_reusable or not self.is_open:
            self.drop()
            return
        if not self.is_reading:
            self.resume()
        self.is_used = True
        self.deadline.move(self._loop.time() + KEEP_S)
        self._keeper.freed(self)

    # -- its end

    def fail(self, error: BaseException) -> None:
        """End the exchange by this error, if there is one, and the connection."""
        incoming, self._incoming = self._incoming, None
        # First: whoever is told may ask anew.
        self.drop()
        if incoming is not None:
            incoming.fail(error)

    def drop(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    def _lose(self) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        self.deadline.clear()
        if self._upload is not None:
            self._upload.cancel()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._keeper.lost(self)

    def _timed_out(self) -> None:
        self.fail(TimeoutError())

    # -- from the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        incoming = self._incoming
        if incoming is None:
            # Nobody asked, so nobody could tell it from the next reply.
            self.drop()
            return
        incoming.has_heard = True
        try:
            events = self._parser.feed(data)
        except ReplyBroken as error:
            self.fail(error)
            return
        if not events:
            return
        incoming.heard(events)
        self.deadline.at = inf
        if incoming.has_ended:
            if self._upload is None:
                self._over()
        elif incoming.is_full and self.is_reading and self._transport is not None:
            self.is_reading = False
            self._transport.pause_reading()
        incoming.on_change()

    def eof_received(self) -> bool:
        incoming = self._incoming
        if incoming is None:
            self.drop()
            return False
        try:
            incoming.heard(self._parser.feed_eof())
        except ReplyBroken:
            self.fail(ConnectionLost())
        else:
            self._over()
            incoming.on_change()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        incoming, self._incoming = self._incoming, None
        self._lose()
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
