"""Which streams are followed, by whom, and for how long.

A topic begins with its first live reader and outlives its last by a linger, because a long-poll client is away between
any two of its requests.  While it lives it pins its stream, so that one key has one topic, and so one connection at the
origin.

A topic may also be *hot*: followed because reads that are not live ask for its tail more often than a live request
would cost.  It stays so while it is read, and is looked at every `_COOLING_S`.  Hot topics take at most half of the
streams that may be followed: the other half is kept for live readers.
"""

from __future__ import annotations

import asyncio
import random

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import Tasks
from gateway.errors import TooManyFollowed
from gateway.live.follower import Follower
from gateway.live.rounds import Rounds
from gateway.live.topic import BEATS, OriginAccess, Terms, Topic
from gateway.protocol.offsets import START, is_before
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.access_record import NO_ACCESS_LOG, AccessLog
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import StreamHead
from gateway.upstream.upstream import Upstream

_CONNECTING_S = 0.5
"""How long a read that asks for the tail may wait for a live request that was just begun."""
_COOLING_S = 10.0
_DOUBT_PAUSE_S = 1.0
_FOLLOWER_PATIENCE_S = 1.0
"""How long a follower may lag behind an acknowledged write that readers wait for."""


class LiveTopics:
    """The topics.  Owner of the table; starts and stops followers."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        clock: Clock,
        tasks: Tasks,
        metrics: MetricsRecorder,
        rng: random.Random,
        most: int,
        access_log: AccessLog = NO_ACCESS_LOG,
    ) -> None:
        self._most = most
        self._access_log = access_log
        self._upstream = upstream
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._metrics = metrics
        self._rng = rng
        self._topics: dict[Stream, Topic] = {}
        self._runs: dict[Topic, asyncio.Task[None]] = {}
        self._lingers: dict[Topic, Timer] = {}
        self._expiries: dict[Topic, Timer] = {}
        self._revalidations: dict[Topic, Timer] = {}
        self._beats: dict[Topic, Timer] = {}
        self._stalls: dict[Topic, Timer] = {}
        self._coolings: dict[Topic, Timer] = {}
        """When each hot topic is looked at next."""

    def __len__(self) -> int:
        return len(self._topics)

    def find(self, stream: Stream) -> Topic | None:
        """The stream's topic, if it has one."""
        return self._topics.get(stream)

    @property
    def hot_count(self) -> int:
        """Streams that are followed for the reads that ask for their tails."""
        return len(self._coolings)

    def confirmed_at(self, stream: Stream, at: str) -> Topic | None:
        """The stream's topic, where its follower stands confirmed at `at`."""
        topic = self._topics.get(stream)
        return topic if topic is not None and topic.is_confirmed and self._is_at(topic, at) else None

    def attach(self, stream: Stream, access: OriginAccess, terms: Terms) -> Topic:
        """Join the stream's topic, begun now where there is none.  `detach` is owed; `follow` has it followed."""
        topic = self._topics.get(stream)
        if topic is None:
            topic = self._topics[stream] = Topic(
                stream, access, terms, self._clock.wall, Rounds(self._metrics, self._clock.now, stream.key.route)
            )
            stream.pin()
            stream.has_topic = True
            self._watch_expiry(topic)
            self._beat_in(topic, terms.heartbeat_s / BEATS)
        if topic.is_refused:
            # Where credentials are shared, the first reader's may have been revoked; those that are good are kept.
            topic.access, topic.is_refused = access, False
        topic.readers += 1
        if (linger := self._lingers.pop(topic, None)) is not None:
            linger.cancel()
        return topic

    def join(self, stream: Stream) -> Topic | None:
        """Join the stream's topic, where there is one that is followed and may be read by all; `detach` is owed."""
        topic = self._topics.get(stream)
        if topic is None or topic not in self._runs or topic.foreign is not None or topic.is_refused:
            return None
        topic.readers += 1
        if (linger := self._lingers.pop(topic, None)) is not None:
            linger.cancel()
        return topic

    def follow(self, topic: Topic) -> None:
        """Have the stream followed from here on.  Only who waits asks for it: readers that are answered at once, of
        ever new queries say, would each leave a live request behind them.  Raises TooManyFollowed."""
        is_needed = topic not in self._runs and topic.stream.tape.closed_at is None
        if is_needed and len(self._runs) >= self._most:
            raise TooManyFollowed
        if self._topics.get(topic.stream) is topic:
            self._start(topic)
            self.expect(topic.stream)

    def heat(self, topic: Topic, per_s: float) -> None:
        """Have the stream followed for as long as it is read at least half of `per_s` times a second; nothing happens
        where there is no room for it."""
        if topic.is_hot or topic.stream.tape.closed_at is not None or self._topics.get(topic.stream) is not topic:
            return
        if len(self._coolings) >= self._most // 2 or (topic not in self._runs and len(self._runs) >= self._most):
            return
        topic.is_hot = True
        self._cool_later(topic, per_s * _COOLING_S / 2)
        self.follow(topic)

    def _cool_later(self, topic: Topic, least_reads: float) -> None:
        reads = topic.stream.reads

        def cool() -> None:
            is_of_use = topic in self._runs and topic.stream.tape.closed_at is None
            if is_of_use and topic.stream.reads - reads >= least_reads:
                self._cool_later(topic, least_reads)
            else:
                del self._coolings[topic]
                topic.is_hot = False
                if not topic.readers and topic not in self._lingers:
                    self._remove(topic)

        self._coolings[topic] = self._clock.call_later(_COOLING_S, cool)

    def cool_all(self) -> None:
        """Follow nothing any more but what live readers read: the gateway is leaving."""
        for topic in list(self._coolings):
            self._coolings.pop(topic).cancel()
            topic.is_hot = False
            if not topic.readers and topic not in self._lingers:
                self._remove(topic)

    async def until_connected(self, stream: Stream) -> None:
        """Give a live request that was just begun a moment to be confirmed, or to fail."""
        topic = self._topics.get(stream)
        while topic is not None and topic in self._runs and not topic.is_confirmed and topic.trouble is None:
            left = topic.connects_until - self._clock.now()
            if left <= 0 or stream.ended is not None or not await topic.changed.wait_within(self._clock, left):
                return

    def looked(self, stream: Stream, tail: str, asked_at: float) -> None:
        """The origin has named the stream's tail to a request sent at `asked_at`, beside the live one."""
        topic = self._topics.get(stream)
        if topic is not None:
            topic.named(tail, asked_at)
            if topic not in self._expiries:
                self._watch_expiry(topic)

    def expect(self, stream: Stream) -> None:
        """What was acknowledged through this gateway is for the follower to bring, and soon: where it does not, it has
        stalled.  Then one look fetches it for all who wait, and the live request is made anew."""
        topic = self._topics.get(stream)
        acked = stream.acked
        if topic is None or topic not in self._runs or topic in self._stalls:
            return
        if acked is None or self._has_brought(topic, acked):
            return
        self._stalls[topic] = self._clock.call_later(_FOLLOWER_PATIENCE_S, lambda: self._is_due(topic, acked))

    @staticmethod
    def _is_at(topic: Topic, tail: str) -> bool:
        return topic.position is not None and topic.stream.tape.resolve(topic.position) == tail

    @staticmethod
    def _has_brought(topic: Topic, acked: str) -> bool:
        at = topic.position
        is_behind = at is None or is_before(topic.stream.tape.resolve(at), acked)
        return not is_behind and not topic.stream.is_closing

    def _is_due(self, topic: Topic, acked: str) -> None:
        self._stalls.pop(topic, None)
        if self._has_brought(topic, acked) or not (topic.readers or topic.is_hot):
            self.expect(topic.stream)
        else:
            self._tasks.start(self._fetch_stalled(topic), f"look behind {acked}")

    async def _fetch_stalled(self, topic: Topic) -> None:
        tape = topic.stream.tape
        head = await topic.access.look(tape.resolve(topic.position or START))
        if self._topics.get(topic.stream) is topic:
            if isinstance(head, StreamHead):
                if not self._is_at(topic, head.next_offset):
                    self.restart(topic.stream)
                topic.wake()
            self.expect(topic.stream)

    def _watch_expiry(self, topic: Topic) -> None:
        """An absolute end is kept here: an origin may let a live request stay open past it."""
        life = topic.stream.lifetime
        if life is not None and life.expires_at is not None:
            delay_s = life.expires_at - self._clock.wall()
            self._expiries[topic] = self._clock.call_later(delay_s, lambda: self._is_over(topic))

    def _is_over(self, topic: Topic) -> None:
        """The end that was known when the timer was set has come; the stream may be another one since."""
        del self._expiries[topic]
        if topic.stream.has_expired(self._clock.now(), self._clock.wall()):
            self.drop(topic.stream, End.EXPIRED)
        else:
            self._watch_expiry(topic)

    def _beat_in(self, topic: Topic, delay_s: float) -> None:
        def beat() -> None:
            topic.beat()
            self._beat_in(topic, delay_s)

        self._beats[topic] = self._clock.call_later(delay_s, beat)

    def _start(self, topic: Topic) -> None:
        if topic in self._runs or topic.stream.ended is not None or topic.stream.tape.closed_at is not None:
            return
        topic.connects_until = self._clock.now() + _CONNECTING_S
        follower = Follower(topic, self._upstream, self._store, self._clock, self._metrics, self._rng, self._access_log)
        self._runs[topic] = self._tasks.start(self._run(topic, follower), f"follow {topic.stream.key.group.path}")

    async def _run(self, topic: Topic, follower: Follower) -> None:
        try:
            why = await follower.run()
        finally:
            if self._runs.get(topic) is asyncio.current_task():
                del self._runs[topic]
        if why is not None:
            self.drop(topic.stream, why)

    def detach(self, topic: Topic) -> None:
        """A reader leaves; the last one's leaving ends the topic after the linger, where there is anything to keep."""
        topic.readers -= 1
        if topic.readers or self._topics.get(topic.stream) is not topic:
            return
        if topic not in self._runs and not topic.is_hot:
            self._remove(topic)
        else:
            self._lingers[topic] = self._clock.call_later(topic.terms.linger_s, lambda: self._expire(topic))

    def _expire(self, topic: Topic) -> None:
        self._lingers.pop(topic, None)
        if not topic.readers and not topic.is_hot:
            self._remove(topic)

    def _remove(self, topic: Topic) -> None:
        if self._topics.get(topic.stream) is not topic:
            return
        del self._topics[topic.stream]
        topic.is_hot = False
        for timers in (
            self._lingers,
            self._expiries,
            self._revalidations,
            self._beats,
            self._stalls,
            self._coolings,
        ):
            if (timer := timers.pop(topic, None)) is not None:
                timer.cancel()
        run = self._runs.pop(topic, None)
        if run is not None and run is not asyncio.current_task():
            run.cancel()
        topic.lost(self._clock.now(), None)
        topic.stream.has_topic = False
        self._store.release(topic.stream)

    def end(self, stream: Stream, why: End) -> None:
        """The stream's record has ended: send its live readers off."""
        topic = self._topics.get(stream)
        if topic is not None:
            topic.end(why)
            self._remove(topic)

    def drop(self, stream: Stream, why: End) -> None:
        """End the stream's record and send its live readers off."""
        if self._store.drop(stream, why):
            self.end(stream, why)

    def restart(self, stream: Stream) -> None:
        """Doubt the stream's live request: the stream may have changed in a way that the request does not show."""
        topic = self._topics.get(stream)
        run = self._runs.pop(topic, None) if topic is not None else None
        if topic is not None and run is not None:
            run.cancel()
            topic.lost(self._clock.now(), None)
            self._start(topic)

    def revalidate(self, stream: Stream) -> None:
        """`restart` it now or, where that was done within the last second, when the second is over: anybody can send
        writes that fail."""
        topic = self._topics.get(stream)
        if topic is None or topic in self._revalidations:
            return
        wait_s = topic.revalidated_at + _DOUBT_PAUSE_S - self._clock.now()
        if wait_s <= 0:
            self._restart_revalidated(topic)
        else:
            self._revalidations[topic] = self._clock.call_later(wait_s, lambda: self._restart_revalidated(topic))

    def _restart_revalidated(self, topic: Topic) -> None:
        self._revalidations.pop(topic, None)
        topic.revalidated_at = self._clock.now()
        self.restart(topic.stream)

    def leave(self, spread_s: float, within_s: float) -> None:
        """Send every live reader off, spread over `spread_s` seconds, the last of them within `within_s`."""
        self.cool_all()
        for topic in list(self._topics.values()):
            for reader in tuple(topic.readers_now):
                for alone in reader.apart():
                    alone.leave(self._rng.uniform(0, spread_s), within_s)
            topic.wake()

    def close(self) -> None:
        """End every topic; used at shutdown, after the readers have gone."""
        for topic in list(self._topics.values()):
            self._remove(topic)
