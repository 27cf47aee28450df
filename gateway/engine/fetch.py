"""One fetch: the requests by which a flight gets its reply from the origin, and the reply's way into the stream.

A fetch is driven by plain calls.  The event loop calls it in the turn after its launch, so that all reads of that turn
share it.  Then the connection to the origin calls it.  The reply is taken in the call that brings it.  A task takes
over where something has to be waited for: a pause, more of the body, readers that do not keep up.

A fetch ends exactly once: its flight lands or fails, and `FetchWork.ended` is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, assert_never

from multidict import CIMultiDict

from gateway.aio.clock import Clock, pause
from gateway.aio.tasks import Tasks, begin
from gateway.engine.classifier import (
    BEYOND_TAIL,
    NO_HEAD,
    Learned,
    Personal,
    SharedRefusal,
    TapeFacts,
    classify,
    is_empty,
    read_error,
)
from gateway.engine.flight_bodies import FlightBodies
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.reply_recorder import Effect, ReplyRecorder, is_outdated, is_overtaken
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import (
    CircuitOpen,
    GatewayError,
    ShortOfMemory,
    TailMovedBack,
    UpstreamCongested,
    UpstreamUnavailable,
    bare,
)
from gateway.http.reply import Interim
from gateway.live.topics import LiveTopics
from gateway.live.walk_pace import WalkPace
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START
from gateway.protocol.sharing import Ground
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.telemetry.tracing import NO_FLIGHT
from gateway.upstream.asking import PendingRequest, Upstream
from gateway.upstream.call import OriginCall, Source
from gateway.upstream.flight import CONFIRMATION, METADATA, Flight, NotShareable, OriginError, StreamHead
from gateway.upstream.incoming import HIGH_WATER_BYTES
from gateway.upstream.reply import Reply

_log = logging.getLogger("gateway.engine.fetch")

# Enum members are slow to reach in Python 3.11, and every fetch passes here.
_CATCHUP, _HEAD = Mode.CATCHUP, Mode.HEAD

_RETRY_DELAY_S: Final = (0.05, 0.15)
_RETRIED: Final = frozenset({502, 503, 504})


@dataclass(slots=True)
class FetchWork:
    """The parts of the engine that fetches work with."""

    upstream: Upstream
    store: TapeStore
    clock: Clock
    tasks: Tasks
    metrics: MetricsRecorder
    rng: Random
    live: LiveTopics
    writes: Writes
    negative_cache: NegativeCache
    bodies: FlightBodies
    recorder: ReplyRecorder
    pace: WalkPace
    ended: Callable[[Fetch], None]
    """Called when a fetch is over."""
    is_closed: bool = False
    """Whether no more requests are sent."""


class Fetch:
    """One flight's fetch; a `gateway.upstream.asking.Requester`.  `cancel` gives it up."""

    __slots__ = (
        "_attempts_left",
        "_context",
        "_first_error",
        "_is_decided",
        "_is_over",
        "_loop",
        "_pending",
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
        self._first_error: GatewayError | None = None
        """Why the request failed that was repeated last."""
        self._pending: PendingRequest | None = None
        """The request, while the head of its reply is awaited."""
        self._task: asyncio.Task[None] | None = None
        """The task of the fetch while it waits for anything other than a head."""
        self.facts: TapeFacts
        self.asked_at = 0.0
        """When the latest request was sent (monotonic seconds)."""
        self._context: Context
        """The context of the flight's span."""
        self._loop: asyncio.AbstractEventLoop
        self._is_over = False
        self._is_decided = False
        """Whether the outcome of the latest request is known."""

    def launch(self) -> None:
        """Begin in the next turn of the loop; until then, others may join the flight."""
        # To ask for the running loop takes a system call.
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._begin)

    def cancel(self) -> None:
        """Give the fetch up, because no reader is left."""
        if self._task is not None:
            self._task.cancel()
        if (pending := self._pending) is not None:
            self._pending = None
            pending.give_up()
        self._end()

    def _begin(self) -> None:
        if self._is_over:
            return
        if self.flight.span is not NO_FLIGHT:
            self.flight.span.enter()
        self._context = copy_context()
        is_of_bytes = self.flight.key not in (METADATA, NOW, CONFIRMATION)
        if is_of_bytes and self._pause_s() > 0:
            self._run_eagerly(self._send_in_turn())
        elif is_of_bytes and not self._has_room():
            self._run_eagerly(self._send_with_room())
        else:
            try:
                self._send_first()
            except Exception:
                self._died()

    def _run_eagerly(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this part of the fetch as far as possible now, and the rest in a task."""
        try:
            task = begin(self._loop, work, self._context)
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
        """End the fetch after the error that is being handled."""
        _log.exception("the fetch of %s died", self.stream)
        self._end()

    def _end(self) -> None:
        """End the fetch, with or without a result."""
        if not self._is_over:
            self._is_over = True
            self.flight.on_unused = None
            # Let the readers go on first, because the flight holds the stream until they hold it themselves.
            self._loop.call_soon(self._work.ended, self)

    def _pause_s(self) -> float:
        return self._work.pace.pause_s(self.stream, self._work.clock.now())

    def _has_room(self) -> bool:
        """Whether a body of any size may be fetched now."""
        work = self._work
        # Only few bytes follow a known tail, and reads of bytes in memory need no room.  Other fetches may buffer this
        # much before a reader takes the first byte.
        return self.flight.key == self.stream.tape.tail or (
            work.store.may_grow and work.bodies.inflow.count_bytes(HIGH_WATER_BYTES)
        )

    async def _send_in_turn(self) -> None:
        """Send the request once the stream's pace allows it; until then, others may share it."""
        while (pause_s := self._pause_s()) > 0:
            await pause(self._work.clock, pause_s)
        if self._has_room():
            self._send_first()
        else:
            await self._send_with_room()

    async def _send_with_room(self) -> None:
        """Send the request once the memory allows it; until then, others may share it."""
        work = self._work
        if work.store.may_grow:
            await work.bodies.inflow.renewed()
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
        """Send one request; its outcome may be known before this returns."""
        work, flight, source, start = self._work, self.flight, self.source, self.flight.start
        headers = source.headers
        if flight.key == CONFIRMATION:
            # The origin itself must answer, and not a cache in front of it (RFC 9111 section 5.2.1.4).
            headers = CIMultiDict(headers)
            headers["Cache-Control"] = "no-cache"
        method, offset = ("HEAD", None) if start == METADATA else ("GET", start)
        call = OriginCall(method, source.url(offset), headers, source.bounds, client=flight.askers)
        self.asked_at = work.clock.now()
        flight.version = self.stream.version
        self.facts = TapeFacts.of(self.stream, start, work.clock.wall())
        self._is_decided = False
        pending = work.upstream.ask(self, call)
        if not self._is_decided and not self._is_over:
            # Otherwise these two objects would refer to each other for ever.
            self._pending = pending

    # -- the outcome of a request

    def sent(self) -> None:
        """Count a request that is being sent to an origin."""
        self._count_sent(self.mode)

    def informed(self, interim: Interim) -> None:
        """Ignore an interim reply."""

    def head_arrived(self, reply: Reply) -> None:
        """The head of the reply has arrived."""
        self._is_decided, self._pending = True, None
        if self._is_over:
            reply.close()
            return
        self._run_eagerly(self._take(reply))

    def failed(self, error: GatewayError) -> None:
        """No reply will come."""
        self._is_decided, self._pending = True, None
        if not self._is_over:
            self._count_failure(error)
            self._repeat_or_fail(error)

    def _count_failure(self, error: GatewayError) -> None:
        if not isinstance(error, CircuitOpen | UpstreamCongested):
            self._work.metrics.upstream_failure(self.mode, type(error).__name__, self.route.name)

    @property
    def _is_last(self) -> bool:
        """Whether no further request may be sent."""
        return self._attempts_left == 0 or not self.route.retries.has_retry or self._work.is_closed

    def _repeat_or_fail(self, error: GatewayError) -> None:
        """Send the request that has failed once more, or fail the flight."""
        flight, route = self.flight, self.route
        if flight.head is not None or self._is_last or isinstance(error, CircuitOpen | UpstreamCongested):
            # A retry that the circuit breaker refused does not say why the request failed.
            first = self._first_error
            flight.fail(first if first is not None and isinstance(error, CircuitOpen) else error)
            self._end()
            return
        self._first_error = error
        self._attempts_left -= 1
        route.retries.retry()
        self._work.metrics.retry(route.name)
        self._run_eagerly(self._send_again())

    async def _take(self, reply: Reply) -> None:
        """Take a reply: land the flight, fail it, or repeat the request."""
        error: GatewayError | None = None
        try:
            try:
                is_over = await self._take_reply(reply)
            finally:
                reply.close()
            if not is_over:
                error = UpstreamUnavailable()
        except TailMovedBack as moved:
            self._carry_out(self._work.recorder.apply_another(self))
            self.flight.fail(moved)
        except GatewayError as failure:
            error = bare(failure)
            self._count_failure(error)
        if error is None:
            self._end()
        else:
            self._repeat_or_fail(error)

    async def _take_reply(self, reply: Reply) -> bool:
        """Take a reply; returns whether the flight is over, and False if the request is to be repeated.

        Raises TailMovedBack if it belongs to another stream, or another GatewayError.
        """
        work, stream, flight, route = self._work, self.stream, self.flight, self.route
        work.metrics.upstream_head(self.mode, reply.status, work.clock.now() - self.asked_at, route.name)
        route.heard()
        if reply.status in _RETRIED and not self._is_last and "Retry-After" not in reply.headers:
            return False
        meaning: Learned | Personal | NotShareable | OriginError
        learned = classify(flight.start, reply, route, self.facts, work.clock.wall())
        if type(learned) is Learned and not learned.is_beyond:
            meaning = learned
        else:
            meaning = await self._meaning(learned, reply)
        if isinstance(meaning, OriginError):
            await self._refused(meaning)
        elif isinstance(meaning, Learned):
            is_first_word = meaning.up_to_date and self.facts.version.same_acks_as(stream.version)
            if is_first_word and not stream.holds_acknowledged(meaning.offset, meaning.is_closed):
                # This may forget the held bytes, and the flight is then overtaken.
                work.writes.tail_is_short(stream)
        head, effect, tail = work.recorder.apply(self, meaning)
        self._carry_out(effect)
        if tail is not None:
            work.live.tail_named(stream, tail, self.asked_at)
        if not isinstance(head, StreamHead):
            flight.announce(head)
        elif flight.start == METADATA:
            work.live.watch_expiry(stream)
            await reply.read(0)
            flight.announce(head, 0)
            flight.land()
        elif flight.key == CONFIRMATION:
            self._carry_out(await work.bodies.compare(self, head, reply))
        else:
            if not reply.has_arrived:
                await work.bodies.store(self, head, reply)
            else:
                if not work.bodies.take_body(self, head, reply):
                    await work.bodies.inflow.renewed()
                work.bodies.keep(self, head, reply)
            if flight.key != NOW:
                is_up_to_date = head.up_to_date or head.is_closed
                work.pace.ended(stream, flight.size, work.clock.now(), is_up_to_date=is_up_to_date)
        return True

    async def _meaning(
        self, learned: Learned | Personal | NotShareable | SharedRefusal, reply: Reply
    ) -> Learned | Personal | NotShareable | OriginError:
        """Read the body of a classified reply as far as its meaning depends on it."""
        work, flight, route = self._work, self.flight, self.route
        match learned:
            case SharedRefusal():
                if route.varies_by_origin(reply.headers):
                    work.store.vary_by_origin(self.stream)
                error = await read_error(reply, route, self.source)
                work.metrics.upstream_bytes(len(error.body), self.mode, route.name)
                flight.fetched += len(error.body)
                return error
            case Learned(is_beyond=True) if not await is_empty(reply):
                # The bytes lead to no later offset: the answer is for this client alone.
                return BEYOND_TAIL
            case Personal(why) | (NotShareable(is_personal=True) as why):
                route.notice(Ground(why.reason), reply.headers)
        return learned

    async def _refused(self, error: OriginError) -> None:
        """Remember the origin's refusal for later reads.  Raises TailMovedBack if it shows another stream."""
        work, stream, flight, source = self._work, self.stream, self.flight, self.source
        is_current = not is_overtaken(stream, flight)
        if error.status == 400 and self.facts.is_origin_token and is_current and await self._accepts_requests():
            # The origin does not know a token that it issued itself: this is another stream.
            raise TailMovedBack
        if is_current and stream.ended is None and not is_outdated(stream, flight):
            # An error to a HEAD lacks the body that a GET would be given, so it answers only reads that begin with a
            # HEAD.
            offset = None if error.status == 404 and flight.start != METADATA else flight.start
            key, client = stream.key, source.client
            work.negative_cache.remember(key, offset, error, source.headers, self.route, self.asked_at, client)

    def _carry_out(self, effect: Effect | None) -> None:
        """Carry out the effect of a reply on the stream's live readers."""
        match effect:
            case Effect.REFOLLOW:
                self._work.live.revalidate(self.stream)
            case Effect.END_READERS:
                assert self.stream.ended is not None
                self._work.live.end_readers(self.stream, self.stream.ended)
            case None:
                pass
            case _:
                assert_never(effect)

    async def _accepts_requests(self) -> bool:
        """Whether the origin accepts the source's requests at all, so that a refusal must concern the offset."""
        work, source, route = self._work, self.source, self.route.name
        for method, mode, offset in (("HEAD", Mode.HEAD, None), ("GET", Mode.CATCHUP, START)):
            asked_at = work.clock.now()
            call = OriginCall(method, source.url(offset), source.headers, source.bounds, client=self.flight.askers)
            # Only the head is needed: a body is dropped together with its connection.
            async with await work.upstream.send(call, partial(self._count_sent, mode)) as reply:
                work.metrics.upstream_head(mode, reply.status, work.clock.now() - asked_at, route)
                if method == "GET" or reply.status not in NO_HEAD:
                    return reply.status in (200, 404, 410)
        return False

    def _count_sent(self, mode: Mode) -> None:
        self._work.metrics.upstream_request(mode, self.route.name)
        self.flight.requests += 1
