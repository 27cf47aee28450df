"""An origin's reply for its requester: a head, and a body that is read as it arrives.

A reply is read only as fast as its reader takes the data.  A slow reader of a large body therefore occupies a
connection slot (the right to use a connection).  While other slots are free, this does no harm.  When requests wait for
slots, the replies with the slowest readers must release their slots (`Stalls`).  To release its slot, a shared fetch
reads the rest of its reply into memory.  If the cache has no room, the fetch fails.  A relayed reply that must release
its slot always fails.

A requester that gives up closes its reply.  `gateway.upstream.kept_connections` decides whether the connection then
waits for the rest of the reply, or is closed.

All waits are bounded.  This module translates exceptions of other modules into the exceptions of `errors.py`.  If a
body is truncated, reading it raises an exception.  A body that was read without an exception is therefore complete.
The body comes from a `BodySource`: a connection, or memory in tests.

`Upstream` is the interface to the origins: it sends a request, and notifies a `Requester` of the outcome by plain
calls, without a task.  A relay is its own requester.  Most other callers await a reply: `answer_to` turns the calls
into an awaitable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from math import inf
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

from multidict import CIMultiDictProxy

from gateway.errors import GatewayError, UpstreamBroken, UpstreamTimeout, UpstreamUnreachable
from gateway.http.reply_lines import Head
from gateway.http.reply_parser import Interim, ReplyBroken
from gateway.protocol.worker_headers import HopSaid
from gateway.telemetry.tracing import ExchangeSpan
from gateway.upstream.failures import ConnectionLost, UploadFailed
from gateway.upstream.incoming import no_op
from gateway.upstream.origin_call import Bounds, OriginCall
from gateway.upstream.origin_state import OriginRequest
from gateway.upstream.slots import Lane

C = TypeVar("C")

PATIENCE_S: Final = 1.0
"""The minimum age of a reply, in seconds since its head, before the reply may be asked to release its slot."""
MOST_AT_ONCE: Final = 32
"""The most replies that one call asks to release their slots."""


class Stalls:
    """The replies of one pool that have stalled at least once and are not closed."""

    def __init__(self) -> None:
        self._replies: dict[Reply, None] = {}

    def __repr__(self) -> str:
        return f"<Stalls {len(self._replies)} replies>"

    def __len__(self) -> int:
        return len(self._replies)

    def add_reply(self, reply: Reply) -> None:
        """Add a stalled reply.  At the reply's end, `discard` must be called."""
        self._replies[reply] = None

    def discard(self, reply: Reply) -> None:
        """Remove a reply."""
        self._replies.pop(reply, None)

    def reclaim(self, blocked: Iterable[Lane], now: float) -> int:
        """Ask the stalled replies with the slowest readers to release their slots, one for each waiting request.

        `blocked` has the lanes with waiting requests.  Returns the number of replies asked.
        """
        asked = 0
        slowest: list[tuple[float, int, Reply]] = []
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
    """The source of a reply's body, for one reader."""

    on_change: Callable[[], object]
    """Called when data has arrived, at the end, and on failure."""

    @property
    def has_ended(self) -> bool:
        """Whether the whole body has arrived."""

    def take(self) -> bytes | None:
        """Return the received data that has not been taken yet; empty at the end of the body, None if no data has
        arrived.

        If the body has failed and all received data has been taken, raises the error of the body: ConnectionLost,
        ReplyBroken, UploadFailed or TimeoutError.
        """

    def expect(self, by: float) -> None:
        """Fail with TimeoutError unless more data arrives by this time (the loop's clock)."""

    async def changed(self) -> None:
        """Wait until data arrives, or the body ends or fails.  Replaces the callback `on_change`."""

    def break_off(self, why: str) -> None:
        """End the exchange with ConnectionLost, unless the body is complete."""

    def retire(self) -> None:
        """Use the body's connection for no further request."""


class Reply:
    """An origin's reply whose head has arrived.  Use it as an async context manager; `chunks` yields the body."""

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
        "is_closed",
        "is_stalled",
        "lane",
        "on_reclaim",
        "said",
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
        self.is_closed = False
        """Whether the reader takes no more of the reply."""
        self.is_stalled = False
        """Whether the reader takes no data now."""
        self.lane: Lane | None = None
        """The lane of the reply's slot; None if the slot must not be reclaimed."""
        self.on_reclaim: Callable[[], object] = no_op
        """Called if the reply is stalled and requests wait for its slot.  The reader must then read on or close the
        reply."""
        self.head = head
        self.status = head.status
        self.said: HopSaid | None = None
        """The statement of the worker that has answered instead of the origin; None if the origin has answered."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """All header fields."""
        return self.head.headers

    @property
    def has_arrived(self) -> bool:
        """Whether the complete body has arrived.  The reader may not have taken the whole body yet."""
        return self._incoming.has_ended

    def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body as it arrives.  Raises UpstreamBroken if the body is cut off, and UpstreamTimeout if
        the body stalls.
        """
        # Return an iterator object instead of a generator: asyncio tracks each generator in a weak set, which costs as
        # much as parsing a small reply.
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

        Raises the errors of `chunks` and the exceptions of `take`.
        """
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Keep errors out of the future to avoid a reference cycle: the frames of the errors' tracebacks refer to the
        # future.
        failures: list[Exception] = []

        def arrived() -> None:
            is_over = False
            try:
                while not (is_over or over.done()) and (chunk := self.take()) is not None:
                    is_over = not chunk or take(chunk)
            except Exception as error:
                failures.append(error)
                is_over = True
            # Check `over` again.  `take` may have cancelled the task that awaits `over`, and then `over` is cancelled
            # too.
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
        """Return the received data that has not been taken yet; empty at the end of the body, None if no data has
        arrived (see `notify`).

        Raises UpstreamBroken if the body is truncated, and UpstreamTimeout if the body stalls.
        """
        incoming, now = self._incoming, 0.0
        try:
            if not incoming.has_ended and (now := asyncio.get_running_loop().time()) >= self._deadline:
                # Check the total time here too.  Otherwise a slow reader for which there is always data in the buffer
                # would occupy the connection for ever.
                raise TimeoutError
            chunk = incoming.take()
        except TimeoutError as error:
            raise self._failed(UpstreamTimeout()) from error.with_traceback(None)
        except (ConnectionLost, ReplyBroken, UploadFailed) as error:
            # The reply keeps the error.  Remove the traceback, which would keep the reader's frames alive.
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
        """Record that the reply occupies a slot of this lane from `now` on.  `stalls` may reclaim the slot."""
        self.lane, self._stalls, self._began = lane, stalls, now

    def stall(self) -> None:
        """Record that the reader takes no data for now."""
        if self._stalls is not None and not self._incoming.has_ended:
            self.is_stalled = self._has_stalled = True
            self._stalls.add_reply(self)

    def rate(self, now: float) -> float:
        """Return the reader's average rate since the head, in bytes a second; infinite just after the head."""
        passed_s = now - self._began
        return self._taken_bytes / passed_s if passed_s >= PATIENCE_S else inf

    def notify(self, on_change: Callable[[], object]) -> None:
        """Set the callback for the arrival of data, for the end of the body, and for failure."""
        self._incoming.on_change = on_change

    def _failed(self, error: GatewayError) -> GatewayError:
        if self.span is not None:
            self.span.failed(error)
        return error

    async def hold(self, until: Awaitable[None]) -> None:
        """Await `until` without reading the body.  Raises UpstreamTimeout at the deadline of the whole reply."""
        self.stall()
        try:
            async with asyncio.timeout_at(self._deadline if self._deadline < inf else None):
                await until
            self.is_stalled = False
        except TimeoutError as error:
            raise UpstreamTimeout from error

    async def read(self, limit: int) -> bytes:
        """Read the whole body.  Raises UpstreamBroken if the body is longer than `limit` bytes."""
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > limit:
                raise UpstreamBroken("Origin's answer is too large")
        return bytes(body)

    def close(self) -> None:
        """End the reply.  If the reply is not complete, close its connection.  If the reply is complete, its connection
        is free already.
        """
        self.is_closed = True
        if self._has_stalled and self._stalls is not None:
            self._stalls.discard(self)
        self.on_reclaim = no_op
        self._incoming.break_off("left")
        if self._sent is not None:
            self._sent.close()
        if self.span is not None:
            self.span.end_span()

    def retire(self) -> None:
        """Use the connection for no further request, because the reply states that the server is about to shut down.
        The reply does not count as a failure."""
        self._incoming.retire()
        if self._sent is not None:
            self._sent.drains()

    def cut(self) -> None:
        """Fail the body now."""
        self._incoming.break_off("cut")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# -- the interface to the origins


class Requester(Protocol):
    """Receives the outcome of a request.  Its methods are called in the connection's `contextvars` context."""

    @property
    def sent(self) -> Callable[[], object]:
        """Return a callback.  It is called for each attempt to send the request."""

    def informed(self, interim: Interim) -> None:
        """Handle an interim (1xx) reply."""

    def head_arrived(self, reply: Reply) -> None:
        """Handle the reply, whose head has arrived.  The requester must call `Reply.close` at the end."""

    def failed(self, error: GatewayError) -> None:
        """Handle a failure before the head.

        `error` is CircuitOpen if no origin may be used, and UpstreamCongested if no connection was free in time.
        Otherwise it is UpstreamUnreachable, UpstreamTimeout, UpstreamBroken, or the error that the request body raised.
        """


class PendingRequest(Protocol):
    """A request whose reply has not arrived yet."""

    def give_up(self) -> None:
        """Cancel the request.  Has no effect after the head of the reply has arrived."""


class _Waiter:
    """A requester that resolves a future."""

    __slots__ = ("answer", "sent")

    def __init__(self, on_sent: Callable[[], object]) -> None:
        self.answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.sent = on_sent

    def informed(self, interim: Interim) -> None: ...

    def head_arrived(self, reply: Reply) -> None:
        if self.answer.done():
            reply.close()
        else:
            self.answer.set_result(reply)

    def failed(self, error: GatewayError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def answer_to(
    ask: Callable[[Requester, C], PendingRequest], call: C, on_sent: Callable[[], object] = no_op
) -> Reply:
    """Send a request by `ask` and wait for the head of its reply.  Raises the error passed to `Requester.failed`.

    `on_sent` is called for each attempt to send the request, in the connection's context.
    """
    waiter = _Waiter(on_sent)
    pending = ask(waiter, call)
    answer = waiter.answer
    try:
        return await answer
    except asyncio.CancelledError:
        pending.give_up()
        if answer.done() and not answer.cancelled() and answer.exception() is None:
            # The reply and the cancellation have arrived in the same iteration of the loop.  Close the reply, because
            # it has no reader.
            answer.result().close()
        raise
    finally:
        # Avoid a reference cycle: the traceback of a raised error refers to this frame.
        del waiter, pending, answer


class Upstream(Protocol):
    """Sends requests to origins: `client.OriginClient`, or an in-memory one in tests."""

    def ask(self, requester: Requester, call: OriginCall) -> PendingRequest:
        """Send one request.  `requester` is notified of its outcome, possibly before this method returns."""

    async def send(self, call: OriginCall, on_sent: Callable[[], object] = no_op) -> Reply:
        """Send one request and wait for the head of its reply; `on_sent` is called for each attempt.

        Raises UpstreamUnreachable, UpstreamTimeout or UpstreamBroken.  Raises CircuitOpen at once if no origin may be
        used, and UpstreamCongested if no connection is free in time.
        """
