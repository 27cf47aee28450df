"""Classifies an origin's reply for the readers that share it, and records what it says about the stream.

A reply is part of a stream (bytes to store, and the tail), an origin error for all readers that asked, or not
shareable: for one client alone, because it is personal (`gateway.protocol.sharing`), encoded, of unknown length, or
outside the protocol.  A reply is compared with what was known *when it was requested*, because the tape moves on
meanwhile.  A tail that has moved back, a closed stream that is open again, another content type or another identity
mean another stream under the same name.

An error requested before a write was acknowledged may predate the write: it answers the readers that wait for it and
ends nothing.  An overtaken reply, whose stream's bytes were forgotten while it was on its way, answers the readers that
wait for it and teaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.aio.clock import Clock
from gateway.engine.route import Route
from gateway.errors import TailMovedBack, UpstreamBroken
from gateway.protocol.etag import stream_identity
from gateway.protocol.forwarded_headers import Headers, response_headers_for_client
from gateway.protocol.freshness import Lifetime, lifetime_from_headers, lifetime_here
from gateway.protocol.mode import Mode
from gateway.protocol.names import (
    DEFAULT_TYPE,
    STREAM_CLOSED,
    STREAM_UP_TO_DATE,
    is_true,
)
from gateway.protocol.offsets import NOW, START, is_before, is_sentinel, is_well_formed, stated_offset
from gateway.protocol.stream_key import Group
from gateway.protocol.stream_version import Version
from gateway.protocol.surrogate import surrogate_keys
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import METADATA, Beyond, Flight, Head, NotShareable, OriginError, StreamHead
from gateway.upstream.reply import Reply
from gateway.upstream.source import Source

NO_HEAD = frozenset({405, 501})
"""The statuses of an origin that does not implement HEAD."""
_MAX_ERROR_BYTES = 1 << 16
_EMPTY_BYTES = 16
"""A body longer than this is not empty, whatever its whitespace."""
PERSONAL = frozenset({400, 401, 403, 407, 431})
"""Statuses that may be due to the reader's credentials."""
_ALL_PERSONAL: Final = PERSONAL | {404, 410}
"""These and the statuses by which an origin hides a stream."""
BEYOND_TAIL: Final = NotShareable("offset beyond the tail", is_lasting=False)
"""Bytes after an offset that the stream does not reach.  The client invented it, or has it from another stream."""


class TapeFacts(NamedTuple):
    """What was known when a request was sent: its reply is compared with this, because the tape moves on."""

    tail: str | None
    closed_at: str | None
    has_seen: bool
    """Whether the origin had named the requested offset."""
    is_origin_token: bool
    """The same, but False for sentinels and for offsets that the gateway uses internally."""
    identity: str | None
    version: Version
    asked_at: float
    """When it was sent, in Unix seconds."""

    @classmethod
    def of(cls, stream: Stream, start: str, wall: float) -> TapeFacts:
        """The facts for a request for the bytes after `start`, which is sent now, at `wall` (Unix seconds)."""
        tape, has_seen = stream.tape, stream.tape.has_seen(start)
        is_token = start not in (METADATA, NOW, START)
        return cls(
            tape.tail,
            tape.closed_at,
            has_seen,
            has_seen and is_token,
            stream.identity,
            stream.version,
            wall,
        )


class ReplyClassifier:
    """Classifies replies and records what they say.  Has no state of its own."""

    def __init__(
        self,
        store: TapeStore,
        clock: Clock,
        metrics: MetricsRecorder,
        on_end: Callable[[Stream, End], None],
        on_stale: Callable[[Stream], None],
        on_short: Callable[[Stream], None],
        is_written: Callable[[Group], bool],
    ) -> None:
        """`on_short` is called when the origin names a tail that lacks what was acknowledged; it may forget what is
        held.  `is_written` tells whether a write to a path is under way."""
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._on_end = on_end
        self._on_stale = on_stale
        self._on_short = on_short
        self._is_written = is_written

    async def head(
        self, stream: Stream, flight: Flight, route: Route, source: Source, reply: Reply, facts: TapeFacts
    ) -> Head:
        """Classify a reply before its body is read and record what its head says about the stream.

        Raises UpstreamBroken if the protocol does not allow the reply, TailMovedBack if it belongs to another stream
        than the known one.
        """
        headers, config = reply.headers, route.config
        if reply.status >= 400:
            if flight.start == METADATA and reply.status in NO_HEAD:
                return NotShareable("no HEAD")
            if (alone := route.why_refusal_alone(reply.status, headers)) is not None:
                return alone
            if route.varies_by_origin(headers):
                self._store.vary_by_origin(stream)
            error = await _read_error(reply, route, source)
            mode = Mode.HEAD if flight.start == METADATA else Mode.CATCHUP
            self._metrics.upstream_bytes(len(error.body), mode, route.config.name)
            flight.fetched += len(error.body)
            return error
        if reply.status == 304:
            raise UpstreamBroken
        if reply.status != 200:
            return NotShareable("status")
        offset = stated_offset(headers)
        if offset is None:
            return NotShareable("no Stream-Next-Offset")
        if not is_well_formed(offset) or is_sentinel(offset):
            raise UpstreamBroken
        if why := _why_not_delimited(reply):
            return NotShareable(why)
        is_fetch = flight.start not in (METADATA, NOW)
        if (alone := route.why_alone(headers, is_stored=is_fetch)) is not None:
            if flight.start == METADATA and not _may_be_of_predecessor(stream, facts):
                # It is shown to no other reader, and bounds for how long other replies are.
                stream.expiry.know(self._lifetime(headers, facts))
                stream.head_headers = None
            return alone
        tape = stream.tape
        content_type = headers.get("Content-Type")
        if content_type is None and flight.start != METADATA:
            # Storing bytes needs a content type; metadata without one says nothing about it.
            content_type = stream.content_type or DEFAULT_TYPE
        is_closed = is_true(headers.get(STREAM_CLOSED))
        asked = flight.start if is_fetch else START
        # Where the tail was requested, an offset before a reached one belongs to another stream.
        is_beyond = is_fetch and not facts.has_seen and is_before(offset, flight.start)
        if is_beyond and not await _is_empty(reply):
            # The bytes lead to no later offset: the answer is for this client alone.
            return BEYOND_TAIL
        up_to_date = is_closed or not is_fetch or is_true(headers.get(STREAM_UP_TO_DATE))
        if (
            up_to_date
            and facts.version.same_acks_as(stream.version)
            and stream.lacks_acknowledged(offset, is_closed=is_closed)
        ):
            self._on_short(stream)
        if is_overtaken(stream, flight):
            if content_type is not None and not stream.learn_type(content_type):
                raise TailMovedBack
            return Beyond(offset, up_to_date, is_closed) if is_beyond else StreamHead(offset, up_to_date, is_closed)
        if not is_beyond:
            tape.check(flight.start if is_fetch else facts.tail or START, offset, has_bytes=False)
        if up_to_date and facts.tail is not None:
            tape.check(facts.tail, offset, has_bytes=False)
        has_reopened = not is_closed and facts.closed_at is not None and (not is_fetch or facts.closed_at == offset)
        if has_reopened or (content_type is not None and not stream.learn_type(content_type)):
            raise TailMovedBack
        if not stream.learn_identity(stream_identity(headers, asked, offset)):
            raise TailMovedBack
        if is_closed and tape.closed_at is None:
            stream.lost_tail()
        tape.reached(offset, is_short=not up_to_date, is_closed=is_closed)
        if up_to_date:
            stream.read_up_to_tail(facts.version, offset)
        if config.credentials == "shared":
            stream.was_found_by(source.asker)
        if route.varies_by_origin(headers):
            self._store.vary_by_origin(stream)
        stream.record_headers(headers)
        stream.origins_named_at = self._clock.now()
        self._store.tag(stream, surrogate_keys(headers))
        if flight.start != METADATA:
            stream.caching.record(headers, up_to_date=up_to_date)
        elif not _may_be_of_predecessor(stream, facts):
            stream.record_head(headers, self._lifetime(headers, facts))
        if is_beyond and not self._is_written(stream.key.group):
            stream.beyond.record(flight.start)
        self._store.weigh(stream)
        if is_beyond:
            return Beyond(offset, up_to_date, is_closed)
        return StreamHead(offset, up_to_date, is_closed)

    def _lifetime(self, headers: Headers, facts: TapeFacts) -> Lifetime:
        """The lifetime that the answer to a HEAD states, by this machine's clock."""
        return lifetime_here(lifetime_from_headers(headers), headers, facts.asked_at, self._clock.wall())

    def apply(self, stream: Stream, flight: Flight, source: Source, head: Head, facts: TapeFacts) -> None:
        """Apply a reply without bytes to the stream."""
        tells_lifetime = flight.start == METADATA and not _may_be_of_predecessor(stream, facts)
        match head:
            case OriginError(status=404 | 410):
                self._missing(stream, flight, source, head.status, facts)
            case NotShareable() if flight.start == METADATA:
                if tells_lifetime:
                    stream.expiry.not_told()
            case NotShareable(is_personal=True):
                stream.mark_stale()
            case OriginError(status=status, request_headers=None) if tells_lifetime and status < 500 and status != 429:
                # An origin that permanently refuses HEAD must not be asked before every read.
                stream.expiry.not_told()
            case _:
                pass

    def _missing(self, stream: Stream, flight: Flight, source: Source, status: int, facts: TapeFacts) -> None:
        """The origin has answered 404 or 410."""
        # A 410 for an offset may concern that offset alone, even if no later one is known.  The next request without an
        # offset, or for a later one, shows whether it concerns the stream.
        may_be_trimmed = status == 410 and flight.start not in (METADATA, NOW)
        if stream.is_hidden_from(source.asker):
            # The live readers' own request shows whether it is gone, and so does the next request of each other.
            stream.mark_stale()
            if not may_be_trimmed:
                self._on_stale(stream)
        elif is_outdated(stream, flight):
            # A write acknowledged since then found the stream: the next request shows what is true now.
            stream.mark_stale()
            self._on_stale(stream)
        elif may_be_trimmed:
            if facts.has_seen or flight.start == START:
                # An origin trims from the front, so it has nothing before either.
                self._store.forget_through(stream, flight.start)
            stream.mark_stale()
            if flight.start == facts.tail:
                self._on_stale(stream)
        else:
            why = End.GONE if status == 410 else End.DELETED
            if self._store.drop(stream, why):
                self._on_end(stream, why)


def is_overtaken(stream: Stream, flight: Flight) -> bool:
    """Whether the stream's bytes were forgotten after the flight was sent, so that it may carry those very bytes."""
    return not flight.version.same_incarnation_as(stream.version)


def is_outdated(stream: Stream, flight: Flight) -> bool:
    """Whether a write was acknowledged, or may have been done, after the flight was sent, so that what the flight did
    not find may exist now."""
    return not flight.version.same_writes_as(stream.version)


def _may_be_of_predecessor(stream: Stream, facts: TapeFacts) -> bool:
    """Whether the stream may have been replaced since the request was sent; its answer then says nothing of the
    lifetime."""
    return facts.version.may_have_ended_by(stream.version)


async def _is_empty(reply: Reply) -> bool:
    try:
        return (await reply.read(_EMPTY_BYTES)).strip() in (b"", b"[]")
    except UpstreamBroken:
        return False


def _why_not_delimited(reply: Reply) -> str | None:
    """Why a body is not the stream's own bytes with a known end; None if it is."""
    if not reply.is_delimited:
        return "no length"
    if reply.headers.get("Content-Encoding", "identity").lower() != "identity":
        return "encoded"
    return None


async def _read_error(reply: Reply, route: Route, source: Source) -> OriginError:
    headers = response_headers_for_client(reply.headers, node=route.node, http_version="1.1")
    for name in ("Content-Length", "Content-Encoding", "ETag", "Set-Cookie"):
        headers.popall(name, None)
    body = b""
    if "Content-Encoding" not in reply.headers:
        try:
            body = await reply.read(_MAX_ERROR_BYTES)
        except UpstreamBroken:
            body = b""
    # Under the other policies all readers that share a fetch have the same credentials.
    is_personal = route.config.credentials == "shared" and reply.status in _ALL_PERSONAL
    varies = route.varies_by_origin(reply.headers)
    return OriginError(reply.status, headers, body, source.headers if is_personal else None, varies)
