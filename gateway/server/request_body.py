"""A client's request body, read as it arrives and bounded in size, idle time, rate and total time.

Only time spent waiting for the client counts towards the time limits and the rate.  While the origin reads nothing, the
client may be unable to send.  While input of the connection waits for the gateway (`gateway.server.turns`), the body's
next bytes may have arrived already.

A client could keep its connection's input waiting with frames that contain nothing of the body.  The deduction of the
gateway's delay is therefore bounded: by `client_idle_timeout_s` in one wait for the next piece, and by
`client_body_timeout_s` in all waits of a body.  Such a client can at most double these two times.

A small body is collected before the request takes a connection to the origin, so that a slow client holds no such
connection.  A body with a Content-Length is collected for as long as the client's limits allow.  The client of a
chunked body may pause between its parts, and expect each part to be passed on at once.  A chunked body is therefore
collected for a short time only.

A body ends in one of two ways: `complete` makes it whole, and `fail` records the error for its reader.  A body that
breaks off is never whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Protocol, Self

from gateway.aio.tasks import in_task
from gateway.config.limits import LimitsConfig
from gateway.errors import BodyTooLarge, GatewayError, RequestTimeout, UnknownTransferCoding
from gateway.http.request_parser import RequestHead
from gateway.limits.slow_clients import upload_time_left

_MOST_GATHERED: Final = 1 << 16
"""The largest body that is collected before the origin is contacted."""
_GATHERED_S: Final = 0.5
"""Seconds for which a chunked body is collected.  A slower body is streamed."""
_SMALL_PIECE: Final = 1 << 9
"""Pieces shorter than this many bytes are joined as they arrive.  A separate object for each piece would take many
times the piece's length.
"""
_MOST_JOINED: Final = 1 << 14
_CHECK_S: Final = 0.02
"""The time of a body may run out while its connection's input waits.  The body is then checked again after at least
this many seconds."""
_LEAST_LEFT_S: Final = 0.001
"""A body with less time left than this is late.  The loop's clock counts milliseconds."""


class Flow(Protocol):
    """The connection that a body is read from."""

    def unread(self, size: int) -> None:
        """Called with the number of unread bytes, so that the connection can pause or resume reading."""

    def input_waited_s(self) -> float:
        """Return the seconds for which arrived input of the connection has waited for the gateway, in all."""

    async def late(self) -> None:
        """Wait until a late body may fail.  Called when the body has missed a time limit.  Many bodies may be late at
        the same time, so their failures are spread over time.
        """


class RequestBody:
    """The body of one request, which is read once.  If the body fails, the request to the origin fails too.  `error` is
    set if the client has caused the failure.
    """

    __slots__ = (
        "_deducted_s",
        "_flow",
        "_length",
        "_pieces",
        "_received",
        "_size",
        "_waited_s",
        "_waiter",
        "error",
        "exceeded",
        "is_whole",
    )

    def __init__(self, flow: Flow, length: int | None) -> None:
        """`length` is the Content-Length; None for a chunked body."""
        self._flow = flow
        self._length = length
        self._pieces: deque[bytes | bytearray] = deque()
        self._size = 0
        self._received = 0
        """Bytes that have arrived, including bytes that are already read."""
        self._waited_s = 0.0
        """Seconds for which the reader has waited for the client, in all."""
        self._deducted_s = 0.0
        """Seconds that were deducted from `_waited_s`, because the connection's input waited for the gateway."""
        self.exceeded: str | None = None
        """The configuration key of the client limit that the body has exceeded."""
        self._waiter: asyncio.Future[None] | None = None
        self.error: GatewayError | None = None
        self.is_whole = False
        """Whether the last byte has arrived."""

    @classmethod
    def arrived(cls, flow: Flow, content: bytes) -> Self:
        """Make a body that has arrived together with its head."""
        body = cls(flow, len(content))
        body._pieces.append(content)
        body._size = body._received = len(content)
        body.is_whole = True
        return body

    def __repr__(self) -> str:
        state = "failed" if self.error is not None else "whole" if self.is_whole else "incomplete"
        return f"<RequestBody {self._size} unread, {state}>"

    @property
    def is_chunked(self) -> bool:
        """Whether the body has no Content-Length."""
        return self._length is None

    @property
    def unread_bytes(self) -> int:
        """Bytes that have arrived and have not been read."""
        return self._size

    # -- the connection's side

    def feed(self, piece: bytes) -> None:
        pieces = self._pieces
        if len(piece) >= _SMALL_PIECE or not pieces:
            pieces.append(piece)
        elif isinstance(last := pieces[-1], bytearray) and len(last) < _MOST_JOINED:
            last += piece
        else:
            pieces.append(bytearray(piece))
        self._size += len(piece)
        self._received += len(piece)
        self._flow.unread(self._size)
        self._wake()

    def complete(self) -> None:
        self.is_whole = True
        self._wake()

    def fail(self, error: GatewayError) -> None:
        """Fail the body with this error, because the rest will not arrive.  Does nothing if the body is whole or has
        failed."""
        if not self.is_whole and self.error is None:
            self.error = error
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # -- the reader's side

    def check(self, head: RequestHead, limits: LimitsConfig) -> None:
        """Raise BodyTooLarge or UnknownTransferCoding if the head shows that the body must not be read."""
        if (self._length or 0) > limits.max_request_bytes:
            raise BodyTooLarge
        if self._length is None:
            codings = ",".join(head.headers.getall("Transfer-Encoding", ()))
            if codings and codings.strip(" \t").lower() != "chunked":
                raise UnknownTransferCoding

    async def gather(self, limits: LimitsConfig, *, is_awaited: bool = False) -> bytes | None:
        """Collect a small body.  Returns None for a body that has to be streamed, because it is too large or too slow.

        With `is_awaited`, any body may take all the time that `limits` allow.  Without it, a chunked body gets a short
        time only.  Raises the body's error.
        """
        if (self._length or 0) > _MOST_GATHERED:
            return None
        # Wait before looking at the body, because more of the body may arrive meanwhile.
        await in_task()
        if self._length is not None or is_awaited:
            while not self.is_whole and self._size <= _MOST_GATHERED:
                await self._more(limits)
        else:
            # Stop before the idle timeout, so that a slow body can still be streamed.
            gathered_s = min(_GATHERED_S, limits.client_idle_timeout_s / 2)
            gives_up = asyncio.get_running_loop().time() + gathered_s
            while not self.is_whole and self._size < _MOST_GATHERED and await self._more_until(gives_up, limits):
                pass
        if not self.is_whole or self._size > _MOST_GATHERED:
            return None
        return self.take()

    def take(self) -> bytes:
        """Take the bytes that have arrived and have not been read."""
        pieces = self._pieces
        if not pieces:
            return b""
        piece = bytes(pieces.popleft()) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        self._flow.unread(0)
        return piece

    async def chunks(self, limits: LimitsConfig) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.  Raises its error."""
        size = 0
        await in_task()
        while True:
            while self._pieces:
                piece = self.take()
                size += len(piece)
                if size > limits.max_request_bytes:
                    self.error = BodyTooLarge()
                    raise BodyTooLarge
                yield piece
            if self.is_whole and self.error is None:
                return
            await self._more(limits)

    async def _more(self, limits: LimitsConfig) -> None:
        """Wait, in a task, for the next piece or the end.  Raises the body's error if it has failed."""
        if self.error is not None:
            raise self.error.anew()
        bounds = {
            "client_idle_timeout_s": limits.client_idle_timeout_s,
            "client_min_rate": upload_time_left(
                self._waited_s, self._received, limits.client_min_rate, limits.client_idle_timeout_s
            ),
            "client_body_timeout_s": limits.client_body_timeout_s - self._waited_s,
        }
        bound = min(bounds, key=bounds.__getitem__)
        most_deducted_s = min(limits.client_idle_timeout_s, limits.client_body_timeout_s - self._deducted_s)
        if not await self._arrives(bounds[bound], most_deducted_s):
            self.error = RequestTimeout()
            self.exceeded = bound
        if isinstance(self.error, RequestTimeout):
            await self._flow.late()
        if self.error is not None:
            raise self.error.anew()

    async def _arrives(self, allowed_s: float, most_deducted_s: float) -> bool:
        """Wait for the next piece or the end.  Returns False if the client has taken longer than `allowed_s`.  The
        time for which the connection's input waits for the gateway is deducted, up to `most_deducted_s`."""
        loop, flow = asyncio.get_running_loop(), self._flow
        began, before_s, left_s = loop.time(), flow.input_waited_s(), allowed_s

        def deducted() -> float:
            return min(flow.input_waited_s() - before_s, loop.time() - began, most_deducted_s)

        try:
            while True:
                waiter = self._waiter = loop.create_future()
                try:
                    async with asyncio.timeout(left_s):
                        await waiter
                    return True
                except TimeoutError:
                    left_s = deducted() - (loop.time() - began - allowed_s)
                if self._waiter is not waiter:
                    # More of the body has arrived in the turn in which the time ran out.
                    return True
                if left_s < _LEAST_LEFT_S:
                    return False
                left_s = max(left_s, _CHECK_S)
        finally:
            deducted_s = deducted()
            self._deducted_s += deducted_s
            self._waited_s += loop.time() - began - deducted_s

    async def _more_until(self, time: float, limits: LimitsConfig) -> bool:
        """Wait for the next piece or the end, at most until this time of the loop's clock.  Returns whether more has
        arrived."""
        try:
            async with asyncio.timeout_at(time):
                await self._more(limits)
        except TimeoutError:
            if self.error is None:
                return False
            # The body has failed in the meantime.  The body missed its time limit before `time`, but `Flow.late` put
            # off the failure until after `time`.
            raise self.error.anew() from None
        return True
