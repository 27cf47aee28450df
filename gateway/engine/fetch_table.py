"""The flight fetches: every fetch that readers share, by stream and starting token.

The rule that keeps reads linearisable is *who may take whose answer for the tail*.  A request that arrived before a
flight was sent may: whatever was acknowledged before it arrived, the origin saw first.  A request that arrives later
may use the flight's bytes, which are immutable, but must look at the tail with a flight of its own.  So per stream and
place there is at most one flight on its way and one waiting to be sent, and everyone who waits shares the latter.

A flight lays what it brought on the tape of the very stream record it was launched for.  A record that was dropped in
the meantime (deleted, re-created) takes nothing, so an answer that was in the air across a DELETE cannot come back.
Nor can one across a purge of a stream that keeps its record, for its readers' sake: a flight that was sent before its
stream's bytes were forgotten is overtaken.  It is for those who wait for it already, and teaches nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from gateway.aio.clock import Clock, pause
from gateway.aio.tasks import Tasks
from gateway.engine.absences import Absences
from gateway.engine.classifier import NO_HEAD, ReplyClassifier, TapeFacts, is_outdated, is_overtaken
from gateway.engine.route import Route
from gateway.errors import CircuitOpen, GatewayError, TailMovedBack, UpstreamBroken, UpstreamUnavailable
from gateway.protocol.freshness import freshness_from_headers
from gateway.protocol.json_array import ArrayUnwrapper, NotAnArray
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Sighting, Stream
from gateway.telemetry.access_record import NO_ACCESS_LOG, AccessLog, Place, note_fetch
from gateway.telemetry.metrics import MetricsRecorder
from gateway.telemetry.tracing import NO_TRACER, Tracer
from gateway.upstream.flight import METADATA, Beyond, Flight, Head, NotShareable, OriginError, StreamHead, as_seen_by
from gateway.upstream.reply import Reply
from gateway.upstream.source import Source
from gateway.upstream.upstream import Upstream

_KINDS = {METADATA: "metadata", NOW: "tail"}
_RETRY_DELAY_S = (0.05, 0.15)
_RETRIED = frozenset({502, 503, 504})


class FetchTable:
    """Launches flights and keeps those in the air.  Owner of the pending table; runs one task a flight."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        clock: Clock,
        tasks: Tasks,
        metrics: MetricsRecorder,
        rng: random.Random,
        max_flight_bytes: int,
        on_end: Callable[[Stream, End], None],
        on_stale: Callable[[Stream], None],
        on_tail: Callable[[Stream, str, float], None],
        absences: Absences,
        tracer: Tracer = NO_TRACER,
        access_log: AccessLog = NO_ACCESS_LOG,
    ) -> None:
        self._upstream = upstream
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics
        self._rng = rng
        self._max_flight_bytes = max_flight_bytes
        self._on_end = on_end
        self._on_stale = on_stale
        """Told that a stream may be another one, or none, so that its live request shows it no more."""
        self._on_tail = on_tail
        """Told where the origin says that a stream's tail is, and when it was asked."""
        self._absences = absences
        self._tracer = tracer
        self._access_log = access_log
        self._classifier = ReplyClassifier(store, metrics, on_end, on_stale)
        self._pending: dict[tuple[Stream, str], Flight] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __repr__(self) -> str:
        return f"{len(self._pending)} flights, {self.readers} waiting"

    @property
    def readers(self) -> int:
        """Readers that share the flights, or wait for them."""
        return sum(flight.readers for flight in self._pending.values())

    @property
    def keep_bytes(self) -> int:
        """Most bytes that a flight launched now may bring to be kept: never more than half of the cache."""
        return min(self._max_flight_bytes, max(1, self._store.budget_bytes // 2))

    def flights(self) -> Iterator[tuple[Stream, Flight]]:
        """Every flight that is the latest of its place, with the stream that it is for."""
        return ((stream, flight) for (stream, _), flight in self._pending.items())

    def pending(self, stream: Stream, start: str) -> Flight | None:
        """The latest flight for what lies after `start`, if one is not over."""
        flight = self._pending.get((stream, start))
        if flight is None or flight.is_over or (flight.is_sent and is_overtaken(stream, flight)):
            return None
        return flight

    def join(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Flight, bool]:
        """A flight that has not been sent yet, and whether it was launched now.

        Where one has been sent and is not over, the caller should have waited for it (`join_earlier`); this launches
        its replacement.
        """
        flight = self.pending(stream, start)
        if flight is not None and not flight.is_sent:
            flight.span.joined()
            note_fetch(flight, leads=False)
            return flight, False
        flight = Flight(start, self.keep_bytes)
        flight.incarnation = stream.tape.incarnation
        flight.is_passing = self._store.is_not_stored(stream)
        flight.span = self._tracer.flight(_KINDS.get(start, "bytes"))
        note_fetch(flight, leads=True)
        self._pending[stream, start] = flight
        stream.pin()
        route.retries.request()
        flight.task = self._tasks.start(self._fly(stream, flight, route, source), f"flight {start}")
        # Not in the task itself: one that is cancelled before its first step never gets to its `finally`.
        flight.task.add_done_callback(lambda _: self._ended(stream, flight, source))
        return flight, True

    def _ended(self, stream: Stream, flight: Flight, source: Source) -> None:
        if not flight.is_over:
            flight.give_up()
        self._hand_over(stream, flight, source)
        flight.span.end(*_result(flight), flight.size)
        if self._pending.get((stream, flight.start)) is flight:
            del self._pending[stream, flight.start]
        self._store.release(stream)

    def _hand_over(self, stream: Stream, flight: Flight, source: Source) -> None:
        """Tell of what no record is left to take."""
        requests, fetched = flight.requests - flight.accounted_requests, flight.fetched - flight.accounted
        if not flight.holders and (requests or fetched):
            flight.accounted_requests, flight.accounted = flight.requests, flight.fetched
            place = Place.of(stream.key.route, source.target, stream.key.partition)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._access_log.unclaimed(place, mode, requests=requests, fetched_bytes=fetched)

    async def head_within(self, flight: Flight, patience_s: float) -> Head | None:
        """A watched flight's head; None when it hung longer than `patience_s` after it was sent."""
        flight.span.joined()
        note_fetch(flight, leads=False)
        while flight.head is None:
            left = flight.sent_at + patience_s - self._clock.now()
            if left <= 0 or not await flight.changed.wait_within(self._clock, left):
                return flight.head
        return flight.head

    async def join_earlier(self, stream: Stream, start: str, route: Route) -> Flight | None:
        """Wait for a flight that was sent for what lies after `start` before the caller came; the flight, if any.

        What it brought may be used; that there is no more than this it cannot tell the caller.
        """
        flight = self.pending(stream, start)
        if flight is None or not flight.is_sent:
            return None
        flight.watch()
        try:
            if await self.head_within(flight, route.config.collapse_wait_s) is not None:
                await flight.until_known()
        finally:
            flight.unwatch()
        return flight

    async def fresh_head(self, stream: Stream, start: str, route: Route, source: Source) -> Head:
        """What the origin says at `start` to a request that arrives now; the flight lands before this returns, or has
        proved too large to be laid.

        For those who want the fact or the laid bytes and not the body itself.  One that is overtaken is neither: the
        origin is asked again, once for each time that the stream's bytes are forgotten meanwhile.
        """
        return (await self.fetched(stream, start, route, source))[0]

    async def fetched(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Head, int]:
        """The same, and how many body bytes came for it, those too that were too many to be laid."""
        size = 0
        while True:
            found, flight = await self._flown(stream, start, route, source)
            size += flight.fetched
            if not is_overtaken(stream, flight) or stream.ended is not None:
                return as_seen_by(found, source.headers), size

    async def _flown(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Head, Flight]:
        stale = await self.join_earlier(stream, start, route)
        if stale is not None and (refusal := self._absences.find(stream.key, start, source.headers)) is not None:
            return refusal, stale
        if stale is not None and isinstance(stale.head, StreamHead) and stream.tape.knows_after(start):
            # Its bytes are here: only what has come behind them since is still to be asked for.
            start = stale.head.next_offset
        flight, _ = self.join(stream, start, route, source)
        flight.watch()
        try:
            await flight.until_known()
            # Before the unwatching: with that, what is too large to be kept and has no other readers is given up.
            found = flight.error or flight.head
        finally:
            flight.unwatch()
        assert found is not None
        return found, flight

    # -- one flight

    async def _fly(self, stream: Stream, flight: Flight, route: Route, source: Source) -> None:
        flight.span.enter()
        flight.is_sent = True
        flight.sent_at = self._clock.now()
        for attempts_left in range(route.config.retry_attempts, -1, -1):
            is_last = attempts_left == 0 or not route.retries.has_retry
            error = await self._attempt(stream, flight, route, source, is_last)
            if error is None:
                return
            if flight.head is not None or is_last or isinstance(error, CircuitOpen):
                flight.fail(error)
                return
            route.retries.retry()
            self._metrics.retry(route.config.name)
            await pause(self._clock, self._rng.uniform(*_RETRY_DELAY_S))

    async def _attempt(
        self, stream: Stream, flight: Flight, route: Route, source: Source, is_last: bool
    ) -> GatewayError | None:
        """One exchange with the origin; None when the flight is over, else why it is not."""
        is_metadata = flight.start == METADATA
        mode = Mode.HEAD if is_metadata else Mode.CATCHUP
        url = source.url(None if is_metadata else flight.start)
        asked_at = self._clock.now()
        flight.incarnation, flight.write_turn = stream.tape.incarnation, stream.write_turn
        known = TapeFacts.of(stream, flight.start)
        name = route.config.name
        try:
            async with await self._upstream.send(
                "HEAD" if is_metadata else "GET",
                url,
                source.headers,
                source.bounds,
                on_sent=lambda: self._sent(flight, mode, name),
            ) as reply:
                self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, name)
                if reply.status in _RETRIED and not is_last and "Retry-After" not in reply.headers:
                    return UpstreamUnavailable()
                head = await self._classifier.head(stream, flight, route, source, reply, known)
                is_current = not is_overtaken(stream, flight)
                is_token_refused = isinstance(head, OriginError) and head.status == 400 and known.is_origins_own
                if is_token_refused and is_current and await self._is_welcome(flight, source, name):
                    # The origin does not know a token that it gave out itself: this is another stream.
                    raise TailMovedBack
                is_believed = is_current and stream.ended is None and not is_outdated(stream, flight)
                if isinstance(head, OriginError) and is_believed:
                    # Refused to a HEAD, it comes without the body that a GET would be given.
                    is_whole = head.status == 404 and not is_metadata
                    place = None if is_whole else flight.start
                    self._absences.add(stream.key, place, head, source.headers, route, asked_at)
                if not isinstance(head, StreamHead | Beyond):
                    if is_current:
                        self._classifier.apply(stream, flight, head, known)
                    flight.announce(head)
                    return None
                if is_current and stream.acks == known.acks:
                    self._saw_tail(stream, head, reply, asked_at, route)
                if isinstance(head, Beyond):
                    flight.announce(head)
                    return None
                if is_metadata:
                    await reply.read(0)
                    flight.announce(head, 0)
                    flight.land()
                    return None
                stream.contacted(asked_at)
                stream.revalidated(known.stale_marks)
                await self._take_body(stream, flight, head, reply, name)
                return None
        except TailMovedBack as error:
            if not is_overtaken(stream, flight):
                self._is_another(stream, flight, known)
            flight.fail(error)
            return None
        except CircuitOpen as error:
            return error
        except GatewayError as error:
            self._metrics.upstream_failure(mode, type(error).__name__, name)
            return error

    def _is_another(self, stream: Stream, flight: Flight, known: TapeFacts) -> None:
        """The flight has brought a part of another stream than the one that is remembered."""
        if known.identity is None and stream.identity is not None and is_outdated(stream, flight):
            # What is remembered has got its name since the flight was sent, and may be the later one.
            stream.mark_stale()
            self._on_stale(stream)
        elif self._store.drop(stream, End.RECREATED):
            self._on_end(stream, End.RECREATED)

    def _saw_tail(self, stream: Stream, head: StreamHead | Beyond, reply: Reply, asked_at: float, route: Route) -> None:
        """Take note of where the origin says that the tail is, and of how long it lets that be repeated."""
        if not head.up_to_date or head.is_closed:
            return
        tail = head.next_offset if isinstance(head, StreamHead) else head.tail
        if route.heard_s:
            fresh = freshness_from_headers(reply.headers)
            fresh_s = max(route.config.tail_fresh_s, fresh.fresh_s)
            if fresh_s or fresh.stale_s:
                stale_until = asked_at + fresh_s + fresh.stale_s
                stream.saw_tail(Sighting(tail, asked_at, asked_at + fresh_s, stale_until))
        self._on_tail(stream, tail, asked_at)

    def _sent(self, flight: Flight, mode: Mode, route: str) -> None:
        """A request is being sent to an origin."""
        self._metrics.upstream_request(mode, route)
        flight.requests += 1

    async def _is_welcome(self, flight: Flight, source: Source, route: str) -> bool:
        """Whether the origin takes the source's requests at all, so that a refusal must be about the offset."""
        for method, mode, offset in (("HEAD", Mode.HEAD, None), ("GET", Mode.CATCHUP, START)):
            asked_at = self._clock.now()
            # Only the head is wanted: a body is dropped together with its connection.
            async with await self._upstream.send(
                method,
                source.url(offset),
                source.headers,
                source.bounds,
                on_sent=partial(self._sent, flight, mode, route),
            ) as reply:
                self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, route)
                if method == "GET" or reply.status not in NO_HEAD:
                    return reply.status in (200, 404, 410)
        return False

    async def _take_body(self, stream: Stream, flight: Flight, head: StreamHead, reply: Reply, route: str) -> None:
        start, end = flight.start, head.next_offset
        is_json = stream.tape.is_json
        unwrapper = ArrayUnwrapper() if is_json else None
        flight.announce(head, reply.content_length, is_verbatim=not is_json)
        try:
            async for chunk in reply.chunks():
                self._metrics.upstream_bytes(len(chunk), Mode.CATCHUP, route)
                flight.fetched += len(chunk)
                inner = chunk if unwrapper is None else unwrapper.feed(chunk)
                if inner:
                    stream.tape.check(start, end, has_bytes=True)
                    flight.add(inner)
                    await reply.hold(flight.until_wanted())
            if unwrapper is not None and (rest := unwrapper.finish()):
                stream.tape.check(start, end, has_bytes=True)
                flight.add(rest)
        except NotAnArray as error:
            raise UpstreamBroken from error
        if start == NOW:
            if flight.size:
                raise UpstreamBroken
        elif flight.is_kept and not is_overtaken(stream, flight):
            if flight.is_passing and not stream.has_topic:
                # For those who ride on it, and nobody else.
                self._store.pass_over(flight.size)
            else:
                self._store.store(stream, start, end, flight.kept, self._clock.now())
        flight.land()


def _result(flight: Flight) -> tuple[str, int | None]:
    """How a flight ended, in a word, and the status that those who shared it are told by it."""
    match flight.error or flight.head:
        case GatewayError() as error:
            return "failed", error.status
        case OriginError() as refusal:
            return "refused", refusal.status
        case NotShareable():
            return "foreign", None
        case _:
            return "landed", 200
