"""The fetch table: the upstream fetches (flights) that readers of Durable Streams share, keyed by stream and start.

`gateway.upstream.collapse` defines which readers may share a flight.

A flight stores its bytes only on the `Stream` object for which it was launched.  If this object is dropped meanwhile,
because the stream was deleted or re-created, the flight stores nothing.  A late reply therefore cannot restore a
deleted stream.  A purge may drop only the bytes, and keep the object for its readers.  In this case, too, the flight
stores nothing.  In both cases the flight is *overtaken*: it answers the requests that already wait for it, and changes
nothing in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.aio.batches import Backlog
from gateway.engine.fetch import Fetch, FetchWork
from gateway.engine.flight_bodies import FlightBodies
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.read import MOST_CHANGES
from gateway.engine.reply_recorder import ReplyRecorder, is_overtaken
from gateway.engine.reply_taker import ReplyTaker
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import CircuitOpen, TailMovedBack
from gateway.live.topics import LiveTopics
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START
from gateway.tape.costs import BODY_SHARE
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import NO_ACCESS_LOG, RecordedStream, note_fetch
from gateway.telemetry.surroundings import Surroundings
from gateway.telemetry.tracing import NO_FLIGHT, NO_TRACER
from gateway.upstream.collapse import Collapse, FetchEnd, Follow, Lead
from gateway.upstream.flight import (
    CHANGES_TOO_FAST,
    CONFIRMATION,
    METADATA,
    Beyond,
    Flight,
    Head,
    OriginError,
    StreamHead,
    as_seen_by,
)
from gateway.upstream.origin_call import Source
from gateway.upstream.repeats_and_retries import WalkPace
from gateway.upstream.reply import Upstream

_KINDS = {METADATA: "metadata", NOW: "tail", CONFIRMATION: "confirmation"}


class FetchTable:
    """Launches flights, and owns the table of pending flights."""

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
        self._store = store
        self._clock = clock
        self._max_flight_bytes = max_flight_bytes
        self._negative_cache = negative_cache
        self._tracer = surroundings.tracer
        self._access_log = surroundings.access_log
        bodies = FlightBodies(store, clock, metrics)
        self.inflow = bodies.inflow
        self._flights: Collapse[tuple[Stream, str], Flight] = Collapse()
        self._under_way: set[Fetch] = set()
        recorder = ReplyRecorder(store, clock)
        pace = WalkPace()
        taker = ReplyTaker(upstream, store, clock, metrics, live, writes, negative_cache, bodies, recorder, pace)
        tasks, rng = surroundings.tasks, surroundings.rng
        self.backlog = Backlog()
        """Counts the steps of fetches and of first reads that wait for the event loop.  While there are many of these
        steps, the server delays new requests."""
        self._work = FetchWork(
            upstream, store, clock, tasks, metrics, rng, bodies.inflow, taker, pace, self._ended, self.backlog
        )

    def __len__(self) -> int:
        return len(self._flights)

    def __repr__(self) -> str:
        return f"{len(self._flights)} flights, {self.readers} waiting"

    @property
    def readers(self) -> int:
        """The number of readers that share the flights or wait for them."""
        return sum(flight.readers for _, flight in self._flights)

    @property
    def keep_bytes(self) -> int:
        """The most bytes that a new flight may keep: `max_flight_bytes`, but no more than a share of the cache."""
        return min(self._max_flight_bytes, max(1, self._store.budget_bytes // BODY_SHARE))

    def flights(self) -> Iterator[tuple[Stream, Flight]]:
        """Yield the latest flight of each stream and key, with its stream."""
        return ((stream, flight) for (stream, _), flight in self._flights)

    def pending(self, stream: Stream, key: str) -> Flight | None:
        """Return the latest flight with this key (an offset, or a sentinel such as `now`); None if that flight is over
        or overtaken."""
        flight = self._flights.pending((stream, key))
        return None if flight is None or (flight.is_sent and is_overtaken(stream, flight)) else flight

    def join_fetch(
        self,
        stream: Stream,
        start: str,
        route: Route,
        source: Source,
        key: str | None = None,
        *,
        facts_suffice: bool = False,
    ) -> Lead[Flight] | Follow[Flight]:
        """Join the unsent flight with this key, or launch a new flight.  `key` is `start` by default.

        `facts_suffice` states that the reader does not need the current tail.

        If a flight with this key has been sent and is still under way, this method launches a second flight.  To use
        the earlier flight, call `join_earlier` first.
        """
        flight = self._flights.unsent((stream, key or start), source.client)
        if flight is None:
            flight = self.launch(stream, start, route, source, key)
            flight.facts_suffice = facts_suffice
            return Lead(flight)
        flight.facts_suffice &= facts_suffice
        flight.span.joined()
        note_fetch(flight, leads=False)
        return Follow(flight)

    def launch(self, stream: Stream, start: str, route: Route, source: Source, key: str | None = None) -> Flight:
        """Launch a flight.  There must be no unsent flight with the same key."""
        flight = Flight(start, self.keep_bytes, source.client, key)
        self._flights.add_fetch((stream, flight.key), flight)
        flight.inflow = self.inflow
        flight.version = stream.version
        flight.is_passing = self._store.is_not_stored(stream)
        if self._tracer is not NO_TRACER:
            flight.span = self._tracer.flight(_KINDS.get(flight.key, "bytes"))
        if self._access_log is not NO_ACCESS_LOG:
            note_fetch(flight, leads=True)
        stream.hold()
        route.retries.request()
        fetch = Fetch(self._work, stream, flight, route, source)
        flight.on_unused = fetch.cancel
        self._under_way.add(fetch)
        fetch.launch()
        return flight

    def close(self) -> None:
        """Cancel all fetches and start no more."""
        self._work.is_closed = True
        for fetch in tuple(self._under_way):
            fetch.cancel()

    def _ended(self, fetch: Fetch) -> None:
        """Remove a fetch that is over."""
        stream, flight = fetch.stream, fetch.flight
        self._under_way.discard(fetch)
        self._flights.work_ended((stream, flight.key), flight)
        if self._access_log is not NO_ACCESS_LOG:
            self._report_unclaimed(stream, flight, fetch.source)
        if flight.span is not NO_FLIGHT:
            flight.span.end_span(*_result(flight), flight.size)
        self._store.release(stream)

    def _report_unclaimed(self, stream: Stream, flight: Flight, source: Source) -> None:
        """Report the traffic of a flight to the access log if no request's record will report it."""
        requests, fetched = flight.requests - flight.accounted_requests, flight.fetched - flight.accounted
        if not flight.holders and (requests or fetched):
            flight.accounted_requests, flight.accounted = flight.requests, flight.fetched
            recorded = RecordedStream.of(stream.key.route, source.target, stream.key.partition)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._access_log.unclaimed(recorded, mode, requests=requests, fetched_bytes=fetched)

    async def head_within(self, flight: Flight, patience_s: float, client: str) -> Head | None:
        """Wait for the head of a flight, for a reader in the network `client`.  The caller must have called
        `Flight.watch`.

        Returns None if the head has not arrived `patience_s` seconds after the flight was sent.
        """
        flight.askers.add_client(client)
        flight.span.joined()
        note_fetch(flight, leads=False)
        while flight.head is None:
            left = flight.sent_at + patience_s - self._clock.now()
            if left <= 0 or not await flight.changed.wait_within(self._clock, left):
                return flight.head
        return flight.head

    def detach(self, stream: Stream, start: str) -> None:
        """Detach the flights for which a read from `start` may be waiting.  They continue even without readers."""
        for key in {METADATA, CONFIRMATION, start, stream.tape.tail or start}:
            if (flight := self.pending(stream, key)) is not None:
                flight.is_detached = True

    async def join_earlier(self, stream: Stream, start: str, route: Route, client: str) -> Flight | None:
        """Wait for a flight for the bytes after `start` that was sent before this call.  Returns the flight; None if
        there is no such flight.

        The caller may use the flight's bytes.  But the tail in the reply may be out of date, because the origin may
        have sent the reply before this call.  `client` is the reader's network.
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
        """Ask the origin for the bytes after `start`, in a request sent after this call.  Return the head of the reply.

        Returns when the body has been stored or has proved too large to be stored.  The caller gets no body: it uses
        the head, or reads the stored bytes from the tape (the stream's bytes in memory).  If the flight is overtaken,
        the origin is asked again, up to `MOST_CHANGES` times.
        """
        return (await self.fetched(stream, start, route, source))[0]

    async def fresh_facts(self, stream: Stream, route: Route, source: Source) -> Head:
        """Like `fresh_head`, but for the metadata.  The head need not state the current tail.  If another worker owns
        the stream, this owner may therefore answer from memory, as it does for its own readers."""
        return (await self.fetched(stream, METADATA, route, source, facts_suffice=True))[0]

    async def fetched(
        self, stream: Stream, start: str, route: Route, source: Source, *, facts_suffice: bool = False
    ) -> tuple[Head, int]:
        """Like `fresh_head`, but also return the number of received body bytes, whether or not they were stored."""
        size = 0
        for _ in range(MOST_CHANGES):
            found, flight = await self._fetch_fresh(stream, start, route, source, facts_suffice=facts_suffice)
            size += flight.fetched
            if flight.start != start and _says_nothing_of(start, found):
                if stream.ended is not None:
                    # The caller starts again on a new record, and shares its fetches with other readers.
                    return TailMovedBack(), size
            elif not is_overtaken(stream, flight) or stream.ended is not None:
                return as_seen_by(found, source.headers), size
        return CHANGES_TOO_FAST, size

    async def _fetch_fresh(
        self, stream: Stream, start: str, route: Route, source: Source, *, facts_suffice: bool
    ) -> tuple[Head, Flight]:
        earlier = await self.join_earlier(stream, start, route, source.client)
        if earlier is not None and (error := self._negative_cache.find(stream.key, start, source.headers)) is not None:
            return error, earlier
        if earlier is not None and isinstance(earlier.head, StreamHead) and stream.tape.knows_after(start):
            # The earlier flight's bytes are stored, so request only later bytes.
            start = earlier.head.next_offset
        flight = self.join_fetch(stream, start, route, source, facts_suffice=facts_suffice).fetch
        flight.watch()
        try:
            await flight.until_known()
            # Read the result before the call of `unwatch`.  If the body is too large to be kept and there are no other
            # readers, `unwatch` cancels the flight.
            found = flight.error or flight.head
        finally:
            flight.unwatch()
        assert found is not None
        return found, flight

    async def learn_lifetime(self, stream: Stream, route: Route, source: Source) -> None:
        """Ask the origin for the stream's lifetime by HEAD, before the first answer from memory.

        Reads that need the lifetime at the same time share the HEAD.
        """
        stream.expiry.asked(self._clock.now())
        if (flight := self.pending(stream, METADATA)) is None:
            if isinstance(await self.fresh_facts(stream, route, source), CircuitOpen):
                stream.expiry.not_asked()
            return
        flight.askers.add_client(source.client)
        flight.watch()
        try:
            await flight.until_over()
        finally:
            flight.unwatch()


def _says_nothing_of(start: str, found: Head) -> bool:
    """Return whether `found` does not show the origin's answer to a request for `start`.  `found` is the answer to a
    request for a later offset."""
    if isinstance(found, OriginError) and found.status == 410:
        # The origin has trimmed the stream beyond the earlier flight's bytes.  It would refuse `start` too, unless
        # `start` is the start sentinel.
        return start == START
    # The stream was replaced by a shorter stream, and the later offset was dropped before the request was sent.
    return isinstance(found, Beyond)


def _result(flight: Flight) -> tuple[str, int | None]:
    """Return the way in which a flight ended, and the status that its readers received."""
    assert flight.end is not None
    match flight.end:
        case FetchEnd.FAILED | FetchEnd.GIVEN_UP if flight.error is not None:
            return flight.end, flight.error.status
        case FetchEnd.REFUSED if isinstance(flight.head, OriginError):
            return flight.end, flight.head.status
        case FetchEnd.LANDED:
            return flight.end, 200
        case _:
            return flight.end, None
