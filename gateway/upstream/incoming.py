"""A reply as it arrives, and the connection that carries it.

A reply is collected in an `IncomingReply`, which the reader holds.  It outlives the exchange, because after a small
reply the connection is free before the reader has seen the reply.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final, Protocol

from gateway.aio.timers import Deadline
from gateway.errors import bare
from gateway.http.reply import END, Event, Interim
from gateway.http.reply_lines import Head
from gateway.upstream.call import Endpoint
from gateway.upstream.failures import ConnectionLost

HIGH_WATER_BYTES: Final = 1 << 18
_MOST_PIECES: Final = 1_024
"""Bound on the separate pieces of an unread body, because an object of two bytes takes sixty bytes of memory."""


class Line(Protocol):
    """A connection to an origin."""

    def retire(self) -> None:
        """Begin no further exchange; exchanges under way go on."""


class Carrier(Protocol):
    """The carrier of one exchange: a connection of HTTP/1.1, or a stream of a connection of HTTP/2."""

    endpoint: Endpoint
    made_at: float
    """When the connection was made, in seconds of the loop's clock."""
    deadline: Deadline
    """When the head, or the next piece of the body, is due."""
    is_reading: bool
    """False while reading is paused until the reader has taken the data that has arrived, and calls `resume`."""

    @property
    def is_open(self) -> bool:
        """Whether a request may be sent on the carrier, as far as is known."""

    @property
    def is_reused(self) -> bool:
        """Whether the connection has carried a complete exchange before."""

    def ask(
        self, request: bytes, body: bytes | None, by: float, *, is_head: bool, is_upload: bool = False
    ) -> IncomingReply:
        """Send a request, whose head is as in HTTP/1.1.  The reply's head must arrive by `by`, in seconds of the loop's
        clock.  `is_upload` means that the body is streamed by `send_body`."""

    def uploading(self, task: asyncio.Task[None]) -> None:
        """Adopt the task that sends the request's body by `send_body`; it ends with the exchange."""

    async def send_body(self, chunks: AsyncIterator[bytes], length: int | None) -> bool:
        """Send a body of `length` bytes, or of any length if None; returns whether it was sent.  A body that breaks off
        or has another length ends the exchange."""

    def resume(self) -> None:
        """Resume reading, because the reader has taken the data that has arrived."""

    def may_repeat(self) -> bool:
        """Whether a request that got no byte of an answer may be sent once more; each complete reply allows one."""

    def abandon(self) -> None:
        """Abandon a read, because its reply is not needed any more."""

    def fail(self, error: BaseException) -> None:
        """End the exchange with this error, and drop its carrier."""

    def drop(self) -> None:
        """End the exchange at once."""


class IncomingReply:
    """A reply as it arrives, for one reader at a time.

    `break_off` ends the exchange unless the whole reply has arrived.
    """

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
        """Whether all of the reply has arrived."""
        self.is_left = False
        """Whether the reply is abandoned."""
        self.error: BaseException | None = None
        """The reason why no more will arrive: TimeoutError, ConnectionLost, ReplyBroken or UploadFailed."""
        self.on_change: Callable[[], object] = no_op
        """Called when more has arrived, and when no more will.  The connection is in its final state by then."""
        self.on_interim: Callable[[Interim], object] = ignore
        """Called with each interim reply."""
        self._pieces: list[bytes] = []
        self._size = 0

    def detach(self) -> None:
        """Stop notifying the reader."""
        self.on_change = no_op
        self.on_interim = ignore

    def take(self) -> bytes | None:
        """The body received and not yet taken; empty at its end, None if more is still to come.  Raises the reply's
        error once all earlier data has been taken."""
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
        """Fail with TimeoutError unless more arrives by this time, in seconds of the loop's clock."""
        if self.connection is not None:
            self.connection.deadline.move(by)

    async def changed(self) -> None:
        """Wait for the next change."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_change = partial(_wake, waiter)
        try:
            await waiter
        finally:
            self.on_change = no_op

    # -- from the connection

    def received(self, events: list[Event]) -> None:
        """Store the parts that have arrived."""
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
        """Bytes of the body that have not been taken."""
        return self._size

    @property
    def is_full(self) -> bool:
        """Whether the buffered data has reached the high-water mark."""
        return self._size >= HIGH_WATER_BYTES

    def fail(self, error: BaseException) -> None:
        """Record the reason why no more will arrive."""
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
        """Abandon the reply to a read, if it has not begun to arrive."""
        if self.connection is not None:
            self.connection.abandon()

    def retire(self) -> None:
        """Use the connection for no further request, even if the exchange is over."""
        self._line.retire()

    def break_off(self, why: str) -> None:
        """Fail with ConnectionLost unless the reply is complete, and end the exchange."""
        if self.connection is not None:
            self.connection.fail(ConnectionLost(why))


def ignore(interim: Interim) -> None:
    """The callback if no reader waits for interim replies."""


def no_op() -> None:
    """The callback while no reader waits."""


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
