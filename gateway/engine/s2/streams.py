"""The S2 streams in use, and which of them are followed live.

A stream is in use from a reader's request to its answer, and while it is followed.  It is followed from the first
reader that waits at its tail until some time after the last one has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from gateway.aio.clock import DETACHED, Timer
from gateway.engine.s2.confirmations import Confirmations
from gateway.engine.s2.follower import REPLACED, Follower
from gateway.engine.s2.origin import OriginReads, Source
from gateway.engine.s2.stream import S2Stream, Shared
from gateway.engine.s2.topic import Topic
from gateway.errors import GatewayError
from gateway.live.live_requests import RelayedLive
from gateway.protocol.stream_key import StreamKey
from gateway.s2.records import StreamPosition
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.surroundings import Surroundings

BEAT_S: Final = 5.0
"""How often readers are looked at for heartbeats.  One that was sent nothing for two beats is sent one, which is within
the 5 to 15 s of S2's own.  A stream that is in doubt by then is confirmed."""


def _soon(call: Callable[[], object]) -> None:
    asyncio.get_running_loop().call_soon(call, context=DETACHED)


class S2Streams:
    """The streams in use.  Owner of their topics and of the sessions that move them."""

    def __init__(
        self,
        origin: OriginReads,
        store: TapeStore,
        surroundings: Surroundings,
        begin_live: Callable[[str], RelayedLive],
    ) -> None:
        clock = surroundings.clock
        self._shared = Shared(origin, store, clock, surroundings.tasks, _soon)
        self._surroundings = surroundings
        self._begin_live = begin_live
        self._streams: dict[Stream, S2Stream] = {}
        self._runs: dict[S2Stream, asyncio.Task[None]] = {}
        self._timers: dict[S2Stream, Timer] = {}
        """For each followed stream, the next beat."""
        self._lingers: dict[S2Stream, Timer] = {}
        self._lives: dict[S2Stream, RelayedLive] = {}
        """For each followed stream, its place among the live requests to origins."""
        self._confirmations = Confirmations(clock, self._confirm)

    def __repr__(self) -> str:
        readers = sum(len(one.topic.readers) for one in self._runs if one.topic is not None)
        return f"<S2Streams {len(self._streams)} in use, {len(self._runs)} followed, {readers} sessions>"

    @property
    def followed(self) -> int:
        """Streams with a session at the origin."""
        return len(self._runs)

    def readers_of(self, record: Stream) -> int:
        """Live readers of a stream, waiting unary reads included."""
        topic = self.topic_of(record)
        return topic.users if topic is not None else 0

    def find(self, record: Stream) -> S2Stream | None:
        """The stream, if it is in use."""
        return self._streams.get(record)

    def topic_of(self, record: Stream) -> Topic | None:
        """The topic of a stream; None if it is not followed."""
        stream = self._streams.get(record)
        return stream.topic if stream is not None else None

    def __iter__(self) -> Iterator[S2Stream]:
        return iter(tuple(self._streams.values()))

    # -- use

    @contextmanager
    def using(self, key: StreamKey, source: Source) -> Iterator[S2Stream]:
        """The stream of `key`, in use meanwhile."""
        stream = self.open(key, source)
        try:
            yield stream
        finally:
            self.release(stream)

    def open(self, key: StreamKey, source: Source) -> S2Stream:
        """The stream of `key`; `release` must be called."""
        store, now = self._shared.store, self._shared.clock.now()
        record, tape = store.open_records(key, now)
        if record.needs_revalidation:
            # A write whose outcome is not known may have deleted it, and records cannot be revalidated.
            store.drop(record, End.PURGED)
            record, tape = store.open_records(key, now)
        stream = self._streams.get(record)
        if stream is None:
            stream = self._streams[record] = S2Stream(self._shared, record, tape, source)
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
            self._end(stream, stream.topic)

    # -- live

    def attach(self, stream: S2Stream, tail: StreamPosition, linger_s: float, client: str) -> Topic:
        """Follow the stream, whose tail was `tail` a moment ago, for a client of this net; `detach` must be called.

        Raises TooManyFollowed, ShortOfMemory or TooManyRequests.
        """
        topic = stream.topic
        if topic is None:
            self._lives[stream] = self._begin_live(client)
            topic = stream.topic = Topic(tail, self._shared.soon)
            stream.users += 1
            stream.stream.has_topic = True
            stream.stream.followed()
            self._runs[stream] = self._shared.tasks.start(
                self._follow(stream, topic, client), f"follow {stream.stream.key.group.path}"
            )
            self._beat_later(stream, topic, client)
        if (linger := self._lingers.pop(stream, None)) is not None:
            linger.cancel()
        topic.users += 1
        return topic

    def detach(self, stream: S2Stream, topic: Topic, linger_s: float) -> None:
        """A reader has left the topic."""
        topic.users -= 1
        if not topic.users and stream.topic is topic:
            self._lingers[stream] = self._shared.clock.call_later(linger_s, lambda: self._expire(stream, topic))

    def _expire(self, stream: S2Stream, topic: Topic) -> None:
        self._lingers.pop(stream, None)
        if not topic.users and stream.topic is topic:
            self._end(stream, topic)

    def _end(self, stream: S2Stream, topic: Topic) -> None:
        run = self._runs[stream]
        self._unfollow(stream, topic)
        if run is not asyncio.current_task():
            run.cancel()

    def _beat_later(self, stream: S2Stream, topic: Topic, client: str) -> None:
        def beat() -> None:
            topic.beat()
            if stream.topic is topic:
                self._beat_later(stream, topic, client)
                if stream.tape.is_doubted:
                    self._confirmations.add(stream, client)

        self._timers[stream] = self._shared.clock.call_later(BEAT_S, beat)

    def _confirm(self, stream: S2Stream, client: str) -> None:
        """Have the origin confirm a stream in doubt, so that its live readers end if it is gone."""

        async def confirm() -> None:
            # If the origin does not answer, the doubt stays until a later beat.
            with suppress(GatewayError):
                await stream.confirmed(client)

        if not stream.is_confirming:
            self._shared.tasks.start(confirm(), f"confirm {stream.stream.key.group.path}")

    async def _follow(self, stream: S2Stream, topic: Topic, client: str) -> None:
        follower = Follower(topic, stream, client, self._shared.origin, self._surroundings)
        try:
            await follower.run()
        finally:
            self._unfollow(stream, topic)

    def _unfollow(self, stream: S2Stream, topic: Topic) -> None:
        if stream.topic is not topic:
            return
        stream.topic = None
        topic.lost(REPLACED)
        self._confirmations.remove(stream)
        del self._runs[stream]
        self._lives.pop(stream).end()
        self._timers.pop(stream).cancel()
        if (linger := self._lingers.pop(stream, None)) is not None:
            linger.cancel()
        stream.stream.has_topic = False
        stream.stream.unfollowed(self._shared.clock.now())
        self.release(stream)

    def close(self) -> None:
        """End every topic; called at shutdown, after the readers have gone."""
        for stream in tuple(self._runs):
            assert stream.topic is not None
            self._end(stream, stream.topic)
        self._confirmations.close()
