"""An origin's reply as its requester sees it: the head has arrived, and the body follows as it arrives.

A reply is read no faster than its readers take it, so slow readers of large bodies hold connections to the origin.
This does no harm as long as other slots are free.  When a request waits for a slot, the slowest of these replies are
asked to give theirs back (`Stalls`).  A shared fetch then reads on into memory as far as the cache has room for it.  If
the cache has none, the fetch is dropped together with its readers, and so is any relayed reply.

Every wait is bounded, and foreign exceptions are translated into those of `errors.py`.  If a body ends before its
announced end, an exception is raised: a caller without an exception has every byte.  The bytes come from a
`BodySource`: a connection, or memory in tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from math import inf
from types import TracebackType
from typing import Final, Protocol, Self

from multidict import CIMultiDictProxy

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.reply import ReplyBroken
from gateway.http.reply_lines import Head
from gateway.telemetry.tracing import ExchangeSpan
from gateway.upstream.call import Bounds
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_state import OriginRequest
from gateway.upstream.slots import Lane

PATIENCE_S: Final = 1.0
"""Seconds after its head before a reply is asked to give its slot back."""
MOST_AT_ONCE: Final = 32
"""The most replies that are asked at a time to give their slots back."""


class Stallable(Protocol):
    """A reply that may stall."""

    is_stalled: bool
    """Whether its reader takes no more for now."""
    lane: Lane | None
    """The lane of the slot that the reply holds; None if it holds none."""
    on_reclaim: Callable[[], object]
    """Called when the reply has to give its slot back."""

    def rate(self, now: float) -> float:
        """Bytes a second that the reader has taken since the head; infinite if the head has just arrived."""


class Stalls:
    """The replies of one pool that have stalled and are not closed."""

    def __init__(self) -> None:
        self._replies: dict[Stallable, None] = {}

    def __repr__(self) -> str:
        return f"<Stalls {len(self._replies)} replies>"

    def __len__(self) -> int:
        return len(self._replies)

    def add_reply(self, reply: Stallable) -> None:
        """Add a reply that has stalled; `discard` must follow."""
        self._replies[reply] = None

    def discard(self, reply: Stallable) -> None:
        """Remove a reply that is closed."""
        self._replies.pop(reply, None)

    def reclaim(self, blocked: Iterable[Lane], now: float) -> int:
        """Ask the slowest stalled replies to give their slots back: as many as requests wait in the `blocked` lanes.
        Returns how many were asked."""
        asked = 0
        slowest: list[tuple[float, int, Stallable]] = []
        for lane in blocked:
            if not slowest:
                found = enumerate(reply for reply in self._replies if reply.is_stalled and reply.lane is not None)
                slowest = sorted((reply.rate(now), number, reply) for number, reply in found)
            used_up = {share for share in lane.shares if share.taken >= share.limit}
            wanted = lane.waiting
            for rate, _, reply in slowest:
                if not wanted or asked >= MOST_AT_ONCE or rate == float("inf"):
                    break
                if reply.is_stalled and reply.lane is not None and not used_up.isdisjoint(reply.lane.shares):
                    reply.is_stalled = False
                    reply.on_reclaim()
                    wanted -= 1
                    asked += 1
        return asked


class BodySource(Protocol):
    """The source of a body.  One reader at a time."""

    on_change: Callable[[], object]
    """Called when more has arrived, and when no more will."""

    @property
    def has_ended(self) -> bool:
        """Whether the whole body has arrived."""

    def take(self) -> bytes | None:
        """The data received and not yet taken; empty at the end, None if more is still to come.

        Raises ConnectionLost, ReplyBroken, UploadFailed or TimeoutError once all earlier data has been taken.
        """

    def expect(self, by: float) -> None:
        """Have the body fail with TimeoutError unless more arrives by this time of the loop's clock."""

    async def changed(self) -> None:
        """Wait for the next change; replaces `on_change`."""

    def break_off(self, why: str) -> None:
        """Have the body fail with ConnectionLost unless all of it has arrived."""

    def retire(self) -> None:
        """Use the body's connection for no further request."""


class Reply:
    """An origin's reply: the head is here, `chunks` yields the body.  Use as an async context manager."""

    __slots__ = (
        "_began",
        "_bounds",
        "_deadline",
        "_has_stalled",
        "_incoming",
        "_sent",
        "_stalls",
        "_taken_bytes",
        "head",
        "is_stalled",
        "lane",
        "on_reclaim",
        "own",
        "shape",
        "span",
        "status",
    )

    def __init__(
        self, head: Head, incoming: BodySource, bounds: Bounds, deadline: float, sent: OriginRequest | None = None
    ) -> None:
        self._incoming = incoming
        self._bounds = bounds
        self._deadline = deadline
        self._sent = sent
        self.span: ExchangeSpan | None = None
        self._stalls: Stalls | None = None
        self._began = 0.0
        self._taken_bytes = 0
        self._has_stalled = False
        self.is_stalled = False
        """Whether the reader takes no more for now."""
        self.lane: Lane | None = None
        """The lane of the slot that the reply holds, if that slot may be reclaimed."""
        self.on_reclaim: Callable[[], object] = no_op
        """Called if others wait for the slot while the reader takes nothing.  The reader must then read on or leave."""
        self.head = head
        self.status = head.status
        self.shape = head.shape
        """The lines that the head has in common with other heads; None if the head was not read line by line."""
        self.own = head.own
        """The other lines."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """All fields of the head."""
        return self.head.headers

    @property
    def content_length(self) -> int | None:
        """The announced length in bytes; None for a chunked body."""
        return self.head.content_length

    @property
    def is_delimited(self) -> bool:
        """Whether the end of the body can be distinguished from a lost connection."""
        return self.head.is_delimited

    @property
    def has_arrived(self) -> bool:
        """Whether all of the body has arrived, taken or not."""
        return self._incoming.has_ended

    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives.  Raises UpstreamBroken if it ends early, UpstreamTimeout if it stalls."""
        # Not a generator, because the loop tracks each one in a weak set, which costs as much as parsing a small reply.
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while (chunk := self.take()) is None:
            await self._incoming.changed()
        if not chunk:
            raise StopAsyncIteration
        return chunk

    async def each(self, take: Callable[[bytes], bool]) -> None:
        """Call `take` with each part of the body as it arrives, until `take` returns True or the body ends.

        Raises the same as `chunks`, and errors of `take`.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Errors are kept here and not in the future, because the frames of an error refer to the future.
        failures: list[Exception] = []

        def arrived() -> None:
            is_over = False
            try:
                while not (is_over or over.done()) and (chunk := self.take()) is not None:
                    is_over = not chunk or take(chunk)
            except Exception as error:
                failures.append(error)
                is_over = True
            # `take` may have cancelled the caller.
            if is_over and not over.done():
                over.set_result(None)

        self.notify(arrived)
        arrived()
        try:
            await over
        finally:
            self.notify(no_op)
        if failures:
            raise failures.pop()

    def take(self) -> bytes | None:
        """The body received and not yet taken; empty at its end, None if more is still to come (see `notify`).
        Raises UpstreamBroken if it ends early, UpstreamTimeout if it stalls."""
        incoming, now = self._incoming, 0.0
        try:
            if not incoming.has_ended and (now := asyncio.get_running_loop().time()) >= self._deadline:
                # Without this check, a slow reader whose buffer never runs dry would hold the connection for ever.
                raise TimeoutError
            chunk = incoming.take()
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error.with_traceback(None)
        except (ConnectionLost, ReplyBroken, UploadFailed) as error:
            # The reply keeps the error, and its traceback would keep the reader's frames alive.
            error.with_traceback(None)
            if self._sent is not None and self._sent.cut_off(error):
                raise self._failed(UpstreamUnreachable()) from error
            raise self._failed(UpstreamBroken("Origin's answer ended early")) from error
        if chunk is None:
            incoming.expect(min(now + self._bounds.idle_s, self._deadline))
        elif chunk:
            self._taken_bytes += len(chunk)
            self.is_stalled = False
            if self._sent is not None:
                self._sent.took_part()
        return chunk

    def in_slot(self, lane: Lane, stalls: Stalls, now: float) -> None:
        """Record that the reply holds a slot of this lane from `now` on, which may be reclaimed through `stalls`."""
        self.lane, self._stalls, self._began = lane, stalls, now

    def stall(self) -> None:
        """Record that the reader takes no more for now."""
        if self._stalls is not None and not self._incoming.has_ended:
            self.is_stalled = self._has_stalled = True
            self._stalls.add_reply(self)

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
        if self._has_stalled and self._stalls is not None:
            self._stalls.discard(self)
        self.on_reclaim = no_op
        self._incoming.break_off("left")
        if self._sent is not None:
            self._sent.close()
        if self.span is not None:
            self.span.end_span()

    def retire(self) -> None:
        """Use the connection for no further request, and count no failure, because the server has said in this reply
        that it is about to leave."""
        self._incoming.retire()
        if self._sent is not None:
            self._sent.drains()

    def cut(self) -> None:
        """End the body here with an error."""
        self._incoming.break_off("cut")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
