"""A fetch: sends the requests for one flight (a reply that many readers share).  A `ReplyTaker` processes the reply.

A fetch is driven by callbacks.  The event loop calls the fetch in the turn after its launch, so that all reads of one
turn share the fetch.  Later calls come from the upstream connection.  Complete replies are processed together in the
next turn.  Any other reply is processed in the callback for its head.  The fetch uses a task only if it has to wait:
for a pause, for more of the body, or for slow readers.

A fetch ends exactly once: its flight lands (succeeds) or fails, and `FetchWork.ended` is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from multidict import CIMultiDict

from gateway.aio.batches import Backlog, Batch
from gateway.aio.clock import Clock, pause
from gateway.aio.tasks import Tasks, begin
from gateway.engine.reply_classifier import TapeFacts
from gateway.engine.reply_taker import ReplyTaker
from gateway.engine.route import Route
from gateway.errors import (
    CircuitOpen,
    GatewayError,
    ShortOfMemory,
    TailMovedBack,
    UpstreamCongested,
    UpstreamUnavailable,
    bare,
)
from gateway.http.reply_parser import Interim
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW
from gateway.protocol.worker_headers import HopSaid
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.telemetry.tracing import NO_FLIGHT
from gateway.tuples import make
from gateway.upstream.flight import (
    CONFIRMATION,
    METADATA,
    PROOF,
    FirstReader,
    Flight,
)
from gateway.upstream.incoming import MOST_READ_BYTES, Inflow
from gateway.upstream.origin_call import OriginCall, Shared, Source
from gateway.upstream.repeats_and_retries import WalkPace
from gateway.upstream.reply import PendingRequest, Reply, Upstream

_log = logging.getLogger("gateway.engine.fetch")

# Looking up a member of an enum is slow in Python 3.11, so every fetch uses these constants.
_CATCHUP, _HEAD = Mode.CATCHUP, Mode.HEAD

_RETRY_DELAY_S: Final = (0.05, 0.15)
_RETRIED: Final = frozenset({502, 503, 504})


@dataclass(slots=True)
class FetchWork:
    """The parts of the engine that fetches use."""

    upstream: Upstream
    store: TapeStore
    clock: Clock
    tasks: Tasks
    metrics: MetricsRecorder
    rng: Random
    inflow: Inflow
    taker: ReplyTaker
    pace: WalkPace
    ended: Callable[[Fetch], None]
    """Called with each fetch that is over."""
    backlog: Backlog
    """Counts the steps of fetches and of first reads (`engine.cold_reads`) that wait for a turn of the loop."""
    started: Batch[Fetch] = field(init=False)
    """Fetches launched in this turn of the loop.  Other reads may still join their flights."""
    arrived: Batch[Fetch] = field(init=False)
    """Fetches whose complete replies have arrived."""
    looks: Batch[FirstReader] = field(init=False)
    """First reads (`gateway.engine.cold_reads`) that may continue, because more of the reply has arrived."""
    is_closed: bool = False
    """Whether the engine is closing, so that no further requests may be sent."""

    def __post_init__(self) -> None:
        backlog = self.backlog
        self.started = Batch(Fetch.begin_in_context, backlog=backlog)
        self.arrived = Batch(Fetch.take_arrived, backlog=backlog)
        self.looks = Batch(lambda first: first.look(), backlog=backlog)


class Fetch:
    """The fetch of one flight.  It implements `gateway.upstream.reply.Requester`."""

    __slots__ = (
        "_attempts_left",
        "_context",
        "_is_decided",
        "_is_from_memory",
        "_is_over",
        "_latest_error",
        "_pending",
        "_reply",
        "_task",
        "_work",
        "asked_at",
        "facts",
        "flight",
        "mode",
        "route",
        "source",
        "stream",
    )

    def __init__(self, work: FetchWork, stream: Stream, flight: Flight, route: Route, source: Source) -> None:
        self._work = work
        self.stream = stream
        self.flight = flight
        self.route = route
        self.source = source
        self.mode = _HEAD if flight.start == METADATA else _CATCHUP
        self._attempts_left = route.retry_attempts
        self._latest_error: GatewayError | None = None
        """The error that caused the latest retry; None before the first retry."""
        self._pending: PendingRequest | None = None
        """The request whose head has not arrived yet; None if there is no such request."""
        self._reply: Reply | None = None
        """A complete reply that has not been processed yet."""
        self._task: asyncio.Task[None] | None = None
        """The task of the fetch while the fetch waits for a pause, for a body or for readers; otherwise None."""
        self.facts: TapeFacts
        self.asked_at = 0.0
        """The time at which the latest request was sent (monotonic seconds)."""
        self._context: Context
        """The context of the reader that launched the fetch, with the flight's trace span."""
        self._is_over = False
        self._is_decided = False
        """Whether the latest request has been answered or has failed."""
        self._is_from_memory = False
        """Whether the worker that owns the stream has answered the latest request without the origin."""

    def launch(self) -> None:
        """Begin in the next turn of the loop.  Until then, other reads may join the flight."""
        # Copy the reader's context, because the loop's next turn runs outside it.
        self._context = copy_context()
        self._work.started.add(self)

    def cancel(self) -> None:
        """Cancel the fetch, because no reader is left."""
        if self._task is not None:
            self._task.cancel()
        if (pending := self._pending) is not None:
            self._pending = None
            pending.give_up()
        self._end()

    def begin_in_context(self) -> None:
        """Send the request, or wait until it may be sent.  This runs in the context of the reader that launched the
        fetch."""
        if not self._is_over:
            try:
                self._context.run(self._begin)
            except Exception:
                self._died()

    def _begin(self) -> None:
        if self.flight.span is not NO_FLIGHT:
            self.flight.span.enter()
        is_of_bytes = self.flight.key not in (METADATA, NOW, CONFIRMATION)
        if is_of_bytes and self._pause_s() > 0:
            self._run_eagerly(self._send_in_turn())
        elif is_of_bytes and not self._has_room():
            self._run_eagerly(self._send_with_room())
        else:
            self._send_first()

    def _run_eagerly(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a part of the fetch in this call until it has to wait.  A task runs the rest."""
        try:
            task = begin(asyncio.get_running_loop(), work, self._context)
        except Exception:
            self._died()
            return
        if task is not None:
            self._task = task
            self._work.tasks.own(task)
            task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if self._task is task:
            self._task = None
        if task.cancelled() or task.exception() is not None:
            self._end()

    def _died(self) -> None:
        """End the fetch after an unexpected error.  Must be called in an `except` block, because it logs the error."""
        _log.exception("the fetch of %s died", self.stream)
        self._end()

    def _end(self) -> None:
        """End the fetch, whether or not it has a result."""
        if not self._is_over:
            self._is_over = True
            flight = self.flight
            flight.on_unused = None
            if (first := flight.first) is not None:
                flight.first = None
                self._work.looks.add(first)
            # `ended` releases the stream.  Call it in the next turn: by then the readers have continued and have taken
            # holds on the stream.
            asyncio.get_running_loop().call_soon(self._work.ended, self)

    def _pause_s(self) -> float:
        return self._work.pace.pause_s(self.stream, self._work.clock.now())

    def _has_room(self) -> bool:
        """Return whether there is memory for the body, so that the request may be sent now."""
        work = self._work
        # A fetch from the known tail receives few bytes.  Any other fetch may buffer `MOST_READ_BYTES` before a reader
        # takes the first byte.
        return self.flight.key == self.stream.tape.tail or (
            work.store.may_grow and work.inflow.count_bytes(MOST_READ_BYTES)
        )

    async def _send_in_turn(self) -> None:
        """Send the request when `WalkPace`, which limits the rate of the stream's fetches, allows it.  Until then,
        other reads may join the flight."""
        while (pause_s := self._pause_s()) > 0:
            await pause(self._work.clock, pause_s)
        if self._has_room():
            self._send_first()
        else:
            await self._send_with_room()

    async def _send_with_room(self) -> None:
        """Send the request when there is enough memory.  Until then, other reads may join the flight."""
        work = self._work
        if work.store.may_grow:
            await work.inflow.renewed()
        if work.store.may_grow:
            self._send_first()
        else:
            self.flight.fail(ShortOfMemory())
            self._end()

    def _send_first(self) -> None:
        self.flight.is_sent = True
        self.flight.sent_at = self._work.clock.now()
        self._send()

    async def _send_again(self) -> None:
        work = self._work
        await pause(work.clock, work.rng.uniform(*_RETRY_DELAY_S))
        self._send()

    def _send(self) -> None:
        """Send one request.  The answer may arrive before this method returns."""
        work, flight, source, start = self._work, self.flight, self.source, self.flight.start
        headers = source.headers
        if flight.key == CONFIRMATION or flight.key.startswith(PROOF):
            # The origin itself must answer, rather than a cache in front of it (RFC 9111 section 5.2.1.4).
            headers = CIMultiDict(headers)
            headers["Cache-Control"] = "no-cache"
        method, offset = ("HEAD", None) if start == METADATA else ("GET", start)
        url, bounds = source.url(offset), source.bounds
        shared = make(Shared, (self.stream.key, source.handed, flight.facts_suffice))
        call = make(OriginCall, (method, url, headers, bounds, None, False, flight.askers, None, shared, False))
        self.asked_at = work.clock.now()
        flight.version = self.stream.version
        self.facts = TapeFacts.of(self.stream, start, work.clock.wall())
        self._is_decided = self._is_from_memory = False
        pending = work.upstream.ask(self, call)
        if not self._is_decided and not self._is_over:
            # Keep the pending request only until it has been answered or has failed.  The request and this fetch refer
            # to each other, and this reference cycle would keep both in memory.
            self._pending = pending

    # -- the outcome of a request

    def told(self, said: HopSaid) -> None:
        """Record the statement of the stream's owner about its record.  The owner is another worker.  `head_arrived`
        follows."""
        self.facts = self.facts._replace(said=said)
        self._is_from_memory |= said.is_from_memory(self.asked_at)
        self.asked_at = min(self.asked_at, said.as_of)
        if not self._is_over:
            self._work.taker.take_remembered(self, said)

    def sent(self) -> None:
        """Count a request that is being sent to an origin."""
        self.count_sent(self.mode)

    def informed(self, interim: Interim) -> None:
        """Ignore an interim reply."""

    def head_arrived(self, reply: Reply) -> None:
        """Process a reply whose head has arrived.  A complete reply is processed in the next turn, together with other
        complete replies.  Any other reply is processed at once."""
        self._is_decided, self._pending = True, None
        if self._is_over:
            reply.close()
            return
        work, route = self._work, self.route
        try:
            if self.facts.said is None:
                work.metrics.upstream_head(self.mode, reply.status, work.clock.now() - self.asked_at, route.name)
            if not self._is_from_memory:
                route.heard()
            elif (said := self.facts.said) is not None and not said.is_stale:
                route.heard_elsewhere(said.as_of)
            if reply.status in _RETRIED and not self._is_last and "Retry-After" not in reply.headers:
                reply.close()
                self._repeat_or_fail(UpstreamUnavailable())
            elif reply.has_arrived:
                self._reply = reply
                work.arrived.add(self)
            else:
                # Use a copy of the context.  A context cannot be entered twice, and the call that sends the request may
                # still run in this context.
                self._take(reply, self._context.copy())
        except Exception:
            reply.close()
            self._died()

    def take_arrived(self) -> None:
        """Process a complete reply."""
        reply, self._reply = self._reply, None
        assert reply is not None
        if self._is_over:
            reply.close()
            return
        try:
            self._take(reply, self._context)
        except Exception:
            reply.close()
            self._died()

    def _take(self, reply: Reply, context: Context) -> None:
        """Process the part of the reply that has arrived, in `context`.  A task processes the rest."""
        try:
            rest = context.run(self._work.taker.take_reply, self, reply)
        except Exception as error:
            reply.close()
            self._not_taken(error)
        else:
            if rest is None:
                reply.close()
                self._end()
            else:
                self._run_eagerly(self._take_rest(reply, rest))
        if (first := self.flight.first) is not None:
            self.flight.first = None
            self._work.looks.add(first)

    async def _take_rest(self, reply: Reply, rest: Coroutine[Any, Any, None]) -> None:
        """Wait for the rest of a reply if necessary, and process it."""
        try:
            try:
                await rest
            finally:
                reply.close()
        except Exception as error:
            self._not_taken(error)
        else:
            self._end()

    def _not_taken(self, error: Exception) -> None:
        """Fail the flight, or repeat the request, after this error.  Must be called in an `except` block."""
        if isinstance(error, TailMovedBack):
            self._work.taker.take_another(self)
            self.flight.fail(error)
            self._end()
        elif isinstance(error, GatewayError):
            failure = bare(error)
            self._count_failure(failure)
            self._repeat_or_fail(failure)
        else:
            self._died()

    def failed(self, error: GatewayError) -> None:
        """Handle a request that has failed without a reply."""
        self._is_decided, self._pending = True, None
        if not self._is_over:
            self._count_failure(error)
            self._repeat_or_fail(error)

    def _count_failure(self, error: GatewayError) -> None:
        # If another worker, the owner, has answered, it has counted this failure.
        if self.facts.said is None and not isinstance(error, CircuitOpen | UpstreamCongested):
            self._work.metrics.upstream_failure(self.mode, type(error).__name__, self.route.name)

    @property
    def _is_last(self) -> bool:
        """Whether no further request may be sent.  If the stream's owner reports a failure, it has repeated its own
        requests already."""
        if self.facts.said is not None:
            return True
        return self._attempts_left == 0 or not self.route.retries.has_retry or self._work.is_closed

    def _repeat_or_fail(self, error: GatewayError) -> None:
        """Repeat the request that has failed, or fail the flight."""
        flight, route = self.flight, self.route
        if flight.head is not None or self._is_last or isinstance(error, CircuitOpen | UpstreamCongested):
            # If the circuit breaker refused a retry, report the earlier error, because it is the cause of the failure.
            latest = self._latest_error
            flight.fail(latest if latest is not None and isinstance(error, CircuitOpen) else error)
            self._end()
            return
        self._latest_error = error
        self._attempts_left -= 1
        route.retries.retry()
        self._work.metrics.retry(route.name)
        self._run_eagerly(self._send_again())

    def count_sent(self, mode: Mode) -> None:
        """Count a request that is being sent for the fetch."""
        self._work.metrics.upstream_request(mode, self.route.name)
        self.flight.requests += 1
