"""An origin's answer, as those see it who asked: the head is here, the body comes as it arrives.

Every wait for it is bounded, and foreign exceptions become the tree of `errors.py`.  A body that ends before its
announced end raises; a caller that saw no exception holds every byte.  Where the bytes come from is an `Inflow`'s
business: a connection's, or a test's memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Protocol, Self

from multidict import CIMultiDictProxy

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.reply import Head, ReplyBroken
from gateway.telemetry.tracing import ExchangeSpan
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.origins import Sent
from gateway.upstream.reasons import is_own_fault, reason_of

Body = AsyncIterator[bytes] | bytes | None
"""A request's: as it comes, whole, or none."""


class Inflow(Protocol):
    """A body on its way.  One reader at a time."""

    on_change: Callable[[], object]
    """Called when more of it has come, and when no more will."""

    @property
    def has_ended(self) -> bool:
        """Whether all of it has come."""

    def take(self) -> bytes | None:
        """What has come and was not taken yet, empty at the end; None where more is still to come.

        Raises ConnectionLost, ReplyBroken, UploadFailed or TimeoutError, once all that came before has been taken.
        """

    def expect(self, by: float) -> None:
        """Have it fail by TimeoutError unless more has come by that time of the loop's clock."""

    async def changed(self) -> None:
        """Wait for the next change; takes the place of `on_change`."""

    def end(self, error: BaseException) -> None:
        """Have it fail by this error, unless all of it has come."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long an exchange may take, in seconds, phase by phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class Sending:
    """A request to an origin, as its books are told of it."""

    __slots__ = ("_now", "_sent")

    def __init__(self, sent: Sent, now: Callable[[], float]) -> None:
        self._sent = sent
        self._now = now

    def answered(self, reply: Reply) -> None:
        """The head has come; from here on an end that the origin's books call for cuts the body off."""
        self._sent.on_end = reply.cut
        self._sent.answered(reply.status, self._now())

    def failed(self, error: BaseException, *, by_client: bool) -> bool:
        """No head has come; whether that is because the books called for an end."""
        if by_client or is_own_fault(error):
            self._sent.abandoned()
        else:
            self._sent.failed(reason_of(error), self._now())
        self._sent.close()
        return self._sent.has_ended

    def heard(self) -> None:
        """A part of the body has come."""
        self._sent.heard(self._now())

    def broke(self) -> bool:
        """The body ended early; whether that is because the books called for it."""
        self._sent.broke(self._now())
        return self._sent.has_ended

    def may_end(self, end: Callable[[], None]) -> None:
        """`end` is how the books can have the request fail while its head is awaited; called now where they have called
        for that already."""
        self._sent.on_end = end
        if self._sent.has_ended:
            end()

    def close(self) -> None:
        """All of it is over."""
        self._sent.on_end = None
        self._sent.close()


class Reply:
    """An origin's answer: the head is here, the body comes by `chunks`.  Use as an async context manager."""

    __slots__ = (
        "_bounds",
        "_deadline",
        "_incoming",
        "_sending",
        "content_length",
        "headers",
        "is_delimited",
        "reason",
        "span",
        "status",
    )

    def __init__(
        self, head: Head, incoming: Inflow, bounds: Bounds, deadline: float, sending: Sending | None = None
    ) -> None:
        self._incoming = incoming
        self._bounds = bounds
        self._deadline = deadline
        self._sending = sending
        self.span: ExchangeSpan | None = None
        self.status = head.status
        self.reason = head.reason
        self.headers: CIMultiDictProxy[str] = head.headers
        self.content_length = head.content_length
        """The announced length in bytes, None for a chunked body."""
        self.is_delimited = head.is_delimited
        """Whether the body's end can be told from a lost connection (RFC 9112 §6.3, all cases but the last)."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.  Raises UpstreamBroken when it ends early, UpstreamTimeout when it stalls."""
        # No generator: the loop keeps a weak reference to each of those, at the cost of a small reply's parsing.
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while (chunk := self.take()) is None:
            await self._incoming.changed()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    def take(self) -> bytes | None:
        """What has come of the body and was not taken yet, empty at its end; None where that is still to come, of which
        `notify` tells.  Raises UpstreamBroken when it ends early, UpstreamTimeout when it stalls."""
        now = asyncio.get_running_loop().time()
        try:
            if now >= self._deadline:
                # A buffer that never runs dry is a slow reader's, who would hold the connection for ever.
                raise TimeoutError
            chunk = self._incoming.take()
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error.with_traceback(None)
        except (ConnectionLost, ReplyBroken, UploadFailed) as error:
            # It is kept with the reply, and its traceback would keep whoever reads that.
            error.with_traceback(None)
            if self._sending is not None and self._sending.broke():
                raise self._failed(UpstreamUnreachable()) from error
            raise self._failed(UpstreamBroken("Origin's answer ended early")) from error
        if chunk is None:
            self._incoming.expect(min(now + self._bounds.idle_s, self._deadline))
        elif chunk and self._sending is not None:
            self._sending.heard()
        return chunk

    def notify(self, on_change: Callable[[], object]) -> None:
        """Call this when more of the body has come, and when no more will; for whoever takes it."""
        self._incoming.on_change = on_change

    def _failed(self, error: GatewayError) -> GatewayError:
        if self.span is not None:
            self.span.failed(error)
        return error

    async def hold(self, until: Awaitable[None]) -> None:
        """Leave the body alone meanwhile; UpstreamTimeout when the time for the whole of it runs out."""
        try:
            async with asyncio.timeout_at(self._deadline if self._deadline < inf else None):
                await until
        except TimeoutError as error:
            raise UpstreamTimeout from error

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamBroken when it is longer than `limit` bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise UpstreamBroken("Origin's answer is too large")
        return bytes(body)

    def close(self) -> None:
        """Drop the connection unless the whole answer has come; then it was given back by that."""
        self._incoming.end(ConnectionLost("left"))
        if self._sending is not None:
            self._sending.close()
        if self.span is not None:
            self.span.end()

    def cut(self) -> None:
        """Have the body end here, by an error."""
        self._incoming.end(ConnectionLost("cut"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
