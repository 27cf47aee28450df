"""The S2 streams in use, and their topics.

A stream is in use from a reader's request to its answer, and while it is followed.  It is followed from the first
reader that waits at its tail until the live table (`gateway.live.table`) removes its topic.

One refused write may bring thousands of followed streams into doubt, because a path has a stream for each token.  So
these are confirmed one by one, at most one in `EVERY_S`, and the paths take turns: a path with many streams does not
delay the others.  A stream that waits has its live readers meanwhile, and any other read of it asks the origin first.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

from gateway.aio.clock import DETACHED, Clock, Timer
from gateway.engine.s2.fetch import S2Origin, S2Source
from gateway.engine.s2.follower import REPLACED, S2Follower
from gateway.engine.s2.stream import S2Shared, S2Stream
from gateway.engine.s2.topic import S2Topic
from gateway.errors import GatewayError
from gateway.live.table import LiveTable
from gateway.protocol.sharing import Group, StreamKey
from gateway.s2.records import StreamPosition
from gateway.tape.record_stream import RecordStream
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.surroundings import Surroundings

EVERY_S: Final = 0.02
"""Between two confirmations that no reader waits for."""


class S2Confirmations:
    """The streams that wait for their confirmation, each once.  Decides only; `confirm` asks the origin.

    `confirm` is called with a stream and the net of the client that the origin is asked for.
    """

    def __init__(self, clock: Clock, confirm: Callable[[S2Stream, str], object]) -> None:
        self._clock = clock
        self._confirm = confirm
        self._waiting: OrderedDict[Group, dict[S2Stream, str]] = OrderedDict()
        """The streams of each path and their clients' nets; the path whose turn is next is the first."""
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<S2Confirmations of {sum(map(len, self._waiting.values()))} streams>"

    def add(self, stream: S2Stream, client: str) -> None:
        """Have the stream confirmed in its turn."""
        self._waiting.setdefault(stream.stream.key.group, {}).setdefault(stream, client)
        if self._timer is None:
            self._turn()

    def remove(self, stream: S2Stream) -> None:
        """The stream is followed no more."""
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
        """Confirm nothing more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


BEAT_S: Final = 5.0
"""How often readers are looked at for heartbeats.  One that was sent nothing for two beats is sent one, which is within
the 5 to 15 s of S2's own.  A stream that is in doubt by then is confirmed."""


def _soon(call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(call, context=DETACHED)


class S2Streams:
    """The streams in use.  Owner of their topics and of the sessions that move them."""

    def __init__(
        self,
        origin: S2Origin,
        store: TapeStore,
        surroundings: Surroundings,
        table: LiveTable,
    ) -> None:
        clock = surroundings.clock
        self._shared = S2Shared(origin, store, clock, surroundings.tasks, _soon)
        self._surroundings = surroundings
        self._table = table
        self._streams: dict[Stream, S2Stream] = {}
        self._confirmations = S2Confirmations(clock, self._confirm)

    def __repr__(self) -> str:
        sessions = sum(len(topic.readers_now) for topic in self._topics)
        return f"<S2Streams {len(self._streams)} in use, {self.followed} followed, {sessions} sessions>"

    @property
    def followed(self) -> int:
        """Streams with a session at the origin."""
        return len(self._topics)

    @property
    def _topics(self) -> list[S2Topic]:
        return [stream.topic for stream in self._streams.values() if stream.topic is not None]

    def readers_of(self, record: Stream) -> int:
        """Live readers of a stream, waiting unary reads included."""
        topic = self.topic_of(record)
        return topic.readers if topic is not None else 0

    def find(self, record: Stream) -> S2Stream | None:
        """The stream, if it is in use."""
        return self._streams.get(record)

    def topic_of(self, record: Stream) -> S2Topic | None:
        """The topic of a stream; None if it is not followed."""
        stream = self._streams.get(record)
        return stream.topic if stream is not None else None

    def __iter__(self) -> Iterator[S2Stream]:
        return iter(tuple(self._streams.values()))

    # -- use

    @contextmanager
    def using(self, key: StreamKey, source: S2Source) -> Iterator[S2Stream]:
        """The stream of `key`, in use meanwhile."""
        stream = self.open(key, source)
        try:
            yield stream
        finally:
            self.release(stream)

    def open(self, key: StreamKey, source: S2Source) -> S2Stream:
        """The stream of `key`; `release` must be called."""
        store, now = self._shared.store, self._shared.clock.now()
        record = store.open_as(RecordStream, key, now)
        if record.needs_revalidation:
            # A write whose outcome is not known may have deleted it, and records cannot be revalidated.
            store.drop(record, End.PURGED)
            record = store.open_as(RecordStream, key, now)
        stream = self._streams.get(record)
        if stream is None:
            stream = self._streams[record] = S2Stream(self._shared, record, source)
            record.hold()
        if stream.is_source_refused:
            # With shared credentials those of the first reader may have been revoked.
            stream.source, stream.is_source_refused = source, False
        stream.users += 1
        return stream

    def release(self, stream: S2Stream) -> None:
        """The stream is used once less."""
        stream.users -= 1
        if not stream.users and self._streams.get(stream.stream) is stream:
            del self._streams[stream.stream]
            self._shared.store.release(stream.stream)

    def forget(self, record: Stream) -> None:
        """Records of the stream were dropped; if it has ended, so have its live readers."""
        stream = self._streams.get(record)
        if stream is not None and record.ended is not None and stream.topic is not None:
            self._table.remove(stream.topic)

    # -- live

    def attach(self, stream: S2Stream, tail: StreamPosition, client: str) -> S2Topic:
        """Follow the stream, whose tail was `tail` a moment ago, for a client of this net; `detach` must be called.

        Raises TooManyFollowed, ShortOfMemory or TooManyRequests.
        """
        topic = stream.topic
        if topic is None:
            self._table.make_room(client)
            topic = stream.topic = S2Topic(stream.stream, tail, self._shared.soon, partial(self._beat, stream, client))
            stream.users += 1
            stream.stream.followed()
            self._table.add(topic, BEAT_S, partial(self._removed, stream, topic))
            self._table.charge(topic, client)
            follower = S2Follower(topic, stream, client, self._shared.origin, self._surroundings)
            self._table.follow(topic, self._follow(topic, follower))
        self._table.attach(topic)
        return topic

    def detach(self, topic: S2Topic, linger_s: float) -> None:
        """A reader has left the topic."""
        self._table.detach(topic, linger_s)

    async def _follow(self, topic: S2Topic, follower: S2Follower) -> None:
        try:
            await follower.run()
        finally:
            self._table.remove(topic)

    def _removed(self, stream: S2Stream, topic: S2Topic) -> None:
        """The topic has left the table."""
        stream.topic = None
        topic.lost(REPLACED)
        self._confirmations.remove(stream)
        stream.stream.unfollowed(self._shared.clock.now())
        self.release(stream)

    def _beat(self, stream: S2Stream, client: str) -> None:
        if stream.stream.is_doubted:
            self._confirmations.add(stream, client)

    def _confirm(self, stream: S2Stream, client: str) -> None:
        """Have the origin confirm a stream in doubt, so that its live readers end if it is gone."""

        async def confirm() -> None:
            # If the origin does not answer, the doubt stays until a later beat.
            with suppress(GatewayError):
                await stream.confirmed(client)

        if not stream.is_confirming:
            self._shared.tasks.start(confirm(), f"confirm {stream.stream.key.group.path}")

    def close(self) -> None:
        """Confirm nothing more; called at shutdown, after the topics have ended."""
        self._confirmations.close()
