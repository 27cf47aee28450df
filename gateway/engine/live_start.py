"""The common part of long-polls and SSE reads: find the position where a reader starts, and fetch missing bytes.

A stream with live readers has a topic.  The topic's follower is the one live request to the origin.  The follower
appends new bytes to the tape (the stream's bytes in memory).  A live reader reads the tape from its client's offset.
The topic's position is the end of the bytes that the follower has received.  When a reader reaches this position, it
waits for the topic.  If the tape ends before this position, the missing bytes are fetched.

A reader has no request of its own at the origin and no queue.  The only state of a reader is its offset.  Therefore no
bytes can be lost or repeated when a reader has caught up and begins to wait.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, NamedTuple, assert_never

from gateway.aio.clock import Clock
from gateway.engine.confirming import Confirming, Patience
from gateway.engine.fetch_table import FetchTable
from gateway.engine.from_disk import FromDisk
from gateway.engine.hit_for_miss import ANY_LIVE
from gateway.engine.read import Read, StreamEnded, Uncacheable
from gateway.engine.reply_recorder import is_outdated
from gateway.engine.route import Route
from gateway.errors import TailMovedBack, UpstreamBroken
from gateway.live.replies import has_failed
from gateway.live.subscriber import Drain
from gateway.live.topic import LiveTimes, OriginAccess, Topic
from gateway.live.topics import LiveTopics
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.names import NOW, START
from gateway.protocol.sharing import Ground, StreamKey
from gateway.tape.decide import Ask, Gone, Progress, Question, Send, Wait, decide, outlasts_failure
from gateway.tape.origin_statements import LEAST_AGE_S, LEAST_GAP_S
from gateway.tape.stream import End, Stream
from gateway.upstream.flight import METADATA, Beyond, Flight, Head, NotShareable, OriginError, StreamHead, as_seen_by
from gateway.upstream.origin_call import Source

_LITTLE_BYTES = 1 << 16
"""A reader that is at most this many bytes behind is served immediately, even if it accepts content codings."""
ENCODED: Final = NotShareable("encoded")
TOO_LARGE = NotShareable("larger than the tape", is_lasting=False)
"""The reason to relay a live reader: its bytes are too large for the tape."""


class LiveStart(NamedTuple):
    """The position from which a live read begins."""

    at: str
    head: Head | None
    """The origin's answer to a request for this position; None if no such request was sent."""
    tail: str | None
    """The tail that the origin has stated to this read; None if it has stated no tail."""
    is_unconfirmed: bool = False
    """Whether the read begins with bytes in memory although the origin has failed to confirm these bytes or the
    stream."""


class LiveReads:
    """Starts live reads and fetches missing bytes for them.  Keeps no state of its own.

    `drain` states whether live readers must be ended, and within which time.
    """

    def __init__(
        self,
        fetches: FetchTable,
        confirming: Confirming,
        live: LiveTopics,
        clock: Clock,
        rng: random.Random,
        drain: Drain,
        max_reply_bytes: int,
    ) -> None:
        self.fetches = fetches
        self.patience = Patience(fetches, clock)
        self.confirming = confirming
        self.live = live
        self.reader_left = live.detach
        """To be called when a reader has left a topic."""
        self.clock = clock
        self.rng = rng
        self.drain = drain
        self.max_reply_bytes = max_reply_bytes
        self.from_disk: FromDisk | None = None
        """Brings bytes from the store on disk; None if there is none."""
        self.is_owner: Callable[[StreamKey], bool] = lambda key: False
        """Whether this process is one of several workers, and owns the stream of this key."""

    async def settle_start(self, read: Read, stream: Stream, *, wants_lifetime: bool = False) -> LiveStart:
        """Check that the stream exists, is unchanged and has a known content type.  Return the position from which the
        read begins.

        With `wants_lifetime`, also ask for the stream's lifetime if bytes in memory will be sent first.  If the
        requested offset is beyond the tail, the read begins at the tail.

        Raises StreamEnded, Uncacheable or a GatewayError.
        """
        opening = _Opening(self, read, stream, wants_lifetime=wants_lifetime)
        while True:
            opening.progress.follower = self.live.find_topic(stream)
            match decide(stream, opening.progress, self.clock.now()):
                case Send():
                    raise AssertionError("a live read is answered only after it has joined")
                case Wait(_, at):
                    head, tail = (opening.head, opening.tail) if at == read.start else (None, None)
                    return LiveStart(at, head, tail, opening.is_unconfirmed)
                case Ask(question, at):
                    if (found := await opening.ask_origin(question, at)) is not None:
                        return found
                case Gone():
                    self.check_ended(stream)

    def progress(self, read: Read, stream: Stream, at: str) -> Progress:
        """Return the state of a live read that has reached `at`, for `decide`."""
        return Progress(
            read.start, at, stream.version, read.route.trust_s, read.max_age_s, True, is_lifetime_asked=True
        )

    def may_give_held(self, read: Read, stream: Stream) -> bool:
        """Return whether the read may begin with bytes in memory although the origin does not answer."""
        progress = self.progress(read, stream, read.start)
        return outlasts_failure(stream, progress, self.clock.now(), self.clock.wall())

    def are_overdue(self, read: Read, stream: Stream, at: str) -> bool:
        """Return whether the bytes after `at` need a confirmation, and the owner has sent bytes from its memory since
        their latest confirmation.  The owner is another worker.

        The owner sends bytes from its memory while the origin fails.  Bytes from the origin are never overdue, even if
        their fetch began long before the read, or if their own confirmation is not kept (`LEAST_GAP_S`).
        """
        record = stream.elsewhere
        if record is None or not stream.tape.knows_after(at):
            return False
        confirmed_at = stream.confirmed_at(at)
        return confirmed_at < record.stale_stored_at and not confirmed_at > stream.confirmed_before(
            self.clock.now(), read.route.trust_s, read.max_age_s
        )

    def are_old(self, stream: Stream, at: str) -> bool:
        """Return whether the latest kept confirmation of the bytes after `at` is too old to treat the bytes as new.

        The latest confirmation may not be kept.  The latest kept confirmation is then at most `LEAST_GAP_S` older."""
        since = self.clock.now() - LEAST_AGE_S - LEAST_GAP_S
        return stream.tape.knows_after(at) and stream.confirmed_at(at) < since

    @staticmethod
    def check_stored(stream: Stream, start: str, head: Head | None) -> None:
        """Raise Uncacheable if the bytes fetched after `start` are not on the tape.

        Such bytes were too large to be kept, or were evicted at once.  This reader cannot be served from the tape then.
        """
        tape = stream.tape
        if not isinstance(head, StreamHead) or start == NOW or head.next_offset == start or stream.ended is not None:
            return
        if not tape.knows_after(start) and tape.resolve(start) == start:
            raise Uncacheable(TOO_LARGE)

    def expect_stream(self, head: Head | None) -> StreamHead:
        """Return `head` if it shows that the origin has the stream.  The request was at an offset that the origin had
        stated.

        Raises TailMovedBack if the offset is beyond the tail.  Any other answer raises the corresponding error:
        StreamEnded, Uncacheable or a GatewayError.
        """
        match head:
            case StreamHead():
                return head
            case OriginError():
                raise StreamEnded(head)
            case NotShareable():
                raise Uncacheable(head)
            case Beyond():
                # The bytes up to the offset were dropped before the request was sent, because a write may have replaced
                # the stream.  The reply shows that the stream was replaced by a shorter stream.
                raise TailMovedBack
            case None:
                raise UpstreamBroken
            case _:
                raise head.anew()

    def attach(self, read: Read, stream: Stream) -> Topic:
        """Join the stream's topic, and create it if there is none.  The caller must call `reader_left`."""
        route, config = read.route, read.route.config
        existing = self.live.find_topic(stream)
        if existing is not None and existing.not_shareable is not None:
            raise Uncacheable(existing.not_shareable)
        topic = self.live.attach(
            stream,
            self._access(read, stream),
            LiveTimes(config.sse_lifetime_s, config.heartbeat_s, config.live_linger_s, route.heard_s),
        )
        self._own(topic, read, stream)
        topic.cursors.note(read.cursor)
        return topic

    def _own(self, topic: Topic, read: Read, stream: Stream) -> None:
        """Send the topic's requests for this read from now on, if its reader is nearer than all earlier readers
        (`Handed.is_nearer`)."""
        handed = topic.access.source.handed
        if handed is not read.handed and read.handed.is_nearer(handed):
            self.live.use_own(topic, self._access(read, stream))

    def _access(self, read: Read, stream: Stream) -> OriginAccess:
        return _ReaderAccess(self, read.route, _for_sender(read.source, read), stream)

    @staticmethod
    def waiting(read: Read, stream: Stream, topic: Topic) -> Read:
        """Return a read that waits for the topic.

        To save memory, waiting reads share the stream's key and the topic's source.  A waiting read must not use the
        credentials of its client, because clients with other credentials may join the read.
        """
        return read._replace(key=stream.key, source=_for_sender(topic.access.source, read))

    async def fill(self, route: Route, source: Source, topic: Topic, at: str) -> bool:
        """Fetch the bytes after `at` unless the follower will receive them.  Returns whether a fetch has brought bytes
        or another tail.

        An offset that the origin has not stated before may be before the tail, beyond the tail, or invalid.  The origin
        is therefore asked once about such an offset.
        """
        stream = topic.stream
        tape = stream.tape
        if not topic.is_missing(at):
            return False
        if topic.asked_from == at:
            # A connecting follower has requested the bytes after `at`, and will receive them.
            await self.live.until_connected(stream, at)
            if tape.knows_after(at) or not topic.is_missing(at):
                return tape.knows_after(at)
        # The follower states the tail.  Only bytes are needed, so another read's fetch suffices.
        earlier = await self.fetches.join_earlier(stream, at, route, source.client)
        if earlier is not None and (tape.knows_after(at) or tape.is_furthest(tape.resolve(at))):
            return True
        tail = tape.tail
        head = self.expect_stream(await self.fetches.fresh_head(stream, at, route, source))
        self.check_stored(stream, at, head)
        return head.next_offset != at or tape.tail != tail

    async def fill_for(self, read: Read, topic: Topic, at: str) -> bool:
        """Like `fill`, for one reader that has advanced from its own offset to `at`.

        Raises TailMovedBack if the origin refuses `at` as trimmed.  The reader must then start again from its own
        offset.  If this offset is the start sentinel (`-1`), the origin still has bytes after it.
        """
        try:
            return await self.fill(read.route, read.source, topic, at)
        except StreamEnded as ended:
            if ended.error.status == 410 and at != read.start:
                raise TailMovedBack from None
            raise

    @staticmethod
    def check_ended(stream: Stream) -> None:
        if stream.ended in (End.RECREATED, End.PURGED):
            # The caller ends the reader or starts it again.
            raise TailMovedBack
        if stream.ended is not None:
            raise StreamEnded(OriginError.of_ended(stream.ended.status))

    def follow_often_read(self, read: Read, stream: Stream) -> None:
        """Follow a stream whose tail is requested often, so that the origin need not be asked each time.  Do nothing if
        live answers of the stream may not be shared."""
        existing = self.live.find_topic(stream)
        if self.drain.is_set or (existing is not None and existing.not_shareable is not None):
            return
        if read.route.unshared.reason(read.key, ANY_LIVE) is not None:
            return
        topic = self.attach(read, stream)
        try:
            self.live.heat(topic, read.route.config.follow_above_per_s)
        finally:
            self.reader_left(topic)

    def join(self, read: Read, stream: Stream) -> Topic | None:
        """Join the stream's topic.  Return None if the origin must be asked first.

        The caller must call `reader_left`.
        """
        topic = self.live.join(stream) if self.is_known(read, stream) else None
        if topic is not None:
            self._own(topic, read, stream)
            topic.cursors.note(read.cursor)
        return topic

    def is_known(self, read: Read, stream: Stream) -> bool:
        """Return whether a live reader can be served without a request to the origin.

        The stream must be followed and recently confirmed, the origin must have stated the offset, and at most
        `_LITTLE_BYTES` may follow the offset.
        """
        tape, start = stream.tape, read.start
        return (
            stream.ended is None
            and stream.content_type is not None
            and start != NOW
            and tape.has_seen(start)
            and tape.closed_at is None
            and (topic := self.live.find_topic(stream)) is not None
            and topic.is_confirmed
            and (topic.is_current(at := tape.resolve(start)) or self._has_little_after(read, stream, at))
            and stream.is_trusted(self.clock.now(), read.route.trust_s)
        )

    def _has_little_after(self, read: Read, stream: Stream, at: str) -> bool:
        tape = stream.tape
        trust_s, now = read.route.trust_s, self.clock.now()
        if not tape.knows_after(at) or stream.is_confirmation_due(read.start, now, trust_s, read.max_age_s):
            return False
        return tape.read(at, self.max_reply_bytes).size <= _LITTLE_BYTES


def _for_sender(source: Source, read: Read) -> Source:
    """Return the source for requests that are sent for this read's sender.  The sender is another process or a
    client."""
    return source if source.handed is read.handed else source._replace(handed=read.handed)


class _ReaderAccess:
    """A topic's access to its origin: a `gateway.live.topic.OriginAccess`."""

    __slots__ = ("_reads", "_route", "_stream", "source")

    def __init__(self, reads: LiveReads, route: Route, source: Source, stream: Stream) -> None:
        self._reads = reads
        self._route = route
        self._stream = stream
        self.source = source
        """The stream's upstream source."""

    async def fetch(self, at: str | None) -> Head:
        """Fetch the bytes after `at` and store them on the tape.  If `at` is None, ask only for the metadata."""
        start = METADATA if at is None else at
        return await self._reads.fetches.fresh_head(self._stream, start, self._route, self.source)

    async def learn_facts(self) -> Head:
        """Ask whether the stream exists, and request its identity and lifetime."""
        return await self._reads.fetches.fresh_facts(self._stream, self._route, self.source)

    async def fill(self, topic: Topic, at: str) -> bool:
        """Fetch the bytes after `at` unless the follower will receive them.  Returns whether a fetch has brought bytes
        or another tail."""
        return await self._reads.fill(self._route, self.source, topic, at)

    def heard(self) -> None:
        """Record for the route that the origin has answered a live request."""
        self._route.heard()

    def why_alone(self, status: int, headers: Headers) -> NotShareable | None:
        """Return the reason why a live answer of the origin may not be shared; None if it may be shared."""
        route = self._route
        if status >= 400:
            why = route.why_refusal_alone(status, headers)
            if why is not None:
                route.notice(Ground.VARY, headers)
            return why
        if headers.get("Content-Encoding", "identity").lower() != "identity":
            return ENCODED
        why = route.why_alone(headers, is_stored=False)
        if why is None and route.varies_by_origin(headers):
            self._reads.live.vary_by_origin(self._stream)
        return why

    def record_verdict(self, why: NotShareable | None) -> None:
        """Record whether the origin's live answers may be shared.  `why` is None if a live answer has proved
        shareable."""
        self._route.judge_live(self._stream.key, why)


class _Opening:
    """The requests that one live read sends to the origin before it begins."""

    def __init__(self, reads: LiveReads, read: Read, stream: Stream, *, wants_lifetime: bool) -> None:
        self._reads = reads
        self._read = read
        self._stream = stream
        self.progress = reads.progress(read, stream, read.start)
        self.progress.is_lifetime_asked = not wants_lifetime
        self.head: Head | None = None
        """The origin's answer to a request for the offset at which the read starts; None if no such request was
        sent."""
        self.tail: str | None = None
        """The tail that the origin has stated to this read; None if it has stated no tail."""
        self.is_unconfirmed = False
        """Whether the origin has failed to answer the latest question about the stream or its bytes.  The read then
        continues with the bytes in memory."""

    async def ask_origin(self, question: Question, at: str) -> LiveStart | None:
        """Ask the origin.  Returns the position from which the read begins; None if the answer does not determine it.
        Raises like `LiveReads.settle_start`."""
        progress, stream, read, reads = self.progress, self._stream, self._read, self._reads
        match question:
            case Question.FACTS:
                await self._learn_facts()
            case Question.EXISTENCE:
                progress.is_there = True
                return await self._revalidate(at)
            case Question.CONFIRMATION:
                progress.is_confirmed = True
                confirmed = await reads.confirming.confirm(read, stream)
                reads.check_ended(stream)
                has_no_answer = confirmed is not None and has_failed(confirmed)
                self.is_unconfirmed = has_no_answer and reads.may_give_held(read, stream)
                if confirmed is not None and not self.is_unconfirmed:
                    self.tail = _named_tail(reads.expect_stream(confirmed)) or self.tail
            case Question.LIFETIME:
                progress.is_lifetime_asked = True
                await reads.fetches.learn_lifetime(stream, read.route, read.source)
            case Question.TAIL:
                now = reads.expect_stream(self.head or await self._fresh(NOW))
                return LiveStart(now.next_offset, None, _named_tail(now))
            case Question.BYTES:
                return await self._check_offset(at)
            case _:
                assert_never(question)
        return None

    async def _fresh(self, start: str) -> Head:
        return await self._reads.fetches.fresh_head(self._stream, start, self._read.route, self._read.source)

    async def _joined(self, start: str) -> Flight | None:
        """Wait for another read's flight (a shared fetch) from `start`.  Returns the flight; None if there is none."""
        read = self._read
        return await self._reads.fetches.join_earlier(self._stream, start, read.route, read.source.client)

    async def _learn_facts(self) -> None:
        """Ask the origin whether the stream exists, and for its content type."""
        stream, reads, start = self._stream, self._reads, self._read.start
        # The reply to a HEAD states the tail.  Most readers start at the tail, and then need no request for bytes.  The
        # reply also states the lifetime, so the follower need not ask for the lifetime.
        first = start if start == START else METADATA
        if first == METADATA and reads.fetches.pending(stream, START) is not None:
            # Another read's fetch brings the same metadata, except for the current tail.  The follower will state the
            # tail.
            first = START
        if (earlier := await self._joined(first)) is not None:
            error = as_seen_by(earlier.head, self._read.source.headers) if earlier.head is not None else None
            if first == START and _is_of_start_alone(error, start):
                first = METADATA
            elif isinstance(error, OriginError) and not is_outdated(stream, earlier):
                raise StreamEnded(error)
            reads.check_ended(stream)
            if stream.content_type is not None:
                return
        # No other read has fetched this metadata.  If this read is from the start, one request brings both the metadata
        # and the bytes.
        if first == METADATA and start != NOW:
            head = await reads.fetches.fresh_facts(stream, self._read.route, self._read.source)
        else:
            head = await self._fresh(first)
        if first == START and _is_of_start_alone(head, start):
            first, head = METADATA, await self._fresh(METADATA)
        if first == METADATA and isinstance(head, NotShareable | StreamHead) and stream.content_type is None:
            # The origin does not support HEAD, but its answers to GET state the same metadata.
            first, head = start, await self._fresh(start)
        if stream.content_type is None:
            reads.expect_stream(head)
        if has_failed(head):
            # The worker that owns the stream has stated metadata from its memory.  The owner may have the bytes, too.
            if start in (NOW, stream.tape.tail):
                return
            first, head = start, await self._fresh(start)
            if not isinstance(head, Beyond):
                reads.expect_stream(head)
        reads.check_stored(stream, start, head if first == start else None)
        self.progress.is_there = True
        self.tail = _named_tail(head)
        if first == start or (first, start) == (METADATA, NOW):
            self.head = head
            self.progress.is_confirmed = self.progress.is_lifetime_asked = True

    async def _revalidate(self, known: str) -> LiveStart | None:
        """Ask at the known tail whether the stream still exists."""
        stream, reads, start = self._stream, self._reads, self._read.start
        reply = await self._fresh(known)
        self.tail = _named_tail(reply)
        if isinstance(reply, StreamHead) and known == start:
            self.head = reply
        if isinstance(reply, Beyond) and known == start:
            # No tail was known, so the request was at the client's own offset.  The reply shows that this offset is
            # beyond the tail.
            return LiveStart(reply.tail, reply, None)
        if isinstance(reply, OriginError) and reply.status == 400 and known != start:
            # The origin refuses an offset that it has stated itself, so the stream was replaced.  The offset does not
            # come from the client.
            is_by_origin = stream.own_record().said is None
            reads.live.drop_stream(stream, End.RECREATED, is_by_origin=is_by_origin)
            raise TailMovedBack
        if isinstance(reply, OriginError) and reply.status == 410 and known != start:
            # The origin has trimmed beyond the bytes in memory.  Start again from the client's offset.
            raise TailMovedBack
        is_there = stream.outlasts_failure(reads.clock.now(), reads.clock.wall())
        if is_there and stream.elsewhere is not None and has_failed(reply):
            # The origin has failed, but the worker that owns the stream may trust the stream, or have the bytes.
            if stream.is_trusted(reads.clock.now(), self._read.route.trust_s):
                return None
            if start not in (NOW, known) and not stream.tape.knows_after(start):
                return await self._check_offset(start)
        is_stale = isinstance(reply, StreamHead) and reply.is_stale
        if (is_stale or has_failed(reply)) and stream.tape.knows_after(start) and is_there:
            self.is_unconfirmed = True
        else:
            reads.expect_stream(reply)
        return None

    async def _check_offset(self, start: str) -> LiveStart | None:
        """Ask the origin about an offset that it has not stated before.

        The offset may be before the tail, beyond the tail, or invalid.
        """
        stream, reads = self._stream, self._reads
        if self.head is None:
            # Only bytes are needed, not the tail, so another read's fetch suffices.
            await self._joined(start)
            reads.check_ended(stream)
            if stream.tape.has_seen(start):
                return None
            self.head = await self._fresh(start)
        head = self.head
        if isinstance(head, Beyond):
            return LiveStart(head.tail, head, None)
        reads.expect_stream(head)
        reads.check_stored(stream, start, head)
        return LiveStart(start, head, _named_tail(head))


def _is_of_start_alone(head: Head | None, start: str) -> bool:
    """Return whether `head` is a 410 that says nothing about `start`.  `head` is the answer to a read from the stream's
    start.

    The origin may have trimmed only bytes before `start`.
    """
    return start != START and isinstance(head, OriginError) and head.status == 410


def _named_tail(head: Head | None) -> str | None:
    """Return the tail if this answer states it, else None."""
    return head.next_offset if isinstance(head, StreamHead) and head.up_to_date else None
