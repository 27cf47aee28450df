"""SSE (section 5.8): opening a subscription, including everything that can fail before the first byte.

`gateway.live.frames` encodes the events and `gateway.live.subscriber` writes them.

The first reader of a stream is answered as soon as its own fetch has returned the tail.  At that time the follower (the
stream's one live request at the origin) is still connecting.  The answer then takes one round trip to the origin
instead of three.

There are exceptions.  A live answer that may not be shared must be relayed from its first byte.  A reader therefore
waits for the follower in two cases: no live answer on its route has proved shareable yet, or a live answer has recently
proved unshareable.  A reader that is another worker also waits.  Only the head of its answer can state the age of a
tail from the owner's memory, because the events state no age.

Many readers often join at the same offset within a second, for instance after a network outage.  The head and the first
event for one of these readers are therefore kept (`SseOpening`), and sent to the next readers.  The kept bytes may be
sent only in the second that the head states.  They may not be sent after a change of the stream, of its tail or of its
live request.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from weakref import ref

from gateway.aio.tasks import Tasks
from gateway.aio.timers import Wheel
from gateway.engine.answer import Answer
from gateway.engine.live_start import LiveReads
from gateway.engine.read import Read, StreamEnded, Uncacheable
from gateway.engine.read_runner import ReadRunner
from gateway.engine.response_heads import origin_error_answer
from gateway.errors import GatewayError, Stopping
from gateway.live.frames import LiveStep
from gateway.live.subscriber import SHORTEST_S, Subscriber, Wire
from gateway.live.topic import Topic
from gateway.protocol.cache_status import Outcome
from gateway.protocol.names import NOW, SSE_DATA_ENCODING, is_sse_text
from gateway.tape.origin_statements import FirstTail
from gateway.tape.stream import Stream

MOST_BYTES: Final = 512
"""The largest first piece that is kept, in bytes.  Most readers join at the tail, and their first piece is one control
event."""


class SseOpening:
    """The first piece of an SSE response.  The piece and its head may be sent for one version of the stream only, and
    within one second."""

    __slots__ = ("_headers", "_second", "_tail", "_topic", "_version", "step")

    def __init__(self, topic: Topic, step: LiveStep, wall: float) -> None:
        """`wall` is the time stated in the head, in Unix seconds."""
        stream = topic.stream
        # The server may keep this object longer than the topic (the stream's live readers) exists.
        self._topic = ref(topic)
        self.step = step
        self._headers = stream.headers
        self._tail = stream.tape.tail
        self._version = stream.version
        self._second = int(wall)

    def __repr__(self) -> str:
        return f"<SseOpening {self.step.end}, {self.step.size} bytes>"

    def topic_at(self, wall: float) -> Topic | None:
        """Return the topic if the same bytes may be sent to its next reader at `wall` (Unix seconds), else None.

        The stream's version changes with its live request, with new data from the origin, with each acknowledged write
        and with the end of the stream.
        """
        topic = self._topic()
        if topic is None or int(wall) != self._second:
            return None
        stream = topic.stream
        tape = stream.tape
        is_same = (
            (self._version is stream.version or self._version.same_answers_as(stream.version))
            and tape.tail == self._tail
            and tape.closed_at is None
            and stream.headers is self._headers
            and topic.not_shareable is None
            and not topic.is_refused
        )
        return topic if is_same else None


_LEAST_LIFETIME = 0.8
"""The minimum lifetime of an SSE response, as a share of the route's `sse_lifetime_s`."""
_SPREAD_LIFETIME = 1 - _LEAST_LIFETIME
_CONNECTING_S = 1.0


class Sse:
    """Opens SSE reads.  Keeps no state of its own.  All subscribers of the process share it as their `LiveContext`."""

    def __init__(self, reads: LiveReads, runner: ReadRunner, tasks: Tasks, wheel: Wheel) -> None:
        self.clock = reads.clock
        self.drain = reads.drain
        self.wheel = wheel
        self.reader_left = reads.reader_left
        self._reads = reads
        self._runner = runner
        self._tasks = tasks

    async def answer(self, read: Read) -> Subscription | Answer:
        """Subscribe an SSE read, or return the answer that refuses the read.

        The caller must call `close` on a subscription.  Raises Uncacheable or a GatewayError.
        """
        if self._is_too_late(read):
            raise Stopping

        async def subscribe(read: Read, stream: Stream) -> Subscription | Answer:
            try:
                if read.start == NOW or not stream.tape.knows_after(read.start):
                    return await self._on(read, stream)
                return await self._reads.patience.answer_or_held(
                    read, stream, lambda: self._on(read, stream), lambda: self._held(read, stream)
                )
            except StreamEnded as ended:
                return origin_error_answer(read.route, ended.error, Outcome.FOLLOWED)

        return await self._runner.run(read, subscribe)

    def subscribe_now(self, read: Read, stream: Stream) -> Subscription | None:
        """Return a subscription; None if the origin must be asked first.  The caller must call `start` or `close`."""
        if self._is_too_late(read):
            return None
        topic = self._reads.join(read, stream)
        return Subscription(self, read, stream, topic, stream.tape.resolve(read.start)) if topic is not None else None

    def _is_too_late(self, read: Read) -> bool:
        """Return whether a drain would end a new reader very soon.  The client might then assume that SSE does not
        work."""
        return self.drain.ends(read) and self.drain.within_s(self.clock.now()) < SHORTEST_S

    def _held(self, read: Read, stream: Stream) -> Subscription | None:
        """Return a subscription that begins with bytes in memory; None if it must not begin without an answer of the
        origin."""
        at = stream.tape.resolve(read.start)
        if not stream.tape.knows_after(at) or not self._reads.may_give_held(read, stream):
            return None
        try:
            topic = self._reads.attach(read, stream)
        except Uncacheable:
            return None
        self._reads.live.follow(topic)
        return Subscription(self, read, stream, topic, at, is_unconfirmed=True)

    async def _on(self, read: Read, stream: Stream) -> Subscription:
        """Take all steps that can fail before the first byte of an SSE response.

        The caller must call `Subscription.close`.  Raises StreamEnded, Uncacheable, TailMovedBack or another
        GatewayError.
        """
        version = stream.version
        start, _, tail, is_unconfirmed = await self._reads.settle_start(read, stream)
        at = stream.tape.resolve(start)
        first = FirstTail(tail, version) if tail is not None else None
        topic = self._reads.attach(read, stream)
        try:
            self._reads.live.follow(topic)
            if not stream.tape.knows_after(at) and not stream.tape.is_closed_at(at):
                await self._reads.fill_for(read, topic, at)
                # Try to follow the stream again.  A closed stream is not followed, but the fetch may have found a new,
                # open stream.
                self._reads.live.follow(topic)
            if first is None or not read.route.shares_live or read.is_handed:
                await self._await_follower(stream, topic)
            self._reads.check_ended(stream)
            if topic.not_shareable is not None:
                raise Uncacheable(topic.not_shareable)
        except BaseException:
            self._reads.reader_left(topic)
            raise
        if read.is_handed:
            # The head can state the age of the tail only if the live request has stated the tail.
            first = None
        is_unconfirmed = is_unconfirmed and stream.tape.knows_after(at)
        is_unconfirmed |= self._reads.are_overdue(read, stream, at)
        return Subscription(self, read, stream, topic, at, first, is_unconfirmed)

    async def _await_follower(self, stream: Stream, topic: Topic) -> None:
        """Wait briefly for a connecting follower.

        After the follower has connected, the first control event can state the tail.  The gateway also knows whether
        live answers may be shared before it sends the first byte.
        """
        deadline = self.clock.now() + _CONNECTING_S
        while not topic.is_confirmed and topic.failure is None and stream.ended is None and not stream.tape.closed_at:
            left = deadline - self.clock.now()
            if left <= 0 or not await topic.changed.wait_within(self.clock, left):
                return

    def subscribe(self, subscription: Subscription, wire: Wire) -> Subscriber:
        """Return a subscriber that has not been started."""
        read, topic = subscription.read, subscription.topic
        lifetime_s, now = self._lifetime_s(read), self.clock.now()
        # Compute the cursor only once.  It may be jittered, and must not go back.
        cursor = int(topic.cursors.next_for(read.cursor))
        subscriber = Subscriber(topic, subscription.at, cursor, wire, self, now, lifetime_s)
        subscriber.first, subscriber.is_handed = subscription.first, read.is_handed
        if self.drain.ends(read):
            subscriber.drain_within(self.drain.delay_s(now, self._reads.rng), self.drain.within_s(now))
        return subscriber

    def opening(self, subscriber: Subscriber, start: str, wall: float) -> SseOpening | None:
        """Return the first piece for the next reader that begins at `start`.  The next reader gets the same bytes as
        this subscriber.

        Returns None if the piece differs between readers, or if more bytes follow at once.  `wall` is the time that the
        head states (Unix seconds).
        """
        topic = subscriber.topic
        step = topic.step(start, said_up_to_date=False, least_cursor=0)
        if subscriber.at != step.end or subscriber.least_cursor > step.cursor or not step.is_all:
            return None
        return SseOpening(topic, step, wall) if 0 < len(step.data) <= MOST_BYTES else None

    def reopen(self, read: Read, opening: SseOpening, wire: Wire, now: float) -> Subscriber | None:
        """Subscribe a reader that gets the head and first piece of `opening`.  The caller writes these bytes.

        Returns None, without side effects, if the reader needs a different opening.  The caller must have checked
        `negative_cache.has_any`.  `now` is monotonic seconds, by the streams' clock.
        """
        unshared = read.route.unshared
        if unshared.may_have_any and unshared.reason(read.key, read.shape) is not None:
            return None
        reads, wall, step = self._reads, self.clock.wall(), opening.step
        topic = opening.topic_at(wall)
        if topic is None or reads.drain.is_set:
            return None
        stream = topic.stream
        # The first condition is copied from `has_expired`, because it is false for most streams and saves the call.
        if (stream.expiry.is_limited and stream.has_expired(now, wall)) or not reads.live.table.attach_followed(topic):
            return None
        lifetime_s = read.route.sse_lifetime_s * (_LEAST_LIFETIME + _SPREAD_LIFETIME * reads.rng.random())
        return Subscriber(topic, step.end, step.cursor, wire, self, now, lifetime_s)

    def _lifetime_s(self, read: Read) -> float:
        """Return the lifetime of an SSE response.  It is jittered, so that readers that join together do not all
        reconnect together."""
        return read.route.sse_lifetime_s * (_LEAST_LIFETIME + _SPREAD_LIFETIME * self._reads.rng.random())

    def fill(self, subscriber: Subscriber) -> None:
        """Fetch the bytes after the subscriber's offset, then call `Subscriber.filled`."""
        self._tasks.start(self._fill_for(subscriber), f"fill {subscriber.at}")

    async def _fill_for(self, subscriber: Subscriber) -> None:
        topic, has_changed = subscriber.topic, None
        try:
            filled = await topic.access.fill(topic, subscriber.at)
            if topic.not_shareable is None:
                # Try to follow the stream again.  A closed stream is not followed, but the fetch may have found a new,
                # open stream.
                self._reads.live.follow(topic)
            # Another worker would treat the time of arrival as the time of old bytes.  It must send a new request, and
            # the new answer states the age of the bytes.
            if not (subscriber.is_handed and self._reads.are_old(topic.stream, subscriber.at)):
                has_changed = filled
        except (StreamEnded, Uncacheable, GatewayError):
            # The connection ends.  The client then resumes from its last control event, and gets the error as a status.
            pass
        finally:
            subscriber.filled(has_changed)


class Subscription(NamedTuple):
    """An SSE read that is about to begin.  The caller must call `start` or `close`."""

    sse: Sse
    read: Read
    stream: Stream
    topic: Topic
    at: str
    first: FirstTail | None = None
    """The tail that the origin has stated to this read; None if it has stated no tail."""
    is_unconfirmed: bool = False
    """Whether the answer begins with bytes in memory that the origin has failed to confirm."""

    @property
    def outcome(self) -> Outcome:
        """The outcome that the head states.  It describes the beginning of the answer."""
        return Outcome.STALE_IF_ERROR if self.is_unconfirmed else Outcome.FOLLOWED

    @property
    def headers(self) -> dict[str, str]:
        """The response header that states the encoding of the events' data; empty if the data is not encoded."""
        return {} if is_sse_text(self.stream.content_type) else {SSE_DATA_ENCODING.lower(): "base64"}

    def start(self, wire: Wire) -> Subscriber:
        """Return a subscriber on `wire` that has not been started."""
        return self.sse.subscribe(self, wire)

    def close(self) -> None:
        self.sse.reader_left(self.topic)
