"""What both kinds of live read have in common: where a reader begins, what it joins, and what is fetched for it.

A live read goes over the tape from where its client stands.  Where the tape ends short of the topic's position, the gap
is fetched; at the topic's position the reader waits for the topic.  No reader has a task of its own at the origin, a
queue, or a memory of what was sent beyond its own offset, so there is no seam between replay and live at which a byte
could be lost or come twice.
"""

from __future__ import annotations

import random

from gateway.aio.clock import Clock
from gateway.engine.classifier import is_outdated
from gateway.engine.fetch_table import FetchTable
from gateway.engine.read import Drain, Read, StreamEnded, Uncacheable
from gateway.engine.route import Route
from gateway.errors import GatewayError, TailMovedBack, UpstreamBroken
from gateway.live.topic import OriginAccess, Terms, Topic
from gateway.live.topics import LiveTopics
from gateway.protocol.cursor import next_cursor
from gateway.protocol.offsets import NOW, START, is_before
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape
from gateway.upstream.flight import METADATA, Beyond, Head, NotShareable, OriginError, StreamHead, as_seen_by
from gateway.upstream.source import Source

_LITTLE_BYTES = 1 << 16
"""A reader who is behind by no more than this is sent it at once, whatever that has to be coded in."""
TOO_LARGE = NotShareable("larger than the tape", is_lasting=False)
"""Why a live reader's replay is relayed: no tape can hold it."""


class LiveReads:
    """Begins live reads and fetches for them.  Keeps no state of its own.

    `drain` says whether, and how, readers are sent off.
    """

    def __init__(
        self,
        fetches: FetchTable,
        live: LiveTopics,
        clock: Clock,
        rng: random.Random,
        drain: Drain,
        max_reply_bytes: int,
    ) -> None:
        self.fetches = fetches
        self.live = live
        self.clock = clock
        self.rng = rng
        self.drain = drain
        self.max_reply_bytes = max_reply_bytes

    async def begin(self, read: Read, stream: Stream) -> tuple[str, Head | None]:
        """Make sure that the stream exists, is still the same and has a known type; the offset to start from, which is
        the tail for a reader who asked for what lies behind it, and what the origin said there if it was asked.

        Raises Ended, Uncacheable or a GatewayError.
        """
        fresh, tape, start = self.fetches.fresh_head, stream.tape, read.start
        head: Head | None = None
        # The metadata name the tail, which is where most offsets lie: then there is no need for what comes after it.
        place = start if start in (START, NOW) else METADATA
        if place == METADATA and self.fetches.pending(stream, START) is not None:
            # Another's fetch tells what there is to know as well; where the tail is now is the follower's to say.
            place = START
        if (
            stream.content_type is None
            and (stale := await self.fetches.join_earlier(stream, place, read.route)) is not None
        ):
            refusal = as_seen_by(stale.head, read.source.headers) if stale.head is not None else None
            if isinstance(refusal, OriginError) and not is_outdated(stream, stale):
                raise StreamEnded(refusal)
            self.check_ended(stream)
        if stream.content_type is None:
            # The first of its readers: what it asks for is fetched, and tells of the rest.
            head = await fresh(stream, place, read.route, read.source)
            if place == METADATA and isinstance(head, NotShareable | StreamHead) and stream.content_type is None:
                # An origin without HEAD is no reason to share nothing: its reads tell what there is to know.
                place, head = start, await fresh(stream, start, read.route, read.source)
            if stream.content_type is None:
                self.expect_stream(head)
            self.check_stored(stream, start, head if place == start else None)
            head = head if place == start else None
        elif not stream.is_trusted(self.clock.now(), read.route.config.trust_s):
            tail = tape.tail or start
            look = await fresh(stream, tail, read.route, read.source)
            if isinstance(look, OriginError) and look.status == 400 and tail != start:
                # Not the client's offset is refused but the one remembered here: this is another stream.
                self.live.drop(stream, End.RECREATED)
                raise TailMovedBack
            if not self.has_failed(look) or not tape.knows_after(start) or stream.may_have_ended:
                self.expect_stream(look)
        if start == NOW:
            topic = self.live.find(stream)
            if topic is not None and topic.position is not None:
                at = tape.resolve(topic.position)
                if topic.is_current(at):
                    return at, None
            return self.expect_stream(head or await fresh(stream, NOW, read.route, read.source)).next_offset, None
        if start != START and head is None and not tape.has_seen(start):
            # Bytes are wanted, not news of the tail: another's fetch of them will do.
            await self.fetches.join_earlier(stream, start, read.route)
            self.check_ended(stream)
        if start != START and not tape.has_seen(start):
            # An offset that the origin has not named here is shown to it: it may be behind, ahead, or none at all.
            if stream.lies_beyond(start) and tape.tail is not None and stream.tail_until(tape.tail) > self.clock.now():
                return tape.tail, Beyond(tape.tail, True, tape.is_closed_at(tape.tail))
            if head is None:
                head = await fresh(stream, start, read.route, read.source)
            if isinstance(head, Beyond):
                return head.tail, head
            self.expect_stream(head)
            self.check_stored(stream, start, head)
        return start, head

    @staticmethod
    def has_failed(head: Head) -> bool:
        """Whether the origin could not say."""
        if isinstance(head, OriginError):
            return head.status >= 500 or head.status == 429
        return isinstance(head, GatewayError)

    @staticmethod
    def check_stored(stream: Stream, start: str, head: Head | None) -> None:
        """Raise Uncacheable where what was fetched after `start` is not on the tape: it is too large to be kept, or was
        evicted at once, so that this reader cannot be served from there."""
        tape = stream.tape
        if not isinstance(head, StreamHead) or start == NOW or head.next_offset == start or stream.ended is not None:
            return
        if not tape.knows_after(start) and tape.resolve(start) == start:
            raise Uncacheable(TOO_LARGE)

    def expect_stream(self, head: Head | None) -> StreamHead:
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
                raise head

    def attach(self, read: Read, stream: Stream) -> Topic:
        """Join the stream's topic; `left` is owed."""
        route, source, config = read.route, read.source, read.route.config
        known = self.live.find(stream)
        if known is not None and known.foreign is not None:
            raise Uncacheable(known.foreign)
        topic = self.live.attach(
            stream,
            OriginAccess(
                source,
                lambda at: self.fetches.fresh_head(stream, METADATA if at is None else at, route, source),
                lambda at: self.fill(route, source, topic, at),
            ),
            Terms(config.sse_lifetime_s, config.heartbeat_s, config.live_linger_s, route.heard_s),
        )
        topic.greet(read.cursor, self.clock.wall())
        return topic

    def left(self, topic: Topic) -> None:
        """A reader has left the topic."""
        self.live.detach(topic)

    async def fill(self, route: Route, source: Source, topic: Topic, at: str) -> bool:
        """Have what lies after `at` fetched, where it is not for the follower to bring; whether that changed anything.

        An offset that the origin has not named yet is shown to it once: it may be behind, ahead, or no offset at all.
        """
        stream = topic.stream
        tape = stream.tape
        if not topic.is_missing(at):
            return False
        # Bytes are wanted, not news of the tail, which the follower brings: another's fetch of them will do.
        stale = await self.fetches.join_earlier(stream, at, route)
        if stale is not None and (tape.knows_after(at) or _is_furthest(tape, tape.resolve(at))):
            return True
        tail = tape.tail
        head = self.expect_stream(await self.fetches.fresh_head(stream, at, route, source))
        self.check_stored(stream, at, head)
        return head.next_offset != at or tape.tail != tail

    @staticmethod
    def check_ended(stream: Stream) -> None:
        if stream.ended in (End.RECREATED, End.PURGED):
            # Whether that concerns the reader depends on when it came.
            raise TailMovedBack
        if stream.ended is not None:
            raise StreamEnded(OriginError.of_ended(stream.ended.status))

    def cursor(self, read: Read, stream: Stream) -> str:
        """The cursor for a reader: one for all who wait together, so that they come back with one request."""
        topic, wall = self.live.find(stream), self.clock.wall()
        if topic is None:
            return next_cursor(wall, read.cursor, self.rng)
        return topic.cursor_for(read.cursor, wall, self.rng)

    def join(self, read: Read, stream: Stream) -> Topic | None:
        """Join the stream's topic where that needs no word of the origin's; `left` is owed."""
        topic = self.live.join(stream) if self.is_known(read, stream) else None
        if topic is not None:
            topic.greet(read.cursor, self.clock.wall())
        return topic

    def is_known(self, read: Read, stream: Stream) -> bool:
        """Whether a live reader needs no more than the tape and the follower: the stream is known and trusted, the
        offset is one of its own, and what lies behind it is little."""
        tape, start = stream.tape, read.start
        return (
            stream.ended is None
            and stream.content_type is not None
            and start != NOW
            and tape.has_seen(start)
            and tape.closed_at is None
            and (topic := self.live.find(stream)) is not None
            and topic.is_confirmed
            and (topic.is_current(at := tape.resolve(start)) or self._has_little_after(tape, at))
            and stream.is_trusted(self.clock.now(), read.route.config.trust_s)
        )

    def _has_little_after(self, tape: Tape, at: str) -> bool:
        return tape.knows_after(at) and tape.read(at, self.max_reply_bytes).size <= _LITTLE_BYTES


def _is_furthest(tape: Tape, at: str) -> bool:
    """Whether the origin has named `at`, and nothing beyond it."""
    return tape.has_seen(at) and (tape.tail is None or not is_before(at, tape.tail))
