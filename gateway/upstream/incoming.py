"""A reply that is being received, and the interface of the connection that carries it.

The reader holds an `IncomingReply`.  This object outlives the exchange: after a small reply, the connection may carry
the next exchange before the reader has read the reply.

`Upload` sends a streamed request body on the same carrier (an HTTP/1.1 connection, or a stream of an HTTP/2
connection).

`Intake` bounds the bytes that one turn of the event loop reads from connections to origins.  A large body arrives in
reads of up to `MOST_READ_BYTES`.  The data of each read is copied, stored and written to clients, which takes a
millisecond if the memory is new to the process.  While bodies of a dozen fetches arrive at once, a turn that reads all
of them delays every other client by that many milliseconds.  uvloop even reads the same socket up to 32 times in one
turn while it finds a full buffer.  A connection therefore stops reading after each large read.  When its reader has
taken the data, the connection calls `resume_later` and waits in a queue.  Each turn resumes one connection.  A turn of
an otherwise idle loop costs about 20 us, so large bodies lose little time.  On a busy loop they get one read in each
turn, and leave the rest of the turn to other clients.  A connection never stops reading for a small reply.

`Inflow` bounds the bytes that fetched bodies add to memory between two checks of the process's memory.  One turn of the
loop reads the data of all connections to origins, and writes it to all readers that share a fetch.  The data of one
turn may fill a tenth of a small memory limit.  The owner of an `Inflow` therefore checks the process's memory
periodically, and sets how many bytes may be added until the next check.  When these bytes are used up, `spent` requests
the next check, and bodies wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Final, Protocol

from multidict import CIMultiDict

from gateway.aio.signal import Signal
from gateway.aio.timers import Deadline
from gateway.errors import bare
from gateway.http.outgoing import InvalidRequest
from gateway.http.reply_lines import Head
from gateway.http.reply_parser import END, Event, Interim
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.origin_call import Endpoint

HIGH_WATER_BYTES: Final = 1 << 16
"""With this many unread bytes, an HTTP/1.1 connection stops reading until the reader has taken them.  A reply up to
this size arrives without a stop."""
MOST_READ_BYTES: Final = 1 << 18
"""The most bytes that the event loop reads from a socket at once."""
_MOST_PIECES: Final = 1_024
"""If an unread body has more pieces than this, they are joined.  Each piece takes about sixty bytes in addition to its
data.
"""


class Line(Protocol):
    """A connection to an origin."""

    def retire(self) -> None:
        """Start no further exchange.  Exchanges in progress continue."""


class Carrier(Protocol):
    """The carrier of one exchange: an HTTP/1.1 connection, or a stream of an HTTP/2 connection."""

    endpoint: Endpoint
    made_at: float
    """When the connection was made (the loop's clock)."""
    deadline: Deadline
    """When the head, or the next part of the body, is due."""
    is_reading: bool
    """False while the carrier does not read, until the reader has taken the received data and calls `resume`."""

    @property
    def is_open(self) -> bool:
        """Whether the carrier can send a request, as far as is known."""

    @property
    def is_reused(self) -> bool:
        """Whether the connection has carried a complete exchange."""

    def ask(
        self, request: bytes, body: bytes | None, by: float, *, is_head: bool, is_upload: bool = False
    ) -> IncomingReply:
        """Send a request.

        `request` is its head in HTTP/1.1 syntax.  The reply's head must arrive by `by` (the loop's clock).
        `is_upload`: the caller streams the body by `send_body`.
        """

    def uploading(self, task: asyncio.Task[None]) -> None:
        """Become the owner of the task that runs `send_body`.  The task is cancelled if the exchange ends first."""

    async def send_body(self, chunks: AsyncIterator[bytes], length: int | None) -> bool:
        """Send a body of `length` bytes, or of any length if None; return whether all of it was sent.

        If the iterator raises or the length is wrong, the exchange fails.
        """

    def resume(self) -> None:
        """Read again, because the reader has taken the received data."""

    def may_repeat(self) -> bool:
        """Return whether a request without any byte of a reply may be sent again.  Each complete reply allows one
        repetition.
        """

    def abandon(self) -> None:
        """Discard the reply to a read, because it is no longer needed."""

    def fail(self, error: BaseException) -> None:
        """End the exchange with this error, and drop the carrier."""

    def drop(self) -> None:
        """End the exchange at once."""


class IncomingReply:
    """A reply that is being received, for one reader."""

    __slots__ = (
        "_line",
        "_pieces",
        "_size",
        "connection",
        "error",
        "has_ended",
        "has_received",
        "head",
        "is_left",
        "on_change",
        "on_interim",
    )

    def __init__(self, connection: Carrier, line: Line) -> None:
        self.connection: Carrier | None = connection
        """The carrier; None once the exchange is over."""
        self._line = line
        """The connection, which outlives the exchange."""
        self.head: Head | None = None
        self.has_received = False
        """Whether any byte of the reply has arrived."""
        self.has_ended = False
        """Whether the complete reply has arrived."""
        self.is_left = False
        """Whether the reader has abandoned the reply."""
        self.error: BaseException | None = None
        """The error with which the reply has failed: TimeoutError, ConnectionLost, ReplyBroken or UploadFailed."""
        self.on_change: Callable[[], object] = no_op
        """Called when data has arrived, at the end, and on failure.  The connection's state is updated before the call.
        """
        self.on_interim: Callable[[Interim], object] = ignore
        """Called with each interim reply."""
        self._pieces: list[bytes] = []
        self._size = 0

    def detach(self) -> None:
        """Stop notifying the reader."""
        self.on_change = no_op
        self.on_interim = ignore

    def take(self) -> bytes | None:
        """Return the received part of the body; empty at the end of the body, None if nothing has arrived.

        Once all received data has been taken, raises the error of a failed reply.
        """
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
        """Fail with TimeoutError unless more data arrives by this time (the loop's clock)."""
        if self.connection is not None:
            self.connection.deadline.move(by)

    async def changed(self) -> None:
        """Wait until data arrives, or the reply ends or fails."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_change = partial(_wake, waiter)
        try:
            await waiter
        finally:
            self.on_change = no_op

    # -- from the connection

    def received(self, events: list[Event]) -> None:
        """Store received parts of the reply."""
        for event in events:
            if event is END:
                self.has_ended = True
            elif type(event) is bytes:
                self._pieces.append(event)
                self._size += len(event)
            elif type(event) is Head:
                self.head = event
        if len(self._pieces) > _MOST_PIECES:
            self._pieces = [b"".join(self._pieces)]

    @property
    def unread_bytes(self) -> int:
        """The number of received bytes that have not been taken."""
        return self._size

    @property
    def is_full(self) -> bool:
        """Whether the buffered data has reached the high-water mark."""
        return self._size >= HIGH_WATER_BYTES

    def fail(self, error: BaseException) -> None:
        """Record the failure of the reply, unless it is complete."""
        self.connection = None
        if not self.has_ended and self.error is None:
            self.error = bare(error)
            self.on_change()

    # -- from the reader

    def time_out(self) -> None:
        """Fail with TimeoutError now."""
        if self.connection is not None:
            self.connection.fail(TimeoutError())

    def abandon(self) -> None:
        """Discard the reply to a read, unless the exchange is over."""
        if self.connection is not None:
            self.connection.abandon()

    def retire(self) -> None:
        """Use the connection for no further request.  Works even after the exchange."""
        self._line.retire()

    def break_off(self, why: str) -> None:
        """End the exchange with ConnectionLost, unless the reply is complete."""
        if self.connection is not None:
            self.connection.fail(ConnectionLost(why))


def ignore(interim: Interim) -> None:
    """Do nothing with an interim reply."""


def no_op() -> None:
    """Do nothing."""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# -- how much is read at once


class Paused(Protocol):
    """A connection that has stopped reading."""

    def read_on(self) -> None:
        """Read again, unless the connection has ended."""


class Intake:
    """The queue of connections whose next read waits for its turn."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Paused] = deque()

    def __repr__(self) -> str:
        return f"<Intake {len(self._waiting)} waiting>"

    def resume_later(self, connection: Paused) -> None:
        """Call the connection's `read_on` in a later turn of the loop, after the connections that wait already."""
        # Never resume within this turn: uvloop would read the socket again at once.
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(connection)

    def _next(self) -> None:
        connection = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        connection.read_on()


class Inflow:
    """The number of bytes that may be added until the next check.  Unbounded until `bound` is called."""

    __slots__ = ("_left", "_renewed", "spent")

    def __init__(self) -> None:
        self._left: int | None = None
        self._renewed = Signal()
        self.spent = Signal()
        """Fires when no more bytes may be added."""

    def __repr__(self) -> str:
        return f"<Inflow {'unbounded' if self._left is None else self._left}>"

    def bound(self, size: int | None) -> None:
        """Let `size` bytes be added until the next call.  None means no bound."""
        self._left = size
        if size is None:
            self._renewed.fire()
        elif size > 0:
            self._renewed.fire_one()

    def count_bytes(self, size: int) -> bool:
        """Count `size` added bytes; return whether more may be added."""
        left = self._left
        if left is None:
            return True
        self._left = left = left - size
        if left > 0:
            # Wake one waiting body at a time.  If all waiting bodies woke at once, they would exceed the bound by far.
            self._renewed.fire_one()
            return True
        self.spent.fire()
        return False

    @property
    def has_room(self) -> bool:
        """Whether more bytes may be added."""
        return self._left is None or self._left > 0

    async def renewed(self) -> None:
        """Wait until more bytes may be added.  The owner checks memory at least once a second."""
        while not self.has_room:
            await self._renewed.wait()


# -- the request body


class Upload:
    """A streamed request body.  The upload may fail because the client does not send the body."""

    __slots__ = ("_body", "_deadline", "_first_byte_s", "_has_begun", "_length", "has_ended")

    def __init__(self, body: AsyncIterator[bytes], first_byte_s: float, deadline: float) -> None:
        self._body = body
        self._first_byte_s = first_byte_s
        self._deadline = deadline
        self._length: int | None = None
        self._has_begun = False
        self.has_ended = False
        """Whether the whole body has been sent."""

    def measure(self, headers: CIMultiDict[str]) -> int | None:
        """Return the Content-Length, or None for a chunked body.  Raises InvalidRequest if the Content-Length is
        invalid.
        """
        said = headers.getall("Content-Length", None)
        if said is not None:
            if len(said) > 1 or not (said[0].isascii() and said[0].isdecimal()):
                raise InvalidRequest("a length that is none")
            self._length = int(said[0])
        return self._length

    def is_at_fault(self, error: BaseException) -> bool:
        """Return whether the request failed because its client did not send the whole body in time."""
        is_late = isinstance(error, TimeoutError) and self._has_begun and not self.has_ended
        return is_late or isinstance(error, UploadFailed)

    async def run(self, connection: Carrier, incoming: IncomingReply) -> None:
        """Send the body, then start the time limit for the reply's first byte."""
        self._has_begun = True
        self.has_ended = await connection.send_body(self._body, self._length)
        if self.has_ended and incoming.head is None and incoming.connection is not None:
            now = asyncio.get_running_loop().time()
            connection.deadline.move(min(now + self._first_byte_s, self._deadline))


async def send_body(
    chunks: AsyncIterator[bytes], length: int | None, write: Callable[[bytes], Awaitable[None]]
) -> UploadFailed | None:
    """Write a body of `length` bytes, or of any length if None.

    If the iterator raises or the length is wrong, return the failure.
    """
    left = length
    try:
        async for chunk in chunks:
            if left is not None:
                left -= len(chunk)
                if left < 0:
                    return UploadFailed("longer than announced")
            if chunk:
                await write(chunk)
    except Exception as error:
        return _failure(error)
    return UploadFailed("shorter than announced") if left else None


def _failure(error: Exception) -> UploadFailed:
    # A separate function avoids a reference cycle: the error's traceback refers to the caller's frame, which must not
    # refer to the failure.
    if isinstance(error, UploadFailed):
        return error
    failure = UploadFailed("broken off")
    failure.__cause__ = error
    return failure
