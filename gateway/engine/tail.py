"""Live reads: long-poll and SSE, as views of the tape and of the topic that feeds it.

Both go the same way.  Read the tape from where the client stands; where it ends short of the topic's position, have
the gap fetched; at the topic's position wait.  Neither has a task of its own at the origin, a queue, or a memory of
what was sent beyond its own offset, so there is no seam between replay and live at which a byte could be lost or come
twice.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from gateway.aio.clock import Clock
from gateway.aio.tasks import Tasks
from gateway.aio.wheel import Wheel
from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.catchup import CatchUp
from gateway.engine.classifier import is_outdated
from gateway.engine.fetch_table import FetchTable
from gateway.engine.read import Drain, Poll, Read, StreamEnded, Uncacheable
from gateway.engine.response_heads import not_modified, refusal_answer, stream_headers, timed_out
from gateway.engine.route import Route
from gateway.engine.waiter import Client, Waiter, Waiting
from gateway.errors import GatewayError, TailMovedBack, UpstreamBroken
from gateway.live.subscriber import Subscriber, Wire
from gateway.live.topic import OriginAccess, Terms, Topic
from gateway.live.topics import LiveTopics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import next_cursor
from gateway.protocol.etag import matches
from gateway.protocol.names import ACCEL_BUFFERING, SSE_DATA_ENCODING, STREAM_CURSOR, is_sse_text
from gateway.protocol.offsets import NOW, START, is_before
from gateway.tape.stream import Edition, End, Stream
from gateway.tape.tape import Reading, Tape
from gateway.upstream.flight import METADATA, Beyond, Head, NotShareable, OriginError, StreamHead, as_seen_by
from gateway.upstream.source import Source

_LIFETIME_JITTER = (0.8, 1.0)
_SETTLING_S = 1.0
_LITTLE_BYTES = 1 << 16
"""A reader who is behind by no more than this is sent it at once, whatever that has to be coded in."""
TOO_LARGE = NotShareable("larger than the tape", is_lasting=False)
"""Why a live reader's replay is relayed: no tape can hold it."""


class Tail:
    """Answers live reads.  Keeps no state of its own; `drain` tells it to send readers off in order.

    It is also what all waiting readers of the process share: time, and what is done for them.  `again` asks a long-poll
    from the beginning, `code_now` gives an answer its content coding.
    """

    def __init__(
        self,
        fetches: FetchTable,
        catch_up: CatchUp,
        live: LiveTopics,
        clock: Clock,
        tasks: Tasks,
        rng: random.Random,
        drain: Drain,
        max_reply_bytes: int,
        again: Callable[[Read], Awaitable[Answer | Waiting]],
        code_now: Callable[[Read, Answer], Answer],
    ) -> None:
        self.clock = clock
        self.tasks = tasks
        self.wheel = Wheel(clock)
        self.again = again
        self.code_now = code_now
        self._fetches = fetches
        self._catch_up = catch_up
        self._live = live
        self._rng = rng
        self.drain = drain
        self._max_reply_bytes = max_reply_bytes

    # -- shared by both modes

    async def begin(self, read: Read, stream: Stream) -> tuple[str, Head | None]:
        """Make sure that the stream exists, is still the same and has a known type; the offset to start from, which is
        the tail for a reader who asked for what lies behind it, and what the origin said there if it was asked.

        Raises Ended, Uncacheable or a GatewayError.
        """
        fresh, tape, start = self._fetches.fresh_head, stream.tape, read.start
        head: Head | None = None
        # The metadata name the tail, which is where most offsets lie: then there is no need for what comes after it.
        place = start if start in (START, NOW) else METADATA
        if place == METADATA and self._fetches.pending(stream, START) is not None:
            # Another's fetch tells what there is to know as well; where the tail is now is the follower's to say.
            place = START
        if (
            stream.content_type is None
            and (stale := await self._fetches.join_earlier(stream, place, read.route)) is not None
        ):
            refusal = as_seen_by(stale.head, read.source.headers) if stale.head is not None else None
            if isinstance(refusal, OriginError) and not is_outdated(stream, stale):
                raise StreamEnded(refusal)
            self._check_ended(stream)
        if stream.content_type is None:
            # The first of its readers: what it asks for is fetched, and tells of the rest.
            head = await fresh(stream, place, read.route, read.source)
            if place == METADATA and isinstance(head, NotShareable | StreamHead) and stream.content_type is None:
                # An origin without HEAD is no reason to share nothing: its reads tell what there is to know.
                place, head = start, await fresh(stream, start, read.route, read.source)
            if stream.content_type is None:
                self._expect_stream(head)
            self._check_laid(stream, start, head if place == start else None)
            head = head if place == start else None
        elif not stream.is_trusted(self.clock.now(), read.route.config.trust_s):
            tail = tape.tail or start
            look = await fresh(stream, tail, read.route, read.source)
            if isinstance(look, OriginError) and look.status == 400 and tail != start:
                # Not the client's offset is refused but the one remembered here: this is another stream.
                self._live.drop(stream, End.RECREATED)
                raise TailMovedBack
            if not self._has_failed(look) or not tape.knows_after(start):
                self._expect_stream(look)
        if start == NOW:
            topic = self._live.find(stream)
            if topic is not None and topic.position is not None:
                at = tape.resolve(topic.position)
                if topic.is_current(at):
                    return at, None
            return self._expect_stream(head or await fresh(stream, NOW, read.route, read.source)).next_offset, None
        if start != START and head is None and not tape.has_seen(start):
            # Bytes are wanted, not news of the tail: another's fetch of them will do.
            await self._fetches.join_earlier(stream, start, read.route)
            self._check_ended(stream)
        if start != START and not tape.has_seen(start):
            # An offset that the origin has not named here is shown to it: it may be behind, ahead, or none at all.
            if stream.lies_beyond(start) and tape.tail is not None and stream.tail_until(tape.tail) > self.clock.now():
                return tape.tail, Beyond(tape.tail, True, tape.is_closed_at(tape.tail))
            if head is None:
                head = await fresh(stream, start, read.route, read.source)
            if isinstance(head, Beyond):
                return head.tail, head
            self._expect_stream(head)
            self._check_laid(stream, start, head)
        return start, head

    @staticmethod
    def _has_failed(head: Head) -> bool:
        """Whether the origin could not say."""
        if isinstance(head, OriginError):
            return head.status >= 500 or head.status == 429
        return isinstance(head, GatewayError)

    @staticmethod
    def _check_laid(stream: Stream, start: str, head: Head | None) -> None:
        """Raise Uncacheable where what was fetched after `start` is not on the tape: it is too large to be kept, or was
        evicted at once, so that this reader cannot be served from there."""
        tape = stream.tape
        if not isinstance(head, StreamHead) or start == NOW or head.next_offset == start or stream.ended is not None:
            return
        if not tape.knows_after(start) and tape.resolve(start) == start:
            raise Uncacheable(TOO_LARGE)

    def _expect_stream(self, head: Head | None) -> StreamHead:
        match head:
            case StreamHead():
                return head
            case OriginError():
                raise StreamEnded(head)
            case NotShareable():
                raise Uncacheable(head)
            case Beyond() | None:
                raise UpstreamBroken
            case _:
                raise head.anew()

    def attach(self, read: Read, stream: Stream) -> Topic:
        """Join the stream's topic; `left` is owed."""
        route, source, config = read.route, read.source, read.route.config
        known = self._live.find(stream)
        if known is not None and known.foreign is not None:
            raise Uncacheable(known.foreign)
        topic = self._live.attach(
            stream,
            OriginAccess(
                source,
                lambda at: self._fetches.fresh_head(stream, METADATA if at is None else at, route, source),
                lambda topic, at: self._fill(route, source, topic, at),
            ),
            Terms(config.sse_lifetime_s, config.heartbeat_s, config.live_linger_s, route.heard_s),
        )
        topic.greet(read.cursor, self.clock.wall())
        return topic

    def left(self, topic: Topic) -> None:
        """A reader has left the topic."""
        self._live.detach(topic)

    async def _fill(self, route: Route, source: Source, topic: Topic, at: str) -> bool:
        """Have what lies after `at` fetched, where it is not for the follower to bring; whether that changed anything.

        An offset that the origin has not named yet is shown to it once: it may be behind, ahead, or no offset at all.
        """
        stream = topic.stream
        tape = stream.tape
        if not topic.is_missing(at):
            return False
        # Bytes are wanted, not news of the tail, which the follower brings: another's fetch of them will do.
        stale = await self._fetches.join_earlier(stream, at, route)
        if stale is not None and (tape.knows_after(at) or _is_furthest(tape, tape.resolve(at))):
            return True
        tail = tape.tail
        head = self._expect_stream(await self._fetches.fresh_head(stream, at, route, source))
        self._check_laid(stream, at, head)
        return head.next_offset != at or tape.tail != tail

    @staticmethod
    def _check_ended(stream: Stream) -> None:
        if stream.ended in (End.RECREATED, End.PURGED):
            # Whether that concerns the reader depends on when it came.
            raise TailMovedBack
        if stream.ended is not None:
            raise StreamEnded(OriginError.of_ended(stream.ended.status))

    # -- long-poll (section 5.7)

    async def long_poll(self, read: Read, stream: Stream) -> Answer | Waiting:
        """Answer with the bytes after the offset, where there are any; else the place at which the client waits.

        `Waiting.start` or `Waiting.close` is owed.  Raises Uncacheable, TailMovedBack when `stream` is not the origin's
        from the start, or another GatewayError.
        """
        try:
            start, head = await self.begin(read, stream)
            if isinstance(head, Beyond):
                # Waiting there could be for ever: the reader is told where the tail is at once.
                return self._polled(
                    read,
                    stream,
                    Reading(end=head.tail),
                    Outcome.MISS,
                    stream.edition,
                    is_current=head.up_to_date,
                )
            read = replace(read, start=start)
            topic = self.attach(read, stream)
            is_waiting = False
            try:
                if (answer := self._poll_fetched(read, stream, head)) is not None:
                    return answer
                outcome = Outcome.HIT
                while True:
                    found = self.poll_now(read, stream, topic, outcome)
                    if found is Poll.LOOK:
                        found = await self.poll_looking(read, stream, topic, outcome)
                        # What is there when it is tried again the look has brought.
                        outcome = Outcome.MISS
                    if isinstance(found, Answer):
                        return found
                    if found is Poll.WAIT:
                        self._live.follow(topic)
                        is_waiting = True
                        # Little is kept while it waits: the key and the source are the stream's and the topic's.
                        return Waiting(self, replace(read, key=stream.key, source=topic.access.source), stream, topic)
            finally:
                if not is_waiting:
                    self.left(topic)
        except StreamEnded as ended:
            return refusal_answer(read.route, ended.refusal, Outcome.FOLLOWED)

    def poll_now(self, read: Read, stream: Stream, topic: Topic, outcome: Outcome = Outcome.HIT) -> Answer | Poll:
        """The answer to a long-poll where it can be given at once.  Raises Ended."""
        self._check_ended(stream)
        reading = stream.tape.read(read.start, self._max_reply_bytes)
        if reading.size:
            if not self._is_verified(stream, topic, reading.end):
                return Poll.LOOK
            is_current = self._is_tail(stream, topic, reading.end)
            return self._polled(read, stream, reading, outcome, stream.edition, is_current=is_current)
        if stream.tape.is_closed_at(reading.end):
            return timed_out(read, stream, reading.end, True, "", Outcome.HIT)
        return Poll.LOOK if topic.is_missing(reading.end) else Poll.WAIT

    def _poll_fetched(self, read: Read, stream: Stream, head: Head | None) -> Answer | None:
        """The answer with what was fetched for this read, where that is all there is."""
        if not isinstance(head, StreamHead) or not head.up_to_date or stream.ended is not None:
            return None
        reading = stream.tape.read(read.start, self._max_reply_bytes)
        if not reading.size or reading.end != head.next_offset or not stream.holds_acknowledged(reading.end):
            return None
        return self._polled(read, stream, reading, Outcome.MISS, stream.edition, is_current=True)

    async def poll_looking(
        self, read: Read, stream: Stream, topic: Topic, outcome: Outcome = Outcome.FOLLOWED
    ) -> Answer | Poll:
        """Have fetched what stands in the way of an answer: LOOK when to try again, WAIT when that changed nothing."""
        tape, edition = stream.tape, stream.edition
        reading = tape.read(read.start, self._max_reply_bytes)
        if not reading.size:
            return Poll.LOOK if await self._fill(read.route, read.source, topic, reading.end) else Poll.WAIT
        # Nobody vouches for the tail yet: one look says whether there is more, or that this is all.
        head = await self._fetches.fresh_head(stream, reading.end, read.route, read.source)
        self._check_ended(stream)
        if isinstance(head, OriginError) and not self._has_failed(head):
            # Of a stream that has been refused nothing more is told.
            raise StreamEnded(head)
        if self._has_failed(head) and outcome is Outcome.HIT:
            outcome = Outcome.STALE_IF_ERROR
        # What was read before the look may have been evicted since; it is still true.
        reading = max(reading, tape.read(read.start, self._max_reply_bytes), key=lambda one: one.size)
        is_current = isinstance(head, StreamHead) and head.up_to_date and head.next_offset == reading.end
        if outcome is Outcome.HIT and is_current:
            outcome = Outcome.REVALIDATED
        is_current = is_current or topic.is_current(reading.end)
        return self._polled(read, stream, reading, outcome, edition, is_current=is_current)

    def _is_tail(self, stream: Stream, topic: Topic, end: str) -> bool:
        """Whether `end` may be called the tail without asking the origin."""
        return topic.is_current(end) or stream.tail_until(end) > self.clock.now()

    def _is_verified(self, stream: Stream, topic: Topic, end: str) -> bool:
        """Whether it is known if `end` is the tail: it may be called that, or there is more."""
        tape = stream.tape
        is_over = tape.is_closed_at(end) or tape.knows_after(end) or tape.is_short(end)
        return is_over or self._is_tail(stream, topic, end)

    def _polled(
        self, read: Read, stream: Stream, reading: Reading, outcome: Outcome, edition: Edition, *, is_current: bool
    ) -> Answer:
        end = reading.end
        is_closed = stream.tape.is_closed_at(end)
        cursor = self._cursor(read, stream)
        headers = stream_headers(
            read,
            stream,
            end=end,
            up_to_date=is_closed or is_current,
            is_closed=is_closed,
            outcome=outcome,
            cursor=cursor,
            edition=edition,
        )
        if matches(read.if_none_match, headers["ETag"]):
            return Answer(304, not_modified(headers), outcome)
        parts = Parts()
        parts.add_pieces(reading.pieces, reading.copied)
        return Answer(
            200, headers, outcome, parts, stream.tape.is_json, shown=BodyRun(stream, read.start, end, edition)
        )

    def _cursor(self, read: Read, stream: Stream) -> str:
        """The cursor for a reader: one for all who wait together, so that they come back with one request."""
        topic, wall = self._live.find(stream), self.clock.wall()
        if topic is None:
            return next_cursor(wall, read.cursor, self._rng)
        return topic.cursor_for(read.cursor, wall, self._rng)

    def wait(self, place: Waiting, client: Client) -> Waiter:
        """A waiter, to be started."""
        waiter = Waiter(place, client, place.read.route.config.long_poll_timeout_s)
        if self.drain.is_set:
            waiter.leave(self._rng.uniform(0, self.drain.spread_s), self.drain.within_s)
        return waiter

    async def fetched(self, read: Read, stream: Stream) -> Answer:
        """The answer to a long-poll whose bytes are not on the tape; Uncacheable when they are too many to hold."""
        answer = await self._catch_up.answer(read, stream)
        try:
            if answer.parts is None or answer.status != 200:
                return answer
            body: list[bytes] = []
            async for piece in answer.parts.stream(answer.is_json):
                body.append(piece)
                if sum(map(len, body)) > self._max_reply_bytes:
                    raise Uncacheable(TOO_LARGE)
            answer.headers[STREAM_CURSOR] = self._cursor(read, stream)
            answer.headers[ACCEL_BUFFERING] = "no"
            return Answer(answer.status, answer.headers, answer.outcome, body=b"".join(body))
        finally:
            answer.close()

    def still_nothing(self, read: Read, stream: Stream, topic: Topic) -> Answer | None:
        """The 204 of a wait that is over, where the follower can vouch for it."""
        at = stream.tape.resolve(read.start)
        if not topic.is_current(at):
            return None
        cursor = self._cursor(read, stream)
        return timed_out(read, stream, at, stream.tape.is_closed_at(at), cursor, Outcome.FOLLOWED)

    async def nothing_new(self, read: Read, stream: Stream) -> Answer:
        """The time is up and nobody can vouch for the tail: look."""
        cursor = self._cursor(read, stream)
        at = stream.tape.resolve(read.start)
        head = await self._fetches.fresh_head(stream, at, read.route, read.source)
        self._expect_stream(head)
        self._check_ended(stream)
        reading = stream.tape.read(at, self._max_reply_bytes)
        if reading.size:
            assert isinstance(head, StreamHead)
            is_current = head.up_to_date and head.next_offset == reading.end
            return self._polled(read, stream, reading, Outcome.MISS, stream.edition, is_current=is_current)
        assert isinstance(head, StreamHead)
        if head.next_offset != at:
            raise Uncacheable(TOO_LARGE)
        return timed_out(read, stream, at, head.is_closed, cursor, Outcome.MISS)

    def wait_at_once(self, read: Read, stream: Stream) -> Waiting | None:
        """The place at which the client of a long-poll waits, or is answered from the tape, where that is known without
        the origin; else None, and nothing has happened.  `Waiting.start` or `Waiting.close` is owed."""
        topic = self._join(read, stream)
        return Waiting(self, read, stream, topic) if topic is not None else None

    def _join(self, read: Read, stream: Stream) -> Topic | None:
        """Join the stream's topic where that needs no word of the origin's; `left` is owed."""
        topic = self._live.join(stream) if self._is_known(read, stream) else None
        if topic is not None:
            topic.greet(read.cursor, self.clock.wall())
        return topic

    def _is_known(self, read: Read, stream: Stream) -> bool:
        """Whether a live reader needs no more than the tape and the follower: the stream is known and trusted, the
        offset is one of its own, and what lies behind it is little."""
        tape, start = stream.tape, read.start
        return (
            stream.ended is None
            and stream.content_type is not None
            and start != NOW
            and tape.has_seen(start)
            and tape.closed_at is None
            and (topic := self._live.find(stream)) is not None
            and topic.is_confirmed
            and (topic.is_current(at := tape.resolve(start)) or self._has_little_after(tape, at))
            and stream.is_trusted(self.clock.now(), read.route.config.trust_s)
        )

    def _has_little_after(self, tape: Tape, at: str) -> bool:
        return tape.knows_after(at) and tape.read(at, self._max_reply_bytes).size <= _LITTLE_BYTES

    # -- SSE (section 5.8)

    def subscribe_at_once(self, read: Read, stream: Stream) -> Subscription | None:
        """The same for SSE: `Subscription.start` or `Subscription.close` is owed."""
        topic = self._join(read, stream)
        return Subscription(self, read, stream, topic, stream.tape.resolve(read.start)) if topic is not None else None

    async def open_sse(self, read: Read, stream: Stream) -> Subscription:
        """Everything that can go wrong before the first byte of an SSE response; `Subscription.close` is owed.

        Raises Ended, Uncacheable, TailMovedBack or another GatewayError.
        """
        at = stream.tape.resolve((await self.begin(read, stream))[0])
        topic = self.attach(read, stream)
        try:
            self._live.follow(topic)
            if not stream.tape.knows_after(at) and not stream.tape.is_closed_at(at):
                await self._fill(read.route, read.source, topic, at)
            await self._settle_in(stream, topic)
            self._check_ended(stream)
            if topic.foreign is not None:
                raise Uncacheable(topic.foreign)
        except BaseException:
            self.left(topic)
            raise
        return Subscription(self, read, stream, topic, at)

    async def _settle_in(self, stream: Stream, topic: Topic) -> None:
        """Give a follower that is just connecting a moment, so that the first control event can tell of the tail."""
        deadline = self.clock.now() + _SETTLING_S
        while not topic.is_confirmed and topic.trouble is None and stream.ended is None and not stream.tape.closed_at:
            left = deadline - self.clock.now()
            if left <= 0 or not await topic.changed.wait_within(self.clock, left):
                return

    def subscribe(self, place: Subscription, wire: Wire) -> Subscriber:
        """A subscriber, to be started."""
        read, topic = place.read, place.topic
        lifetime_s = read.route.config.sse_lifetime_s * self._rng.uniform(*_LIFETIME_JITTER)
        # At random above the client's own, where the shared one is not: drawn once, because it may not go back.
        cursor = int(topic.cursor_for(read.cursor, self.clock.wall(), self._rng))
        subscriber = Subscriber(topic, place.at, cursor, wire, self, lifetime_s)
        if self.drain.is_set:
            subscriber.leave(self._rng.uniform(0, self.drain.spread_s), self.drain.within_s)
        return subscriber

    def fill(self, subscriber: Subscriber) -> None:
        """Have what lies after the subscriber's place fetched; it is told when that is done."""
        self.tasks.start(self._fill_for(subscriber), f"fill {subscriber.at}")

    async def _fill_for(self, subscriber: Subscriber) -> None:
        has_changed: bool | None = None
        try:
            has_changed = await subscriber.topic.access.fill(subscriber.topic, subscriber.at)
        except (StreamEnded, Uncacheable, GatewayError):
            # The client resumes from its last control event; what is wrong it is told as a status then.
            pass
        finally:
            subscriber.filled(has_changed)


def _is_furthest(tape: Tape, at: str) -> bool:
    """Whether the origin has named `at`, and nothing beyond it."""
    return tape.has_seen(at) and (tape.tail is None or not is_before(at, tape.tail))


@dataclass(frozen=True, slots=True)
class Subscription:
    """One SSE client's place, before anything is written; `start` or `close` is owed."""

    tail: Tail
    read: Read
    stream: Stream
    topic: Topic
    at: str

    @property
    def headers(self) -> dict[str, str]:
        """What the response says of its encoding."""
        return {} if is_sse_text(self.stream.content_type) else {SSE_DATA_ENCODING.lower(): "base64"}

    def start(self, wire: Wire) -> Subscriber:
        """A subscriber on `wire`, not yet started."""
        return self.tail.subscribe(self, wire)

    def close(self) -> None:
        self.tail.left(self.topic)
