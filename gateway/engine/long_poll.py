"""Long-poll (section 5.7): answers as soon as bytes follow the client's offset.

This module makes the answers.  `gateway.engine.long_poll_waiter` has the clients that wait for an answer.  Clients wait
on the stream's topic (the group of its live readers).  The topic's follower (the one live request at the origin)
receives new bytes and stores them on the tape (the stream's bytes in memory).
"""

from __future__ import annotations

from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.catchup import CatchUp
from gateway.engine.compression import Coder
from gateway.engine.live_start import TOO_LARGE, LiveReads
from gateway.engine.long_poll_waiter import PollClient, Waiter, WaitingPoll
from gateway.engine.read import Poll, Read, StreamEnded, Uncacheable
from gateway.engine.read_runner import ReadRunner
from gateway.engine.response_heads import (
    Said,
    origin_error_answer,
    stream_headers,
    timed_out,
)
from gateway.errors import TailMovedBack
from gateway.live.replies import has_failed
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.etag import matches, not_modified
from gateway.protocol.names import ACCEL_BUFFERING, NOW, START, STREAM_CURSOR
from gateway.protocol.stream_version import FIRST, Edition
from gateway.tape.decide import Ask, Gone, Progress, Send, Wait, decide
from gateway.tape.stream import Stream
from gateway.tape.tape import TapeReading
from gateway.upstream.flight import Beyond, Head, OriginError, StreamHead


class LongPoll:
    """Answers long-polls.  Keeps no state of its own.  All waiters of the process share it as their `Polls`."""

    def __init__(
        self, reads: LiveReads, catch_up: CatchUp, runner: ReadRunner, tasks: Tasks, wheel: Wheel, coder: Coder
    ) -> None:
        self.clock = reads.clock
        self.tasks = tasks
        self.wheel = wheel
        self.coder = coder
        self._reads = reads
        self._polled_read = Progress(START, START, FIRST, 0.0, is_live=True, has_joined=True)
        """The arguments for `decide`, reused for every poll.  An event can wake thousands of polls in one turn of the
        event loop."""
        self._catch_up = catch_up
        self._runner = runner

    async def answer(self, read: Read) -> Answer | WaitingPoll:
        """Answer with the bytes after the offset, or register the poll to wait.  The caller must call `close` on the
        result.

        Raises Uncacheable or a GatewayError.
        """
        return await self._runner.run(read, self._within_patience)

    async def _within_patience(self, read: Read, stream: Stream) -> Answer | WaitingPoll:
        if read.start == NOW or not stream.tape.knows_after(read.start):
            return await self._on(read, stream)
        return await self._reads.patience.answer_or_held(
            read, stream, lambda: self._on(read, stream), lambda: self._held(read, stream)
        )

    def _held(self, read: Read, stream: Stream) -> Answer | None:
        """Return an answer with the bytes in memory; None if these bytes must not be sent without an answer of the
        origin."""
        reading = stream.tape.read(read.start, self._reads.max_reply_bytes)
        progress = self._reads.progress(read, stream, reading.end)
        progress.has_bytes, progress.failed_at = reading.size > 0, self.clock.wall()
        if not isinstance(decide(stream, progress, self.clock.now()), Send):
            return None
        return self._polled(read, stream, reading, Outcome.STALE_IF_ERROR, stream.version.edition, is_current=False)

    def are_overdue(self, read: Read, stream: Stream) -> bool:
        """Return whether an answer now would begin with bytes that the origin has failed to confirm."""
        return self._reads.are_overdue(read, stream, read.start)

    def reader_left(self, topic: Topic) -> None:
        """Record that a reader has left the topic."""
        self._reads.reader_left(topic)

    async def _on(self, read: Read, stream: Stream) -> Answer | WaitingPoll:
        """Answer with the bytes after the offset.  If there are no such bytes, register the poll to wait.

        The caller must call `WaitingPoll.start` or `WaitingPoll.close`.  Raises TailMovedBack if the origin now has
        another stream than `stream`.  Raises Uncacheable or another GatewayError.
        """
        try:
            start, head, _, is_unconfirmed = await self._reads.settle_start(read, stream, wants_lifetime=True)
            if isinstance(head, Beyond):
                # The offset is beyond the tail, where a wait might never end.  Answer with the tail immediately.
                return self._polled(
                    read,
                    stream,
                    TapeReading(end=head.tail),
                    Outcome.MISS,
                    stream.version.edition,
                    is_current=head.up_to_date,
                    is_closed=head.is_closed,
                )
            read, outcome = read._replace(start=start), Outcome.HIT
            is_unconfirmed |= head.is_stale if isinstance(head, StreamHead) else stream.expiry.lifetime is None
            if is_unconfirmed and stream.tape.knows_after(start):
                outcome = Outcome.STALE_IF_ERROR
            elif isinstance(head, StreamHead):
                outcome = Outcome.MISS
            topic = self._reads.attach(read, stream)
            is_waiting = False
            try:
                if (answer := self._poll_fetched(read, stream, head, outcome)) is not None:
                    return answer
                while True:
                    found = self.poll_now(read, stream, topic, outcome)
                    if found is Poll.ASK:
                        found = await self.poll_asking(read, stream, topic, outcome)
                        # An answer in a later iteration consists of fetched bytes, so it is a miss.
                        outcome = Outcome.MISS
                    if isinstance(found, Answer):
                        return found
                    if found is Poll.WAIT:
                        self._reads.live.follow(topic)
                        is_waiting = True
                        return WaitingPoll(self, self._reads.waiting(read, stream, topic), stream, topic)
            finally:
                if not is_waiting:
                    self._reads.reader_left(topic)
        except StreamEnded as ended:
            return origin_error_answer(read.route, ended.error, Outcome.FOLLOWED)

    def answer_late(self, read: Read, stream: Stream) -> Answer | None:
        """Answer a late poll: one whose bytes are in memory when it arrives.

        Clients are late if new messages arrive faster than the clients can send requests.  Many clients are then late
        at the same offset.  The answer may be repeated until the tail moves, like the answer to a catch-up read.
        Returns None if the poll has to wait, if the origin must be asked first, or if the answer may not be repeated.
        """
        if not stream.tape.knows_after(read.start) or (stream.varies_by_origin and read.web_origin is not None):
            return None
        topic = self._reads.join(read, stream)
        if topic is None:
            return None
        try:
            found = self.poll_now(read, stream, topic) if topic.not_shareable is None else None
        except (StreamEnded, TailMovedBack):
            return None
        finally:
            self._reads.reader_left(topic)
        if not isinstance(found, Answer) or found.status != 200 or found.run is None:
            return None
        now, trust_s, run = self.clock.now(), read.route.trust_s, found.run
        # A remembered answer has two conditions that an answer to one client does not have: the lifetime must be known,
        # and the statement of the tail must be recent.
        may_repeat = (
            stream.may_answer_alone(now, trust_s)
            and stream.tail_until(run.end) > now
            and stream.bytes_until(run.start, trust_s) > now
        )
        if not may_repeat:
            return None
        found.allow_repeat(run, is_tail=True)
        return found

    def poll_now(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome = Outcome.HIT) -> Answer | Poll:
        """Return the answer to a long-poll without a request to the origin.  Returns `Poll.WAIT` if there is no answer
        yet, and `Poll.ASK` if the origin must be asked.  Raises StreamEnded or TailMovedBack."""
        self._reads.check_ended(stream)
        reading = stream.tape.read(read.start, self._reads.max_reply_bytes)
        polled = self._polled_read
        polled.at, polled.has_bytes, polled.follower = reading.end, reading.size > 0, topic
        step = decide(stream, polled, self.clock.now())
        polled.follower = None
        match step:
            case Send(end, is_current, is_closed):
                if not reading.size:
                    return timed_out(read, stream, end, is_closed, "", Outcome.HIT)
                return self._polled(read, stream, reading, outcome, stream.version.edition, is_current=is_current)
            case Ask():
                return Poll.ASK
            case Wait():
                return Poll.WAIT
            case Gone():
                raise TailMovedBack

    def _poll_fetched(self, read: Read, stream: Stream, head: Head | None, outcome: Outcome) -> Answer | None:
        """Return an answer with the bytes fetched for this read; None if these bytes do not reach the tail."""
        if not isinstance(head, StreamHead) or not head.up_to_date or stream.ended is not None:
            return None
        reading = stream.tape.read(read.start, self._reads.max_reply_bytes)
        if not reading.size or reading.end != head.next_offset or not stream.holds_acknowledged(reading.end):
            return None
        edition, is_closed = stream.version.edition, head.is_closed
        return self._polled(read, stream, reading, outcome, edition, is_current=True, is_closed=is_closed)

    async def poll_asking(
        self, read: Read, stream: Stream, topic: Topic, outcome: Outcome = Outcome.FOLLOWED
    ) -> Answer | Poll:
        """Ask the origin for the bytes or metadata that an answer needs.

        Waits briefly for a connecting follower, because its statement of the tail may make a request unnecessary.
        Returns the answer, `Poll.ASK` if the caller should try again, or `Poll.WAIT` if nothing has changed.
        """
        tape, most = stream.tape, self._reads.max_reply_bytes
        reading = tape.read(read.start, most)
        if reading.size and not topic.is_confirmed:
            # A connecting follower will state the tail, and receive later bytes.  With a fetch, these bytes would be
            # received twice.
            await self._reads.live.until_connected(stream)
            if topic.not_shareable is not None:
                raise Uncacheable(topic.not_shareable)
            if (found := self.poll_now(read, stream, topic, outcome)) is not Poll.ASK:
                return found
            reading = tape.read(read.start, most)
        if not reading.size:
            return Poll.ASK if await self._reads.fill_for(read, topic, reading.end) else Poll.WAIT
        # The tail is not confirmed.  One fetch shows whether more bytes follow.
        version = stream.version
        head = await self._reads.fetches.fresh_head(stream, reading.end, read.route, read.source)
        self._reads.check_ended(stream)
        if not version.same_incarnation_as(stream.version):
            # The bytes read before the fetch may belong to another stream than the reply.
            raise TailMovedBack
        if isinstance(head, OriginError) and head.status == 410:
            # The origin has trimmed beyond the bytes in memory.  Start again from the client's offset.
            raise TailMovedBack
        if isinstance(head, OriginError) and not has_failed(head):
            # The origin refuses the stream, so send no more of it.
            raise StreamEnded(head)
        if has_failed(head) and not stream.outlasts_failure(self.clock.now(), self.clock.wall()):
            self._reads.expect_stream(head)
        is_stale = has_failed(head) or (isinstance(head, StreamHead) and head.is_stale)
        if is_stale and outcome is Outcome.HIT:
            outcome = Outcome.STALE_IF_ERROR
        # The bytes that were read before the fetch may have been evicted since then, but are still valid.
        edition = version.edition
        if (later := tape.read(read.start, most)).size > reading.size:
            reading, edition = later, stream.version.edition
        is_current = isinstance(head, StreamHead) and head.up_to_date and head.next_offset == reading.end
        if outcome is Outcome.HIT and is_current:
            outcome = Outcome.REVALIDATED
        is_current = is_current or topic.is_current(reading.end)
        return self._polled(read, stream, reading, outcome, edition, is_current=is_current)

    def _polled(
        self,
        read: Read,
        stream: Stream,
        reading: TapeReading,
        outcome: Outcome,
        edition: Edition,
        *,
        is_current: bool,
        is_closed: bool = False,
    ) -> Answer:
        """Return a 200 or 304 with the bytes of `reading`.

        Set `is_closed` if the origin has stated the closure to this read.  The tape may no longer record the closure.
        """
        end = reading.end
        if reading.size and self.are_overdue(read, stream):
            outcome = Outcome.STALE_IF_ERROR
        is_closed = is_closed or stream.tape.is_closed_at(end)
        parts = Parts()
        parts.add_pieces(reading.pieces, reading.copied, stream.shared_bytes())
        cursor = self._reads.live.cursor_for(stream, read.cursor)
        run = BodyRun(stream, read.start, end, edition)
        said = Said(outcome, is_closed or is_current, is_closed, cursor=cursor)
        headers = stream_headers(read, run, parts.tag_size(stream.tape.is_json), said)
        if matches(read.if_none_match, headers["ETag"]):
            return Answer(304, not_modified(headers), outcome)
        return Answer(200, headers, outcome, parts, stream.tape.is_json, run=run)

    def wait(self, waiting: WaitingPoll, client: PollClient) -> Waiter:
        """Return a waiter that has not been started."""
        waiter = Waiter(waiting, client, waiting.read.route.config.long_poll_timeout_s)
        drain = self._reads.drain
        if drain.ends(waiting.read):
            now = self.clock.now()
            waiter.drain_within(drain.delay_s(now, self._reads.rng), drain.within_s(now))
        return waiter

    async def answer_past_tape(self, read: Read, stream: Stream) -> Answer:
        """Answer a long-poll whose bytes are not on the tape.  Raises Uncacheable if the bytes exceed the reply
        limit."""
        answer = await self._catch_up.answer(read, stream)
        try:
            if answer.parts is None or answer.status != 200:
                return answer
            body: list[bytes] = []
            async for piece in answer.parts.stream(answer.is_json):
                body.append(piece)
                if sum(map(len, body)) > self._reads.max_reply_bytes:
                    raise Uncacheable(TOO_LARGE)
            answer.headers[STREAM_CURSOR] = self._reads.live.cursor_for(stream, read.cursor)
            answer.headers[ACCEL_BUFFERING] = "no"
            return Answer(answer.status, answer.headers, answer.outcome, body=b"".join(body))
        finally:
            answer.close()

    def timeout_confirmed(self, read: Read, stream: Stream, topic: Topic) -> Answer | None:
        """Return the 204 for a wait that has timed out; None if the follower has not confirmed the tail."""
        at = stream.tape.resolve(read.start)
        if not topic.is_current(at):
            return None
        cursor = self._reads.live.cursor_for(stream, read.cursor)
        return timed_out(read, stream, at, stream.tape.is_closed_at(at), cursor, Outcome.FOLLOWED)

    async def timeout_asking(self, read: Read, stream: Stream) -> Answer:
        """Answer a wait that has timed out while the tail is unconfirmed.  The origin is asked for the tail."""
        cursor = self._reads.live.cursor_for(stream, read.cursor)
        at = stream.tape.resolve(read.start)
        head = await self._reads.fetches.fresh_head(stream, at, read.route, read.source)
        if isinstance(head, OriginError) and head.status == 410 and at != read.start:
            # The origin has trimmed the position that the read has reached.  Ask for the client's own offset again.
            raise TailMovedBack
        self._reads.expect_stream(head)
        self._reads.check_ended(stream)
        reading = stream.tape.read(at, self._reads.max_reply_bytes)
        if reading.size:
            assert isinstance(head, StreamHead)
            is_current = head.up_to_date and head.next_offset == reading.end
            edition, is_closed = stream.version.edition, is_current and head.is_closed
            outcome = Outcome.STALE_IF_ERROR if head.is_stale else Outcome.MISS
            return self._polled(read, stream, reading, outcome, edition, is_current=is_current, is_closed=is_closed)
        assert isinstance(head, StreamHead)
        if head.next_offset != at:
            raise Uncacheable(TOO_LARGE)
        return timed_out(read, stream, at, head.is_closed, cursor, Outcome.MISS)

    def wait_at_once(self, read: Read, stream: Stream) -> WaitingPoll | None:
        """Register a long-poll that can wait, or be answered from the tape, without a request to the origin.

        Returns None, without side effects, if the origin must be asked first.  The caller must call `WaitingPoll.start`
        or `WaitingPoll.close`.
        """
        topic = self._reads.join(read, stream)
        if topic is None:
            return None
        return WaitingPoll(self, self._reads.waiting(read, stream, topic), stream, topic)
