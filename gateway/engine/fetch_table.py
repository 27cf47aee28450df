"""The fetch table: every fetch that readers share (single-flight), by stream and starting token.

Reads stay linearisable by one rule about *which requests may take a flight's statement of the tail*.  A request that
arrived before the flight was sent may: the origin had seen everything acknowledged before that request.  A request that
arrives later may use the flight's bytes, which are immutable, but needs a flight of its own for the tail.  Each stream
and starting token therefore has at most one flight on its way and one waiting to be sent, which all later requests
share.

A flight stores its bytes on the stream record for which it was launched.  A record dropped meanwhile (deleted,
re-created) stores nothing, so a reply that was on its way across a DELETE cannot bring the stream back.  The same holds
across a purge of a stream that keeps its record for its readers: a flight sent before the stream's bytes were forgotten
is overtaken.  It answers the requests that already wait for it and teaches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import assert_never

from multidict import CIMultiDict

from gateway.aio.clock import pause
from gateway.engine.classifier import (
    BEYOND_TAIL,
    NO_HEAD,
    Effect,
    Learned,
    Personal,
    ReplyRecorder,
    SharedRefusal,
    TapeFacts,
    classify,
    is_empty,
    is_outdated,
    is_overtaken,
    read_error,
)
from gateway.engine.flight_bodies import FlightBodies
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.read import MOST_CHANGES
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import (
    CircuitOpen,
    GatewayError,
    ShortOfMemory,
    TailMovedBack,
    UpstreamCongested,
    UpstreamUnavailable,
)
from gateway.live.topics import LiveTopics
from gateway.live.walk_pace import WalkPace
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START
from gateway.tape.costs import BODY_SHARE
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import RecordedStream, note_fetch
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.call import OriginCall
from gateway.upstream.flight import (
    CHANGES_TOO_FAST,
    CONFIRMATION,
    METADATA,
    Beyond,
    Flight,
    Head,
    NotShareable,
    OriginError,
    StreamHead,
    as_seen_by,
)
from gateway.upstream.incoming import HIGH_WATER_BYTES
from gateway.upstream.reply import Reply
from gateway.upstream.source import Source
from gateway.upstream.upstream import Upstream

_KINDS = {METADATA: "metadata", NOW: "tail", CONFIRMATION: "confirmation"}
_RETRY_DELAY_S = (0.05, 0.15)
_RETRIED = frozenset({502, 503, 504})


class FetchTable:
    """Launches flights and tracks those in the air.  Owner of the pending table; runs one task per flight."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        surroundings: Surroundings,
        max_flight_bytes: int,
        live: LiveTopics,
        writes: Writes,
        negative_cache: NegativeCache,
    ) -> None:
        clock, metrics = surroundings.clock, surroundings.metrics
        self._upstream = upstream
        self._store = store
        self._clock = clock
        self._tasks = surroundings.tasks
        self._metrics = metrics
        self._rng = surroundings.rng
        self._max_flight_bytes = max_flight_bytes
        self._live = live
        self._writes = writes
        self._negative_cache = negative_cache
        self._tracer = surroundings.tracer
        self._access_log = surroundings.access_log
        self._bodies = FlightBodies(store, clock, metrics)
        self.inflow = self._bodies.inflow
        self._recorder = ReplyRecorder(store, clock, writes.is_under_way)
        self._pending: dict[tuple[Stream, str], Flight] = {}
        self._pace = WalkPace()

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
        """The most bytes of a flight launched now that may be kept: never more than their share of the cache."""
        return min(self._max_flight_bytes, max(1, self._store.budget_bytes // BODY_SHARE))

    def flights(self) -> Iterator[tuple[Stream, Flight]]:
        """The latest flight of each stream and starting token, with its stream."""
        return ((stream, flight) for (stream, _), flight in self._pending.items())

    def pending(self, stream: Stream, key: str) -> Flight | None:
        """The latest flight of this key, such as the offset it starts from, unless it is over or overtaken."""
        flight = self._pending.get((stream, key))
        if flight is None or flight.is_over or (flight.is_sent and is_overtaken(stream, flight)):
            return None
        return flight

    def join(
        self, stream: Stream, start: str, route: Route, source: Source, key: str | None = None
    ) -> tuple[Flight, bool]:
        """Join the flight that has not been sent yet, launching one if there is none; return it and whether it was
        launched now.  `key` is that of the flight if it is not `start`.

        If a flight has been sent and is not over, call `join_earlier` first; this call launches its replacement.
        """
        flight = self.pending(stream, key or start)
        if flight is not None and not flight.is_sent:
            flight.askers.join(source.client)
            flight.span.joined()
            note_fetch(flight, leads=False)
            return flight, False
        flight = Flight(start, self.keep_bytes, source.client, key)
        flight.inflow = self.inflow
        flight.version = stream.version
        flight.is_passing = self._store.is_not_stored(stream)
        flight.span = self._tracer.flight(_KINDS.get(flight.key, "bytes"))
        note_fetch(flight, leads=True)
        self._pending[stream, flight.key] = flight
        stream.hold()
        route.retries.request()
        flight.task = self._tasks.start(self._run_flight(stream, flight, route, source), f"flight {start}")
        # A callback, because a task that is cancelled before its first step never reaches its `finally`.
        flight.task.add_done_callback(lambda _: self._ended(stream, flight, source))
        return flight, True

    def _ended(self, stream: Stream, flight: Flight, source: Source) -> None:
        # A cancelled task keeps its traceback, whose frames refer to the flight.
        flight.task = None
        if not flight.is_over:
            flight.give_up()
        self._report_unclaimed(stream, flight, source)
        flight.span.end(*_result(flight), flight.size)
        if self._pending.get((stream, flight.key)) is flight:
            del self._pending[stream, flight.key]
        self._store.release(stream)

    def _report_unclaimed(self, stream: Stream, flight: Flight, source: Source) -> None:
        """Report traffic that no access record is left to claim."""
        requests, fetched = flight.requests - flight.accounted_requests, flight.fetched - flight.accounted
        if not flight.holders and (requests or fetched):
            flight.accounted_requests, flight.accounted = flight.requests, flight.fetched
            recorded = RecordedStream.of(stream.key.route, source.target, stream.key.partition)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._access_log.unclaimed(recorded, mode, requests=requests, fetched_bytes=fetched)

    async def head_within(self, flight: Flight, patience_s: float, client: str) -> Head | None:
        """A watched flight's head, for a reader of the net `client`; None if it has not come `patience_s` after the
        flight was sent."""
        flight.askers.join(client)
        flight.span.joined()
        note_fetch(flight, leads=False)
        while flight.head is None:
            left = flight.sent_at + patience_s - self._clock.now()
            if left <= 0 or not await flight.changed.wait_within(self._clock, left):
                return flight.head
        return flight.head

    def detach(self, stream: Stream, start: str) -> None:
        """Let the stream's flights that a read from `start` may wait for go on when their last reader leaves."""
        for key in {METADATA, CONFIRMATION, start, stream.tape.tail or start}:
            if (flight := self.pending(stream, key)) is not None:
                flight.is_detached = True

    async def join_earlier(self, stream: Stream, start: str, route: Route, client: str) -> Flight | None:
        """Wait for a flight for the bytes after `start` that was sent before this call; return it, or None.  `client`
        is the reader's net.

        The caller may use its bytes, but not its statement that there are no more.
        """
        flight = self.pending(stream, start)
        if flight is None or not flight.is_sent:
            return None
        flight.watch()
        try:
            if await self.head_within(flight, route.config.collapse_wait_s, client) is not None:
                await flight.until_known()
        finally:
            flight.unwatch()
        return flight

    async def fresh_head(self, stream: Stream, start: str, route: Route, source: Source) -> Head:
        """What the origin says at `start` to a request that arrives now; returns when the flight has landed, or has
        proved too large to be stored.

        For callers that want the facts or the stored bytes and not the body itself.  An overtaken flight provides
        neither, so the origin is asked again, unless the stream's bytes were forgotten `MOST_CHANGES` times.
        """
        return (await self.fetched(stream, start, route, source))[0]

    async def fetched(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Head, int]:
        """The same, with the number of body bytes received, including those that were too many to be stored."""
        size = 0
        for _ in range(MOST_CHANGES):
            found, flight = await self._fetch_fresh(stream, start, route, source)
            size += flight.fetched
            if not is_overtaken(stream, flight) or stream.ended is not None:
                return as_seen_by(found, source.headers), size
        return CHANGES_TOO_FAST, size

    async def _fetch_fresh(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Head, Flight]:
        earlier = await self.join_earlier(stream, start, route, source.client)
        if earlier is not None and (error := self._negative_cache.find(stream.key, start, source.headers)) is not None:
            return error, earlier
        if earlier is not None and isinstance(earlier.head, StreamHead) and stream.tape.knows_after(start):
            # Those bytes are stored: only what follows them still has to be requested.
            start = earlier.head.next_offset
        flight, _ = self.join(stream, start, route, source)
        flight.watch()
        try:
            await flight.until_known()
            # Read this before `unwatch`, which gives up a flight that is too large to keep and has no other readers.
            found = flight.error or flight.head
        finally:
            flight.unwatch()
        assert found is not None
        return found, flight

    async def learn_lifetime(self, stream: Stream, route: Route, source: Source) -> None:
        """Before the first answer from memory: one HEAD, for all that need it, reports how long the stream may be
        remembered."""
        if (flight := self.pending(stream, METADATA)) is None:
            if isinstance(await self.fresh_head(stream, METADATA, route, source), CircuitOpen):
                stream.expiry.not_asked()
            return
        flight.askers.join(source.client)
        flight.watch()
        try:
            await flight.until_over()
        finally:
            flight.unwatch()

    # -- one flight

    async def _run_flight(self, stream: Stream, flight: Flight, route: Route, source: Source) -> None:
        flight.span.enter()
        if flight.key not in (METADATA, NOW, CONFIRMATION):
            while (pause_s := self._pace.pause_s(stream, self._clock.now())) > 0:
                # Until it is sent, others may share it.
                await pause(self._clock, pause_s)
            # Few bytes follow a known tail, and readers of bytes in memory go on.
            if flight.key != stream.tape.tail and not await self._has_room():
                flight.fail(ShortOfMemory())
                return
        flight.is_sent = True
        flight.sent_at = self._clock.now()
        sent: GatewayError | None = None
        for attempts_left in range(route.config.retry_attempts, -1, -1):
            is_last = attempts_left == 0 or not route.retries.has_retry
            error = await self._attempt(stream, flight, route, source, is_last)
            if error is None:
                return
            if flight.head is not None or is_last or isinstance(error, CircuitOpen | UpstreamCongested):
                # A retry that the circuit breaker refused does not say why the request failed.
                flight.fail(sent if sent is not None and isinstance(error, CircuitOpen) else error)
                return
            sent = error
            route.retries.retry()
            self._metrics.retry(route.config.name)
            await pause(self._clock, self._rng.uniform(*_RETRY_DELAY_S))

    async def _has_room(self) -> bool:
        """Whether a body of any size may be fetched; waits while nothing may be added to memory for the moment."""
        # So much of a body arrives before the first of it is taken.
        if self._store.may_grow and not self.inflow.take(HIGH_WATER_BYTES):
            await self.inflow.renewed()
        return self._store.may_grow

    async def _attempt(
        self, stream: Stream, flight: Flight, route: Route, source: Source, is_last: bool
    ) -> GatewayError | None:
        """One exchange with the origin; None if the flight is over, else why it failed."""
        is_metadata = flight.start == METADATA
        mode = Mode.HEAD if is_metadata else Mode.CATCHUP
        url = source.url(None if is_metadata else flight.start)
        headers = source.headers
        if flight.key == CONFIRMATION:
            # From the origin itself, and not from a cache before it (RFC 9111 §5.2.1.4).
            headers = CIMultiDict(headers)
            headers["Cache-Control"] = "no-cache"
        call = OriginCall("HEAD" if is_metadata else "GET", url, headers, source.bounds, client=flight.askers)
        asked_at = self._clock.now()
        flight.version = stream.version
        facts = TapeFacts.of(stream, flight.start, self._clock.wall())
        name = route.config.name
        try:
            async with await self._upstream.send(call, partial(self._sent, flight, mode, name)) as reply:
                self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, name)
                route.heard()
                if reply.status in _RETRIED and not is_last and "Retry-After" not in reply.headers:
                    return UpstreamUnavailable()
                head = await self._learn(stream, flight, route, source, reply, facts)
                is_current = not is_overtaken(stream, flight)
                is_token_refused = isinstance(head, OriginError) and head.status == 400 and facts.is_origin_token
                if is_token_refused and is_current and await self._accepts_requests(flight, source, name):
                    # The origin does not know a token that it issued itself: this is another stream.
                    raise TailMovedBack
                is_believed = is_current and stream.ended is None and not is_outdated(stream, flight)
                if isinstance(head, OriginError) and is_believed:
                    # An error to a HEAD lacks the body that a GET would be given, so it answers only reads that begin
                    # with a HEAD.
                    is_whole = head.status == 404 and not is_metadata
                    offset = None if is_whole else flight.start
                    self._negative_cache.add(stream.key, offset, head, source.headers, route, asked_at, source.client)
                if not isinstance(head, StreamHead | Beyond):
                    if is_current:
                        self._carry_out(stream, self._recorder.apply_refusal(stream, flight, source, head, facts))
                    flight.announce(head)
                    return None
                if is_current and facts.version.same_acks_as(stream.version):
                    tail = self._recorder.record_tail(stream, head, reply, asked_at, route)
                    if tail is not None:
                        self._live.tail_named(stream, tail, asked_at)
                if isinstance(head, Beyond):
                    if is_current and head.up_to_date:
                        # It has named a tail that is not before the known one, so this is still the stream.
                        stream.contacted(asked_at)
                        stream.revalidated(facts.version)
                    flight.announce(head)
                    return None
                if is_metadata:
                    self._live.watch_expiry(stream)
                    await reply.read(0)
                    flight.announce(head, 0)
                    flight.land()
                    return None
                stream.contacted(asked_at)
                stream.revalidated(facts.version)
                self._carry_out(stream, await self._bodies.take(stream, flight, head, reply, route, asked_at))
                if flight.key not in (NOW, CONFIRMATION):
                    is_up_to_date = head.up_to_date or head.is_closed
                    self._pace.ended(stream, flight.size, self._clock.now(), is_up_to_date=is_up_to_date)
                return None
        except TailMovedBack as error:
            self._carry_out(stream, self._recorder.apply_another(stream, flight, facts))
            flight.fail(error)
            return None
        except (CircuitOpen, UpstreamCongested) as error:
            return error
        except GatewayError as error:
            self._metrics.upstream_failure(mode, type(error).__name__, name)
            return error

    async def _learn(
        self, stream: Stream, flight: Flight, route: Route, source: Source, reply: Reply, facts: TapeFacts
    ) -> StreamHead | Beyond | NotShareable | OriginError:
        """Have the reply's head classified and applied to the stream.  Raises UpstreamBroken if the protocol does not
        allow the reply, TailMovedBack if it belongs to another stream than the known one."""
        learned = classify(flight.start, reply, route, facts, self._clock.wall())
        match learned:
            case NotShareable():
                return learned
            case Personal(why=why):
                self._recorder.apply_personal(stream, learned, facts)
                return why
            case SharedRefusal():
                if route.varies_by_origin(reply.headers):
                    self._store.vary_by_origin(stream)
                error = await read_error(reply, route, source)
                mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
                self._metrics.upstream_bytes(len(error.body), mode, route.config.name)
                flight.fetched += len(error.body)
                return error
            case Learned(is_beyond=True) if not await is_empty(reply):
                # The bytes lead to no later offset: the answer is for this client alone.
                return BEYOND_TAIL
        is_first_word = learned.up_to_date and facts.version.same_acks_as(stream.version)
        if is_first_word and stream.lacks_acknowledged(learned.offset, is_closed=learned.is_closed):
            # It may forget what is held, and has then overtaken the flight.
            self._writes.tail_is_short(stream)
        self._recorder.apply(stream, flight, learned, route, source, facts)
        return learned.head()

    def _carry_out(self, stream: Stream, effect: Effect | None) -> None:
        """Have the stream's live readers feel what a reply has shown."""
        match effect:
            case Effect.REFOLLOW:
                self._live.revalidate(stream)
            case Effect.END_READERS:
                assert stream.ended is not None
                self._live.end(stream, stream.ended)
            case None:
                pass
            case _:
                assert_never(effect)

    def _sent(self, flight: Flight, mode: Mode, route: str) -> None:
        """Count a request that is being sent to an origin."""
        self._metrics.upstream_request(mode, route)
        flight.requests += 1

    async def _accepts_requests(self, flight: Flight, source: Source, route: str) -> bool:
        """Whether the origin accepts the source's requests at all, so that a refusal must concern the offset."""
        for method, mode, offset in (("HEAD", Mode.HEAD, None), ("GET", Mode.CATCHUP, START)):
            asked_at = self._clock.now()
            call = OriginCall(method, source.url(offset), source.headers, source.bounds, client=flight.askers)
            # Only the head is needed: a body is dropped together with its connection.
            async with await self._upstream.send(call, partial(self._sent, flight, mode, route)) as reply:
                self._metrics.upstream_head(mode, reply.status, self._clock.now() - asked_at, route)
                if method == "GET" or reply.status not in NO_HEAD:
                    return reply.status in (200, 404, 410)
        return False


def _result(flight: Flight) -> tuple[str, int | None]:
    """How a flight ended, in one word, and the status that its readers were given."""
    match flight.error or flight.head:
        case GatewayError() as error:
            return "failed", error.status
        case OriginError() as error:
            return "refused", error.status
        case NotShareable():
            return "foreign", None
        case _:
            return "landed", 200
