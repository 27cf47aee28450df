"""An origin's reply as its requester sees it: the head is here, the body follows as it arrives.

Every wait is bounded, and foreign exceptions are translated into those of `errors.py`.  A body that ends before its
announced end raises; a caller that saw no exception holds every byte.  The bytes come from a `BodySource`: a
connection, or memory in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Final, Protocol, Self

from multidict import CIMultiDictProxy

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.reply import Head, ReplyBroken
from gateway.telemetry.tracing import ExchangeSpan
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.incoming import no_op
from gateway.upstream.origins import OriginRequest
from gateway.upstream.reasons import is_loss, is_no_sign, reason_of
from gateway.upstream.slots import Lane
from gateway.upstream.stalls import PATIENCE_S, Stalls

_MAY_DRAIN: Final = 503
"""The status by which a server may say that it is about to leave."""

Body = AsyncIterator[bytes] | bytes | None
"""A request's body: streamed, complete, or none."""


class BodySource(Protocol):
    """The source of a body.  One reader at a time."""

    on_change: Callable[[], object]
    """Called when more has arrived, and when no more will."""

    @property
    def has_ended(self) -> bool:
        """Whether all of it has arrived."""

    def take(self) -> bytes | None:
        """The data received and not yet taken; empty at the end, None if more is still to come.

        Raises ConnectionLost, ReplyBroken, UploadFailed or TimeoutError once everything before it has been taken.
        """

    def expect(self, by: float) -> None:
        """Let it fail with TimeoutError unless more arrives by this time of the loop's clock."""

    async def changed(self) -> None:
        """Wait for the next change; replaces `on_change`."""

    def end(self, error: BaseException) -> None:
        """Fail with this error unless all of it has arrived."""

    def retire(self) -> None:
        """Let the connection that it came by serve no further request."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Time limits of an exchange, in seconds, for each phase."""

    connect_s: float = 5.0
    first_byte_s: float = 30.0
    idle_s: float = 30.0
    total_s: float | None = 600.0


class OutcomeReport:
    """Reports the outcome of a request to the state of its origin.

    `may_drain`: a 503 may say in its body that the server is about to leave, which is no failure.  It is reported once
    the reply is over.
    """

    __slots__ = ("_is_open", "_may_drain", "_now", "_sent")

    def __init__(self, sent: OriginRequest, now: Callable[[], float], *, may_drain: bool = False) -> None:
        self._sent = sent
        self._now = now
        self._may_drain = may_drain
        self._is_open = False
        """Whether a 503 is still to be reported."""

    def answered(self, reply: Reply) -> None:
        """The head has arrived; from now on the origin can end the request by cutting off the body."""
        self._sent.on_end = reply.cut
        if self._may_drain and reply.status == _MAY_DRAIN:
            self._is_open = True
            self._sent.responded()
        else:
            self._sent.answered(reply.status, self._now())

    def drains(self) -> None:
        """The server has said that it is about to leave."""
        self._is_open = False

    def failed(self, error: BaseException, *, by_client: bool, is_reused: bool = False) -> bool:
        """No head has arrived; returns whether the origin ended the request itself.  `is_reused`: its connection had
        served other requests, and no byte of the reply has arrived."""
        if by_client or is_no_sign(error, is_patient=self._sent.is_patient, is_reused=is_reused):
            self._sent.abandoned()
        else:
            self._sent.failed(reason_of(error), self._now(), is_loss=is_loss(error))
        self._sent.close()
        return self._sent.has_ended

    def heard(self) -> None:
        """A part of the body has arrived."""
        self._sent.heard(self._now())

    def broke(self, error: BaseException) -> bool:
        """The body ended early; returns whether the origin ended the request itself."""
        self._report()
        if not (isinstance(error, ConnectionLost | ReplyBroken) and error.is_reported):
            self._sent.broke(self._now(), is_loss=is_loss(error))
        return self._sent.has_ended

    def set_cancel(self, cancel: Callable[[], None]) -> None:
        """`cancel` lets the origin end the request while its head is awaited; called at once if it already has."""
        self._sent.on_end = cancel
        if self._sent.has_ended:
            cancel()

    def close(self) -> None:
        """The request and its reply are over."""
        self._report()
        self._sent.on_end = None
        self._sent.close()

    def _report(self) -> None:
        if self._is_open:
            self._is_open = False
            self._sent.answered(_MAY_DRAIN, self._now())


class Reply:
    """An origin's reply: the head is here, `chunks` yields the body.  Use as an async context manager."""

    __slots__ = (
        "_began",
        "_bounds",
        "_deadline",
        "_incoming",
        "_sending",
        "_stalls",
        "_taken_bytes",
        "content_length",
        "headers",
        "is_delimited",
        "is_stalled",
        "lane",
        "on_reclaim",
        "reason",
        "span",
        "status",
    )

    def __init__(
        self, head: Head, incoming: BodySource, bounds: Bounds, deadline: float, sending: OutcomeReport | None = None
    ) -> None:
        self._incoming = incoming
        self._bounds = bounds
        self._deadline = deadline
        self._sending = sending
        self.span: ExchangeSpan | None = None
        self._stalls: Stalls | None = None
        self._began = 0.0
        self._taken_bytes = 0
        self.is_stalled = False
        """Whether the reader takes no more for now."""
        self.lane: Lane | None = None
        """The lane whose slot it holds, if that may be reclaimed."""
        self.on_reclaim: Callable[[], object] = no_op
        """Called if others wait for the slot while the reader takes nothing: the reader is to take on, or to leave."""
        self.status = head.status
        self.reason = head.reason
        self.headers: CIMultiDictProxy[str] = head.headers
        self.content_length = head.content_length
        """The announced length in bytes; None for a chunked body."""
        self.is_delimited = head.is_delimited
        """Whether the body's end can be told from a lost connection (RFC 9112 section 6.3, all cases but the last)."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.  Raises UpstreamBroken if it ends early, UpstreamTimeout if it stalls."""
        # Not a generator: the loop tracks each in a weak set, which costs as much as parsing a small reply.
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
        """The body received and not yet taken; empty at its end, None if more is still to come (see `notify`).
        Raises UpstreamBroken if it ends early, UpstreamTimeout if it stalls."""
        now = asyncio.get_running_loop().time()
        try:
            if now >= self._deadline:
                # Without this check, a slow reader whose buffer never runs dry would hold the connection for ever.
                raise TimeoutError
            chunk = self._incoming.take()
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error.with_traceback(None)
        except (ConnectionLost, ReplyBroken, UploadFailed) as error:
            # The reply keeps the error, and its traceback would keep the reader's frames alive.
            error.with_traceback(None)
            if self._sending is not None and self._sending.broke(error):
                raise self._failed(UpstreamUnreachable()) from error
            raise self._failed(UpstreamBroken("Origin's answer ended early")) from error
        if chunk is None:
            self._incoming.expect(min(now + self._bounds.idle_s, self._deadline))
        elif chunk:
            self._taken_bytes += len(chunk)
            self.is_stalled = False
            if self._sending is not None:
                self._sending.heard()
        return chunk

    def in_slot(self, lane: Lane, stalls: Stalls) -> None:
        """The reply holds a slot of this lane, which may be reclaimed by way of `stalls`."""
        self.lane, self._stalls = lane, stalls
        self._began = asyncio.get_running_loop().time()

    def stall(self) -> None:
        """The reader takes no more for now."""
        if self._stalls is not None and not self._incoming.has_ended:
            self.is_stalled = True
            self._stalls.add(self)

    def rate(self, now: float) -> float:
        """Bytes a second that the reader has taken since the head; infinite if the head has just come."""
        passed_s = now - self._began
        return self._taken_bytes / passed_s if passed_s >= PATIENCE_S else inf

    def notify(self, on_change: Callable[[], object]) -> None:
        """Set the callback for when more of the body has arrived, and when no more will."""
        self._incoming.on_change = on_change

    def _failed(self, error: GatewayError) -> GatewayError:
        if self.span is not None:
            self.span.failed(error)
        return error

    async def hold(self, until: Awaitable[None]) -> None:
        """Read nothing until this resolves; UpstreamTimeout if the time for the whole body runs out."""
        self.stall()
        try:
            async with asyncio.timeout_at(self._deadline if self._deadline < inf else None):
                await until
            self.is_stalled = False
        except TimeoutError as error:
            raise UpstreamTimeout from error

    async def read(self, limit: int) -> bytes:
        """The whole body; UpstreamBroken if it is longer than `limit` bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise UpstreamBroken("Origin's answer is too large")
        return bytes(body)

    def close(self) -> None:
        """Drop the connection unless the reply is complete; a complete reply has already freed it."""
        if self._stalls is not None:
            self._stalls.discard(self)
            self.on_reclaim = no_op
        self._incoming.end(ConnectionLost("left"))
        if self._sending is not None:
            self._sending.close()
        if self.span is not None:
            self.span.end()

    def retire(self) -> None:
        """Let the connection serve no further request, and count no failure: the server has said in this reply that it
        is about to leave."""
        self._incoming.retire()
        if self._sending is not None:
            self._sending.drains()

    def cut(self) -> None:
        """End the body here with an error."""
        self._incoming.end(ConnectionLost("cut"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
