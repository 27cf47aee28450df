"""Applies the meaning of an origin's reply to the stream in memory.

A reply is compared with the state that the stream had when the request was sent, because the tape (the stream's bytes
in memory) may have grown since then.  Each of these differences shows that another stream now has the same name: an
earlier tail, a closed stream that is open again, another content type, another identity.

`ReplyRecorder` changes the stream's record.  It returns the effect on the live readers, and the fetch carries out this
effect.

Two kinds of reply are out of date.  Such a reply answers only the readers that wait for it.  First, an error reply is
out of date if its request was sent before a write was acknowledged.  The origin may have sent the error before it
executed the write, so the error does not end the stream.  Second, a reply is *overtaken* if the stream's bytes were
dropped after the request was sent.  An overtaken reply changes nothing in memory.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, Protocol

from multidict import CIMultiDict

from gateway.aio.clock import Clock
from gateway.engine.reply_classifier import Learned, Personal, TapeFacts
from gateway.engine.route import Route
from gateway.errors import TailMovedBack
from gateway.protocol.etag import stream_identity
from gateway.protocol.freshness_headers import freshness_from_headers
from gateway.protocol.names import DEFAULT_TYPE, NOW, START, is_before
from gateway.protocol.sharing import Ground
from gateway.protocol.worker_headers import HopSaid, Remembered
from gateway.tape.origin_statements import Sighting
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.tuples import make
from gateway.upstream.flight import METADATA, Beyond, Flight, NotShareable, OriginError, StreamHead
from gateway.upstream.origin_call import Source


class SentFetch(Protocol):
    """The parts of a fetch that `ReplyRecorder` uses.  The request of the fetch has been sent.  The flight is the reply
    that readers share."""

    stream: Stream
    flight: Flight
    route: Route
    source: Source
    facts: TapeFacts
    asked_at: float
    """The time at which the request was sent (monotonic seconds)."""


class Effect(StrEnum):
    """The effect of a reply on the stream's live readers.  The fetch carries out this effect."""

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

    def __init__(self, store: TapeStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def apply(self, fetch: SentFetch, meaning: Learned | Personal | NotShareable | OriginError) -> Applied:
        """Apply a reply to its stream.

        The reply of an overtaken flight changes nothing; only its content type is compared.  Raises TailMovedBack if
        the reply does not belong to the known stream.
        """
        stream, flight, facts = fetch.stream, fetch.flight, fetch.facts
        if isinstance(meaning, Learned):
            return self._apply_part(fetch, meaning)
        if isinstance(meaning, Personal):
            meaning, lifetime = meaning
            is_earlier = _may_be_of_predecessor(stream, facts) or is_overtaken(stream, flight)
            if lifetime is not None and not is_earlier:
                # This reply may not be sent to other clients.  But its lifetime is the stream's lifetime, and limits
                # the caching for other clients too.
                stream.expiry.know(lifetime)
                stream.head_headers = None
        return Applied(meaning, None if is_overtaken(stream, flight) else self._apply_refusal(fetch, meaning))

    def _apply_part(self, fetch: SentFetch, learned: Learned) -> Applied:
        stream, facts, asked_at, tail = fetch.stream, fetch.facts, fetch.asked_at, None
        if (said := facts.said) is not None and stream.own_record().has_dropped_bytes(said):
            # The owner's bytes may have belonged to another stream.  This worker's bytes come from the owner, so drop
            # them.  Record the new name of the owner's bytes at once: this reply is overtaken now and changes nothing
            # else, and the next reply must not cause another drop of the bytes.
            self._store.forget_bytes(stream)
            stream.lose_metadata()
            stream.own_record().learn(said, stream.version.incarnation)
        if is_overtaken(stream, fetch.flight):
            content_type = _content_type(stream, learned)
            if content_type is not None and not stream.learn_type(content_type):
                raise TailMovedBack
        else:
            self._learn(fetch, learned)
            if learned.up_to_date and not learned.is_closed and facts.version.same_acks_as(stream.version):
                tail = _record_tail(fetch, learned)
            if learned.is_beyond and learned.up_to_date:
                # The stated tail is not before the known tail, so the stream is still the same.
                stream.contacted(asked_at)
                if said is None or not said.is_stale:
                    stream.revalidated(facts.version)
        if learned.start != METADATA and not learned.is_beyond:
            stream.contacted(asked_at)
            if said is None or not said.is_stale:
                stream.revalidated(facts.version)
        return make(Applied, (learned.head(), None, tail))

    def _learn(self, fetch: SentFetch, learned: Learned) -> None:
        """Apply the metadata from a reply that is part of the stream.  Raises TailMovedBack."""
        stream, route, facts, tape = fetch.stream, fetch.route, fetch.facts, fetch.stream.tape
        start, offset, up_to_date, is_closed, is_beyond, headers, manner, lifetime = learned
        is_fetch, content_type = start not in (METADATA, NOW), _content_type(stream, learned)
        if not is_beyond:
            tape.check(start if is_fetch else facts.tail or START, offset, has_bytes=False)
        if up_to_date and facts.tail is not None:
            tape.check(facts.tail, offset, has_bytes=False)
        has_reopened = not is_closed and facts.closed_at is not None and (not is_fetch or facts.closed_at == offset)
        if facts.said is not None and facts.said.is_stale:
            # The origin fails, so the owner's answer does not show whether a closed stream is open again.
            has_reopened = False
        if has_reopened or (content_type is not None and not stream.learn_type(content_type)):
            raise TailMovedBack
        if facts.said is not None:
            is_same = stream.learn_owner(facts.said)
            if facts.said.lifetime is not None and not _may_be_of_predecessor(stream, facts):
                stream.expiry.stated_by_owner(facts.said.lifetime)
        else:
            is_same = stream.learn_identity(stream_identity(headers, start if is_fetch else START, offset))
        if not is_same:
            raise TailMovedBack
        if is_closed and tape.closed_at is None and (tape.tail is not None or stream.sighting is not None):
            stream.lost_tail()
        # A reply to a read beyond the tail ends at the tail, and says nothing about the stream's bytes.
        ends_at_tail = up_to_date or is_beyond
        is_short = not ends_at_tail and not (facts.said is not None and facts.said.is_tail_unknown)
        tape.reached(offset, is_short=is_short, is_closed=is_closed)
        if up_to_date:
            stream.read_up_to_tail(facts.version, offset)
            if facts.said is None and "Age" not in headers and "Cache-Status" not in headers:
                # Neither another worker nor a cache has answered, but the origin.  A cache such as another gateway
                # states no age for the tail of a stream that it follows, though it may know an append later.
                stream.origin_stated_tail(offset, fetch.asked_at)
        if route.is_shared:
            stream.was_found_by(fetch.source.asker)
        if manner.varies_by_origin:
            route.notice(Ground.ORIGIN, headers)
            self._store.vary_by_origin(stream)
        stream.record_headers(manner.headers)
        stream.origins_named_at = self._clock.now()
        if manner.surrogate_keys:
            self._store.tag(stream, manner.surrogate_keys)
        if lifetime is not None:
            if not _may_be_of_predecessor(stream, facts):
                stream.record_head(headers, lifetime)
        elif not is_beyond:
            stream.caching = manner.caching_after(stream.caching, up_to_date=up_to_date)
        stream.is_weighed = False

    def apply_remembered(self, fetch: SentFetch, said: HopSaid, remembered: Remembered) -> None:
        """Apply the metadata from the memory of the stream's owner, another worker, while the origin fails.

        The metadata is from the owner's last contact with the origin, and does not show the current tail.  Raises
        TailMovedBack if the metadata belongs to another stream.
        """
        stream = fetch.stream
        if is_overtaken(stream, fetch.flight) or stream.ended is not None:
            return
        if stream.own_record().has_dropped_bytes(said):
            self._store.forget_bytes(stream)
            stream.lose_metadata()
        tape, tail, is_new = stream.tape, remembered.tail, stream.content_type is None
        if not stream.learn_type(remembered.content_type) or not stream.learn_owner(said):
            raise TailMovedBack
        if said.lifetime is not None and not _may_be_of_predecessor(stream, fetch.facts):
            stream.expiry.stated_by_owner(said.lifetime)
        if tail is not None and (tape.tail is None or not is_before(tail, tape.tail)):
            tape.check(tape.tail or START, tail, has_bytes=False)
            tape.reached(tail, is_closed=remembered.is_closed)
        if is_new:
            if remembered.varies_by_origin:
                self._store.vary_by_origin(stream)
            stream.record_headers(CIMultiDict(remembered.headers))
            if remembered.surrogate_keys:
                self._store.tag(stream, frozenset(remembered.surrogate_keys))
            # Use the time of the owner's last contact instead of the time at which this worker created its record.
            stream.contacted_at = remembered.contacted_at
        stream.contacted(remembered.contacted_at)
        if not remembered.is_doubted:
            stream.revalidated(fetch.facts.version)
        stream.is_weighed = False

    def _apply_refusal(self, fetch: SentFetch, head: NotShareable | OriginError) -> Effect | None:
        """Apply a reply that is not part of the stream."""
        stream, is_metadata = fetch.stream, fetch.flight.start == METADATA
        tells_lifetime = is_metadata and not _may_be_of_predecessor(stream, fetch.facts)
        match head:
            case OriginError(status=404 | 410):
                return self._missing(fetch, head.status)
            case NotShareable() if is_metadata:
                if not tells_lifetime:
                    pass
                elif (said := fetch.facts.said) is None:
                    stream.expiry.not_told()
                elif said.lifetime is not None:
                    # The owner, another worker, knows the lifetime from a reply that may not be shared.
                    stream.expiry.stated_by_owner(said.lifetime)
            case NotShareable(is_personal=True):
                stream.mark_stale()
            case OriginError(status=status, request_headers=None) if tells_lifetime and status < 500 and status != 429:
                # If the origin always refuses HEAD, do not send another HEAD before every read.
                stream.expiry.not_told()
            case _:
                pass
        return None

    def _missing(self, fetch: SentFetch, status: int) -> Effect | None:
        """Apply a 404 or 410."""
        stream, flight, facts = fetch.stream, fetch.flight, fetch.facts
        # The origin may have trimmed only this offset, even if no later offset is known.  A later request without an
        # offset, or for a later offset, will show whether the whole stream is gone.
        may_be_trimmed = status == 410 and flight.start not in (METADATA, NOW)
        if stream.is_hidden_from(fetch.source.asker):
            # The stream may be hidden from this reader only.  The live request, or other readers' requests, will show
            # whether the stream exists.
            stream.mark_stale()
            if facts.said is None and not may_be_trimmed:
                self._store.tell_ended(stream.key, was_known=stream.is_known, is_certain=False)
            return None if may_be_trimmed else Effect.REFOLLOW
        if is_outdated(stream, flight):
            # A write was acknowledged after the request was sent, so the stream existed then.  The next request shows
            # whether the stream still exists.
            stream.mark_stale()
            return Effect.REFOLLOW
        if may_be_trimmed:
            if facts.has_seen or flight.start == START:
                # Origins trim from the front, so all bytes before this offset are gone.
                self._store.forget_through(stream, flight.start)
            stream.mark_stale()
            return Effect.REFOLLOW if flight.start == facts.tail else None
        # If the stream's owner has answered, it has informed the other workers itself.
        why = End.GONE if status == 410 else End.DELETED
        has_ended = self._store.drop_stream(stream, why, is_by_origin=facts.said is None)
        return Effect.END_READERS if has_ended else None

    def apply_another(self, fetch: SentFetch) -> Effect | None:
        """End the record in memory, because a reply belongs to another stream.

        If the record may already belong to the later of the two streams, the record is kept.
        """
        stream, flight = fetch.stream, fetch.flight
        if is_overtaken(stream, flight):
            return None
        if fetch.facts.identity is None and stream.identity is not None and is_outdated(stream, flight):
            # The record's identity was stated after the request was sent, so the record may belong to the later stream.
            stream.mark_stale(may_be_another=True)
            return Effect.REFOLLOW
        said = fetch.facts.said
        is_purged = said is not None and self._store.others is not None and stream.is_of_dropped_record(said)
        why = End.PURGED if is_purged else End.RECREATED
        has_ended = self._store.drop_stream(stream, why, is_by_origin=said is None)
        return Effect.END_READERS if has_ended else None


def _content_type(stream: Stream, learned: Learned) -> str | None:
    """Return the content type that a reply implies; None if it implies none."""
    content_type = learned.manner.content_type
    if content_type is None and learned.start != METADATA:
        # Stored bytes need a content type.  After metadata without a content type, the type stays unknown.
        return stream.content_type or DEFAULT_TYPE
    return content_type


def _record_tail(fetch: SentFetch, learned: Learned) -> str:
    """Record the tail that the reply states for an open stream, and the time for which this tail may be repeated.
    Return the tail."""
    route, tail, asked_at = fetch.route, learned.offset, fetch.asked_at
    if route.heard_s:
        fresh = freshness_from_headers(learned.headers)
        fresh_s = max(route.config.tail_fresh_s, fresh.fresh_s)
        if fresh_s or fresh.stale_s:
            stale_until = asked_at + fresh_s + fresh.stale_s
            fetch.stream.saw_tail(Sighting(tail, asked_at, asked_at + fresh_s, stale_until))
    return tail


def is_overtaken(stream: Stream, flight: Flight) -> bool:
    """Return whether the stream's bytes were dropped after the flight was sent.  The flight's reply may contain the
    dropped bytes."""
    seen, now = flight.version, stream.version
    return seen is not now and not seen.same_incarnation_as(now)


def is_outdated(stream: Stream, flight: Flight) -> bool:
    """Return whether a write was acknowledged, or may have been executed, after the flight was sent.

    The flight may then have found no stream or no bytes although they exist now.
    """
    return not flight.version.same_writes_as(stream.version)


def _may_be_of_predecessor(stream: Stream, facts: TapeFacts) -> bool:
    """Return whether the stream may have been re-created since the request was sent.

    The reply then does not show the lifetime of the present stream.
    """
    return facts.version.may_have_ended_by(stream.version)
