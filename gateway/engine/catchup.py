"""Catch-up reads: take the bytes in memory, fetch missing bytes, find the tail, and answer.

The body of an answer has up to three parts: the bytes in memory from the requested offset on, the bodies of flights
(shared upstream fetches) already under way for later offsets, and the body of a new fetch at the tail.  An answer from
memory may also end at the size limit, or at the offset where the origin's own reply ended.  Such an answer is a plain
cache hit and does not state the tail.

The tail can be known without a fetch.  First, the stream's follower (its one live request) states the tail, and the
statement is valid for `tail_heard_s` after the last sign of life.  Second, the origin or the operator may allow the
gateway to repeat a tail for some time (`Stream.tail_until`).

If the tail of a stream is requested often, the gateway starts a follower, which then states the tail.  With several
workers, the stream's owner starts a follower as soon as two such requests arrive within a second.  The owner does not
wait for live reads: the first live read at another worker takes some round trips to reach the owner, and until then
each catch-up read would ask for the tail.  If the follower has been silent for too long, the gateway asks for the tail
by HEAD, and still receives the bytes from the follower.
"""

from __future__ import annotations

import math

from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.cold_reads import FirstRead, miss_outcome
from gateway.engine.flight_bodies import MOST_COMPARED
from gateway.engine.from_disk import FromDisk
from gateway.engine.live_start import LiveReads
from gateway.engine.read import Read, Uncacheable
from gateway.engine.response_heads import Said, head_answer, now_answer, origin_error_answer, part_answer
from gateway.errors import GatewayError, TailMovedBack, UpstreamUnavailable
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.names import NOW, is_before
from gateway.protocol.stream_version import Version
from gateway.tape.decide import (
    Ask,
    Awaited,
    Gone,
    Progress,
    Question,
    Send,
    Wait,
    awaited_tail,
    decide,
    is_another,
    is_named_tail,
    known_tail,
    may_end,
)
from gateway.tape.stream import Stream
from gateway.upstream.collapse import Lead
from gateway.upstream.flight import (
    METADATA,
    REFUSED_TO_ANOTHER,
    SMALL_BYTES,
    Beyond,
    Flight,
    Head,
    NotShareable,
    OriginError,
    StreamHead,
    as_seen_by,
    is_awaited,
)

# Looking up a member of an enum is slow in Python 3.11, so every catch-up read uses these constants.
_COLLAPSED, _FAILED, _FOLLOWED, _HIT = Outcome.COLLAPSED, Outcome.FAILED, Outcome.FOLLOWED, Outcome.HIT
_JOINED, _MISS, _REVALIDATED = Outcome.JOINED, Outcome.MISS, Outcome.REVALIDATED
_STALE_IF_ERROR = Outcome.STALE_IF_ERROR

_FOLLOWER_PATIENCE_S = 1.0
"""How long a follower may lag behind the tail in a reply to HEAD, in seconds.  After that the bytes are fetched."""


class CatchUp:
    """Answers catch-up reads.  Keeps no state of its own."""

    def __init__(self, reads: LiveReads) -> None:
        self._reads = reads

    async def answer(self, read: Read, stream: Stream) -> Answer:
        """Answer the read; the caller must call `Answer.close`.

        Raises Uncacheable, TailMovedBack if the origin may have re-created the stream, or another GatewayError.
        """
        attempt = _Attempt(self._reads, read, stream)
        try:
            if not stream.tape.knows_after(read.start):
                return await attempt.run()
            if (answer := attempt.at_once()) is not None:
                return answer
            if read.is_confirmation:
                return await attempt.run()
            # Call `held` on a new attempt.  While `run` waits, the bytes that `attempt` has taken may be dropped from
            # memory and fetched again.
            return await self._reads.patience.answer_or_held(
                read, stream, attempt.run, lambda: _Attempt(self._reads, read, stream).held()
            )
        except BaseException:
            attempt.parts.close()
            raise

    def start_fetch(self, read: Read, stream: Stream) -> FirstRead:
        """Launch the fetch for the first read of a stream.  `stream` must be a record that was created for this
        read."""
        flight = self._reads.fetches.launch(stream, read.start, read.route, read.source)
        return FirstRead(self, read, stream, flight)

    async def resume(self, first: FirstRead) -> Answer:
        """Answer a first read before its whole reply has arrived.  Raises like `answer`."""
        attempt = _Attempt(self._reads, first.read, first.stream, version=first.version)
        attempt.parts = Parts(first)
        try:
            return await attempt.answer_from(first.flight, is_launched=True)
        except BaseException:
            attempt.parts.close()
            raise

    async def head(self, read: Read, stream: Stream) -> Answer | None:
        """Answer a HEAD; return None if the HEAD must be relayed.  Raises like `answer`."""
        return await _Attempt(self._reads, read, stream, NOW).head()


class _Attempt:
    """One attempt to answer a read: a loop that carries out the steps from `decide` until it has an answer.  If the
    stream is re-created, the attempt ends with TailMovedBack."""

    __slots__ = (
        "_clock",
        "_confirming",
        "_fetches",
        "_has_joined",
        "_limit",
        "_live",
        "_named",
        "_progress",
        "_read",
        "_reads",
        "_stored_at",
        "_taken",
        "parts",
        "stream",
    )

    def __init__(
        self, reads: LiveReads, read: Read, stream: Stream, start: str | None = None, version: Version | None = None
    ) -> None:
        self.stream, self.parts = stream, Parts()
        self._fetches, self._confirming, self._live = reads.fetches, reads.confirming, reads.live
        self._clock, self._limit = reads.clock, reads.max_reply_bytes
        self._reads, self._read = reads, read
        route, start = read.route, start or read.start
        self._progress = Progress(
            start, start, version or stream.version, route.trust_s, read.max_age_s, may_connect=bool(route.heard_s)
        )
        self._stored_at = 0.0
        self._taken: tuple[bytes, ...] = ()
        """The bytes that were taken from memory at the start of the read."""
        self._has_joined = False
        """Whether the parts include bytes of another request's flight."""
        self._named: StreamHead | None = None
        """The reply by which the origin has confirmed the bytes on disk for this read.  None if there is no such reply,
        or if it does not state the tail."""

    def at_once(self) -> Answer | None:
        """Return the answer if it needs neither the origin nor a wait; None if `run` is needed."""
        self._take_tape()
        step = decide(self.stream, self._progress, self._clock.now())
        return self._send(step) if isinstance(step, Send) else None

    async def run(self) -> Answer:
        """Return the answer.  Raises like `CatchUp.answer`."""
        progress, from_disk = self._progress, self._reads.from_disk
        if from_disk is not None and progress.start != NOW:
            named = await from_disk.confirm(self._read, self.stream)
            self._named = named if named is not None and named.up_to_date else None
        while True:
            if progress.start != NOW:
                at = progress.at
                self._take_tape()
                if from_disk is not None:
                    await self._take_disk(from_disk)
                if progress.at != at:
                    self._may_wait_again()
            match decide(self.stream, progress, self._clock.now()):
                case Send() as step:
                    return self._send(step)
                case Wait() as step:
                    answer = await self._wait(step)
                case Ask() as step:
                    answer = self._answer_named(step) or await self._ask(step)
                case Gone():
                    raise TailMovedBack
            if answer is not None:
                return answer

    async def _take_disk(self, from_disk: FromDisk) -> None:
        """Add bytes on disk from the present position on, up to the size limit.

        Also stores the bytes after the limit on the tape, because an answer may end at an offset after which more bytes
        are in memory.
        """
        tape, progress = self.stream.tape, self._progress
        while not tape.knows_after(progress.at) and await from_disk.restore(self._read, self.stream, progress.at):
            self._check()
            self._take_tape()

    def _answer_named(self, step: Ask) -> Answer | None:
        """Return the answer if the origin has stated to this read that the bytes taken so far end at the tail.

        The origin has not confirmed the bytes at the start of the read.  If `step` is a question about these bytes, the
        question must still be asked.
        """
        named, at = self._named, self._progress.at
        if named is None or named.next_offset != at or step.question is Question.CONFIRMATION:
            return None
        self._check()
        return self._answer(_REVALIDATED, Send(at, True, named.is_closed), fwd_status=200)

    async def head(self) -> Answer | None:
        """Return the answer to a HEAD; None if the HEAD must be relayed."""
        read, stream, progress = self._read, self.stream, self._progress
        if stream.head_headers is None and known_tail(stream, read.max_age_s, self._clock.now()) is not None:
            await self._fresh(METADATA)
        while True:
            match decide(stream, progress, self._clock.now()):
                case Send(tail):
                    return head_answer(read, stream, tail) if stream.head_headers is not None else None
                case Wait() as step:
                    await self._wait(step)
                case Ask(Question.LIFETIME | Question.EXISTENCE) as step:
                    await self._ask(step)
                case Ask():
                    return None
                case Gone():
                    raise TailMovedBack

    def _send(self, step: Send) -> Answer:
        progress, read = self._progress, self._read
        if progress.start == NOW:
            return self._answer_now(step)
        if step.stale_s is not None and self._fetches.pending(self.stream, step.end) is None:
            self._fetches.join_fetch(self.stream, step.end, read.route, read.source)
        return self._answer(_COLLAPSED if self._has_joined else _HIT, step)

    async def _wait(self, step: Wait) -> Answer | None:
        """Wait for a follower's bytes or tail; return None if the read must continue."""
        progress, stream, read = self._progress, self.stream, self._read
        if step.awaited is not Awaited.CONNECTION:
            progress.has_waited = True
            return await self._answer_from_follower()
        progress.may_connect = False
        per_s = read.route.config.follow_above_per_s
        # Count only reads that would each cost the origin a request.  Reads that share a fetch together cost one
        # request.
        is_shared = any(self._fetches.pending(stream, start) for start in {step.at, NOW})
        if per_s and not is_shared:
            allows_burst = not self._reads.is_owner(read.key)
            if stream.count_tail_read(self._clock.now(), per_s, allows_burst=allows_burst):
                self._reads.follow_often_read(read, stream)
        await self._live.until_connected(stream)
        return None

    async def _ask(self, step: Ask) -> Answer | None:
        """Ask the origin; return None if the read must continue."""
        progress, stream, read = self._progress, self.stream, self._read
        match step.question:
            case Question.LIFETIME:
                progress.is_lifetime_asked = True
                await self._fetches.learn_lifetime(stream, read.route, read.source)
            case Question.EXISTENCE:
                head = await self._fresh(step.at)
                progress.is_there = isinstance(head, StreamHead) and not head.is_stale
            case Question.CONFIRMATION:
                return await self._confirm()
            case _ if step.at == NOW:
                return self._answered_now(await self._fresh(NOW))
            case _:
                fetched = await self._fetch_tail()
                if fetched is not None:
                    return await self.answer_from(*fetched)
                self._may_wait_again()
        return None

    def _may_wait_again(self) -> None:
        """Allow the read to wait for its follower again, because the read has advanced or has used another read's
        fetch."""
        self._progress.may_connect, self._progress.has_waited = bool(self._read.route.heard_s), False

    async def _fresh(self, start: str) -> Head:
        """Ask the origin at `start`; return the reply's head.  Raises Uncacheable."""
        head = await self._fetches.fresh_head(self.stream, start, self._read.route, self._read.source)
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        return head

    async def _confirm(self) -> Answer | None:
        """Ask the origin to confirm the bytes taken from memory.

        Returns the read's answer in two cases: the origin refuses the request, or states that the bytes end at the
        tail.  Otherwise returns None.
        """
        progress, head = self._progress, await self._confirming.confirm(self._read, self.stream)
        self._check()
        if not progress.version.same_bytes_as(self.stream.version) and not self._holds_taken():
            # The bytes that the read has taken were dropped meanwhile.  The origin has confirmed other bytes, or none.
            raise TailMovedBack
        progress.is_confirmed = True
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        if isinstance(head, OriginError) and head.status == 410:
            return origin_error_answer(self._read.route, head, _MISS)
        if isinstance(head, OriginError | GatewayError):
            return self._failed(head)
        if isinstance(head, StreamHead) and head.up_to_date and head.next_offset == progress.at:
            return self._answer(_REVALIDATED, Send(progress.at, True, head.is_closed), fwd_status=200)
        return None

    def _holds_taken(self) -> bool:
        """Return whether the bytes that this read has taken are still in memory.  Only the bytes that a confirmation
        compares are checked."""
        taken = b"".join(self._taken)[:MOST_COMPARED]
        return self.stream.tape.beginning(self._read.start, len(taken)) == taken

    def _check(self) -> None:
        """Raise TailMovedBack if the bytes taken so far and later bytes may belong to different streams."""
        if self.stream.ended is not None or is_another(self.stream, self._progress):
            raise TailMovedBack

    def _take_tape(self) -> None:
        """Add the bytes in memory from the present position on, up to the size limit."""
        progress, tape, room = self._progress, self.stream.tape, self._limit - self.parts.size
        if room <= 0:
            return
        if not tape.knows_after(progress.at):
            progress.at = tape.resolve(progress.at)
            return
        reading = tape.read(progress.at, room)
        if not self._taken and progress.at == self._read.start:
            self._taken = reading.pieces
        self.parts.add_pieces(reading.pieces, reading.copied, self.stream.shared_bytes())
        progress.at = reading.end
        if reading.size:
            progress.has_bytes = progress.has_held = True
            self._stored_at = min(self._stored_at, reading.stored_at) if self._stored_at else reading.stored_at

    async def _answer_from_follower(self) -> Answer | None:
        """Answer from a followed stream; return None if the follower does not receive the missing bytes."""
        stream, read = self.stream, self._read
        topic = self._live.confirmed_at(stream, self._progress.at)
        if topic is None:
            return None
        tail = awaited_tail(stream, self._progress.at, self._clock.now())
        if tail is not None and (answer := await self._until_brought(topic, tail, _FOLLOWED)) is not None:
            return answer
        head = await self._fetches.fresh_head(stream, METADATA, read.route, read.source)
        if isinstance(head, GatewayError) or (isinstance(head, OriginError) and head.status >= 500):
            # The HEAD has failed, and a fetch of the bytes would fail in the same way.
            return self._failed(head)
        if not isinstance(head, StreamHead):
            return None
        answer = await self._until_brought(topic, head.next_offset, _REVALIDATED, is_asked=True)
        if answer is None:
            # The origin has bytes that the follower has not received.  The live request is stalled, so restart it.
            self._live.revalidate(stream)
        return answer

    async def _until_brought(
        self, topic: Topic, tail: str, outcome: Outcome, *, is_asked: bool = False
    ) -> Answer | None:
        """Wait until the follower has received all bytes before `tail`, and return the answer; None if this takes too
        long.

        `is_asked` is true if the origin has stated `tail` to this read.  It is false if the acknowledgement of a write
        has stated `tail`.
        """
        stream, progress, deadline = self.stream, self._progress, self._clock.now() + _FOLLOWER_PATIENCE_S
        while True:
            self._check()
            self._take_tape()
            at, is_closed = progress.at, stream.tape.is_closed_at(progress.at)
            if not is_before(at, tail):
                is_tail = is_named_tail(stream, at, tail, is_asked=is_asked) or topic.is_current(at)
                return self._answer(outcome, Send(at, is_tail, is_closed))
            if may_end(stream, progress):
                return self._answer(outcome, Send(at, is_closed, is_closed))
            outcome = _FOLLOWED
            left = deadline - self._clock.now()
            if left <= 0 or not await topic.changed.wait_within(self._clock, left):
                return None

    async def _fetch_tail(self) -> tuple[Flight, bool] | None:
        """Fetch the bytes after the present position; return the attached flight, and whether this read launched it.

        Returns None if a flight already under way has brought bytes or has ended.  The read must then continue.  There
        is one exception.  If the reply of this flight states that the position is beyond the tail, this read launches
        another flight, because the stream may have reached the position since then.
        """
        stream, read, progress = self.stream, self._read, self._progress
        flight = self._fetches.pending(stream, progress.at)
        if flight is not None and flight.is_sent:
            flight.watch()
            try:
                patience_s = read.route.config.collapse_wait_s
                head = await self._fetches.head_within(flight, patience_s, read.source.client)
                if isinstance(head, StreamHead):
                    # A reply without bytes can have another next offset: in an empty stream, a read from `-1` (the
                    # start) leads directly to the first offset.
                    await flight.until_first_byte()
                if isinstance(head, StreamHead) and head.next_offset != progress.at and flight.error is None:
                    if head.is_stale:
                        # The bytes have the age that the owner states, so take them from the tape, with this age.
                        await flight.until_known()
                        if flight.is_kept:
                            return None
                    # Do not attach to a flight whose body is too large to keep.  Such a flight may take minutes, and
                    # drops readers that are slower than the origin.
                    elif flight.is_kept:
                        self.parts.attach(flight)
                        progress.at, self._has_joined = head.next_offset, True
                        progress.has_bytes = progress.has_bytes or flight.size > 0
                        return None
                elif isinstance(head, NotShareable):
                    # The reply may not be shared, so the readers that wait for it cannot use it.  Relay all of them
                    # now.  Otherwise they would launch fetches one after the other.
                    raise Uncacheable(head)
                elif isinstance(head, Beyond):
                    self._check()
                elif head is not None:
                    await flight.until_over()
                    return None
            finally:
                flight.unwatch()
        joined = self._fetches.join_fetch(stream, progress.at, read.route, read.source)
        self.parts.attach(joined.fetch)
        return joined.fetch, isinstance(joined, Lead)

    def _may_lack_acknowledged(self, end: str) -> bool:
        """Return whether the bytes in the owner's memory may lack an acknowledged write.  The owner has sent a part of
        these bytes that ends at `end`."""
        return not self.stream.tape.is_short(end) and self.stream.may_lack_acknowledged(end)

    async def answer_from(self, flight: Flight, is_launched: bool) -> Answer:
        """Return the answer that ends with the flight's bytes."""
        while is_awaited(flight):
            await flight.changed.wait()
        head = flight.head
        assert head is not None
        if not isinstance(head, StreamHead):
            head = as_seen_by(head, self._read.source.headers)
        elif flight.error is not None and flight.expected is not None and flight.expected <= SMALL_BYTES:
            head = flight.error
        if isinstance(head, StreamHead) and head.is_stale and self._may_lack_acknowledged(head.next_offset):
            # The owner has answered from memory, without a write whose acknowledgement this process has seen.
            if not flight.version.same_acks_as(self.stream.version):
                # The write was acknowledged while the owner waited for the origin.  Ask again.
                raise TailMovedBack
            head = UpstreamUnavailable()
        if isinstance(head, NotShareable):
            raise Uncacheable(head)
        if isinstance(head, StreamHead | Beyond):
            self._check()
        if isinstance(head, Beyond):
            self.parts.drop_last()
            if self._progress.at != self._read.start:
                # The origin has stated this position, so the stream was created again.
                raise TailMovedBack
            outcome = _MISS if is_launched else _COLLAPSED
            return self._answer(outcome, Send(head.tail, head.up_to_date, head.is_closed), fwd_status=200)
        if not isinstance(head, StreamHead):
            self.parts.drop_last()
            return self._failed(head)
        at = self._progress.at
        if at != self._read.start:
            outcome = _REVALIDATED if head.next_offset == at else _JOINED
        else:
            outcome = miss_outcome(self.stream, at, head)
            if outcome is _MISS and not is_launched:
                outcome = _COLLAPSED
        found = Send(head.next_offset, head.up_to_date, head.is_closed)
        if head.is_stale:
            # The worker that owns the stream has sent bytes from its memory, because the origin has failed.
            self._stored_at = min(self._stored_at, flight.as_of) if self._stored_at else flight.as_of
            return self._answer(_STALE_IF_ERROR, found)
        is_stored = flight.is_kept and not flight.is_passing
        return self._answer(outcome, found, fwd_status=200, stored=is_stored)

    def _answer_now(self, step: Send) -> Answer:
        """Answer a read of `offset=now` with the known tail (section 6)."""
        read, stream, tail = self._read, self.stream, step.end
        answer = now_answer(read, stream, tail, _HIT, is_closed=step.is_closed)
        if read.max_age_s is None:
            run = BodyRun(stream, tail, tail, self._progress.version.edition)
            answer.allow_repeat(run, is_tail=not step.is_closed)
        return answer

    def _answered_now(self, head: Head) -> Answer:
        """Answer a read of `offset=now` with the tail that the origin has stated to this read."""
        assert not isinstance(head, Beyond), "the tail is not behind itself"
        if not isinstance(head, StreamHead):
            return self._failed(head)
        tail, is_closed = head.next_offset, head.is_closed
        return now_answer(self._read, self.stream, tail, _MISS, is_closed=is_closed, fwd_status=200)

    def _failed(self, head: Head) -> Answer:
        """Return the answer after a fetch has failed."""
        stream, read = self.stream, self._read
        if isinstance(head, TailMovedBack):
            raise head.anew()
        if self._progress.at != read.start and isinstance(head, OriginError) and head.status == 410:
            # The origin has trimmed the stream up to this offset.  The bytes that the read has taken from memory are
            # therefore trimmed too.  Start again from the client's own offset.
            if stream.ended is None and stream.tape.knows_after(read.start):
                raise Uncacheable(REFUSED_TO_ANOTHER)
            raise TailMovedBack
        if isinstance(head, OriginError) and head.status < 500:
            return origin_error_answer(read.route, head, _MISS)
        if (answer := self._answer_held()) is not None:
            return answer
        if isinstance(head, OriginError):
            return origin_error_answer(read.route, head, _FAILED)
        assert isinstance(head, GatewayError)
        raise head.anew()

    def held(self) -> Answer | None:
        """Return the answer with the bytes in memory.  Must be called on a new attempt.

        Returns None if these bytes must not be sent without an answer of the origin.
        """
        self._take_tape()
        if (answer := self._answer_held()) is None:
            self.parts.close()
        return answer

    def _answer_held(self) -> Answer | None:
        """Return the answer with the bytes taken so far.  None if they must not be sent while the origin does not
        answer."""
        self._progress.failed_at = self._clock.wall()
        step = decide(self.stream, self._progress, self._clock.now())
        # Do not state the tail.  The client continues from the end of these bytes, and these bytes never change.
        return self._answer(_STALE_IF_ERROR, step) if isinstance(step, Send) else None

    def _answer(self, outcome: Outcome, step: Send, *, fwd_status: int | None = None, stored: bool = False) -> Answer:
        read, stream, seen = self._read, self.stream, self.stream.sighting
        end, up_to_date, is_closed, stale_s = step
        # A closed stream does not grow, so its tail stays valid.
        up_to_date |= is_closed
        is_tail = up_to_date and not is_closed
        age_s: float | None = None
        if outcome is _HIT and (is_tail or stale_s is not None):
            # A follower's tail is current.  The age of a repeated tail is the age of the origin's statement.
            age_s = None if seen is None or stream.is_followed else self._clock.now() - seen.seen_at
        elif outcome in (_HIT, _STALE_IF_ERROR) and self._stored_at:
            # The age of bytes is the age of the latest reply that confirmed them (RFC 9111 section 4.2.3).
            since = stream.confirmed_at(read.start)
            age_s = self._clock.now() - (since if since > -math.inf else self._stored_at)
        run = BodyRun(stream, read.start, end, self._progress.version.edition)
        said = Said(outcome, up_to_date, is_closed, age_s, None, fwd_status, stored, stale_s)
        answer = part_answer(read, run, said, self.parts)
        if outcome is _HIT and stale_s is None and read.max_age_s is None:
            answer.allow_repeat(run, is_tail=is_tail)
        return answer
