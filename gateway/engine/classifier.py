"""Classifies an origin's reply for the readers that share it, and applies it to the stream in memory.

A reply is one of three things.  It is part of a stream, with bytes to store and perhaps the tail.  Or it is an error
for all readers that wait for it.  Or it may not be shared, because it is personal (`gateway.protocol.sharing`), coded,
of unknown length, or outside the protocol.

A reply is compared with the state of the stream when the request was sent, because the tape may have grown since.  Any
of these differences shows that another stream now has the same name: an earlier tail, a closed stream that is open
again, another content type, another identity.

`classify` is pure: it turns the head of a reply and the facts of its request into a meaning.  `ReplyRecorder` then
changes the stream's record, and returns the effect on the live readers, which the fetch carries out.

Two kinds of reply are out of date, and only answer the readers that wait for them.  An error that was requested before
a write was acknowledged may predate the write, so it does not end the stream.  A reply is *overtaken* if the stream's
bytes were dropped after it was requested; it changes nothing in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from gateway.aio.clock import Clock
from gateway.engine.manner import Manner
from gateway.engine.route import Route
from gateway.engine.writes import Writes
from gateway.errors import TailMovedBack, UpstreamBroken
from gateway.http.reply_lines import FieldLine, ReplyShape
from gateway.protocol.etag import stream_identity
from gateway.protocol.forwarded_headers import Headers, response_headers_for_client
from gateway.protocol.freshness import Lifetime, freshness_from_headers, lifetime_from_headers, lifetime_here
from gateway.protocol.names import DEFAULT_TYPE, NOW, START, is_before, is_sentinel, is_well_formed, stated_offset
from gateway.protocol.sharing import Ground
from gateway.protocol.stream_version import Version
from gateway.tape.origin_statements import Sighting
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.upstream.call import Source
from gateway.upstream.flight import METADATA, Beyond, Flight, NotShareable, OriginError, StreamHead
from gateway.upstream.reply import Reply

NO_HEAD = frozenset({405, 501})
"""Statuses by which an origin shows that it does not implement HEAD."""
_MAX_ERROR_BYTES = 1 << 16
_EMPTY_BYTES = 16
"""A longer body counts as non-empty, even if it is all whitespace."""
PERSONAL = frozenset({400, 401, 403, 407, 431})
"""Statuses that may depend on the reader's credentials."""
_ALL_PERSONAL: Final = PERSONAL | {404, 410}
"""`PERSONAL`, and the statuses by which an origin hides a stream."""
BEYOND_TAIL: Final = NotShareable("offset beyond the tail", is_lasting=False)
"""The reply to an offset beyond the tail.  The client has made up the offset, or has it from another stream."""


class TapeFacts(NamedTuple):
    """The state of the stream when a request was sent, with which its reply is compared."""

    tail: str | None
    closed_at: str | None
    has_seen: bool
    """Whether the origin had stated the requested offset before."""
    is_origin_token: bool
    """Like `has_seen`, but False for sentinels and for the gateway's internal offsets."""
    identity: str | None
    version: Version
    asked_at: float
    """When the request was sent, in Unix seconds."""

    @classmethod
    def of(cls, stream: Stream, start: str, wall: float) -> TapeFacts:
        """Return the facts for a request that asks, at `wall` (Unix seconds), for the bytes after `start`."""
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


class ReplyHead(Protocol):
    """The parts of a reply that decide its meaning."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def is_delimited(self) -> bool:
        """Whether the reply states where its body ends."""

    @property
    def shape(self) -> ReplyShape | None:
        """The header lines that the reply shares with others; None if the head was not parsed line by line."""

    @property
    def own(self) -> Sequence[FieldLine]:
        """The header lines that the reply does not share."""


class SharedRefusal(NamedTuple):
    """The meaning of an error that all readers share."""


class Learned(NamedTuple):
    """The meaning of a reply that is part of the stream."""

    start: str
    """The requested offset, `NOW` or `METADATA`."""
    offset: str
    """The offset after the reply's bytes, or the tail if the request was for `NOW` or `METADATA`."""
    up_to_date: bool
    """Whether `offset` is the tail."""
    is_closed: bool
    is_beyond: bool
    """Whether the requested offset is after `offset`."""
    headers: Headers
    manner: Manner
    lifetime: Lifetime | None
    """The stream's lifetime by this machine's clock, if the request was for metadata."""

    @property
    def is_fetch(self) -> bool:
        """Whether the request was for the bytes after an offset."""
        return self.start not in (METADATA, NOW)

    def head(self) -> StreamHead | Beyond:
        """Return the head for the readers of the flight."""
        made = Beyond if self.is_beyond else StreamHead
        return made(self.offset, self.up_to_date, self.is_closed)


class Personal(NamedTuple):
    """The meaning of a reply that is part of the stream but may be shown to one reader only."""

    why: NotShareable
    lifetime: Lifetime | None
    """The lifetime by this machine's clock, if the request was for metadata.  It limits how long the stream's other
    replies may be repeated."""


def classify(
    start: str, reply: ReplyHead, route: Route, facts: TapeFacts, wall: float
) -> Learned | Personal | NotShareable | SharedRefusal:
    """Classify the reply to a request for `start`.  `wall` is the present time (Unix seconds).  Changes nothing.

    Raises UpstreamBroken if the protocol does not allow the reply.
    """
    headers, is_metadata = reply.headers, start == METADATA
    if reply.status >= 400:
        if is_metadata and reply.status in NO_HEAD:
            return NotShareable("no HEAD")
        return route.why_refusal_alone(reply.status, headers) or SharedRefusal()
    if reply.status == 304:
        raise UpstreamBroken
    if reply.status != 200:
        return NotShareable("status")
    offset = stated_offset(headers)
    if offset is None:
        return NotShareable("no Stream-Next-Offset")
    if not is_well_formed(offset) or is_sentinel(offset):
        raise UpstreamBroken
    if not reply.is_delimited:
        return NotShareable("no length")
    manner = route.manners.manner_of(headers, reply.shape, reply.own)
    if manner.is_coded:
        return NotShareable("encoded")
    is_fetch = start not in (METADATA, NOW)
    lifetime = lifetime_here(lifetime_from_headers(headers), headers, facts.asked_at, wall) if is_metadata else None
    ground = manner.ground if is_fetch else manner.ground_unstored
    if ground is not None:
        return Personal(NotShareable(ground, is_personal=True), lifetime)
    is_closed = manner.is_closed
    # For a request for the tail, `_learn` detects a tail that has moved back.
    is_beyond = is_fetch and not facts.has_seen and is_before(offset, start)
    up_to_date = is_closed or not is_fetch or manner.is_up_to_date
    return Learned(start, offset, up_to_date, is_closed, is_beyond, headers, manner, lifetime)


class SentFetch(Protocol):
    """A fetch whose request was sent, reduced to the parts that `ReplyRecorder` uses."""

    stream: Stream
    flight: Flight
    route: Route
    source: Source
    facts: TapeFacts
    asked_at: float
    """When the request was sent (monotonic seconds)."""


class Effect(StrEnum):
    """The effect of a reply on the stream's live readers, which the fetch carries out."""

    REFOLLOW = "refollow"
    """Restart the live request, because the stream may have ended or may have been re-created."""
    END_READERS = "end readers"
    """End the live readers, because the stream has ended.  Its record states the reason."""


class Applied(NamedTuple):
    """The result of applying a reply."""

    head: StreamHead | Beyond | NotShareable | OriginError
    """The outcome for the readers of the flight."""
    effect: Effect | None = None
    tail: str | None = None
    """The tail of the open stream, if the reply states it."""


class ReplyRecorder:
    """Applies replies to their streams.  Keeps no state of its own."""

    def __init__(self, store: TapeStore, clock: Clock, writes: Writes) -> None:
        self._store = store
        self._clock = clock
        self._writes = writes

    def apply(self, fetch: SentFetch, meaning: Learned | Personal | NotShareable | OriginError) -> Applied:
        """Apply a reply to its stream.

        The reply of an overtaken flight changes nothing; only its content type is compared.  Raises TailMovedBack if
        the reply belongs to another stream than the known one.
        """
        stream, flight, facts = fetch.stream, fetch.flight, fetch.facts
        if isinstance(meaning, Learned):
            return self._apply_part(fetch, meaning)
        if isinstance(meaning, Personal):
            meaning, lifetime = meaning
            if lifetime is not None and not _may_be_of_predecessor(stream, facts):
                # This reply may not be shown to others, but its lifetime still limits how long their replies are
                # cached.
                stream.expiry.know(lifetime)
                stream.head_headers = None
        return Applied(meaning, None if is_overtaken(stream, flight) else self._apply_refusal(fetch, meaning))

    def _apply_part(self, fetch: SentFetch, learned: Learned) -> Applied:
        stream, flight, facts, asked_at = fetch.stream, fetch.flight, fetch.facts, fetch.asked_at
        head, tail = learned.head(), None
        if is_overtaken(stream, flight):
            content_type = _content_type(stream, learned)
            if content_type is not None and not stream.learn_type(content_type):
                raise TailMovedBack
        else:
            self._learn(fetch, learned)
            if facts.version.same_acks_as(stream.version):
                tail = _record_tail(fetch, learned)
            if learned.is_beyond and learned.up_to_date:
                # The stated tail is not before the known one, so the stream is still the same.
                stream.contacted(asked_at)
                stream.revalidated(facts.version)
        if learned.start != METADATA and not learned.is_beyond:
            stream.contacted(asked_at)
            stream.revalidated(facts.version)
        return Applied(head, None, tail)

    def _learn(self, fetch: SentFetch, learned: Learned) -> None:
        """Apply the facts stated by a reply that is part of the stream.  Raises TailMovedBack."""
        stream, route, facts, tape = fetch.stream, fetch.route, fetch.facts, fetch.stream.tape
        start, offset, up_to_date, is_closed, is_beyond, headers, manner, lifetime = learned
        is_fetch, content_type = learned.is_fetch, _content_type(stream, learned)
        if not is_beyond:
            tape.check(start if is_fetch else facts.tail or START, offset, has_bytes=False)
        if up_to_date and facts.tail is not None:
            tape.check(facts.tail, offset, has_bytes=False)
        has_reopened = not is_closed and facts.closed_at is not None and (not is_fetch or facts.closed_at == offset)
        if has_reopened or (content_type is not None and not stream.learn_type(content_type)):
            raise TailMovedBack
        if not stream.learn_identity(stream_identity(headers, start if is_fetch else START, offset)):
            raise TailMovedBack
        if is_closed and tape.closed_at is None:
            stream.lost_tail()
        tape.reached(offset, is_short=not up_to_date, is_closed=is_closed)
        if up_to_date:
            stream.read_up_to_tail(facts.version, offset)
        if route.is_shared:
            stream.was_found_by(fetch.source.asker)
        if manner.varies_by_origin:
            route.notice(Ground.ORIGIN, headers)
            self._store.vary_by_origin(stream)
        stream.record_headers(manner.headers)
        stream.origins_named_at = self._clock.now()
        if manner.surrogate_keys:
            self._store.tag(stream, manner.surrogate_keys)
        if lifetime is None:
            stream.caching.record(manner.cache_control, manner.reuse, up_to_date=up_to_date)
        elif not _may_be_of_predecessor(stream, facts):
            stream.record_head(headers, lifetime)
        if is_beyond and not self._writes.is_under_way(stream.key.group):
            stream.beyond.record(start)
        self._store.weigh(stream)

    def _apply_refusal(self, fetch: SentFetch, head: NotShareable | OriginError) -> Effect | None:
        """Apply a reply that is not part of the stream."""
        stream, is_metadata = fetch.stream, fetch.flight.start == METADATA
        tells_lifetime = is_metadata and not _may_be_of_predecessor(stream, fetch.facts)
        match head:
            case OriginError(status=404 | 410):
                return self._missing(fetch, head.status)
            case NotShareable() if is_metadata:
                if tells_lifetime:
                    stream.expiry.not_told()
            case NotShareable(is_personal=True):
                stream.mark_stale()
            case OriginError(status=status, request_headers=None) if tells_lifetime and status < 500 and status != 429:
                # Do not ask again before every read if the origin always refuses HEAD.
                stream.expiry.not_told()
            case _:
                pass
        return None

    def _missing(self, fetch: SentFetch, status: int) -> Effect | None:
        """Apply a 404 or 410."""
        stream, flight, facts = fetch.stream, fetch.flight, fetch.facts
        # The origin may have trimmed only this offset, even if no later one is known.  The next request without an
        # offset, or for a later one, shows whether the whole stream is gone.
        may_be_trimmed = status == 410 and flight.start not in (METADATA, NOW)
        if stream.is_hidden_from(fetch.source.asker):
            # The stream may be hidden from this reader only.  The live request, or other readers' requests, will show
            # it.
            stream.mark_stale()
            return None if may_be_trimmed else Effect.REFOLLOW
        if is_outdated(stream, flight):
            # A write acknowledged after the request found the stream.  The next request shows whether it still exists.
            stream.mark_stale()
            return Effect.REFOLLOW
        if may_be_trimmed:
            if facts.has_seen or flight.start == START:
                # Origins trim from the front, so all bytes before this offset are gone.
                self._store.forget_through(stream, flight.start)
            stream.mark_stale()
            return Effect.REFOLLOW if flight.start == facts.tail else None
        return (
            Effect.END_READERS if self._store.drop_stream(stream, End.GONE if status == 410 else End.DELETED) else None
        )

    def apply_another(self, fetch: SentFetch) -> Effect | None:
        """Handle a reply of another stream than the one in memory: end the record in memory.

        The record stays if it may already belong to the later of the two streams.
        """
        stream, flight = fetch.stream, fetch.flight
        if is_overtaken(stream, flight):
            return None
        if fetch.facts.identity is None and stream.identity is not None and is_outdated(stream, flight):
            # The record learned its identity after the request was sent, so it may belong to the later stream.
            stream.mark_stale()
            return Effect.REFOLLOW
        return Effect.END_READERS if self._store.drop_stream(stream, End.RECREATED) else None


def _content_type(stream: Stream, learned: Learned) -> str | None:
    """Return the content type that a reply implies; None if it implies none."""
    content_type = learned.manner.content_type
    if content_type is None and learned.start != METADATA:
        # Stored bytes need a content type.  Metadata without one leaves the type open.
        return stream.content_type or DEFAULT_TYPE
    return content_type


def _record_tail(fetch: SentFetch, learned: Learned) -> str | None:
    """Record the tail of an open stream if the reply states it, and how long it may be repeated; return the tail or
    None."""
    if not learned.up_to_date or learned.is_closed:
        return None
    route, tail, asked_at = fetch.route, learned.offset, fetch.asked_at
    if route.heard_s:
        fresh = freshness_from_headers(learned.headers)
        fresh_s = max(route.config.tail_fresh_s, fresh.fresh_s)
        if fresh_s or fresh.stale_s:
            stale_until = asked_at + fresh_s + fresh.stale_s
            fetch.stream.saw_tail(Sighting(tail, asked_at, asked_at + fresh_s, stale_until))
    return tail


def is_overtaken(stream: Stream, flight: Flight) -> bool:
    """Return whether the stream's bytes were dropped after the flight was sent, so that its bytes may be those."""
    seen, now = flight.version, stream.version
    return seen is not now and not seen.same_incarnation_as(now)


def is_outdated(stream: Stream, flight: Flight) -> bool:
    """Return whether a write was acknowledged, or may have been done, after the flight was sent.

    The stream may then have bytes, or exist, although the flight did not find them.
    """
    return not flight.version.same_writes_as(stream.version)


def _may_be_of_predecessor(stream: Stream, facts: TapeFacts) -> bool:
    """Return whether the stream may have been re-created since the request was sent.

    The reply then does not show the lifetime of the present stream.
    """
    return facts.version.may_have_ended_by(stream.version)


async def is_empty(reply: Reply) -> bool:
    """Return whether the body of a reply contains no bytes of the stream."""
    try:
        return (await reply.read(_EMPTY_BYTES)).strip() in (b"", b"[]")
    except UpstreamBroken:
        return False


async def read_error(reply: Reply, route: Route, source: Source) -> OriginError:
    """Read the body of an error reply, to be shared by the flight's readers."""
    headers = response_headers_for_client(reply.headers, node=route.node, http_version="1.1")
    for name in ("Content-Length", "Content-Encoding", "ETag", "Set-Cookie"):
        headers.popall(name, None)
    body = b""
    if "Content-Encoding" not in reply.headers:
        try:
            body = await reply.read(_MAX_ERROR_BYTES)
        except UpstreamBroken:
            body = b""
    # Under the other credential policies, all readers of a fetch have the same credentials.
    is_personal = route.is_shared and reply.status in _ALL_PERSONAL
    varies = route.varies_by_origin(reply.headers)
    return OriginError(reply.status, headers, body, source.headers if is_personal else None, varies)
