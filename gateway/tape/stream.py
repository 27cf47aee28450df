"""One stream as one credential partition sees it: its tape, and what is known beside the bytes.

The record lives exactly as long as one incarnation is believed in.  When it `ended`, whoever still holds it must not
answer from it; a request that comes later opens a new one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from multidict import CIMultiDict

from gateway.protocol.forwarding import Headers, storable_headers
from gateway.protocol.freshness import Lifetime, lifetime_from_headers, parse_cache_control
from gateway.protocol.names import STREAM_EXPIRES_AT, STREAM_TTL, is_json, is_sse_text
from gateway.protocol.offsets import is_before
from gateway.protocol.stream_key import StreamKey
from gateway.tape.tape import Tape

ASKS_AT_ONCE = 3
"""So many reads in a row may ask for a tail before that counts as often."""

MOST_STRANGERS = 16

MOST_BEYOND = 16
"""Offsets behind its tail that are remembered of one stream."""


class End(StrEnum):
    """Why a stream record is no longer believed in."""

    DELETED = "deleted"
    GONE = "gone"
    EXPIRED = "expired"
    RECREATED = "re-created"
    PURGED = "purged"
    EVICTED = "evicted"

    @property
    def status(self) -> int:
        """The HTTP status that a reader waiting on the ended stream is given."""
        return 410 if self is End.GONE else 404


class Sighting(NamedTuple):
    """The origin's word on where the stream's tail is, and for how long it may be repeated (monotonic seconds).

    Until `fresh_until` an answer may say that it ends at the tail; until `stale_until` bytes up to there may be given
    without saying so, while the origin is asked again (RFC 5861 §3).
    """

    at: str
    seen_at: float
    """When the request was sent, or the live request heard from, that told it."""
    fresh_until: float
    stale_until: float = -math.inf


class Edition(NamedTuple):
    """Which bytes of a stream were read: those held before some were let go are not those held since."""

    incarnation: str
    forgotten: int


@dataclass(slots=True, eq=False)
class Stream:
    """One incarnation.  Owner: the `TapeStore`; the engine writes what it learns from the origin."""

    key: StreamKey
    tape: Tape
    content_type: str | None = None
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    """End-to-end headers of the origin's replies that are repeated on hits (CORS, nosniff, …)."""
    cache_control: str | None = None
    """What the origin says to caches of a reply that stops short of the tail; None when it says nothing."""
    is_verbatim: bool = False
    """Whether the origin forbids its bytes to be coded on their way (`no-transform`, RFC 9111 §5.2.2.6)."""
    identity: str | None = None
    """The origin's own name for the incarnation, where its ETag carries one."""
    lifetime: Lifetime | None = None
    """None until a HEAD or a PUT told it: no answer is given without the origin before that."""
    contacted_at: float = 0.0
    """When the origin was last read or written (monotonic seconds): renews a sliding TTL there."""
    used_at: float = 0.0
    """When it was last used, as the `TapeStore` counts uses (monotonic seconds)."""
    is_followed: bool = False
    """Whether a live read of it is open at the origin."""
    acked: str | None = None
    """The furthest tail that a write acknowledged through this gateway has named."""
    is_close_acked: bool = False
    """Whether a write acknowledged through this gateway has closed the stream."""
    acks: int = 0
    """How many writes were acknowledged through this gateway."""
    acked_by: str = ""
    """The query of the latest of them that went further, or closed the stream."""
    strangers: set[str] = field(default_factory=set)
    """Queries that have proved to name other streams at this path, `MOST_STRANGERS` at most: their writes say nothing
    here."""
    sighting: Sighting | None = None
    """Where the origin last said that the tail is; None where nothing it said still holds."""
    tail_turns: int = 0
    """How often what may be said of the tail has changed: an answer that names the tail is good for one turn."""
    tail_asks: float = 0.0
    """Level of a leaky bucket into which each read that asks for the tail goes."""
    tail_asked_at: float = 0.0
    """When it was filled last (monotonic seconds)."""
    beyond: dict[str, None] = field(default_factory=dict)
    """Offsets that the origin takes for ones behind its tail, as long as the tail has not come past them; the oldest
    first, `MOST_BEYOND` at most."""
    head_headers: CIMultiDict[str] | None = None
    """End-to-end headers of the origin's latest answer to a HEAD, beside those that `headers` and the tape tell."""
    stale_marks: int = 0
    """How often something happened after which the origin is asked before what is held is believed."""
    ended_mark: int = 0
    """The latest of these that may have ended the stream, and not only moved its tail."""
    cleared_marks: int = 0
    """How many of these came before the latest request that still found it."""
    surrogate_keys: frozenset[str] = frozenset()
    """The origin's names for groups that the stream is in; set by `TapeStore.tag` alone, which keeps their index."""
    tagged_as: str = ""
    """The tape's incarnation that they were named for."""
    reads: int = 0
    """Requests answered as this stream, of all modes that read; a live one counts when it begins."""
    hits: int = 0
    """How many of these were answered without the origin."""
    sent_bytes: int = 0
    """Bytes of bodies handed to its clients' connections."""
    forgotten: int = 0
    """How often bytes of it were dropped, or those made of them called back: who keeps something made of bytes that he
    read before the latest time keeps what may not be true any more."""
    ended: End | None = None
    has_topic: bool = False
    """Whether there are live readers of it, or were a moment ago: what they are to be sent has to be laid."""
    pins: int = 0
    """Holders that need this very record to stay the one of its key: live topics, flights."""

    # -- what happened

    def pin(self) -> None:
        """A holder needs this record to stay the one of its key; `TapeStore.release` is owed."""
        self.pins += 1

    def count_reads(self, reads: int, hits: int) -> None:
        """So many reads were answered as this stream, so many of these without the origin."""
        self.reads += reads
        self.hits += hits

    def count_sent(self, size: int) -> None:
        """So many body bytes were handed to clients' connections."""
        self.sent_bytes += size

    def used(self, at: float) -> None:
        """It was read, or opened for a read, at this time (monotonic seconds)."""
        self.used_at = at

    def contacted(self, at: float) -> None:
        """The origin was asked for the stream at this time, which renews a sliding TTL (monotonic seconds)."""
        self.contacted_at = max(self.contacted_at, at)

    def mark_stale(self, *, may_have_ended: bool = True) -> None:
        """Something happened that may have ended the stream, or only moved its tail: the origin is asked before
        anything more is believed."""
        self.stale_marks += 1
        if may_have_ended:
            self.ended_mark = self.stale_marks

    def may_be_another(self) -> None:
        """A write may have ended the stream and begun another in its place, with a lifetime of its own."""
        self.mark_stale()
        self.lifetime = None
        self.head_headers = None

    def revalidated(self, stale_marks: int) -> None:
        """A request that was sent after so many stale marks has found the stream."""
        self.cleared_marks = max(self.cleared_marks, stale_marks)

    def followed(self) -> None:
        """A live request at the origin has said where the tail is."""
        self.is_followed = True
        self.tail_turns += 1

    def unfollowed(self, at: float) -> None:
        """The live request has ended: a sliding TTL runs from here on (monotonic seconds)."""
        if self.is_followed:
            self.is_followed = False
            self.contacted(at)

    def record_headers(self, headers: Headers) -> None:
        """Take what an answer of any kind says to be repeated on hits."""
        self.headers = storable_headers(headers)

    def record_lifetime(self, headers: Mapping[str, str]) -> None:
        """Take the lifetime that headers announce; headers without any announce an unlimited one."""
        self.lifetime = lifetime_from_headers(headers)

    def record_head(self, headers: Headers) -> None:
        """Take what an answer to a HEAD says beside what every answer says."""
        self.record_lifetime(headers)
        self.head_headers = CIMultiDict(
            [
                (name, value)
                for name in (STREAM_TTL, STREAM_EXPIRES_AT, "Last-Modified")
                for value in headers.getall(name, ())
            ]
        )

    def record_caching(self, headers: Headers, *, up_to_date: bool) -> None:
        """Take what an answer to a read says to caches."""
        cache_control = ", ".join(headers.getall("Cache-Control", [])) or None
        self.is_verbatim = "no-transform" in parse_cache_control(cache_control)
        if not up_to_date:
            self.cache_control = headers.get("Cache-Control")

    def called_back(self) -> None:
        """Bytes of it were dropped, or answers made of them must not be given any more."""
        self.forgotten += 1

    # -- what is known

    @property
    def is_closing(self) -> bool:
        """Whether an acknowledged write has closed the stream, and its end has not come here yet."""
        return self.is_close_acked and self.tape.closed_at is None

    @property
    def edition(self) -> Edition:
        """What is read from the tape now, to be taken before the first of it is."""
        return Edition(self.tape.incarnation, self.forgotten)

    @property
    def write_turn(self) -> tuple[int, int]:
        """Another one after each write that was acknowledged or may have been done.  A refusal that was asked for at
        another turn may be of before the write, and says nothing of the stream as it is now."""
        return self.acks, self.stale_marks

    @property
    def needs_revalidation(self) -> bool:
        """Whether the origin is to be asked before anything held is given."""
        return self.stale_marks > self.cleared_marks

    @property
    def may_have_ended(self) -> bool:
        """Whether nothing held is to be given unless the origin still has the stream: not even where it cannot say."""
        return self.ended_mark > self.cleared_marks

    def learn_type(self, content_type: str) -> bool:
        """Take the stream's content type; False when it contradicts what was known."""
        if self.content_type is None:
            self.content_type = content_type
            self.tape.is_json = is_json(content_type)
            return True
        return is_json(content_type) == is_json(self.content_type) and is_sse_text(content_type) == is_sse_text(
            self.content_type
        )

    def learn_identity(self, identity: str | None) -> bool:
        """Take the origin's name for the incarnation; False when it is another one than before."""
        if identity is None or self.identity is None:
            self.identity = self.identity or identity
            return True
        return identity == self.identity

    def acknowledged(self, tail: str, *, is_closed: bool, query: str) -> None:
        """A write to this path, with `query`, that ended at `tail` was acknowledged to a client."""
        if query in self.strangers:
            return
        if self.acked is None or is_before(self.acked, tail) or is_closed:
            self.acked, self.acked_by = max(self.acked or tail, tail), query
        self.is_close_acked |= is_closed
        self.acks += 1
        self.tail_turns += 1

    def acknowledged_somewhere(self) -> None:
        """A write was acknowledged to a client, in an answer that names no offset."""
        self.acks += 1
        self.lost_tail()

    def saw_acknowledged(self, acks: int, tail: str) -> None:
        """A request that was sent after so many acknowledgements has shown the stream up to its tail.

        Where that is short of what was acknowledged, the write was to another stream of the same path: what a path
        names may depend on the credentials and on the query.
        """
        if acks != self.acks or self.acked is None:
            return
        is_short = is_before(tail, self.acked) or self.is_closing
        if is_short and self.acked_by != self.key.query and len(self.strangers) < MOST_STRANGERS:
            self.strangers.add(self.acked_by)
        self.acked, self.is_close_acked = None, False

    def holds_acknowledged(self, token: str) -> bool:
        """Whether everything acknowledged through this gateway lies before `token`."""
        return not self.is_closing and (self.acked is None or not is_before(token, self.acked))

    def saw_tail(self, sighting: Sighting) -> None:
        """The origin has said where the tail is.  One sighting never takes the place of one further on or later."""
        known = self.sighting
        if known is not None and (is_before(sighting.at, known.at) or sighting.seen_at < known.seen_at):
            return
        if known is None or known.at != sighting.at:
            self.tail_turns += 1
            for offset in [offset for offset in self.beyond if not is_before(sighting.at, offset)]:
                del self.beyond[offset]
        self.sighting = sighting

    def lost_tail(self) -> None:
        """Nothing that the origin said of the tail holds any more."""
        self.sighting = None
        self.tail_turns += 1

    def tail_until(self, at: str) -> float:
        """Until when a reader that has everything before `at` may be told that it is up to date, without asking the
        origin (monotonic seconds); in the past where that may not be said."""
        known, tape = self.sighting, self.tape
        if known is None or tape.resolve(known.at) != at or not self.holds_acknowledged(at) or self.needs_revalidation:
            return -math.inf
        if tape.tail is not None and is_before(at, tape.resolve(tape.tail)):
            # A look or a write has named a tail further on.
            return -math.inf
        return known.fresh_until

    def tail_asked(self, now: float, per_s: float) -> bool:
        """A read asks for the tail; whether that happens more often than `per_s` times a second (a leaky bucket that
        holds `ASKS_AT_ONCE`)."""
        self.tail_asks = max(0.0, self.tail_asks - (now - self.tail_asked_at) * per_s) + 1
        self.tail_asked_at = now
        if self.tail_asks <= ASKS_AT_ONCE:
            return False
        self.tail_asks = ASKS_AT_ONCE
        return True

    def took_for_beyond(self, offset: str) -> None:
        """The origin has taken `offset` for one behind its tail."""
        self.beyond[offset] = None
        if len(self.beyond) > MOST_BEYOND:
            del self.beyond[next(iter(self.beyond))]

    def lies_beyond(self, offset: str) -> bool:
        """Whether the origin has taken `offset` for one behind its tail, and the tail known here is before it still."""
        return offset in self.beyond and self.tape.tail is not None and is_before(self.tape.tail, offset)

    def has_expired(self, now: float, wall: float) -> bool:
        """Whether the origin may have let the stream go: its absolute end has passed, or a sliding TTL went by
        without a read or write there.  An open live read keeps a sliding TTL from running."""
        life = self.lifetime
        if life is None:
            return False
        if life.expires_at is not None and wall >= life.expires_at:
            return True
        return life.ttl_s is not None and not self.is_followed and now - self.contacted_at >= life.ttl_s

    def may_answer_alone(self, now: float, trust_s: float) -> bool:
        """Whether a hit may be given without the origin: the lifetime is known, and the stream is trusted."""
        return self.lifetime is not None and self.is_trusted(now, trust_s)

    def is_trusted(self, now: float, trust_s: float) -> bool:
        """Whether the stream is taken to be there, and the same: no doubt is open, the origin was seen within
        `trust_s`, and a sliding TTL is not half spent (hits do not renew it there, so a busy stream must be seen to be
        read)."""
        return not self.needs_revalidation and (self.is_followed or now < self.trusted_until(now, trust_s))

    def trusted_until(self, now: float, trust_s: float) -> float:
        """Until when that stays so, whatever becomes of its live read, unless a doubt comes up (monotonic seconds)."""
        ttl_s = self.lifetime.ttl_s if self.lifetime is not None else None
        bound = trust_s if ttl_s is None else min(trust_s, ttl_s / 2)
        return (now if self.is_followed else self.contacted_at) + bound
