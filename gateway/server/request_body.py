"""A client's request body: read as it arrives, bounded in size, in idle time, in rate and in total time.

Only time spent waiting for the client counts towards rate and total: while the origin takes nothing, the client may
not be able to send.

A small body is gathered before an upstream connection is taken for it, so that a client that sends slowly holds none.
If the length is announced, there is nothing else to wait for.  A client may send a chunked body in parts, now and then,
and expect each part to arrive.  Such a body is gathered for a short time only.

A body ends in one of two ways: `complete` makes it whole, `fail` records the error that its reader gets.  A body that
broke off never looks whole.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Final, Protocol, Self

from gateway.aio.tasks import in_task
from gateway.config.limits import LimitsConfig
from gateway.errors import BodyTooLarge, GatewayError, RequestTimeout, UnknownTransferCoding
from gateway.http.request import RequestHead
from gateway.limits.slow_clients import upload_time_left

_MOST_GATHERED: Final = 1 << 16
"""A body that is not longer than this is read whole before the origin is contacted."""
_GATHERED_S: Final = 0.5
"""How long a body without an announced length is gathered; slower ones are streamed."""
_SMALL_PIECE: Final = 1 << 9
"""Pieces shorter than this, in bytes, are joined as they arrive, because each alone would take many times its
length."""
_MOST_JOINED: Final = 1 << 14


class Flow(Protocol):
    """The connection that a body is read from."""

    def unread(self, size: int) -> None:
        """`size` bytes of the body wait to be read.  The connection decides whether to go on reading meanwhile."""

    async def late(self) -> None:
        """The body has not arrived in time: wait until it may fail, because many bodies may be late together."""


class RequestBody:
    """The body of one request, to be read once.  A failure surfaces in the upstream client as a failed request; `error`
    tells whether the client caused it."""

    __slots__ = (
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
        """`length` is the announced length in bytes; None for a chunked body."""
        self._flow = flow
        self._length = length
        self._pieces: deque[bytes | bytearray] = deque()
        self._size = 0
        self._received = 0
        """Bytes that have arrived, including all that were taken."""
        self._waited_s = 0.0
        """How long the body's reader has waited for the client, in all."""
        self.exceeded: str | None = None
        """The limit per client that the body has exceeded, by its key in the configuration."""
        self._waiter: asyncio.Future[None] | None = None
        self.error: GatewayError | None = None
        self.is_whole = False
        """Whether the last byte has arrived."""

    @classmethod
    def arrived(cls, flow: Flow, content: bytes) -> Self:
        """A body that has arrived together with its head."""
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
        """Whether the length is not announced."""
        return self._length is None

    @property
    def unread_bytes(self) -> int:
        """Bytes that have arrived and were not taken yet."""
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
        """Give the reader this error, because the rest will not arrive.  Does nothing if the body is whole or has
        failed already."""
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
        """The whole body, if it is small and arrives in time; None for a body that is to be streamed.  The time is that
        of the limits if the body `is_awaited`, else a short one."""
        if (self._length or 0) > _MOST_GATHERED:
            return None
        # Computed before the body is looked at, because more of it may come meanwhile.
        await in_task()
        if self._length is not None or is_awaited:
            while not self.is_whole and self._size <= _MOST_GATHERED:
                await self._more(limits)
        else:
            # Stop before the idle timeout, so that a piece that comes in time can still be streamed.
            gathered_s = min(_GATHERED_S, limits.client_idle_timeout_s / 2)
            gives_up = asyncio.get_running_loop().time() + gathered_s
            while not self.is_whole and self._size < _MOST_GATHERED and await self._more_until(gives_up, limits):
                pass
        if not self.is_whole or self._size > _MOST_GATHERED:
            return None
        return self.take()

    def take(self) -> bytes:
        """The bytes that have arrived and were not taken yet."""
        pieces = self._pieces
        if not pieces:
            return b""
        piece = bytes(pieces.popleft()) if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._size = 0
        self._flow.unread(0)
        return piece

    async def chunks(self, limits: LimitsConfig) -> AsyncIterator[bytes]:
        """The body as it arrives."""
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
        loop = asyncio.get_running_loop()
        bounds = {
            "client_idle_timeout_s": limits.client_idle_timeout_s,
            "client_min_rate": upload_time_left(
                self._waited_s, self._received, limits.client_min_rate, limits.client_idle_timeout_s
            ),
            "client_body_timeout_s": limits.client_body_timeout_s - self._waited_s,
        }
        bound = min(bounds, key=bounds.__getitem__)
        began = loop.time()
        self._waiter = loop.create_future()
        try:
            async with asyncio.timeout(bounds[bound]):
                await self._waiter
        except TimeoutError:
            self.error = RequestTimeout()
            self.exceeded = bound
        finally:
            self._waited_s += loop.time() - began
        if isinstance(self.error, RequestTimeout):
            await self._flow.late()
        if self.error is not None:
            raise self.error.anew()

    async def _more_until(self, time: float, limits: LimitsConfig) -> bool:
        """Like `_more`, until this time of the loop's clock at most; returns whether more has arrived."""
        try:
            async with asyncio.timeout_at(time):
                await self._more(limits)
        except TimeoutError:
            if self.error is None:
                return False
            # The body was late before that time, and has waited for its turn to fail.
            raise self.error.anew() from None
        return True
