"""The S2 streams in use, and the sessions at their origins that keep live readers up to date.

A stream is in use while a request needs it, and while it is followed.  The gateway follows a stream from the time when
a reader waits at its tail.  It stops following the stream when the table of topics (`gateway.live.followed_streams`)
removes the stream's topic, the object that holds its live readers.

A followed stream has one session at its origin (`S2Follower`).  After a failure, a new session continues at the same
position; repeated failures lead to growing pauses.  If the origin stays unreachable or refuses, the live readers get an
error.  Their sessions must not end regularly: S2 clients would interpret a regular end as the end of the read, and
would not reconnect.

The stream may be deleted and re-created between two sessions.  So each session also reads the last record before the
topic's position, to check that the stream is still the same.

After some writes, records in memory are *doubted*: the gateway must ask the origin whether they still belong to the
present stream.  One refused write can affect thousands of followed streams, because a path has one stream for each set
of credentials.  The streams are therefore confirmed one at a time, one every `EVERY_S`.  The paths take turns, so a
path with many streams does not delay other paths.  Meanwhile live readers continue, and other reads of the stream ask
the origin first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

from gateway.aio.clock import DETACHED, Clock, Timer
from gateway.engine.reply_classifier import PERSONAL
from gateway.engine.s2.fetch import S2Origin, S2Source
from gateway.engine.s2.stream import S2Shared, S2Stream
from gateway.engine.s2.topic import LOST, REFUSED, REPLACED, S2Topic
from gateway.errors import (
    GatewayError,
    TailMovedBack,
    UpstreamBroken,
    UpstreamCongested,
    UpstreamUnavailable,
    UpstreamUnreachable,
    bare,
)
from gateway.limits.queues import Askers
from gateway.live.followed_streams import LiveTable, pause_before_reconnect
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Group, StreamKey
from gateway.s2 import protobuf
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.session import BadFrame, FrameReader, Message, Terminal
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.reply import Reply
from gateway.upstream.s2_client import AtTail, S2Refused, ended_with

PAUSES_S: Final = (0.0, 0.25, 0.5, 1.0, 2.0)
"""Pauses before the attempts to reconnect, in seconds, without jitter.  After the last attempt the stream is lost.
All pauses together are shorter than the 20 s after which S2 clients give up a silent session."""

LEAST_S: Final = 1.0
"""A session that lasts less than this many seconds is short.  After one short session the next session starts at once;
after several in a row it starts after a pause.  Without the pause, an origin that ends each session right after the
reply, or always advises to use another session, would be asked in a tight loop."""


LEAVING_S: Final = 15.0
"""An origin may end a session early if it announces its own end, or advises to use another session.  If it has sent
nothing else for this many seconds, such an end counts as a failure."""


class S2Follower:
    """Follows one stream for a client network until the task is cancelled or the topic is lost.

    The `S2Stream` checks the replies and stores the records.
    """

    def __init__(
        self, topic: S2Topic, stream: S2Stream, client: str, origin: S2Origin, surroundings: Surroundings
    ) -> None:
        clock = surroundings.clock
        self._topic = topic
        self._stream = stream
        self._source = stream.source
        self._client = client
        self._origin = origin
        self._surroundings = surroundings
        self._clock = clock
        self._metrics = surroundings.metrics
        self._rng = surroundings.rng
        self._failures = 0
        """The number of consecutive attempts that received nothing."""
        self._short = 0
        """The number of consecutive short attempts."""
        self._heard_at = clock.now()
        """When the origin last sent something (monotonic seconds)."""
        self._is_by_hop = False
        """Whether the stream's owner, another worker, provides the session."""
        self._goes_on = False
        """Whether this follower has already had a session.  Before the first session, the stream must be verified."""
        self._overlap: int | None = None
        """The sequence number of the record that is read again; None once that record has arrived."""

    def anew(self) -> S2Follower:
        """Return another follower of the same stream, which has not begun."""
        return S2Follower(self._topic, self._stream, self._client, self._origin, self._surroundings)

    async def run(self) -> None:
        """Follow the stream.  Returns when the topic is lost."""
        topic = self._topic
        while topic.error is None:
            is_planned, failure, began_at = False, None, self._clock.now()
            try:
                is_planned = await self._session()
            except TailMovedBack:
                topic.lost(REPLACED)
                return
            except GatewayError as error:
                failure = bare(error)
                if not isinstance(error, UpstreamUnavailable | UpstreamCongested):
                    self._metrics.upstream_failure(Mode.SSE, type(error).__name__, self._source.route)
            # A server that announces its end must send something else before `LEAVING_S` has passed.  Otherwise the end
            # counts as a failure.
            is_planned = is_planned and self._clock.now() - self._heard_at < LEAVING_S
            topic.disconnected()
            if self._failures == len(PAUSES_S):
                topic.lost(LOST)
                return
            delay_s = PAUSES_S[self._failures] * self._rng.uniform(0.8, 1.2)
            left_s = began_at + LEAST_S - self._clock.now()
            self._short = self._short + 1 if left_s > 0 else 0
            if self._short > 1:
                delay_s = max(delay_s, left_s)
            self._failures += not is_planned
            self._metrics.reconnect(self._source.route, is_planned=is_planned)
            if delay_s > 0 and await pause_before_reconnect(self._clock, self._rng, failure, delay_s):
                self._failures = 0

    async def _session(self) -> bool:
        """Read one session to its end.

        Returns whether the origin has announced its end, or has advised to use another session.  The next session then
        uses another connection.  Raises a GatewayError if the session fails.
        """
        topic = self._topic
        self._overlap = topic.position - 1 if topic.position else None
        start = topic.position if self._overlap is None else self._overlap
        if not self._goes_on:
            # Check that the stream in memory is still the stream at the origin.
            refused = await self._stream.verify(topic.position, Askers(self._client))
            if refused is not None:
                self._refuse(refused)
                return False
        self._goes_on = True
        opened = await self._origin.session(self._source, start, self._client)
        if isinstance(opened, AtTail):
            self._stream.sees(opened.tail, topic.position)
            raise UpstreamBroken("Origin refused to follow a stream at its tail")
        if isinstance(opened, S2Refused):
            if opened.is_draining:
                return True
            self._refuse(opened)
            return False
        async with opened as reply:
            self._is_by_hop = reply.said is not None
            return await self._read(reply)

    async def _read(self, reply: Reply) -> bool:
        frames = FrameReader()
        async for chunk in reply.chunks():
            self._origin.received(self._source, Mode.SSE, reply, len(chunk))
            try:
                for frame in frames.feed(chunk):
                    if isinstance(frame, Terminal):
                        error = ended_with(frame.status, frame.body)
                        if error.is_draining:
                            reply.retire()
                            return True
                        self._refuse(error)
                        return False
                    self._take(frame)
                    if frame.is_reconnect_advised:
                        reply.retire()
                        return True
            except (BadFrame, protobuf.BadProtobuf) as error:
                raise UpstreamBroken from error
        # A session without a time limit never ends regularly.
        raise UpstreamUnreachable

    def _take(self, frame: Message) -> None:
        batch, now = protobuf.decode_read_batch(frame.body), self._clock.now()
        # Only the owner knows when the origin has stated the tail.  The owner's heartbeats show only that this worker
        # is alive.
        stated_at = -inf if self._is_by_hop else now
        if batch.records and self._overlap is not None:
            batch = self._without_overlap(batch, self._overlap)
            self._overlap = None
        if batch.records:
            self._stream.store_batch(batch)
            self._topic.publish(batch.records, batch.tail, stated_at)
        elif batch.tail is not None:
            self._stream.sees(batch.tail, self._topic.position)
            self._topic.heard(batch.tail, stated_at)
        self._failures = 0
        self._heard_at = now

    def _without_overlap(self, batch: ReadBatch, overlap: int) -> ReadBatch:
        """Return the batch without the record that was read again.

        Raises TailMovedBack if that record belongs to another stream.
        """
        first = batch.records[0]
        if first.seq_num > overlap:
            # The origin has trimmed the record.
            return batch
        self._stream.compare(first, StreamPosition(overlap + 1, self._topic.last_timestamp))
        return replace(batch, records=batch.records[1:])

    def _refuse(self, error: S2Refused) -> None:
        """Handle an error that ends the session.  Raises a GatewayError if a retry may help."""
        if error.status >= 500 or error.status in (408, 429):
            raise UpstreamUnreachable
        if error.status < 400:
            raise UpstreamBroken("Origin ended a session with a status that is no error")
        self._stream.refused(error)
        # The error may concern the credentials of one reader.  Let each client reconnect with its own credentials.
        self._topic.lost(error if error.status not in PERSONAL else REFUSED)


EVERY_S: Final = 0.02
"""Seconds between two queued confirmations."""


class S2Confirmations:
    """A queue of streams that wait to be confirmed.

    `confirm` asks the origin to confirm a stream, on behalf of the client network in its second argument.
    """

    def __init__(self, clock: Clock, confirm: Callable[[S2Stream, str], object]) -> None:
        self._clock = clock
        self._confirm = confirm
        self._waiting: OrderedDict[Group, dict[S2Stream, str]] = OrderedDict()
        """The streams of each path, and the client network for each stream.  The first path is next."""
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<S2Confirmations of {sum(map(len, self._waiting.values()))} streams>"

    def queue_stream(self, stream: S2Stream, client: str) -> None:
        """Add the stream to the queue, unless it is already there."""
        self._waiting.setdefault(stream.stream.key.group, {}).setdefault(stream, client)
        if self._timer is None:
            self._turn()

    def remove(self, stream: S2Stream) -> None:
        """Remove a stream that is no longer followed."""
        group = stream.stream.key.group
        if (streams := self._waiting.get(group)) is not None:
            streams.pop(stream, None)
            if not streams:
                del self._waiting[group]

    def _turn(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        group, streams = self._waiting.popitem(last=False)
        stream = next(iter(streams))
        client = streams.pop(stream)
        if streams:
            self._waiting[group] = streams
        self._timer = self._clock.call_later(EVERY_S, self._turn)
        self._confirm(stream, client)

    def close(self) -> None:
        """Empty the queue and stop."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


BEAT_S: Final = 5.0
"""Seconds between two beats of a topic.  A reader that has received nothing for two beats gets a heartbeat.  S2 itself
sends a heartbeat every 5 to 15 s.  Each beat also queues the stream for confirmation if its records are doubted."""


def _soon(call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(call, context=DETACHED)


class S2Streams:
    """The streams in use.  Owns their topics and the sessions at origins."""

    def __init__(self, origin: S2Origin, store: TapeStore, surroundings: Surroundings, table: LiveTable) -> None:
        clock = surroundings.clock
        self.tell_ended: Callable[[StreamKey], object] = lambda key: None
        """Tells other workers that a stream has ended at the origin."""
        self._shared = S2Shared(origin, store, clock, surroundings.tasks, _soon, lambda key: self.tell_ended(key))
        self._surroundings = surroundings
        self._table = table
        self._streams: dict[Stream, S2Stream] = {}
        self._followers: dict[S2Topic, S2Follower] = {}
        self._confirmations = S2Confirmations(clock, self._confirm)

    def __repr__(self) -> str:
        sessions = sum(len(topic.readers_now) for topic in self.topics())
        return f"<S2Streams {len(self._streams)} in use, {self.followed} followed, {sessions} sessions>"

    @property
    def followed(self) -> int:
        """The number of streams with a session at the origin."""
        return len(self.topics())

    def topics(self) -> list[S2Topic]:
        """Return the topics of the streams that are followed."""
        return [stream.topic for stream in self._streams.values() if stream.topic is not None]

    def readers_of(self, record: Stream) -> int:
        """Return the number of live readers of a stream, including waiting unary reads."""
        topic = self.topic_of(record)
        return topic.readers if topic is not None else 0

    def topic_of(self, record: Stream) -> S2Topic | None:
        """Return the topic of a stream; None if the stream is not followed."""
        stream = self._streams.get(record)
        return stream.topic if stream is not None else None

    def __iter__(self) -> Iterator[S2Stream]:
        return iter(tuple(self._streams.values()))

    # -- use

    @contextmanager
    def using(self, key: StreamKey, source: S2Source) -> Iterator[S2Stream]:
        """Open the stream of `key`, and release it at the end of the `with` block."""
        stream = self.open(key, source)
        try:
            yield stream
        finally:
            self.release(stream)

    def open(self, key: StreamKey, source: S2Source) -> S2Stream:
        """Return the stream of `key`; the caller must call `release`."""
        store, now = self._shared.store, self._shared.clock.now()
        record = store.open_as(RecordStream, key, now)
        if record.needs_revalidation:
            # A write of unknown outcome may have deleted the stream.  Records in memory are dropped then, rather than
            # revalidated.
            store.drop_stream(record, End.PURGED)
            record = store.open_as(RecordStream, key, now)
        stream = self._streams.get(record)
        if stream is None:
            stream = self._streams[record] = S2Stream(self._shared, record, source)
            record.hold()
        if stream.is_source_refused:
            # The first reader's credentials were refused, perhaps because they were revoked.  Use this reader's.
            stream.source, stream.is_source_refused = source, False
        stream.users += 1
        return stream

    def release(self, stream: S2Stream) -> None:
        """End one use of the stream."""
        stream.users -= 1
        if not stream.users and self._streams.get(stream.stream) is stream:
            del self._streams[stream.stream]
            self._shared.store.release(stream.stream)

    def forget_stream(self, record: Stream) -> None:
        """Handle dropped records: if the stream has ended, end its live readers."""
        stream = self._streams.get(record)
        if stream is not None and record.ended is not None and stream.topic is not None:
            self._table.remove(stream.topic)

    # -- live

    def attach(self, stream: S2Stream, tail: StreamPosition, client: str) -> S2Topic:
        """Join the stream's topic, and follow the stream if it has no topic yet; the caller must call `detach`.

        `tail` was the stream's tail a moment ago, and `client` is the client's network.  Raises TooManyFollowed,
        ShortOfMemory or TooManyRequests.
        """
        topic = stream.topic
        if topic is None:
            self._table.make_room(client)
            topic = stream.topic = S2Topic(stream.stream, tail, self._shared.soon, partial(self._beat, stream, client))
            stream.users += 1
            stream.stream.followed()
            self._table.add_topic(topic, BEAT_S, partial(self._removed, stream, topic))
            self._table.charge(topic, client)
            self._start(topic, S2Follower(topic, stream, client, self._shared.origin, self._surroundings))
        self._table.attach(topic)
        return topic

    def detach(self, topic: S2Topic, linger_s: float) -> None:
        """Record that a reader has left the topic."""
        self._table.detach(topic, linger_s)

    def restart(self, record: Stream) -> None:
        """End the session of a stream's follower, and let a new follower open another session, because the stream has a
        new owner."""
        topic = self.topic_of(record)
        if topic is not None and (follower := self._followers.pop(topic, None)) is not None:
            self._table.unfollow(topic)
            topic.disconnected()
            self._start(topic, follower.anew())

    def _start(self, topic: S2Topic, follower: S2Follower) -> None:
        self._followers[topic] = follower
        self._table.follow(topic, self._follow(topic, follower))

    async def _follow(self, topic: S2Topic, follower: S2Follower) -> None:
        try:
            await follower.run()
        finally:
            if self._followers.get(topic) is follower:
                self._table.remove(topic)

    def _removed(self, stream: S2Stream, topic: S2Topic) -> None:
        """Clean up after a topic that has been removed from the table."""
        stream.topic = None
        self._followers.pop(topic, None)
        topic.lost(REPLACED)
        self._confirmations.remove(stream)
        stream.stream.unfollowed(self._shared.clock.now())
        self.release(stream)

    def _beat(self, stream: S2Stream, client: str) -> None:
        if stream.stream.is_doubted:
            self._confirmations.queue_stream(stream, client)

    def _confirm(self, stream: S2Stream, client: str) -> None:
        """Ask the origin to confirm a stream, so that its live readers end if the stream is gone."""

        async def confirm() -> None:
            # If the origin does not answer, a later beat tries again.
            with suppress(GatewayError):
                await stream.confirmed(client)

        if not stream.is_confirming:
            self._shared.tasks.start(confirm(), f"confirm {stream.stream.key.group.path}")

    def close(self) -> None:
        """Stop confirming, at shutdown, after the topics have ended."""
        self._confirmations.close()
