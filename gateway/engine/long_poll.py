"""Long-poll (section 5.7): an answer as soon as bytes follow the offset, or the place at which to wait for them.

`gateway.engine.long_poll_waiter` waits; this module decides its answer.
"""

from __future__ import annotations

from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.catchup import CatchUp
from gateway.engine.coder import Coder
from gateway.engine.live_start import TOO_LARGE, LiveReads
from gateway.engine.long_poll_waiter import PollClient, Waiter, WaitingPoll
from gateway.engine.read import Poll, Read, StreamEnded, Uncacheable
from gateway.engine.read_runner import ReadRunner
from gateway.engine.response_heads import (
    Said,
    is_not_modified,
    not_modified,
    origin_error_answer,
    stream_headers,
    timed_out,
)
from gateway.errors import TailMovedBack
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.names import ACCEL_BUFFERING, NOW, START, STREAM_CURSOR
from gateway.protocol.stream_version import FIRST, Edition
from gateway.tape.decide import Ask, Gone, Progress, Send, Wait, decide
from gateway.tape.stream import Stream
from gateway.tape.tape import TapeReading
from gateway.upstream.flight import Beyond, Head, OriginError, StreamHead


class LongPoll:
    """Answers long-polls.  Keeps no state of its own; also the context that all waiters of the process share."""

    def __init__(
        self,
        reads: LiveReads,
        catch_up: CatchUp,
        runner: ReadRunner,
        tasks: Tasks,
        wheel: Wheel,
        coder: Coder,
    ) -> None:
        self.clock = reads.clock
        self.tasks = tasks
        self.wheel = wheel
        self.coder = coder
        self._reads = reads
        self._polled_read = Progress(START, START, FIRST, 0.0, is_live=True, has_joined=True)
        """The progress of the read that is looked at now.  Thousands may be in one turn of the loop, and each is looked
        at in one plain call."""
        self._catch_up = catch_up
        self._runner = runner

    async def answer(self, read: Read) -> Answer | WaitingPoll:
        """Answer with the bytes after the offset, or return the place at which to wait; the caller must call `close`.
        Raises Uncacheable or a GatewayError."""
        return await self._runner.run(read, self._within_patience)

    async def _within_patience(self, read: Read, stream: Stream) -> Answer | WaitingPoll:
        if read.start == NOW or not stream.tape.knows_after(read.start):
            return await self._on(read, stream)
        return await self._reads.patience.answer_or_held(
            read, stream, lambda: self._on(read, stream), lambda: self._held(read, stream)
        )

    def _held(self, read: Read, stream: Stream) -> Answer | None:
        """The answer of held bytes, if they may be given without the origin's answer."""
        reading = stream.tape.read(read.start, self._reads.max_reply_bytes)
        progress = self._reads.progress(read, stream, reading.end)
        progress.has_bytes, progress.failed_at = reading.size > 0, self.clock.wall()
        if not isinstance(decide(stream, progress, self.clock.now()), Send):
            return None
        return self._polled(read, stream, reading, Outcome.STALE_IF_ERROR, stream.version.edition, is_current=False)

    def reader_left(self, topic: Topic) -> None:
        """A reader has left the topic."""
        self._reads.reader_left(topic)

    async def _on(self, read: Read, stream: Stream) -> Answer | WaitingPoll:
        """Answer with the bytes after the offset if there are any, else return the place at which the client waits.

        The caller must call `WaitingPoll.start` or `WaitingPoll.close`.  Raises Uncacheable, TailMovedBack if `stream`
        is not the origin's from the start, or another GatewayError.
        """
        try:
            start, head, _ = await self._reads.settle_start(read, stream, wants_lifetime=True)
            if isinstance(head, Beyond):
                # A wait there might never end: answer with the tail at once.
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
            if head is None and stream.expiry.lifetime is None and stream.tape.knows_after(start):
                outcome = Outcome.STALE_IF_ERROR
            topic = self._reads.attach(read, stream)
            is_waiting = False
            try:
                if (answer := self._poll_fetched(read, stream, head)) is not None:
                    return answer
                while True:
                    found = self.poll_now(read, stream, topic, outcome)
                    if found is Poll.ASK:
                        found = await self.poll_asking(read, stream, topic, outcome)
                        # The fetch has brought whatever the next attempt finds.
                        outcome = Outcome.MISS
                    if isinstance(found, Answer):
                        return found
                    if found is Poll.WAIT:
                        self._reads.live.follow(topic)
                        is_waiting = True
                        # Keep little while it waits: use the stream's key and the topic's source.
                        return WaitingPoll(
                            self, read._replace(key=stream.key, source=topic.access.source), stream, topic
                        )
            finally:
                if not is_waiting:
                    self._reads.reader_left(topic)
        except StreamEnded as ended:
            return origin_error_answer(read.route, ended.error, Outcome.FOLLOWED)

    def poll_now(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome = Outcome.HIT) -> Answer | Poll:
        """The answer to a long-poll if it can be given at once.  Raises StreamEnded."""
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

    def _poll_fetched(self, read: Read, stream: Stream, head: Head | None) -> Answer | None:
        """The answer from what was fetched for this read, if that reaches the tail."""
        if not isinstance(head, StreamHead) or not head.up_to_date or stream.ended is not None:
            return None
        reading = stream.tape.read(read.start, self._reads.max_reply_bytes)
        if not reading.size or reading.end != head.next_offset or not stream.holds_acknowledged(reading.end):
            return None
        edition, is_closed = stream.version.edition, head.is_closed
        return self._polled(read, stream, reading, Outcome.MISS, edition, is_current=True, is_closed=is_closed)

    async def poll_asking(
        self, read: Read, stream: Stream, topic: Topic, outcome: Outcome = Outcome.FOLLOWED
    ) -> Answer | Poll:
        """Fetch what is missing for an answer: ASK if the caller should try again, WAIT if nothing changed."""
        tape, edition = stream.tape, stream.version.edition
        reading = tape.read(read.start, self._reads.max_reply_bytes)
        if not reading.size:
            return Poll.ASK if await self._reads.fill_for(read, topic, reading.end) else Poll.WAIT
        # The tail is unconfirmed: one fetch finds out whether more follows.
        head = await self._reads.fetches.fresh_head(stream, reading.end, read.route, read.source)
        self._reads.check_ended(stream)
        if isinstance(head, OriginError) and head.status == 410:
            # The origin has trimmed the stream beyond the bytes in memory: ask it for the client's own offset.
            raise TailMovedBack
        if isinstance(head, OriginError) and not self._reads.has_failed(head):
            # The stream has been refused: send no more of it.
            raise StreamEnded(head)
        if self._reads.has_failed(head) and not stream.outlasts_failure(self.clock.now(), self.clock.wall()):
            self._reads.expect_stream(head)
        if self._reads.has_failed(head) and outcome is Outcome.HIT:
            outcome = Outcome.STALE_IF_ERROR
        # What was read before the fetch may have been evicted since; it is still valid.
        reading = max(reading, tape.read(read.start, self._reads.max_reply_bytes), key=lambda one: one.size)
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
        """`is_closed` says that the origin has told this read of the closure; the tape's facts may be gone by now."""
        end = reading.end
        is_closed = is_closed or stream.tape.is_closed_at(end)
        parts = Parts()
        parts.add_pieces(reading.pieces, reading.copied, stream.shared_bytes())
        cursor = self._reads.cursor(read, stream)
        run = BodyRun(stream, read.start, end, edition)
        said = Said(outcome, is_closed or is_current, is_closed, cursor=cursor)
        headers = stream_headers(read, run, parts.tag_size(stream.tape.is_json), said)
        if is_not_modified(read, headers):
            return Answer(304, not_modified(headers), outcome)
        return Answer(200, headers, outcome, parts, stream.tape.is_json, run=run)

    def wait(self, waiting: WaitingPoll, client: PollClient) -> Waiter:
        """A waiter, not yet started."""
        waiter = Waiter(waiting, client, waiting.read.route.config.long_poll_timeout_s)
        if self._reads.drain.is_set:
            drain, now = self._reads.drain, self.clock.now()
            waiter.drain_within(drain.delay_s(now, self._reads.rng), drain.within_s(now))
        return waiter

    async def answer_past_tape(self, read: Read, stream: Stream) -> Answer:
        """Answer a long-poll whose bytes are not on the tape; Uncacheable if they exceed the reply limit."""
        answer = await self._catch_up.answer(read, stream)
        try:
            if answer.parts is None or answer.status != 200:
                return answer
            body: list[bytes] = []
            async for piece in answer.parts.stream(answer.is_json):
                body.append(piece)
                if sum(map(len, body)) > self._reads.max_reply_bytes:
                    raise Uncacheable(TOO_LARGE)
            answer.headers[STREAM_CURSOR] = self._reads.cursor(read, stream)
            answer.headers[ACCEL_BUFFERING] = "no"
            return Answer(answer.status, answer.headers, answer.outcome, body=b"".join(body))
        finally:
            answer.close()

    def timeout_confirmed(self, read: Read, stream: Stream, topic: Topic) -> Answer | None:
        """The 204 of a wait that has timed out, if the follower confirms the tail."""
        at = stream.tape.resolve(read.start)
        if not topic.is_current(at):
            return None
        cursor = self._reads.cursor(read, stream)
        return timed_out(read, stream, at, stream.tape.is_closed_at(at), cursor, Outcome.FOLLOWED)

    async def timeout_asking(self, read: Read, stream: Stream) -> Answer:
        """Answer a wait that has timed out without a confirmed tail: ask the origin."""
        cursor = self._reads.cursor(read, stream)
        at = stream.tape.resolve(read.start)
        head = await self._reads.fetches.fresh_head(stream, at, read.route, read.source)
        self._reads.expect_stream(head)
        self._reads.check_ended(stream)
        reading = stream.tape.read(at, self._reads.max_reply_bytes)
        if reading.size:
            assert isinstance(head, StreamHead)
            is_current = head.up_to_date and head.next_offset == reading.end
            edition, is_closed = stream.version.edition, is_current and head.is_closed
            return self._polled(
                read, stream, reading, Outcome.MISS, edition, is_current=is_current, is_closed=is_closed
            )
        assert isinstance(head, StreamHead)
        if head.next_offset != at:
            raise Uncacheable(TOO_LARGE)
        return timed_out(read, stream, at, head.is_closed, cursor, Outcome.MISS)

    def wait_at_once(self, read: Read, stream: Stream) -> WaitingPoll | None:
        """The place at which a long-poll's client waits, or is answered from the tape, if that is known without the
        origin; else None, without side effects.  The caller must call `WaitingPoll.start` or `WaitingPoll.close`."""
        topic = self._reads.join(read, stream)
        if topic is None:
            return None
        # As in `_on`: other clients may join the wait, each with credentials of its own.
        return WaitingPoll(self, read._replace(key=stream.key, source=topic.access.source), stream, topic)
