"""Catch-up reads: walk the tape, fetch what is missing, find the tail, answer.

The body of an answer is what the tape holds from the requested offset, then the bodies of flights in the air for the
offsets after that, then one fresh fetch at the tail.  Each of the three may be missing.  An answer that ends where the
origin itself stopped, or at the size bound with more held after it, is a plain hit and says nothing about the tail.

The tail may be known without a fetch.  A follower's statement of it is valid for `tail_heard_s` after the live request
was last heard from, and a statement that the origin or the operator allows to be repeated is repeated for its time
(`Stream.tail_until`).  A stream whose tail is requested often is followed for that reason.  If the follower has been
silent for too long or is not trusted, a HEAD finds the tail, and the follower, which is receiving the bytes anyway,
brings them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gateway.aio.clock import Clock
from gateway.engine.answer import Answer, BodyRun, NamedTail, Parts
from gateway.engine.conditional import is_not_modified, not_modified
from gateway.engine.confirming import LEAST_AGE_S, Confirming
from gateway.engine.fetch_table import FetchTable
from gateway.engine.patience import Patience
from gateway.engine.read import Read, Uncacheable
from gateway.engine.response_heads import Said, head_answer, now_answer, origin_error_answer, stream_headers
from gateway.errors import GatewayError, TailMovedBack
from gateway.live.topic import Topic
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.offsets import NOW, START, is_before
from gateway.tape.stream import Stream
from gateway.upstream.collapse import Lead
from gateway.upstream.flight import (
    METADATA,
    REFUSED_TO_ANOTHER,
    Beyond,
    Flight,
    NotShareable,
    OriginError,
    StreamHead,
    as_seen_by,
)

_SMALL_BYTES = 1 << 16
"""A body up to this size is awaited, so that it is sent whole and with its length."""

_FOLLOWER_PATIENCE_S = 1.0
"""How long a follower may lag behind a tail that a HEAD has named before the bytes are fetched."""


class CatchUp:
    """Answers catch-up reads.  Keeps no state of its own."""

    def __init__(
        self,
        fetches: FetchTable,
        confirming: Confirming,
        live: LiveTopics,
        clock: Clock,
        max_reply_bytes: int,
        follow: Callable[[Read, Stream], None],
    ) -> None:
        self.fetches = fetches
        self._patience = Patience(fetches, clock)
        self.confirming = confirming
        self.live = live
        self.clock = clock
        self.max_reply_bytes = max_reply_bytes
        self.follow = follow
        """Starts following a stream whose tail is requested often."""

    async def answer(self, read: Read, stream: Stream) -> Answer:
        """Answer the read; the caller must call `Answer.close`.

        Raises Uncacheable, TailMovedBack if `stream` is no longer the origin's, or another GatewayError.
        """
        attempt = _Attempt(self, read, stream)
        try:
            if not stream.tape.knows_after(read.start):
                return await attempt.run()
            if (answer := attempt.at_once()) is not None:
                return answer
            # The held bytes may have been forgotten and fetched again by then.
            return await self._patience.answer(read, stream, attempt.run, lambda: _Attempt(self, read, stream).held())
        except BaseException:
            attempt.parts.close()
            raise

    async def head(self, read: Read, stream: Stream) -> Answer | None:
        """Answer a HEAD if the tail is known; None if it must be relayed.  Raises like `answer`."""
        return await _Attempt(self, read, stream).head()


class _Attempt:
    """One walk over one incarnation."""

    def __init__(self, owner: CatchUp, read: Read, stream: Stream) -> None:
        self._fetches, self._confirming, self._live = owner.fetches, owner.confirming, owner.live
        self._clock, self._limit, self._follow = owner.clock, owner.max_reply_bytes, owner.follow
        self._read = read
        self._stream = stream
        self.parts = Parts()
        self._at = read.start
        self._stored_at = 0.0
        self._version = stream.version
        """The stream's version before anything was read."""
        self._has_joined = False
        """Whether bytes of another request's flight are among the parts."""
        self._is_confirmed = False
        """Whether the origin has confirmed the tape's bytes to this read."""

    def at_once(self) -> Answer | None:
        """The answer, if the tape has it and nothing has to be asked of the origin; None if `run` is needed."""
        read, stream, now = self._read, self._stream, self._clock.now()
        if stream.expiry.is_lost or not stream.may_answer_alone(now, read.route.config.trust_s):
            return None
        if stream.lies_beyond(read.start) or self._confirming.is_due(read, stream):
            return None
        self._take_tape()
        if self._ends_here():
            return self._answer_here(Outcome.HIT)
        if self._is_at_tail() and self._tail_now() == self._at:
            return self._answer(Outcome.HIT, up_to_date=True, is_closed=stream.tape.is_closed_at(self._at))
        return None

    async def run(self) -> Answer:
        read, stream = self._read, self._stream
        if stream.expiry.asks(self._clock.now()):
            # While it is not known, each write beside a PUT may be to another stream.
            await self._fetches.learn_lifetime(stream, read.route, read.source)
            self._check_incarnation()
        if read.start == NOW:
            return await self._answer_now()
        tail = await self._known_tail() if stream.lies_beyond(read.start) else None
        if tail is not None and stream.lies_beyond(read.start):
            # The tail has not come past it in the meantime.
            self._at = tail
            return self._answer(Outcome.HIT, up_to_date=True, is_closed=stream.tape.is_closed_at(tail))
        while True:
            self._check_incarnation()
            self._take_tape()
            if self._stored_at and not self._is_confirmed and (answer := await self._confirm()) is not None:
                return answer
            if self._ends_here() and await self._may_answer_alone():
                return self._answer_here(Outcome.COLLAPSED if self._has_joined else Outcome.HIT)
            self._check_incarnation()
            if self._is_at_tail() and await self._known_tail() == self._at:
                outcome = Outcome.COLLAPSED if self._has_joined else Outcome.HIT
                return self._answer(outcome, up_to_date=True, is_closed=stream.tape.is_closed_at(self._at))
            if self._read_on():
                continue
            if (answer := await self._answer_from_follower() or self._answer_stale()) is not None:
                return answer
            if (fetched := await self._fetch_tail()) is not None:
                return await self._answer_from(*fetched)

    async def head(self) -> Answer | None:
        read, stream = self._read, self._stream
        if stream.head_headers is None and self._tail_now() is not None:
            head = await self._fetches.fresh_head(stream, METADATA, read.route, read.source)
            if isinstance(head, NotShareable):
                raise Uncacheable(head)
        tail = await self._known_tail()
        return head_answer(read, stream, tail) if tail is not None and stream.head_headers is not None else None

    def _check_incarnation(self) -> None:
        """Raise TailMovedBack if the stream has ended, or if its bytes were forgotten and those before and after may
        belong to two streams.  A purge alone does not disturb a walk that has only begun."""
        seen, stream = self._version, self._stream
        if stream.ended is not None:
            raise TailMovedBack
        if seen.same_incarnation_as(stream.version):
            return
        if self._at != self._read.start or seen.may_have_ended_by(stream.version):
            raise TailMovedBack

    async def _confirm(self) -> Answer | None:
        """Have the origin confirm the bytes that the walk has taken from the tape, if that is due.

        Returns the answer if the origin's answer settles it: a refusal, or that the walk has reached the tail.
        """
        if not self._confirming.is_due(self._read, self._stream):
            return None
        head = await self._confirming.ask(self._read, self._stream)
        self._check_incarnation()
        self._is_confirmed = True
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        if isinstance(head, OriginError) and head.status == 410:
            return origin_error_answer(self._read.route, head, Outcome.MISS)
        if isinstance(head, OriginError | GatewayError):
            return self._failed(head)
        if isinstance(head, StreamHead) and head.up_to_date and head.next_offset == self._at:
            return self._answer(Outcome.REVALIDATED, up_to_date=True, is_closed=head.is_closed, fwd_status=200)
        return None

    def _read_on(self) -> bool:
        """Whether the tape now holds more than was walked over."""
        return self._stream.tape.knows_after(self._at) and self.parts.size < self._limit

    def _is_at_tail(self) -> bool:
        """Whether the walk has reached the furthest known offset and no more is known to follow."""
        tape = self._stream.tape
        return tape.tail is not None and tape.resolve(tape.tail) == self._at and not tape.is_short(self._at)

    def _tail_now(self) -> str | None:
        """The tail, if it may be stated without asking the origin; does not check the stream's lifetime."""
        stream, read = self._stream, self._read
        if stream.tape.closed_at is not None:
            return stream.tape.closed_at
        if stream.tape.tail is None:
            return None
        tail, now = stream.tape.resolve(stream.tape.tail), self._clock.now()
        if stream.tail_until(tail) <= now:
            return None
        # A client that asks for a more recent statement of the tail has the origin asked.
        oldest = -math.inf if read.max_age_s is None else now - max(LEAST_AGE_S, read.max_age_s)
        return tail if stream.sighting is not None and stream.sighting.seen_at >= oldest else None

    async def _known_tail(self) -> str | None:
        """The tail, if the origin need not be asked for it; counts the request, which may start a follower."""
        stream, config = self._stream, self._read.route.config
        if self._tail_now() is None and self._read.route.heard_s and stream.tape.tail is not None:
            per_s = config.follow_above_per_s
            # Readers that share one fetch cost the origin a single request.
            is_shared = any(self._fetches.pending(stream, start) for start in (self._at, NOW))
            if per_s and not is_shared and stream.count_tail_read(self._clock.now(), per_s):
                self._follow(self._read, stream)
            await self._live.until_connected(stream)
        if self._tail_now() is None or not await self._may_answer_alone():
            return None
        return self._tail_now()

    def _take_tape(self) -> None:
        """Add the bytes that the tape holds from here, up to the size bound."""
        tape, room = self._stream.tape, self._limit - self.parts.size
        if room <= 0:
            return
        if not tape.knows_after(self._at):
            self._at = tape.resolve(self._at)
            return
        reading = tape.read(self._at, room)
        self.parts.add_pieces(reading.pieces, reading.copied, self._stream.shared_bytes())
        self._at = reading.end
        if reading.size:
            self._stored_at = min(self._stored_at, reading.stored_at) if self._stored_at else reading.stored_at

    def _ends_here(self) -> bool:
        """Whether the answer may end here without finding the tail."""
        tape = self._stream.tape
        if tape.is_closed_at(self._at):
            return True
        if self.parts.is_empty:
            return False
        # The bytes held after this offset did not fit, or the origin itself had stopped here.
        return tape.knows_after(self._at) or tape.is_short(self._at)

    async def _may_answer_alone(self) -> bool:
        """Whether the tape may be used without the origin; asks the origin first if that is due."""
        stream, read = self._stream, self._read
        if stream.expiry.is_wanted(self._clock.now()):
            await self._fetches.learn_lifetime(stream, read.route, read.source)
        if stream.ended is not None:
            raise TailMovedBack
        if stream.may_answer_alone(self._clock.now(), read.route.config.trust_s):
            return True
        # A read at the tail costs the origin nothing, renews a sliding TTL there, and shows whether the stream is still
        # the remembered one.
        head = await self._fetches.fresh_head(stream, stream.tape.tail or self._at, read.route, read.source)
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        if stream.ended is not None:
            raise TailMovedBack
        return isinstance(head, StreamHead) and stream.expiry.lifetime is not None

    async def _answer_from_follower(self) -> Answer | None:
        """Answer from a followed stream; None if the follower does not bring what is missing."""
        stream, read = self._stream, self._read
        topic = self._live.confirmed_at(stream, self._at)
        if topic is None or stream.needs_revalidation:
            return None
        tail = self._awaited_tail()
        if tail is not None and (answer := await self._until_brought(topic, tail, Outcome.FOLLOWED)) is not None:
            return answer
        head = await self._fetches.fresh_head(stream, METADATA, read.route, read.source)
        if isinstance(head, GatewayError) or (isinstance(head, OriginError) and head.status >= 500):
            # Asking for the bytes as well would fail the same way.
            return self._failed(head)
        if not isinstance(head, StreamHead):
            return None
        answer = await self._until_brought(topic, head.next_offset, Outcome.REVALIDATED, is_asked=True)
        if answer is None:
            # The follower does not bring existing bytes, so its live request has stalled: restart it.
            self._live.revalidate(stream)
        return answer

    async def _until_brought(
        self, topic: Topic, tail: str, outcome: Outcome, *, is_asked: bool = False
    ) -> Answer | None:
        """The answer once the follower has brought everything before `tail`; None if that takes too long.  `is_asked`
        says that the origin has named the tail to this read, and that a write named it if not."""
        stream, deadline = self._stream, self._clock.now() + _FOLLOWER_PATIENCE_S
        while True:
            self._check_incarnation()
            self._take_tape()
            if not is_before(self._at, tail):
                # An offset past the named tail exists only if the follower has brought bytes since.  A write that was
                # answered late may have named an earlier tail than is known.
                is_named = self._at == tail and (is_asked or self._is_at_tail())
                is_current = is_named or topic.is_current(self._at)
                return self._answer(outcome, up_to_date=is_current, is_closed=stream.tape.is_closed_at(self._at))
            if self._ends_here():
                return self._answer_here(outcome)
            outcome = Outcome.FOLLOWED
            left = deadline - self._clock.now()
            if left <= 0 or not await topic.changed.wait_within(self._clock, left):
                return None

    def _awaited_tail(self) -> str | None:
        """The end of an acknowledged write that a trusted follower is about to bring, or None."""
        stream, seen = self._stream, self._stream.sighting
        if seen is None or not stream.is_followed or seen.fresh_until <= self._clock.now() or stream.needs_revalidation:
            return None
        is_own = stream.acked is not None and stream.acked_by == stream.key.query
        return stream.acked if is_own and is_before(self._at, stream.acked or START) else None

    def _answer_stale(self) -> Answer | None:
        """The bytes up to a stale tail while the origin is asked again (RFC 5861 §3), if allowed."""
        stream, read, seen, now = self._stream, self._read, self._stream.sighting, self._clock.now()
        if not self.parts.size or seen is None or seen.stale_until <= now or stream.tape.resolve(seen.at) != self._at:
            return None
        if read.max_age_s is not None or not stream.holds_acknowledged(self._at):
            return None
        if not stream.may_answer_alone(now, read.route.config.trust_s):
            return None
        if self._fetches.pending(stream, self._at) is None:
            self._fetches.join(stream, self._at, read.route, read.source)
        return self._answer(Outcome.HIT, up_to_date=False, is_closed=False, stale_s=now - seen.fresh_until)

    async def _fetch_tail(self) -> tuple[Flight, bool] | None:
        """Fetch what follows the walk: return the attached flight, and whether it was launched for this read.

        None if a flight already in the air advanced the walk or ended; the walk then continues.
        """
        stream, read = self._stream, self._read
        flight = self._fetches.pending(stream, self._at)
        if flight is not None and flight.is_sent:
            flight.watch()
            try:
                patience_s = read.route.config.collapse_wait_s
                head = await self._fetches.head_within(flight, patience_s, read.source.client)
                if isinstance(head, StreamHead) and head.next_offset != self._at and flight.error is None:
                    # Do not share a flight that is too large to keep: waiting for its end would take minutes, and it
                    # would have to run at full speed, past readers that cannot keep up.
                    if flight.is_kept:
                        self.parts.attach(flight)
                        self._at = head.next_offset
                        self._has_joined = True
                        return None
                elif isinstance(head, NotShareable):
                    # A reply that may not be shared says nothing about the tail: all waiters go on alone, in parallel.
                    raise Uncacheable(head)
                elif head is not None:
                    await flight.until_over()
                    return None
            finally:
                flight.unwatch()
        joined = self._fetches.join(stream, self._at, read.route, read.source)
        self.parts.attach(joined.fetch)
        return joined.fetch, isinstance(joined, Lead)

    async def _answer_from(self, flight: Flight, is_launched: bool) -> Answer:
        """The answer that ends with the flight's bytes."""
        while (head := flight.head) is None:
            await flight.changed.wait()
        head = as_seen_by(head, self._read.source.headers)
        if isinstance(head, StreamHead) and flight.expected is not None and flight.expected <= _SMALL_BYTES:
            while not flight.is_over:
                await flight.changed.wait()
            head = flight.error or head
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        if isinstance(head, StreamHead | Beyond):
            self._check_incarnation()
        if isinstance(head, Beyond):
            self.parts.drop_last()
            self._at = head.tail
            outcome = Outcome.MISS if is_launched else Outcome.COLLAPSED
            return self._answer(outcome, up_to_date=head.up_to_date, is_closed=head.is_closed, fwd_status=200)
        if not isinstance(head, StreamHead):
            self.parts.drop_last()
            return self._failed(head)
        if self._at != self._read.start or self._stream.tape.tail == self._at:
            outcome = Outcome.REVALIDATED if head.next_offset == self._at else Outcome.JOINED
        else:
            outcome = Outcome.MISS
        if outcome is Outcome.MISS and not is_launched:
            outcome = Outcome.COLLAPSED
        self._at = head.next_offset
        return self._answer(
            outcome,
            up_to_date=head.up_to_date,
            is_closed=head.is_closed,
            fwd_status=200,
            stored=flight.is_kept and not flight.is_passing,
        )

    async def _answer_now(self) -> Answer:
        """The tail, as the origin names it now (section 6, `offset=now`)."""
        read, stream = self._read, self._stream
        if (tail := await self._known_tail()) is not None:
            is_closed = stream.tape.is_closed_at(tail)
            answer = now_answer(read, stream, tail, Outcome.HIT, is_closed=is_closed)
            if read.max_age_s is None:
                self._allow_repeat(answer, BodyRun(stream, tail, tail, self._version.edition), is_tail=not is_closed)
            return answer
        head = await self._fetches.fresh_head(stream, NOW, read.route, read.source)
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        assert not isinstance(head, Beyond), "the tail is not behind itself"
        if not isinstance(head, StreamHead):
            return self._failed(head)
        return now_answer(read, stream, head.next_offset, Outcome.MISS, is_closed=head.is_closed, fwd_status=200)

    def _failed(self, head: OriginError | GatewayError) -> Answer:
        """The answer after a fetch has failed."""
        stream = self._stream
        if isinstance(head, TailMovedBack):
            raise head.anew()
        if self._at != self._read.start and isinstance(head, OriginError) and head.status == 410:
            # The origin has trimmed the bytes before this offset as well, so the stream begins later there: ask for the
            # client's own offset.
            if stream.ended is None and stream.tape.knows_after(self._read.start):
                raise Uncacheable(REFUSED_TO_ANOTHER)
            raise TailMovedBack
        if isinstance(head, OriginError) and head.status < 500:
            return origin_error_answer(self._read.route, head, Outcome.MISS)
        if (answer := self._answer_held()) is not None:
            return answer
        if isinstance(head, OriginError):
            return origin_error_answer(self._read.route, head, Outcome.FAILED)
        raise head.anew()

    def held(self) -> Answer | None:
        """The held bytes for a read that has not begun; None if they must not be given without the origin's answer."""
        self._take_tape()
        if (answer := self._answer_held()) is None:
            self.parts.close()
        return answer

    def _answer_held(self) -> Answer | None:
        """The bytes of the walk, if they may be given although the origin does not answer."""
        stream = self._stream
        is_there = stream.outlasts_failure(self._clock.now(), self._clock.wall())
        is_there &= not stream.caching.must_revalidate or not self._confirming.is_due(self._read, stream)
        if self._at == self._read.start or not self.parts.size or not is_there:
            return None
        if not stream.holds_acknowledged(self._at):
            return None
        # Send the immutable bytes without a statement about the tail: the reader continues from their end.
        return self._answer(Outcome.STALE_IF_ERROR, up_to_date=False, is_closed=False)

    def _answer_here(self, outcome: Outcome) -> Answer:
        is_closed = self._stream.tape.is_closed_at(self._at)
        return self._answer(outcome, up_to_date=is_closed, is_closed=is_closed)

    def _answer(
        self,
        outcome: Outcome,
        *,
        up_to_date: bool,
        is_closed: bool,
        fwd_status: int | None = None,
        stored: bool = False,
        stale_s: float | None = None,
    ) -> Answer:
        read, stream, seen = self._read, self._stream, self._stream.sighting
        # Nothing comes after the end of a closed stream, whatever named it.
        up_to_date |= is_closed
        is_tail = up_to_date and not is_closed
        age_s: float | None = None
        if outcome is Outcome.HIT and (is_tail or stale_s is not None):
            # A followed tail is as old as the answer; a repeated one is as old as the origin's statement.
            age_s = None if seen is None or stream.is_followed else self._clock.now() - seen.seen_at
        elif outcome in (Outcome.HIT, Outcome.STALE_IF_ERROR) and self._stored_at:
            # Bytes are as old as the latest answer of the origin that showed it to have them (RFC 9111 §4.2.3).
            since = stream.confirmed_at(read.start)
            age_s = self._clock.now() - (since if since > -math.inf else self._stored_at)
        run = BodyRun(stream, read.start, self._at, self._version.edition)
        said = Said(outcome, up_to_date, is_closed, age_s, fwd_status=fwd_status, stored=stored, stale_s=stale_s)
        headers = stream_headers(read, run, self._tag_size if stream.tape.has_lost_start else 0, said)
        if read.if_none_match is not None and is_not_modified(read, headers):
            self.parts.close()
            answer = Answer(304, not_modified(headers), outcome, run=run)
        else:
            answer = Answer(200, headers, outcome, self.parts, stream.tape.is_json, run=run)
        if outcome is Outcome.HIT and stale_s is None and read.max_age_s is None:
            self._allow_repeat(answer, run, is_tail=is_tail)
        return answer

    @property
    def _tag_size(self) -> int | str:
        return self.parts.tag_size(self._stream.tape.is_json)

    def _allow_repeat(self, answer: Answer, run: BodyRun, *, is_tail: bool) -> None:
        """Let the answer be repeated; an answer that states the tail of an open stream only until the tail may move."""
        answer.stream, answer.run = self._stream, run
        answer.tail = NamedTail(run.end, self._stream.version) if is_tail else None
