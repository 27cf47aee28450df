"""One stream as one credential partition sees it: its tape, and the facts about the stream.

A record lives exactly as long as one incarnation of the stream is believed to exist.  Once it has `ended`, nothing may
be answered from it; a later request opens a new record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from multidict import CIMultiDict

from gateway.limits.memory import SharedBytes
from gateway.protocol.forwarded_headers import Headers
from gateway.protocol.freshness import Lifetime
from gateway.protocol.names import START, STREAM_EXPIRES_AT, STREAM_TTL, is_before, is_json, is_sse_text
from gateway.protocol.sharing import StreamKey
from gateway.protocol.stream_version import FIRST, Version
from gateway.tape.costs import headers_cost, key_cost, surrogate_keys_cost, texts_cost
from gateway.tape.origin_statements import (
    LEAST_AGE_S,
    LEAST_TTL_S,
    Caching,
    Confirmations,
    Expiry,
    FirstTail,
    OffsetsBeyond,
    Sighting,
)
from gateway.tape.tape import Tape

TAIL_READ_BURST = 3
"""Reads in a row that may ask for the tail before the rate limit applies."""

MAX_OTHER_QUERIES = 16

SEVERAL: Final = -1
"""Stands for several askers.  No hash is -1."""


class End(StrEnum):
    """Why a stream record has ended."""

    DELETED = "deleted"
    GONE = "gone"
    EXPIRED = "expired"
    RECREATED = "re-created"
    PURGED = "purged"
    EVICTED = "evicted"

    @property
    def status(self) -> int:
        """The HTTP status for a reader that waits on the ended stream."""
        return 410 if self is End.GONE else 404


@dataclass(slots=True, eq=False)
class Stream:
    """One incarnation.  Owner: the `TapeStore`; the engine records what it learns from the origin."""

    key: StreamKey
    tape: Tape
    version: Version = FIRST
    """The version.  Callers keep the version that they saw, and ask it later what has changed.  Only the methods below
    replace it."""
    content_type: str | None = None
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    """End-to-end headers of the origin's replies that hits repeat (CORS, nosniff, …)."""
    varies_by_origin: bool = False
    """Whether the stream is for requests without an Origin header: a reply of the origin has said that
    it depends on that header.  Bytes of that reply may be held, so no later reply changes that."""
    origins_named_at: float = -math.inf
    """When the latest reply to a shared read showed in `headers` which web origins it allows (monotonic seconds)."""
    caching: Caching = field(default_factory=Caching)
    """The origin's Cache-Control for the stream's bytes."""
    identity: str | None = None
    """The origin's own name for the incarnation, if its ETag carries one."""
    expiry: Expiry = field(default_factory=Expiry)
    """The stream's lifetime.  Until it is known, no hit is sent without asking the origin."""
    contacted_at: float = 0.0
    """When the stream was last read or written at the origin, which renews a sliding TTL there (monotonic seconds)."""
    confirmed: Confirmations = field(default_factory=Confirmations)
    """The offsets after which the origin has shown that it has the bytes."""
    used_at: float = 0.0
    """When the stream was last used, as the `TapeStore` counts uses (monotonic seconds)."""
    is_followed: bool = False
    """Whether a live request for the stream is open at the origin."""
    acked: str | None = None
    """The furthest tail named by a write acknowledged through this gateway."""
    is_close_acked: bool = False
    """Whether a write acknowledged through this gateway has closed the stream."""
    acked_by: str = ""
    """The query of the latest of these writes that advanced `acked` or closed the stream."""
    other_queries: frozenset[str] = frozenset()
    """Queries that name other streams at this path, at most `MAX_OTHER_QUERIES`.  Writes with these queries do not
    concern this stream."""
    sighting: Sighting | None = None
    """The latest valid sighting of the tail; None if none is valid."""
    tail_read_level: float = 0.0
    """The level of a leaky bucket filled by each read that asks for the tail."""
    tail_read_at: float = 0.0
    """When the bucket was last filled (monotonic seconds)."""
    beyond: OffsetsBeyond = field(default_factory=OffsetsBeyond)
    head_headers: CIMultiDict[str] | None = None
    """End-to-end headers of the origin's latest answer to a HEAD, besides what `headers` and the tape provide."""
    found_by: int | None = None
    """The asker to which the origin has shown the stream (`Source.asker`), or `SEVERAL`.  None if credentials are not
    shared: all readers that share the record are then one asker."""
    surrogate_keys: frozenset[str] = frozenset()
    """The origin's names for groups of streams; set only by `Paths.tag`, which keeps the index."""
    tagged_as: str = ""
    """The incarnation when the surrogate keys were set."""
    reads: int = 0
    """Reads of all modes that were answered from this record; a live read counts when it starts."""
    hits: int = 0
    """How many of these reads were answered without the origin."""
    sent_bytes: int = 0
    """Body bytes handed to clients' connections."""
    in_memory: SharedBytes | None = None
    """The account of the tape's bytes, until some of them are dropped; None if no answer refers to the bytes."""
    ended: End | None = None
    has_topic: bool = False
    """Whether the stream has live readers, or had some until a moment ago, so that its bytes must be stored."""
    is_awake: bool = True
    """Whether events of its path are applied to it at once (`gateway.tape.paths`)."""
    heard: int = 0
    """The number of events of its path that were applied so far, if they are not applied at once."""
    is_ranked: bool = False
    """Whether it is in the order of eviction; set only by the `TapeStore`."""
    holds: int = 0
    """The number of holders that need this record to stay the record of its key: live topics and flights."""
    facts_cost: int = 0
    """Bytes of the budget that the record took without its tape when it was last weighed; set only by the
    `TapeStore`."""

    def __repr__(self) -> str:
        state = self.ended or "in memory"
        return f"<Stream {self.key.group.path} {state}, {self.block_count} blocks, {self.holds} holds>"

    # -- what happened

    def hold(self) -> None:
        """Keep this record as the record of its key; the caller must call `TapeStore.release`."""
        self.holds += 1

    def count_reads(self, reads: int, hits: int) -> None:
        """Count reads answered from this record, and those of them without the origin."""
        self.reads += reads
        self.hits += hits

    def contacted(self, at: float) -> None:
        """Record that the origin was asked for the stream, which renews a sliding TTL there (monotonic seconds)."""
        self.contacted_at = max(self.contacted_at, at)

    def mark_stale(self, *, may_have_ended: bool = True) -> None:
        """Require revalidation: something may have ended the stream, or may have moved its tail."""
        self.version = self.version.doubted(may_have_ended=may_have_ended)

    def may_be_another(self) -> None:
        """A write may have ended the stream and begun another in its place, with a lifetime of its own."""
        self.mark_stale()
        self.expiry.lose()
        self.head_headers = None

    def revalidated(self, seen: Version) -> None:
        """Record that a request sent at the version `seen` found the stream."""
        self.version = self.version.settled_by(seen)

    def followed(self) -> None:
        """Record that a live request at the origin has reported the tail."""
        self.is_followed = True
        self.version = self.version.tail_changed()

    def unfollowed(self, at: float) -> None:
        """Record that the live request has ended: a sliding TTL runs from now on (monotonic seconds)."""
        if self.is_followed:
            self.is_followed = False
            self.contacted(at)

    def record_headers(self, headers: CIMultiDict[str]) -> None:
        """Record the headers that hits repeat.  Streams share them, so they must never change."""
        if self.varies_by_origin:
            # Caches between gateway and clients must also distinguish requests with an Origin header.
            headers = headers.copy()
            headers["Vary"] = "Origin"
        self.headers = headers

    def record_head(self, headers: Headers, lifetime: Lifetime) -> None:
        """Record what only the answer to a HEAD reports; `lifetime` is by this machine's clock."""
        self.expiry.know(lifetime)
        names = (STREAM_TTL, STREAM_EXPIRES_AT, "Last-Modified")
        self.head_headers = CIMultiDict([(name, value) for name in names for value in headers.getall(name, ())])

    def begin_incarnation(self, name: str) -> None:
        """Record that all bytes were forgotten.  Other bytes may follow at the same offsets, so they need other entity
        tags.  Only the `TapeStore` calls this."""
        self.version = self.version.incarnated(name)

    def withdrawn(self) -> None:
        """Record that bytes were dropped, or that data derived from them must not be used any more."""
        self.version = self.version.withdrawn()
        shared, self.in_memory = self.in_memory, None
        if shared is not None:
            shared.in_cache = False

    def shared_bytes(self) -> SharedBytes:
        """The account of the bytes that are read from the stream now."""
        shared = self.in_memory
        if shared is None:
            shared = self.in_memory = SharedBytes(0, in_cache=self.ended is None)
        shared.size = self.cost
        return shared

    # -- what is known

    @property
    def cost(self) -> int:
        """Bytes of the budget that the stream takes."""
        return self.tape.cost + self.facts_cost

    @property
    def block_count(self) -> int:
        """Blocks of bytes that are held."""
        return self.tape.block_count

    @property
    def furthest(self) -> str | None:
        """The furthest offset that the origin has named; None if there is none."""
        return self.tape.tail

    def drop_oldest(self) -> int:
        """Drop the oldest block; return the cost freed.  Only the `TapeStore` calls this."""
        return self.tape.drop_oldest()

    def drop_all(self) -> int:
        """Drop all bytes, and keep the facts; return the cost freed.  Only the `TapeStore` calls this."""
        return self.tape.drop_all()

    def weigh(self) -> int:
        """Bytes that the record takes now, without its tape: its key, and the text that it holds."""
        cost = key_cost(self.key) + headers_cost(self.headers)
        # Most streams have none of these, and the weight is taken for every stream that is begun.
        if self.caching.cache_control is not None or self.identity is not None:
            cost += texts_cost((self.caching.cache_control, self.identity))
        if self.head_headers:
            cost += headers_cost(self.head_headers)
        if self.surrogate_keys:
            cost += surrogate_keys_cost(self.surrogate_keys)
        if self.other_queries or self.beyond:
            cost += texts_cost((*self.other_queries, *self.beyond))
        return cost

    @property
    def is_closing(self) -> bool:
        """Whether an acknowledged write has closed the stream and its final bytes have not arrived yet."""
        return self.is_close_acked and self.tape.closed_at is None

    @property
    def needs_revalidation(self) -> bool:
        """Whether the origin must be asked before held bytes are used."""
        return self.version.needs_revalidation

    def learn_type(self, content_type: str) -> bool:
        """Record the content type; return False if it contradicts the known one."""
        if content_type == self.content_type:
            return True
        if self.content_type is None:
            self.content_type = content_type
            self.tape.is_json = is_json(content_type)
            return True
        return is_json(content_type) == is_json(self.content_type) and is_sse_text(content_type) == is_sse_text(
            self.content_type
        )

    def learn_identity(self, identity: str | None) -> bool:
        """Record the origin's name for the incarnation; return False if it differs from the known one."""
        if identity is None or self.identity is None:
            self.identity = self.identity or identity
            return True
        return identity == self.identity

    def acknowledged(self, tail: str, *, is_closed: bool, query: str) -> None:
        """Record that a write to this path with `query`, which ended at `tail`, was acknowledged to a client."""
        if query in self.other_queries:
            return
        if self.acked is None or is_before(self.acked, tail) or is_closed:
            self.acked, self.acked_by = max(self.acked or tail, tail), query
        self.is_close_acked |= is_closed
        self.version = self.version.acknowledged()

    def acknowledged_without_offset(self) -> None:
        """Record that a write was acknowledged to a client without its end offset."""
        self.sighting = None
        self.version = self.version.acknowledged()

    def read_up_to_tail(self, seen: Version, tail: str) -> None:
        """Record that a request sent at the version `seen` has read the stream up to its tail.

        If that tail is short of the acknowledged one, the write went to another stream at the same path: what a path
        names may depend on credentials and query.
        """
        if self.acked is None or not seen.same_acks_as(self.version):
            return
        is_short = is_before(tail, self.acked) or self.is_closing
        if is_short and self.acked_by != self.key.query and len(self.other_queries) < MAX_OTHER_QUERIES:
            self.other_queries |= {self.acked_by}
        self.forget_acknowledged()

    def forget_acknowledged(self) -> None:
        """Forget the ends of acknowledged writes, because the writes may have gone to another stream."""
        self.acked, self.is_close_acked = None, False

    def holds_acknowledged(self, token: str, is_closed: bool = False) -> bool:
        """Whether everything that was acknowledged, a close included, lies before `token`; `is_closed` says that the
        stream is closed there."""
        return (is_closed or not self.is_closing) and (self.acked is None or not is_before(token, self.acked))

    def is_still(self, first: FirstTail, at: str) -> bool:
        """Whether an answer may say that a reader which was named this tail, and has everything before `at`, is up to
        date.  It may if no write has been acknowledged or may have been done since, and no other reply has named a
        later tail."""
        tape = self.tape
        return (
            tape.resolve(first.at) == at
            and first.version.same_writes_as(self.version)
            and self.holds_acknowledged(at)
            and (tape.tail is None or not is_before(at, tape.resolve(tape.tail)))
        )

    def saw_tail(self, sighting: Sighting) -> None:
        """Record a sighting of the tail, unless the current one has a further tail or a later time."""
        current = self.sighting
        if current is not None and (is_before(sighting.at, current.at) or sighting.seen_at < current.seen_at):
            return
        if current is None or current.at != sighting.at:
            self.version = self.version.tail_changed()
            self.beyond.passed(sighting.at)
        self.sighting = sighting

    def lost_tail(self) -> None:
        """Invalidate the current sighting of the tail."""
        self.sighting = None
        self.version = self.version.tail_changed()

    def tail_until(self, at: str) -> float:
        """The time until which an answer may say, without asking the origin, that a reader with everything before `at`
        is up to date (monotonic seconds); in the past if no answer may say so."""
        seen, tape = self.sighting, self.tape
        if seen is None or tape.resolve(seen.at) != at or not self.holds_acknowledged(at) or self.needs_revalidation:
            return -math.inf
        if tape.tail is not None and is_before(at, tape.resolve(tape.tail)):
            # Another reply or a write has named a tail further on.
            return -math.inf
        return seen.fresh_until

    def count_tail_read(self, now: float, per_s: float) -> bool:
        """Count a read that asks for the tail; return whether such reads come more often than `per_s` times a second
        (a leaky bucket that holds `TAIL_READ_BURST`)."""
        self.tail_read_level = max(0.0, self.tail_read_level - (now - self.tail_read_at) * per_s) + 1
        self.tail_read_at = now
        if self.tail_read_level <= TAIL_READ_BURST:
            return False
        self.tail_read_level = TAIL_READ_BURST
        return True

    def forget_beyond(self) -> None:
        """Forget which offsets lie beyond the tail, and end answers that name the tail, because any offset may belong
        to the stream from now on."""
        if self.beyond:
            self.beyond.clear()
            self.version = self.version.tail_changed()

    def lies_beyond(self, offset: str) -> bool:
        """Whether the origin treated `offset` as beyond its tail, and the known tail is still before it."""
        return offset in self.beyond and self.tape.tail is not None and is_before(self.tape.tail, offset)

    def has_expired(self, now: float, wall: float) -> bool:
        """Whether the origin may have expired the stream.  An open live request keeps a sliding TTL from running
        there."""
        expiry = self.expiry
        # Checked first, because most streams have no expiry, and each join of a live read calls this.
        return expiry.is_limited and expiry.may_have_passed(None if self.is_followed else now - self.contacted_at, wall)

    def was_found_by(self, asker: int) -> None:
        """Record that the origin has shown the stream to this asker."""
        self.found_by = asker if self.found_by in (None, asker) else SEVERAL

    def is_hidden_from(self, asker: int) -> bool:
        """Whether the origin may show the stream to others if it answers this asker that there is no stream."""
        return self.found_by is not None and self.found_by != asker

    def may_have_expired(self, now: float) -> bool:
        """Whether the stream may have expired although its lifetime is not known.  No lifetime is shorter than a
        second."""
        return self.expiry.latest is None and not self.is_followed and now - self.contacted_at >= LEAST_TTL_S

    def outlasts_failure(self, now: float, wall: float) -> bool:
        """Whether held bytes may be sent although the origin fails.  As far as is known, the stream must not have
        ended, expired, or been replaced since its lifetime was learned."""
        is_over = self.ended is not None or self.version.may_have_ended or self.has_expired(now, wall)
        return not is_over and not self.expiry.is_lost

    def may_answer_alone(self, now: float, trust_s: float) -> bool:
        """Whether a hit may be sent without asking the origin, because the lifetime is known and the stream is
        trusted."""
        return self.expiry.lifetime is not None and self.is_trusted(now, trust_s)

    def is_trusted(self, now: float, trust_s: float) -> bool:
        """Whether the stream is assumed to exist unchanged: no revalidation is needed, the origin was contacted within
        `trust_s`, and a sliding TTL is less than half spent.  Hits do not renew that TTL, so a busy stream must be
        read there from time to time."""
        if self.needs_revalidation:
            return False
        return self.is_followed or (not self.expiry.is_lost and now < self.trusted_until(now, trust_s))

    def trusted_until(self, now: float, trust_s: float) -> float:
        """Until when `is_trusted` stays true unless a stale mark is set, even if the live request ends (monotonic
        seconds)."""
        return (now if self.is_followed else self.contacted_at) + self._trusted_s(trust_s)

    def _trusted_s(self, trust_s: float) -> float:
        """`trust_s`, or half of a sliding TTL if that is less."""
        life = self.expiry.lifetime
        ttl_s = life.ttl_s if life is not None else None
        return trust_s if ttl_s is None else min(trust_s, ttl_s / 2)

    def confirm(self, start: str, at: float) -> None:
        """Record that the origin had the bytes that are held after `start` at this time (monotonic seconds)."""
        tape = self.tape
        if (resolved := tape.resolve(start)) != START:
            self.confirmed.confirm(resolved, at)
        elif (following := tape.after(START)) is not None:
            self.confirmed.confirm_start(following, at)

    def confirmed_at(self, start: str) -> float:
        """When the origin last showed that it has the bytes after `start`; -inf if it never did."""
        return self.confirmed.since(self.tape.resolve(start))

    def reusable_s(self, trust_s: float) -> float:
        """Seconds for which bytes may be sent after the origin has shown that it has them."""
        return self._trusted_s(min(trust_s, self.caching.fresh_s))

    def confirmed_before(self, now: float, trust_s: float, max_age_s: float | None) -> float:
        """The time before which confirmations have expired, for a client that accepts bytes of this age."""
        reusable_s = self.reusable_s(trust_s)
        return now - (reusable_s if max_age_s is None else min(reusable_s, max(LEAST_AGE_S, max_age_s)))

    def is_confirmation_due(self, start: str, now: float, trust_s: float, max_age_s: float | None) -> bool:
        """Whether the origin must confirm the bytes held after `start` before they are sent."""
        return not self.confirmed_at(start) > self.confirmed_before(now, trust_s, max_age_s)

    def bytes_until(self, start: str, trust_s: float) -> float:
        """The time until which the bytes held after `start` may be sent without asking the origin (monotonic
        seconds)."""
        return self.confirmed_at(start) + self.reusable_s(trust_s)
