"""The flight deck: every fetch that readers share, by stream and starting token.

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
from dataclasses import dataclass

from gateway.clock import Clock, pause
from gateway.engine.route import Route
from gateway.errors import GatewayError, TailMovedBack, UpstreamBroken, UpstreamUnavailable
from gateway.journal import UNKEPT, Journal, Place, note_fetch
from gateway.metrics_seam import Recorder
from gateway.protocol.etag import stream_identity
from gateway.protocol.forwarding import response_headers_for_client, storable_headers
from gateway.protocol.freshness import (
    forbids_storing,
    lifetime_from_headers,
    parse_cache_control,
    vary_allows_sharing,
)
from gateway.protocol.json_array import ArrayUnwrapper, NotAnArray
from gateway.protocol.mode import Mode
from gateway.protocol.names import DEFAULT_TYPE, STREAM_CLOSED, STREAM_NEXT_OFFSET, STREAM_UP_TO_DATE, is_true
from gateway.protocol.offsets import NOW, START, is_before, is_sentinel, is_well_formed
from gateway.protocol.surrogate import surrogate_keys
from gateway.tape.library import Library
from gateway.tape.stream import End, Stream
from gateway.tasks import Tasks
from gateway.tracing import NO_TRACER, Tracer
from gateway.upstream.client import Client, Reply
from gateway.upstream.flight import Flight, Foreign, Head, Refusal, StreamHead, as_seen_by
from gateway.upstream.source import Source

METADATA = "?metadata"
"""The place of a HEAD among a stream's flights; no offset can look like it."""

_KINDS = {METADATA: "metadata", NOW: "tail"}
_REFUSAL_BYTES = 1 << 16
_RETRY_DELAY_S = (0.05, 0.15)
_RETRIED = frozenset({502, 503, 504})
_NO_HEAD = frozenset({405, 501})
_PERSONAL = frozenset({400, 401, 403, 407, 431})
"""Refusals that may be about the credentials shown."""


class FlightDeck:
    """Launches flights and keeps those in the air.  Owner of the pending table; runs one task a flight."""

    def __init__(
        self,
        client: Client,
        library: Library,
        clock: Clock,
        tasks: Tasks,
        recorder: Recorder,
        rng: random.Random,
        max_flight_bytes: int,
        on_end: Callable[[Stream, End], None],
        tracer: Tracer = NO_TRACER,
        journal: Journal = UNKEPT,
    ) -> None:
        self._client = client
        self._library = library
        self._clock = clock
        self._tasks = tasks
        self._recorder = recorder
        self._rng = rng
        self._max_flight_bytes = max_flight_bytes
        self._on_end = on_end
        self._tracer = tracer
        self._journal = journal
        self._pending: dict[tuple[Stream, str], Flight] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def keep_bytes(self) -> int:
        """Most bytes that a flight launched now may bring to be kept: never more than half of the cache."""
        return min(self._max_flight_bytes, max(1, self._library.budget_bytes // 2))

    def flights(self) -> Iterator[tuple[Stream, Flight]]:
        """Every flight that is the latest of its place, with the stream that it is for."""
        return ((stream, flight) for (stream, _), flight in self._pending.items())

    def pending(self, stream: Stream, start: str) -> Flight | None:
        """The latest flight for what lies after `start`, if one is not over."""
        flight = self._pending.get((stream, start))
        if flight is None or flight.is_over or (flight.is_sent and _is_overtaken(stream, flight)):
            return None
        return flight

    def join(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Flight, bool]:
        """A flight that has not been sent yet, and whether it was launched now.

        Where one has been sent and is not over, the caller should have waited for it (`settle`); this launches its
        replacement.
        """
        flight = self.pending(stream, start)
        if flight is not None and not flight.is_sent:
            flight.span.joined()
            note_fetch(flight, leads=False)
            return flight, False
        flight = Flight(start, self.keep_bytes)
        flight.incarnation = stream.tape.incarnation
        flight.is_passing = self._library.is_shunned(stream)
        flight.span = self._tracer.flight(_KINDS.get(start, "bytes"))
        note_fetch(flight, leads=True)
        self._pending[stream, start] = flight
        stream.pins += 1
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
        self._library.release(stream)

    def _hand_over(self, stream: Stream, flight: Flight, source: Source) -> None:
        """Tell of what no record is left to take."""
        requests, fetched = flight.requests - flight.accounted_requests, flight.fetched - flight.accounted
        if not flight.holders and (requests or fetched):
            flight.accounted_requests, flight.accounted = flight.requests, flight.fetched
            place = Place.of(stream.key.route, source.target, stream.key.partition)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._journal.unclaimed(place, mode, requests=requests, fetched_bytes=fetched)

    async def head_within(self, flight: Flight, patience_s: float) -> Head | None:
        """A watched flight's head; None when it hung longer than `patience_s` after it was sent."""
        flight.span.joined()
        note_fetch(flight, leads=False)
        while flight.head is None:
            left = flight.sent_at + patience_s - self._clock.now()
            if left <= 0 or not await flight.changed.wait_within(self._clock, left):
                return flight.head
        return flight.head

    async def settle(self, stream: Stream, start: str, route: Route) -> Flight | None:
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
            if not _is_overtaken(stream, flight) or stream.ended is not None:
                return as_seen_by(found, source.headers), size

    async def _flown(self, stream: Stream, start: str, route: Route, source: Source) -> tuple[Head, Flight]:
        stale = await self.settle(stream, start, route)
        if stale is not None and isinstance(stale.head, StreamHead) and stream.tape.knows_after(start):
            # Its bytes are here: only what has come behind them since is still to be asked for.
            start = stale.head.next_offset
        flight, _ = self.join(stream, start, route, source)
        flight.watch()
        try:
            await flight.until_known()
            # Before the unwatching: with that, what is too large to be kept and has no other riders is given up.
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
            if flight.head is not None or is_last:
                flight.fail(error)
                return
            route.retries.retry()
            self._recorder.retry(route.config.name)
            await pause(self._clock, self._rng.uniform(*_RETRY_DELAY_S))

    async def _attempt(
        self, stream: Stream, flight: Flight, route: Route, source: Source, is_last: bool
    ) -> GatewayError | None:
        """One exchange with the origin; None when the flight is over, else why it is not."""
        is_metadata = flight.start == METADATA
        mode = Mode.HEAD if is_metadata else Mode.CATCHUP
        url = source.url(None if is_metadata else flight.start)
        asked_at = self._clock.now()
        has_seen = stream.tape.has_seen(flight.start)
        is_token = flight.start not in (METADATA, NOW, START)
        flight.incarnation = stream.tape.incarnation
        known = _Known(stream.tape.tail, stream.tape.closed_at, has_seen, has_seen and is_token, stream.doubts)
        name = route.config.name
        self._recorder.upstream_request(mode, name)
        flight.requests += 1
        try:
            async with await self._client.send(
                "HEAD" if is_metadata else "GET", url, source.headers, source.bounds
            ) as reply:
                self._recorder.upstream_head(mode, reply.status, self._clock.now() - asked_at, name)
                if reply.status in _RETRIED and not is_last and "Retry-After" not in reply.headers:
                    return UpstreamUnavailable()
                head = await self._classify(stream, flight, route, source, reply, known)
                is_current = not _is_overtaken(stream, flight)
                is_token_refused = isinstance(head, Refusal) and head.status == 400 and known.is_origins_own
                if is_token_refused and is_current and await self._is_welcome(flight, source, name):
                    # The origin does not know a token that it gave out itself: this is another stream.
                    raise TailMovedBack
                if not isinstance(head, StreamHead):
                    if is_current:
                        self._settle(stream, flight, head)
                    flight.announce(head)
                    return None
                if is_metadata:
                    await reply.read(0)
                    flight.announce(head, 0)
                    flight.land()
                    return None
                stream.contacted_at = max(stream.contacted_at, asked_at)
                stream.settled_doubts = max(stream.settled_doubts, known.doubts)
                await self._take_body(stream, flight, head, reply, name)
                return None
        except TailMovedBack as error:
            if not _is_overtaken(stream, flight) and self._library.drop(stream, End.RECREATED):
                self._on_end(stream, End.RECREATED)
            flight.fail(error)
            return None
        except GatewayError as error:
            self._recorder.upstream_failure(mode, type(error).__name__, name)
            return error

    async def _is_welcome(self, flight: Flight, source: Source, route: str) -> bool:
        """Whether the origin takes the source's requests at all, so that a refusal must be about the offset."""
        for method, mode, offset in (("HEAD", Mode.HEAD, None), ("GET", Mode.CATCHUP, START)):
            self._recorder.upstream_request(mode, route)
            flight.requests += 1
            asked_at = self._clock.now()
            # Only the head is wanted: a body is dropped together with its connection.
            async with await self._client.send(method, source.url(offset), source.headers, source.bounds) as reply:
                self._recorder.upstream_head(mode, reply.status, self._clock.now() - asked_at, route)
                if method == "GET" or reply.status not in _NO_HEAD:
                    return reply.status in (200, 404, 410)
        return False

    async def _take_body(self, stream: Stream, flight: Flight, head: StreamHead, reply: Reply, route: str) -> None:
        start, end = flight.start, head.next_offset
        is_json = stream.tape.is_json
        unwrapper = ArrayUnwrapper() if is_json else None
        flight.announce(head, reply.content_length, is_verbatim=not is_json)
        try:
            async for chunk in reply.chunks():
                self._recorder.upstream_bytes(len(chunk), Mode.CATCHUP, route)
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
        elif flight.is_kept and not _is_overtaken(stream, flight):
            if flight.is_passing and not stream.has_topic:
                # For those who ride on it, and nobody else.
                self._library.pass_over(flight.size)
            else:
                self._library.lay(stream, start, end, flight.kept, self._clock.now())
        flight.land()

    async def _classify(
        self, stream: Stream, flight: Flight, route: Route, source: Source, reply: Reply, known: _Known
    ) -> Head:
        """What the origin's answer is to those who share it; facts about the stream are recorded on the way."""
        headers = reply.headers
        if reply.status >= 400:
            if flight.start == METADATA and reply.status in _NO_HEAD:
                return Foreign("no HEAD")
            refusal = await self._refusal(reply, route, source)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._recorder.upstream_bytes(len(refusal.body), mode, route.config.name)
            flight.fetched += len(refusal.body)
            return refusal
        if reply.status == 304:
            raise UpstreamBroken
        if reply.status != 200:
            return Foreign(f"status {reply.status}")
        offset = headers.get(STREAM_NEXT_OFFSET)
        if offset is None:
            return Foreign("no Stream-Next-Offset")
        if not is_well_formed(offset) or is_sentinel(offset):
            raise UpstreamBroken
        if why := self._why_not_shared(flight, route, reply):
            return Foreign(why)
        tape = stream.tape
        content_type = headers.get("Content-Type")
        if content_type is None and flight.start != METADATA:
            # Bytes need a type to be laid by; metadata that names none teaches none.
            content_type = stream.content_type or DEFAULT_TYPE
        is_closed = is_true(headers.get(STREAM_CLOSED))
        is_fetch = flight.start not in (METADATA, NOW)
        place = flight.start if is_fetch else START
        # Where the tail itself was asked for, one before what was reached is another stream's.
        if is_fetch and not known.has_seen and is_before(offset, flight.start):
            # A client's own idea of an offset, beyond the tail: the origin's answer is for that client alone.
            return Foreign("offset beyond the tail", is_lasting=False)
        if _is_overtaken(stream, flight):
            if content_type is not None and not stream.learn_type(content_type):
                raise TailMovedBack
            return StreamHead(offset, is_closed or not is_fetch or is_true(headers.get(STREAM_UP_TO_DATE)), is_closed)
        tape.check(flight.start if is_fetch else known.tail or START, offset, has_bytes=False)
        up_to_date = is_closed or not is_fetch or is_true(headers.get(STREAM_UP_TO_DATE))
        if up_to_date and known.tail is not None:
            tape.check(known.tail, offset, has_bytes=False)
        has_reopened = not is_closed and known.closed_at is not None and (not is_fetch or known.closed_at == offset)
        if has_reopened or (content_type is not None and not stream.learn_type(content_type)):
            raise TailMovedBack
        if not stream.learn_identity(stream_identity(headers, place, offset)):
            raise TailMovedBack
        tape.reached(offset, is_short=not up_to_date, is_closed=is_closed)
        stream.headers = storable_headers(headers)
        self._library.tag(stream, surrogate_keys(headers))
        if flight.start == METADATA:
            stream.lifetime = lifetime_from_headers(headers)
        else:
            cache_control = ", ".join(headers.getall("Cache-Control", [])) or None
            stream.is_verbatim = "no-transform" in parse_cache_control(cache_control)
            if not up_to_date:
                stream.cache_control = headers.get("Cache-Control")
        return StreamHead(offset, up_to_date, is_closed)

    def _why_not_shared(self, flight: Flight, route: Route, reply: Reply) -> str | None:
        headers = reply.headers
        if not reply.is_delimited:
            return "no length"
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            return "encoded"
        if flight.start in (METADATA, NOW):
            return None
        if "Set-Cookie" in headers:
            return "cookie"
        cache_control = parse_cache_control(", ".join(headers.getall("Cache-Control", [])) or None)
        if forbids_storing(cache_control):
            return "Cache-Control"
        vary = ", ".join(headers.getall("Vary", [])) or None
        allow_origin = None if route.config.cors is not None else headers.get("Access-Control-Allow-Origin")
        if not vary_allows_sharing(vary, route.config.credential_headers, allow_origin):
            return "Vary"
        return None

    async def _refusal(self, reply: Reply, route: Route, source: Source) -> Refusal:
        headers = response_headers_for_client(reply.headers, node=route.node, http_version="1.1")
        for name in ("Content-Length", "Content-Encoding", "ETag", "Set-Cookie"):
            headers.popall(name, None)
        body = b""
        if "Content-Encoding" not in reply.headers:
            try:
                body = await reply.read(_REFUSAL_BYTES)
            except UpstreamBroken:
                body = b""
        # Elsewhere all who share show the same credentials.
        is_personal = route.config.credentials == "shared" and reply.status in _PERSONAL
        return Refusal(reply.status, headers, body, source.headers if is_personal else None)

    def _settle(self, stream: Stream, flight: Flight, head: Head) -> None:
        """What an answer without bytes does to the stream."""
        match head:
            case Refusal(status=404):
                if self._library.drop(stream, End.DELETED):
                    self._on_end(stream, End.DELETED)
            case Refusal(status=410):
                # Trimmed, or softly deleted: which of the two the follower will see.
                self._library.forget_bytes(stream)
            case Foreign() if flight.start == METADATA:
                stream.lifetime = lifetime_from_headers({})
            case Refusal(status=status, asker=None) if flight.start == METADATA and status < 500 and status != 429:
                # An origin that refuses HEAD for good is not asked before every read.
                stream.lifetime = lifetime_from_headers({})
            case _:
                pass


def _is_overtaken(stream: Stream, flight: Flight) -> bool:
    """Whether bytes of the stream were forgotten since the flight was sent, so that it may bring those very ones."""
    return stream.tape.incarnation != flight.incarnation


def _result(flight: Flight) -> tuple[str, int | None]:
    """How a flight ended, in a word, and the status that those who shared it are told by it."""
    match flight.error or flight.head:
        case GatewayError() as error:
            return "failed", error.status
        case Refusal() as refusal:
            return "refused", refusal.status
        case Foreign():
            return "foreign", None
        case _:
            return "landed", 200


@dataclass(frozen=True, slots=True)
class _Known:
    """What was known when a request was sent: only that may be held against its answer, since the tape moves on."""

    tail: str | None
    closed_at: str | None
    has_seen: bool
    """Whether the asked offset was one that the origin had named."""
    is_origins_own: bool
    """The same, for offsets that are no sentinel and no place of the gateway's own."""
    doubts: int
