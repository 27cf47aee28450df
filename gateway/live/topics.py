"""The table of topics: which streams are followed, and for how long.

A topic starts with its first live reader and outlives its last one by a linger time, because a long-poll client is away
between any two of its requests.  A topic pins its stream, so one key has one topic and one live request at the origin.

A topic may also be *hot*: followed because catch-up reads ask for its tail more often than a live request would.  It
stays hot while it is read often enough, which is checked every `_COOLING_S`.  Hot topics take at most half of the
streams that may be followed, and one without readers gives its place to a live reader that finds none.

A followed topic is charged, until it ends, to the client net whose read began it: an invented query makes another
stream and another live request, and one net must not use up all of them.  Relayed live reads take places of the same
kind (`live_requests`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress

from gateway.aio.clock import Timer
from gateway.errors import GatewayError, ShortOfMemory, TooManyFollowed
from gateway.live.delivery_times import DeliveryTimes
from gateway.live.follower import Follower
from gateway.live.frames import KeptFrames
from gateway.live.live_requests import LiveRequests, RelayedLive
from gateway.live.topic import BEATS, LiveTimes, OriginAccess, Topic
from gateway.protocol.offsets import START, is_before
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.flight import StreamHead
from gateway.upstream.upstream import Upstream

_CONNECTING_S = 0.5
"""How long a read that asks for the tail may wait for a live request that has just been started."""
_COOLING_S = 10.0
_REVALIDATION_PAUSE_S = 1.0
_FOLLOWER_PATIENCE_S = 1.0
"""How long a follower may lag behind an acknowledged write that readers wait for."""


class LiveTopics:
    """The topics by stream.  Owner of the table; starts and stops followers."""

    def __init__(
        self,
        upstream: Upstream,
        store: TapeStore,
        surroundings: Surroundings,
        max_followed: int,
        max_flight_bytes: int,
    ) -> None:
        self._max_flight_bytes = max_flight_bytes
        self._upstream = upstream
        self._store = store
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._tasks = surroundings.tasks
        self._rng = surroundings.rng
        self._live_requests = LiveRequests(max_followed, surroundings.metrics, surroundings.rng)
        self._charged: dict[Topic, str] = {}
        """The net that each topic is charged to."""
        self._topics: dict[Stream, Topic] = {}
        self._kept_frames = KeptFrames()
        self._runs: dict[Topic, asyncio.Task[None]] = {}
        self._lingers: dict[Topic, Timer] = {}
        self._expiries: dict[Topic, Timer] = {}
        self._revalidations: dict[Topic, Timer] = {}
        self._beats: dict[Topic, Timer] = {}
        self._stalls: dict[Topic, Timer] = {}
        self._coolings: dict[Topic, Timer] = {}
        """The next check of each hot topic."""

    def __len__(self) -> int:
        return len(self._topics)

    def __repr__(self) -> str:
        readers = sum(topic.readers for topic in self._topics.values())
        return f"{len(self._topics)} topics, {len(self._runs)} followed, {readers} readers"

    def topics(self) -> Iterable[Topic]:
        """Every topic, the oldest first."""
        return self._topics.values()

    def find(self, stream: Stream) -> Topic | None:
        """The stream's topic, or None."""
        return self._topics.get(stream)

    def limit_clients(self, most_per_client: int) -> None:
        """One client net may cause at most this many live requests from now on."""
        self._live_requests.most_per_client = most_per_client

    @property
    def _is_full(self) -> bool:
        """Whether there are as many live requests as there may be."""
        return len(self._runs) + self._live_requests.relayed >= self._live_requests.most

    @property
    def hot_count(self) -> int:
        """The number of streams followed because of catch-up reads."""
        return len(self._coolings)

    def confirmed_at(self, stream: Stream, at: str) -> Topic | None:
        """The stream's topic if its follower is confirmed at `at`."""
        topic = self._topics.get(stream)
        return topic if topic is not None and topic.is_confirmed and self._is_at(topic, at) else None

    def attach(self, stream: Stream, access: OriginAccess, times: LiveTimes) -> Topic:
        """Join the stream's topic, creating it if there is none.  The caller must call `detach`; `follow` starts the
        follower."""
        topic = self._topics.get(stream)
        if topic is None:
            topic = self._topics[stream] = Topic(
                stream,
                access,
                times,
                self._clock.wall,
                DeliveryTimes(self._surroundings.metrics, self._clock.now, stream.key.route),
                self._kept_frames,
            )
            stream.hold()
            stream.has_topic = True
            self.watch_expiry(stream)
            self._schedule_beat(topic, times.heartbeat_s / BEATS)
        if topic.is_refused:
            # With shared credentials the first reader's may have been revoked: use those of the new reader.
            topic.access, topic.is_refused = access, False
        topic.readers += 1
        if (linger := self._lingers.pop(topic, None)) is not None:
            linger.cancel()
        return topic

    def join(self, stream: Stream) -> Topic | None:
        """Join the stream's topic if it is followed and shareable, else return None; the caller must call `detach`."""
        topic = self._topics.get(stream)
        if topic is None or topic not in self._runs or topic.not_shareable is not None or topic.is_refused:
            return None
        topic.readers += 1
        if (linger := self._lingers.pop(topic, None)) is not None:
            linger.cancel()
        return topic

    def follow(self, topic: Topic) -> None:
        """Start following the topic's stream.  Only readers that wait call this: readers that are answered at once,
        for instance with ever new queries, would each leave a live request behind.  Raises TooManyFollowed,
        ShortOfMemory or TooManyRequests."""
        if topic not in self._runs and topic.stream.tape.closed_at is None:
            self._make_room(topic.access.source.client, is_charged=topic in self._charged)
            if self._topics.get(topic.stream) is topic:
                self._charge(topic)
        self._follow(topic)

    def begin_relayed(self, client: str) -> RelayedLive:
        """Count a live read of the net `client` that is relayed; `RelayedLive.end` must follow.  Raises
        TooManyFollowed, ShortOfMemory or TooManyRequests."""
        self._make_room(client, is_charged=False)
        return self._live_requests.begin_relayed(client)

    def _make_room(self, client: str, *, is_charged: bool) -> None:
        """Make room for one more live request, for a live reader of this net; a hot topic may have to end for it.
        `is_charged` says that the net is charged for the request already.  Raises what `begin_relayed` does."""
        if not self._store.may_grow:
            raise ShortOfMemory
        if not is_charged and not self._live_requests.has_share(client) and not self._remove_hot(client):
            raise TooManyFollowed if self._is_full else self._live_requests.refusal()
        if self._is_full and not self._remove_hot(None):
            raise TooManyFollowed

    def _remove_hot(self, client: str | None) -> bool:
        """End a hot topic without readers, of this net if one is given; False if there is none."""
        for topic in self._coolings:
            if topic in self._runs and not topic.readers and client in (None, self._charged.get(topic)):
                self._remove(topic)
                return True
        return False

    def _follow(self, topic: Topic) -> None:
        if self._topics.get(topic.stream) is topic:
            self._start(topic)
            self.expect(topic.stream)

    def _charge(self, topic: Topic) -> None:
        if topic not in self._charged:
            net = self._charged[topic] = topic.access.source.client
            self._live_requests.take(net)

    def heat(self, topic: Topic, per_s: float) -> None:
        """Follow the stream while it is read at least half of `per_s` times a second; do nothing if there is no
        room."""
        if topic.is_hot or topic.stream.tape.closed_at is not None or self._topics.get(topic.stream) is not topic:
            return
        has_share = topic in self._charged or self._live_requests.has_share(topic.access.source.client)
        if not has_share or len(self._coolings) >= self._live_requests.most // 2:
            return
        if topic not in self._runs and (self._is_full or not self._store.may_grow):
            return
        topic.is_hot = True
        self._cool_later(topic, per_s * _COOLING_S / 2)
        self._charge(topic)
        self._follow(topic)

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
        """Stop following for catch-up reads: the gateway is draining."""
        for topic in list(self._coolings):
            self._coolings.pop(topic).cancel()
            topic.is_hot = False
            if not topic.readers and topic not in self._lingers:
                self._remove(topic)

    async def until_connected(self, stream: Stream) -> None:
        """Wait briefly until a live request that has just been started is confirmed or fails."""
        topic = self._topics.get(stream)
        while topic is not None and topic in self._runs and not topic.is_confirmed and topic.failure is None:
            left = topic.connects_until - self._clock.now()
            if left <= 0 or stream.ended is not None or not await topic.changed.wait_within(self._clock, left):
                return

    def tail_named(self, stream: Stream, tail: str, asked_at: float) -> None:
        """Another request, sent at `asked_at`, was told the stream's tail by the origin."""
        topic = self._topics.get(stream)
        if topic is not None:
            topic.tail_named(tail, asked_at)

    def vary_by_origin(self, stream: Stream) -> None:
        """From now on the stream is for requests without an Origin header; long-polls with one are relayed."""
        if not stream.varies_by_origin:
            self._store.vary_by_origin(stream)
            if (topic := self._topics.get(stream)) is not None:
                topic.wake()

    def expect(self, stream: Stream) -> None:
        """Expect the follower to bring an acknowledged write soon.  If it does not, it has stalled: one fetch then gets
        the bytes for all readers, and the live request is restarted."""
        topic = self._topics.get(stream)
        acked = stream.acked
        if topic is None or topic not in self._runs or topic in self._stalls:
            return
        if acked is None or self._has_brought(topic, acked):
            return
        self._stalls[topic] = self._clock.call_later(_FOLLOWER_PATIENCE_S, lambda: self._check_brought(topic, acked))

    @staticmethod
    def _is_at(topic: Topic, tail: str) -> bool:
        return topic.position is not None and topic.stream.tape.resolve(topic.position) == tail

    @staticmethod
    def _has_brought(topic: Topic, acked: str) -> bool:
        at = topic.position
        is_behind = at is None or is_before(topic.stream.tape.resolve(at), acked)
        return not is_behind and not topic.stream.is_closing

    def _check_brought(self, topic: Topic, acked: str) -> None:
        self._stalls.pop(topic, None)
        if self._has_brought(topic, acked) or not (topic.readers or topic.is_hot):
            self.expect(topic.stream)
        else:
            self._tasks.start(self._fetch_stalled(topic), f"fetch stalled {acked}")

    async def _fetch_stalled(self, topic: Topic) -> None:
        tape = topic.stream.tape
        head = await topic.access.fetch(tape.resolve(topic.position or tape.tail or START))
        if self._topics.get(topic.stream) is topic:
            if isinstance(head, StreamHead):
                if not self._is_at(topic, head.next_offset):
                    self.restart(topic.stream)
                topic.wake()
            self.expect(topic.stream)

    def watch_expiry(self, stream: Stream) -> None:
        """End the live readers at the stream's absolute expiry, because an origin may leave a live request open past
        it.  Called whenever the origin has reported the lifetime."""
        topic = self._topics.get(stream)
        life = stream.expiry.latest
        if topic is None or life is None or life.expires_at is None:
            return
        # Set again each time: the expiry may have come nearer.
        if (timer := self._expiries.pop(topic, None)) is not None:
            timer.cancel()
        delay_s = life.expires_at - self._clock.wall()
        self._expiries[topic] = self._clock.call_later(delay_s, lambda: self._check_expiry(topic))

    def _check_expiry(self, topic: Topic) -> None:
        """Drop the stream if it has expired; its lifetime may have changed since the timer was set."""
        del self._expiries[topic]
        if topic.stream.expiry.has_passed(self._clock.wall()):
            self.drop(topic.stream, End.EXPIRED)
        elif topic.stream.has_expired(self._clock.now(), self._clock.wall()):
            self.drop(topic.stream, End.PURGED)
        else:
            self.watch_expiry(topic.stream)

    def _schedule_beat(self, topic: Topic, delay_s: float) -> None:
        def beat() -> None:
            topic.beat()
            if self._topics.get(topic.stream) is not topic:
                # The last reader has failed on this beat.
                return
            self._schedule_beat(topic, delay_s)

        self._beats[topic] = self._clock.call_later(delay_s, beat)

    def _start(self, topic: Topic) -> None:
        if topic in self._runs or topic.stream.ended is not None or topic.stream.tape.closed_at is not None:
            return
        if topic.not_shareable is not None:
            return
        topic.connects_until = self._clock.now() + _CONNECTING_S
        follower = Follower(topic, self._upstream, self._store, self._surroundings, self._max_flight_bytes)
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
        """A reader leaves.  After the last one the topic ends, at once if it is not followed, else after the linger."""
        topic.readers -= 1
        if topic.readers or self._topics.get(topic.stream) is not topic:
            return
        if topic not in self._runs and not topic.is_hot:
            self._remove(topic)
        else:
            self._lingers[topic] = self._clock.call_later(topic.times.linger_s, lambda: self._expire(topic))

    def _expire(self, topic: Topic) -> None:
        self._lingers.pop(topic, None)
        if not topic.readers and not topic.is_hot:
            self._remove(topic)

    def _remove(self, topic: Topic) -> None:
        if self._topics.get(topic.stream) is not topic:
            return
        del self._topics[topic.stream]
        self._kept_frames.forget(topic.frames)
        if (net := self._charged.pop(topic, None)) is not None:
            self._live_requests.give_back(net)
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
        """The stream's record has ended: end its live readers."""
        topic = self._topics.get(stream)
        if topic is not None:
            topic.end(why)
            self._remove(topic)

    def drop(self, stream: Stream, why: End) -> None:
        """End the stream's record and its live readers."""
        if self._store.drop(stream, why):
            self.end(stream, why)

    def restart(self, stream: Stream) -> None:
        """Restart the stream's live request: the stream may have changed in a way that the request does not show."""
        topic = self._topics.get(stream)
        if topic is None:
            return
        run = self._runs.pop(topic, None)
        if run is not None:
            run.cancel()
            topic.lost(self._clock.now(), None)
            self._start(topic)
        elif not topic.readers_now or topic.not_shareable is not None:
            return
        else:
            # The stream was closed: a reader may still be sent its last bytes, and the closure may be forgotten by now.
            # If there is no room for one more live request, the reader's fetch tells whether it is needed.
            with suppress(GatewayError):
                self.follow(topic)
        if topic not in self._runs:
            # Nothing follows a stream that is known to be closed, even if its last bytes have not arrived.
            topic.given_up()

    def revalidate(self, stream: Stream) -> None:
        """`restart` now, or one second after the last restart: anyone can send failing writes."""
        topic = self._topics.get(stream)
        if topic is None or topic in self._revalidations:
            return
        wait_s = topic.revalidated_at + _REVALIDATION_PAUSE_S - self._clock.now()
        if wait_s <= 0:
            self._restart_revalidated(topic)
        else:
            self._revalidations[topic] = self._clock.call_later(wait_s, lambda: self._restart_revalidated(topic))

    def _restart_revalidated(self, topic: Topic) -> None:
        self._revalidations.pop(topic, None)
        topic.revalidated_at = self._clock.now()
        self.restart(topic.stream)

    def leave(self, spread_s: float, within_s: float) -> None:
        """Drain every live reader, spread over `spread_s` seconds, the last of them within `within_s`."""
        self.cool_all()
        for topic in list(self._topics.values()):
            for reader in tuple(topic.readers_now):
                for alone in reader.split():
                    alone.leave(self._rng.uniform(0, spread_s), within_s)
            topic.wake()

    def stay(self) -> None:
        """Let the live readers go on that have not ended yet: the drain is undone."""
        for topic in self._topics.values():
            for reader in tuple(topic.readers_now):
                reader.stay(topic.times.lifetime_s * self._rng.uniform(0.8, 1))

    def close(self) -> None:
        """End every topic; called at shutdown, after the readers have gone."""
        for topic in list(self._topics.values()):
            self._remove(topic)
