"""A stream in memory: its tape (the bytes held), and metadata such as its content type, its lifetime and its tail.

A `Stream` represents one incarnation of a stream (its life from creation to deletion) for one partition.  A partition
is the set of requests that share a tape, by default the requests with equal credentials.  When `ended` is set, no
request is answered from the object, and the next request creates a new object.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from multidict import CIMultiDict

from gateway.limits.memory import SharedBytes
from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.names import START, STREAM_EXPIRES_AT, STREAM_TTL, is_before, is_json, is_sse_text
from gateway.protocol.sharing import StreamKey
from gateway.protocol.stream_version import FIRST, Version
from gateway.protocol.worker_headers import HopSaid, OwnersRecord
from gateway.tape.acknowledged_writes import NONE, AcknowledgedWrites
from gateway.tape.costs import headers_cost, key_cost, surrogate_keys_cost, texts_cost
from gateway.tape.origin_statements import (
    LEAST_AGE_S,
    LEAST_TTL_S,
    UNSTATED,
    Caching,
    Confirmations,
    Expiry,
    FirstTail,
    Sighting,
)
from gateway.tape.tape import Tape

TAIL_READ_BURST = 3
"""The number of consecutive reads that may ask the origin for the tail before the rate limit applies."""

SEVERAL: Final = -1
"""The value of `Stream.found_by` for requests with several sets of headers.  Python's `hash` never returns -1."""


class End(StrEnum):
    """The reason why a `Stream` has ended."""

    DELETED = "deleted"
    GONE = "gone"
    EXPIRED = "expired"
    RECREATED = "re-created"
    PURGED = "purged"
    EVICTED = "evicted"

    @property
    def status(self) -> int:
        """The HTTP status for readers that wait on the ended stream."""
        return 410 if self is End.GONE else 404


@dataclass(slots=True, eq=False)
class Stream:
    """One incarnation of a stream.  The `TapeStore` owns it; the engine records the origin's replies in it."""

    key: StreamKey
    tape: Tape
    version: Version = FIRST
    """The version of the stream's metadata.  A caller keeps this value.  Later the caller compares the kept value with
    the current value, to find out what has changed.  Only the methods of this class replace the value."""
    content_type: str | None = None
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    """The end-to-end headers of the origin's replies that cache hits repeat: CORS, nosniff, …"""
    varies_by_origin: bool = False
    """Whether a reply of the origin had `Vary: Origin`.  The stream then serves only requests without an Origin header.
    Bytes of that reply may be held, so the flag is never cleared."""
    origins_named_at: float = -math.inf
    """The time at which a reply to a shared read last set `headers` (monotonic seconds).  The CORS fields in `headers`
    show the web origins that the stream's origin allows."""
    caching: Caching = UNSTATED
    """The origin's Cache-Control directives for the stream's bytes."""
    identity: str | None = None
    """The origin's identifier of the incarnation; None if the origin's ETag has no such identifier."""
    expiry: Expiry = field(default_factory=Expiry)
    """The stream's lifetime.  Until the lifetime is known, no read is answered without a request to the origin."""
    contacted_at: float = 0.0
    """The time at which the origin last served a read or write of the stream (monotonic seconds).  Each read or write
    renews a sliding TTL."""
    begun_at: float = 0.0
    """All data in this object is from this time or later (monotonic seconds).  Writes that the origin executed earlier
    therefore cannot have replaced the stream.  When all bytes are dropped, the time may stay unchanged."""
    confirmed: Confirmations = field(default_factory=Confirmations)
    """For several offsets, the time at which the origin last showed that it had the bytes after the offset."""
    used_at: float = 0.0
    """The time at which the `TapeStore` last counted a use of the stream (monotonic seconds)."""
    is_followed: bool = False
    """Whether the gateway has a live request for the stream open at the origin."""
    acked: AcknowledgedWrites = NONE
    """The acknowledged writes through this gateway that the bytes in memory may lack."""
    stated_tail: str = ""
    """The tail that the origin itself has stated to the latest of this process's requests."""
    stated_tail_at: float = -math.inf
    """When this request was sent (monotonic seconds); -inf if there is none."""
    sighting: Sighting | None = None
    """The origin's latest valid statement of the tail; None if there is none."""
    tail_read_level: float = 0.0
    """The level of a leaky bucket to which each read that asks for the tail adds 1."""
    tail_read_at: float = 0.0
    """The time at which a read last added to the bucket, or began the fetch of a stream that was not in memory
    (monotonic seconds)."""
    head_headers: CIMultiDict[str] | None = None
    """The lifetime and Last-Modified headers of the latest reply to HEAD.  Other replies do not have these headers."""
    found_by: int | None = None
    """The hash of the headers of the request to which the origin has shown the stream (`Source.asker`).  `SEVERAL` if
    there were requests with other headers too.  None if all readers of this object have the same credentials."""
    surrogate_keys: frozenset[str] = frozenset()
    """The origin's tags for groups of streams.  Only `Paths.tag` sets this attribute, because it keeps an index of the
    tags."""
    tagged_as: str = ""
    """The incarnation to which the surrogate keys belong.  The keys of a new incarnation replace the earlier keys."""
    reads: int = 0
    """The number of reads, of all modes, that were answered from this object.  A live read counts when it starts."""
    hits: int = 0
    """The number of these reads that were answered without the origin."""
    sent_bytes: int = 0
    """The number of body bytes written to client connections."""
    in_memory: SharedBytes | None = None
    """The size of the tape's bytes.  All answers that refer to these bytes share this object, so the bytes are counted
    once.  None if no answer refers to the bytes, or after bytes were dropped."""
    ended: End | None = None
    """The reason why the stream has ended; None while the stream exists."""
    has_topic: bool = False
    """Whether the stream has live readers, or had live readers a moment ago.  The stream's bytes must be stored for
    these readers."""
    is_awake: bool = True
    """Whether events of the path are applied to this stream at once (`gateway.tape.paths`)."""
    heard: int = 0
    """For a sleeping stream, the number of the last event of the path that was applied to it."""
    is_ranked: bool = False
    """Whether the stream is in the order of eviction.  Only the `TapeStore` sets this."""
    holds: int = 0
    """The number of topics (groups of live readers) and shared fetches that use this object.  While there are any, the
    object is not replaced."""
    is_weighed: bool = True
    """Whether `facts_cost` is up to date.  If false, `facts_cost` is updated when bytes are stored or the stream is
    released."""
    facts_cost: int = 0
    """The bytes that the budget is charged for this object without its tape.  Only the `TapeStore` sets this."""
    elsewhere: OwnersRecord | None = None
    """The names of this worker's record of the stream and of other workers' records.  None if no worker has asked
    another worker for the stream."""

    def __repr__(self) -> str:
        state = self.ended or "in memory"
        return f"<Stream {self.key.group.path} {state}, {self.block_count} blocks, {self.holds} holds>"

    # -- events

    def hold(self) -> None:
        """Prevent the eviction and replacement of this object until the caller calls `TapeStore.release`."""
        self.holds += 1

    def count_reads(self, reads: int, hits: int) -> None:
        """Count `reads` reads that were answered from this object, `hits` of them without the origin."""
        self.reads += reads
        self.hits += hits

    def contacted(self, at: float) -> None:
        """Record that the origin was asked for the stream at this time (monotonic seconds).  Each request renews a
        sliding TTL at the origin."""
        self.contacted_at = max(self.contacted_at, at)

    def mark_stale(self, *, may_have_ended: bool = True, may_be_another: bool = False) -> None:
        """Require revalidation, because the tail may have moved.

        `may_have_ended`: the stream may also have ended.  `may_be_another`: another stream may also have replaced this
        stream.  A refusal is no reason to set `may_be_another`: the origin may have trimmed only one offset (410), or
        may hide the stream from one reader (404)."""
        self.version = self.version.doubted(may_have_ended=may_have_ended, may_be_another=may_be_another)

    def may_be_another(self) -> None:
        """Record that a write may have replaced the stream by another stream, which has its own metadata."""
        self.mark_stale(may_be_another=True)
        self.lose_metadata()

    def lose_metadata(self) -> None:
        """Forget the metadata from replies to HEAD, because these replies may concern an earlier stream.

        The earlier lifetime still applies until the origin has reported the lifetime again."""
        self.expiry.lose()
        self.head_headers = None

    def revalidated(self, seen: Version) -> None:
        """Record that the origin has answered a request for this stream.  `seen` is the stream's version when the
        request was sent."""
        self.version = self.version.settled_by(seen)

    def followed(self) -> None:
        """Record that the follower, the gateway's live request at the origin, has reported the tail."""
        self.is_followed = True
        self.version = self.version.tail_changed()

    def unfollowed(self, at: float) -> None:
        """Record that the follower has ended at this time (monotonic seconds).  A sliding TTL runs from this time."""
        if self.is_followed:
            self.is_followed = False
            self.contacted(at)

    def record_headers(self, headers: CIMultiDict[str]) -> None:
        """Record the headers that hits repeat.  Streams share `headers`, so the object must never be changed."""
        if self.varies_by_origin:
            # Caches between the gateway and its clients must not use these answers for requests with an Origin header.
            headers = headers.copy()
            headers["Vary"] = "Origin"
        self.headers = headers

    def record_head(self, headers: Headers, lifetime: Lifetime) -> None:
        """Record the headers of a reply to HEAD.  `lifetime` refers to this machine's clock."""
        self.expiry.know(lifetime)
        names = (STREAM_TTL, STREAM_EXPIRES_AT, "Last-Modified")
        self.head_headers = CIMultiDict([(name, value) for name in names for value in headers.getall(name, ())])

    def begin_incarnation(self, name: str) -> None:
        """Name a new incarnation, because all bytes were dropped.

        Different bytes may now be stored at the same offsets, and need different entity tags.  The metadata from
        replies to HEAD is dropped, so that no answer combines it with the tail of different bytes.  Only the
        `TapeStore` calls this.
        """
        self.version = self.version.incarnated(name)
        self.head_headers = None

    def withdrawn(self) -> None:
        """Invalidate all data derived from the held bytes, for example because bytes were dropped."""
        self.version = self.version.withdrawn()
        shared, self.in_memory = self.in_memory, None
        if shared is not None:
            shared.in_cache = False

    def shared_bytes(self) -> SharedBytes:
        """Return `in_memory` for an answer that refers to the tape's bytes, after an update of its size.  The first
        call creates the object."""
        shared = self.in_memory
        if shared is None:
            shared = self.in_memory = SharedBytes(0, in_cache=self.ended is None)
        shared.size = self.cost
        return shared

    # -- state

    @property
    def cost(self) -> int:
        """The bytes that the budget is charged for the stream."""
        return self.tape.cost + self.facts_cost

    @property
    def block_count(self) -> int:
        """The number of blocks held."""
        return self.tape.block_count

    @property
    def furthest(self) -> str | None:
        """The furthest offset that the origin has stated; None if it has stated no offset."""
        return self.tape.tail

    def drop_oldest(self) -> int:
        """Drop the oldest block; return the cost freed.  Only the `TapeStore` calls this."""
        return self.tape.drop_oldest()

    def drop_all(self) -> int:
        """Drop all bytes; return the cost freed.  Only the `TapeStore` calls this."""
        return self.tape.drop_all()

    def weigh(self) -> int:
        """Compute the bytes that this object takes without its tape: its key, headers and other texts."""
        cost = key_cost(self.key) + headers_cost(self.headers)
        # The checks save time for new streams, most of which have none of these texts.
        if self.caching.cache_control is not None or self.identity is not None:
            cost += texts_cost((self.caching.cache_control, self.identity))
        if self.head_headers:
            cost += headers_cost(self.head_headers)
        if self.surrogate_keys:
            cost += surrogate_keys_cost(self.surrogate_keys)
        if self.acked.other_queries:
            cost += texts_cost(self.acked.other_queries)
        return cost

    @property
    def is_closing(self) -> bool:
        """Whether an acknowledged write has closed the stream, but the gateway has not received the stream's end
        yet."""
        return self.acked.is_closed and self.tape.closed_at is None

    @property
    def needs_revalidation(self) -> bool:
        """Whether the held bytes must be revalidated before they are used."""
        return self.version.needs_revalidation

    def learn_type(self, content_type: str) -> bool:
        """Record the content type; return False if it contradicts the known type."""
        if content_type == self.content_type:
            return True
        if self.content_type is None:
            # The format in which the tape keeps bytes depends on the type.  The tape is therefore empty until now.
            assert not self.tape.block_count
            self.content_type = content_type
            self.tape.is_json = is_json(content_type)
            return True
        return is_json(content_type) == is_json(self.content_type) and is_sse_text(content_type) == is_sse_text(
            self.content_type
        )

    def learn_identity(self, identity: str | None) -> bool:
        """Record the origin's identifier of the incarnation; return False if it differs from the known identifier."""
        if identity is None or self.identity is None:
            self.identity = self.identity or identity
            return True
        return identity == self.identity

    def learn_owner(self, said: HopSaid) -> bool:
        """Record the statement of the stream's owner about its record.  Return False if that record belongs to another
        stream."""
        record = self.elsewhere
        if record is None:
            record = self.elsewhere = OwnersRecord()
        if not record.is_same(said, self.identity) or not self.learn_identity(said.identity):
            return False
        record.learn(said, self.version.incarnation)
        return True

    @property
    def is_known(self) -> bool:
        """Whether this worker has metadata of the stream.  Other workers may then have received it."""
        return self.content_type is not None or self.tape.tail is not None

    def is_of_dropped_record(self, said: HopSaid) -> bool:
        """Return whether the owner has dropped the record from which this worker's bytes came, although the stream was
        probably not replaced.  Live readers then continue at their offsets, as after a purge."""
        record = self.own_record()
        is_contradicted = self.identity is not None and said.identity not in (None, self.identity)
        return not (record.is_same(said, self.identity) or is_contradicted or self.version.may_be_another)

    def own_record(self) -> OwnersRecord:
        """Return this worker's record.  The worker sends the record's name to other workers with the stream's bytes."""
        if self.elsewhere is None:
            self.elsewhere = OwnersRecord()
        return self.elsewhere

    def tag_name(self, incarnation: str) -> str:
        """Return the name in entity tags for bytes of this incarnation."""
        return incarnation if self.elsewhere is None else self.elsewhere.tag_name(incarnation)

    def acknowledged(self, tail: str, *, is_closed: bool, query: str) -> None:
        """Record that the origin has acknowledged a write to this path with this query.  The write ended at `tail`."""
        if query in self.acked.other_queries:
            return
        self.acked = self.acked.with_write(tail, query, is_closed=is_closed)
        self.version = self.version.acknowledged()

    def acknowledged_without_offset(self, *, is_certain: bool = True) -> None:
        """Record that the origin has acknowledged a write without stating the tail.  If `is_certain` is false, the
        origin may have acknowledged such a write."""
        self.sighting = None
        if is_certain:
            self.acked = self.acked.with_unplaced()
        self.version = self.version.acknowledged()

    def acknowledged_elsewhere(self, by: float) -> None:
        """Record that the origin had acknowledged writes through another gateway by this time (monotonic seconds).

        If a request that was sent later has shown the tail, the writes end there or before it."""
        self.sighting = None
        if self.stated_tail_at > by:
            self.acked = self.acked.with_write_within(self.stated_tail)
        else:
            self.acked = self.acked.with_unplaced()
        self.version = self.version.acknowledged()

    def origin_stated_tail(self, tail: str, sent_at: float) -> None:
        """Record that the origin itself has stated the tail to a request that was sent at this time (monotonic
        seconds)."""
        if sent_at >= self.stated_tail_at:
            self.stated_tail, self.stated_tail_at = tail, sent_at

    def read_up_to_tail(self, seen: Version, tail: str) -> None:
        """Record that a request has read the stream up to its tail.  `seen` is the stream's version at the time of the
        request."""
        if seen.same_acks_as(self.version):
            self.acked = self.acked.read_up_to(tail, self.key.query, is_closing=self.is_closing)

    def forget_acknowledged(self) -> None:
        """Forget acknowledged writes, because they may have changed another stream."""
        self.acked = self.acked.forgotten()
        self.stated_tail, self.stated_tail_at = "", -math.inf

    def holds_acknowledged(self, token: str, is_closed: bool = False) -> bool:
        """Return whether the stream up to `token` includes all acknowledged writes and an acknowledged close.

        `is_closed`: the stream is closed at `token`.
        """
        tail = self.acked.tail
        return (is_closed or not self.is_closing) and (tail is None or not is_before(token, tail))

    def may_lack_acknowledged(self, token: str) -> bool:
        """Return whether the stream up to `token` may lack an acknowledged write.  Includes writes whose
        acknowledgement stated no tail."""
        acked = self.acked
        is_short = acked.through is not None and is_before(token, acked.through)
        return is_short or acked.is_unplaced or not self.holds_acknowledged(token)

    def is_still(self, first: FirstTail, at: str) -> bool:
        """Return whether a live reader at `at` is still up to date.  `first` is the tail that the origin stated when
        the live read began.

        The reader is at `first` and up to date until one of these events: a write is acknowledged, a write may have
        been executed, or a reply states a later tail.
        """
        tape = self.tape
        return (
            tape.resolve(first.at) == at
            and first.version.same_writes_as(self.version)
            and self.holds_acknowledged(at)
            and (tape.tail is None or not is_before(at, tape.resolve(tape.tail)))
        )

    def saw_tail(self, sighting: Sighting) -> None:
        """Record the origin's statement of the tail.  Ignore it if the current statement has a later tail or time."""
        current = self.sighting
        if current is not None and (is_before(sighting.at, current.at) or sighting.seen_at < current.seen_at):
            return
        if current is None or current.at != sighting.at:
            self.version = self.version.tail_changed()
        self.sighting = sighting

    def lost_tail(self) -> None:
        """Invalidate the current statement of the tail."""
        self.sighting = None
        self.version = self.version.tail_changed()

    def tail_until(self, at: str) -> float:
        """Return the time until which an answer that ends at `at` may be marked up to date without asking the origin
        (monotonic seconds); -inf if it may not."""
        seen, tape = self.sighting, self.tape
        if seen is None or tape.resolve(seen.at) != at or not self.holds_acknowledged(at) or self.needs_revalidation:
            return -math.inf
        if tape.tail is not None and is_before(at, tape.resolve(tape.tail)):
            # Another reply, or the acknowledgement of a write, has stated a later tail.
            return -math.inf
        return seen.fresh_until

    def count_tail_read(self, now: float, per_s: float, *, allows_burst: bool = True) -> bool:
        """Count a read that asks the origin for the tail; return whether such reads exceed `per_s` a second.

        A leaky bucket allows bursts of `TAIL_READ_BURST`.  If `allows_burst` is false, two reads within 1 / `per_s`
        seconds are too many.
        """
        passed = (now - self.tail_read_at) * per_s
        self.tail_read_level = max(0.0, self.tail_read_level - passed) + 1
        self.tail_read_at = now
        if self.tail_read_level <= TAIL_READ_BURST and (allows_burst or passed >= 1):
            return False
        self.tail_read_level = TAIL_READ_BURST
        return True

    def has_expired(self, now: float, wall: float) -> bool:
        """Return whether the stream's known lifetime may have passed at the origin.  `wall` is Unix seconds.

        A sliding TTL does not run while a live request is open.
        """
        expiry = self.expiry
        # Most streams have no limited lifetime, and this method is on the hot path of live readers.
        return expiry.is_limited and expiry.may_have_passed(None if self.is_followed else now - self.contacted_at, wall)

    def was_found_by(self, asker: int) -> None:
        """Record that the origin has shown the stream to a request with this hash of its headers (`Source.asker`)."""
        self.found_by = asker if self.found_by in (None, asker) else SEVERAL

    def is_hidden_from(self, asker: int) -> bool:
        """Return whether the origin has shown the stream to a request with another hash.  A 404 to a request with this
        hash may then mean only that the origin hides the stream from the client."""
        return self.found_by is not None and self.found_by != asker

    def may_have_expired(self, now: float) -> bool:
        """Return whether a stream without any known lifetime may have expired.  A lifetime is at least a second."""
        return self.expiry.latest is None and not self.is_followed and now - self.contacted_at >= LEAST_TTL_S

    def outlasts_failure(self, now: float, wall: float) -> bool:
        """Return whether held bytes may be sent while the origin fails.

        These bytes may not be sent if the stream has ended, may have expired, or may have been replaced by another
        stream.
        """
        is_over = self.ended is not None or self.version.may_have_ended or self.has_expired(now, wall)
        return not is_over and not self.expiry.is_lost

    def may_answer_alone(self, now: float, trust_s: float) -> bool:
        """Return whether the gateway may answer without a request to the origin.  The lifetime must be known, and the
        stream must be trusted."""
        return self.expiry.lifetime is not None and self.is_trusted(now, trust_s)

    def is_trusted(self, now: float, trust_s: float) -> bool:
        """Return whether the gateway may assume that the stream still exists, unchanged.

        A stream is trusted if it needs no revalidation, the origin was contacted within `trust_s` seconds, and less
        than half of a sliding TTL has passed since then.  Cache hits do not renew the TTL at the origin.  The gateway
        must therefore read a busy stream at the origin before the stream expires.
        """
        if self.needs_revalidation:
            return False
        return self.is_followed or (not self.expiry.is_lost and now < self.trusted_until(now, trust_s))

    def trusted_until(self, now: float, trust_s: float) -> float:
        """Return the time until which `is_trusted` stays true (monotonic seconds).  A call of `mark_stale` makes the
        result invalid.  The result stays valid even if the live request ends earlier."""
        return (now if self.is_followed else self.contacted_at) + self._trusted_s(trust_s)

    def _trusted_s(self, trust_s: float) -> float:
        """Return `trust_s`, or half of a sliding TTL if that is less."""
        life = self.expiry.lifetime
        ttl_s = life.ttl_s if life is not None else None
        return trust_s if ttl_s is None else min(trust_s, ttl_s / 2)

    def confirm(self, start: str, at: float) -> None:
        """Record that the origin had the bytes after `start` at this time (monotonic seconds)."""
        tape = self.tape
        if (resolved := tape.resolve(start)) != START:
            self.confirmed.confirm(resolved, at)
        elif (following := tape.after(START)) is not None:
            self.confirmed.confirm_start(following, at)

    def confirmed_at(self, start: str) -> float:
        """Return the time at which the origin last showed that it had the bytes after `start`; -inf if there is no such
        time."""
        return self.confirmed.since(self.tape.resolve(start))

    def reusable_s(self, trust_s: float) -> float:
        """Return the number of seconds after a confirmation for which the confirmed bytes may be sent."""
        return self._trusted_s(min(trust_s, self.caching.fresh_s))

    def confirmed_before(self, now: float, trust_s: float, max_age_s: float | None) -> float:
        """Return the time limit for confirmations (monotonic seconds): bytes may be sent to a client only if their
        latest confirmation is later.  The client accepts bytes up to the age `max_age_s`, or of any age if `max_age_s`
        is None."""
        reusable_s = self.reusable_s(trust_s)
        return now - (reusable_s if max_age_s is None else min(reusable_s, max(LEAST_AGE_S, max_age_s)))

    def is_confirmation_due(self, start: str, now: float, trust_s: float, max_age_s: float | None) -> bool:
        """Return whether the origin must confirm the bytes held after `start` before they are sent."""
        return not self.confirmed_at(start) > self.confirmed_before(now, trust_s, max_age_s)

    def bytes_until(self, start: str, trust_s: float) -> float:
        """Return the time until which the bytes after `start` may be sent without a request to the origin (monotonic
        seconds)."""
        return self.confirmed_at(start) + self.reusable_s(trust_s)
