"""Creates the topics of Durable Streams for live readers, and starts and stops the topics' followers.

`gateway.live.followed_streams` counts the readers.  It decides how long a stream is followed after its last reader has
left, and when a live read is refused.  Topics of S2 streams use this module, too.

A topic can also be *hot*: its stream is followed even without live readers (`gateway.live.hot_topics`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from typing import Protocol

from gateway.aio.clock import Timer
from gateway.errors import GatewayError
from gateway.live.followed_streams import LiveTable
from gateway.live.follower import Follower
from gateway.live.frames import KeptFrames, LiveReader
from gateway.live.hot_topics import HotTopics
from gateway.live.topic import BEATS, DeliveryTimes, LiveTimes, OriginAccess, Topic
from gateway.protocol.cursor import next_cursor
from gateway.protocol.names import START, is_before
from gateway.protocol.sharing import StreamKey
from gateway.tape.store import TapeStore
from gateway.tape.stream import End, Stream
from gateway.telemetry.surroundings import Surroundings
from gateway.upstream.flight import StreamHead
from gateway.upstream.origin_call import Handed
from gateway.upstream.reply import Upstream

_CONNECTING_S = 0.5
"""How long a read that needs the tail may wait for a new follower, in seconds."""
_REVALIDATION_PAUSE_S = 1.0
_FOLLOWER_PATIENCE_S = 1.0
"""How long a follower may take to receive an acknowledged write, in seconds.  After that the follower counts as
stalled."""


class Placement(Protocol):
    """The destination of live requests: the origin, or another process that owns the stream."""

    def is_misplaced(self, key: StreamKey, handed: Handed = Handed.NO) -> bool:
        """Return whether a live request for this tape (a stream's bytes in memory) would now be sent to another
        destination than the latest live request.  `handed` is the kind of reader for which it would be sent."""

    def claim(self, key: StreamKey, handed: Handed = Handed.NO) -> None:
        """Record that the latest live request for this tape is now for a reader of the kind `handed`."""


class LiveTopics:
    """The topics by stream.  Starts and stops their followers."""

    def __init__(
        self, upstream: Upstream, store: TapeStore, surroundings: Surroundings, table: LiveTable, max_flight_bytes: int
    ) -> None:
        self._max_flight_bytes = max_flight_bytes
        self._upstream = upstream
        self._store = store
        self._surroundings = surroundings
        self._clock = surroundings.clock
        self._tasks = surroundings.tasks
        self._rng = surroundings.rng
        self.table = table
        """The table that counts readers and live requests for these topics."""
        self.hot = HotTopics(table, store, self._clock, self._is_misplaced)
        self.placement: Placement | None = None
        """The destination of live requests; None if all live requests are sent to origins."""
        self._topics: dict[Stream, Topic] = {}
        self._kept_frames = KeptFrames()
        self._expiries: dict[Topic, Timer] = {}
        self._revalidations: dict[Topic, Timer] = {}
        self._stalls: dict[Topic, Timer] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def __repr__(self) -> str:
        readers = sum(topic.readers for topic in self._topics.values())
        followed = sum(map(self.table.is_followed, self._topics.values()))
        return f"{len(self._topics)} topics, {followed} followed, {readers} readers"

    def topics(self) -> Iterable[Topic]:
        """Return all topics, the oldest first."""
        return self._topics.values()

    def find_topic(self, stream: Stream) -> Topic | None:
        """Return the stream's topic; None if it has none."""
        return self._topics.get(stream)

    def confirmed_at(self, stream: Stream, at: str) -> Topic | None:
        """Return the stream's topic if its follower has confirmed `at` as the tail, else None."""
        topic = self._topics.get(stream)
        return topic if topic is not None and topic.is_confirmed and self._is_at(topic, at) else None

    def attach(self, stream: Stream, access: OriginAccess, times: LiveTimes) -> Topic:
        """Add a live reader to the stream's topic, and return the topic.  If there is no topic, create it.

        The caller must call `detach` when the reader ends.  This method does not start the follower: the caller must
        call `follow`.
        """
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
            self.table.add_topic(topic, times.heartbeat_s / BEATS, partial(self._removed, topic))
            self.watch_expiry(stream)
        if topic.is_refused:
            self._replace_refused(topic, access)
        self.table.attach(topic)
        return topic

    def _replace_refused(self, topic: Topic, access: OriginAccess) -> None:
        """Use the credentials of a new reader, because the credentials of the first reader may have been revoked.  If
        the topic has clients of this process, only the credentials of such a client are used."""
        is_own = not access.source.is_handed
        if is_own or topic.access.source.is_handed or not topic.client_readers:
            topic.access, topic.is_refused = access, False
            if is_own and self.placement is not None:
                self.placement.claim(topic.stream.key)

    def use_own(self, topic: Topic, access: OriginAccess) -> None:
        """Send the topic's requests for a nearer reader from now on.  The topic was created for another process.  The
        nearer reader is a client of this process, or another worker of this gateway.

        Requests for another member of a fleet are always sent to the origin.  Requests for a nearer reader are sent to
        the owner of the stream.
        """
        handed = access.source.handed
        is_misplaced, topic.access = self._is_misplaced(topic, handed), access
        if is_misplaced and self.table.is_followed(topic):
            self.restart(topic.stream)
        elif self.placement is not None:
            self.placement.claim(topic.stream.key, handed)

    def _is_misplaced(self, topic: Topic, handed: Handed = Handed.NO) -> bool:
        """Return whether the stream is followed for another process, and the live request for a reader of the kind
        `handed` would be sent elsewhere."""
        placement = self.placement
        is_handed = topic.access.source.is_handed
        return is_handed and placement is not None and placement.is_misplaced(topic.stream.key, handed)

    def join(self, stream: Stream) -> Topic | None:
        """Add a live reader to the stream's topic.  Return None if the stream is not followed.

        The caller must call `detach` when the reader ends.
        """
        topic = self._topics.get(stream)
        if topic is None or topic.not_shareable is not None or topic.is_refused:
            return None
        return topic if self.table.attach_followed(topic) else None

    def follow(self, topic: Topic) -> None:
        """Start the follower of the topic's stream, unless it runs.  Raises the errors of `LiveTable.make_room`.

        Call this only for readers that wait.  A client can send many reads that are answered at once, each with a new
        query.  If these reads started followers, one client could cause many live requests.
        """
        if not self.table.is_followed(topic) and topic.stream.tape.closed_at is None:
            net = topic.access.source.client
            self.table.make_room(net, topic)
            if self.table.has(topic):
                self.table.charge(topic, net)
        self._follow(topic)

    def _follow(self, topic: Topic) -> None:
        if self.table.has(topic):
            self._start(topic)
            self.expect(topic.stream)

    def heat(self, topic: Topic, per_s: float) -> None:
        """Follow the topic's stream for catch-up reads, if the topic may become hot."""
        if self.hot.heat(topic, per_s):
            self._follow(topic)

    def cursor_for(self, stream: Stream, sent: str | None) -> str:
        """Return the next cursor for a reader that has sent the cursor `sent`.

        Readers that wait together get the same cursor, so that their next requests are equal and can be shared.
        """
        topic = self._topics.get(stream)
        if topic is None:
            return next_cursor(self._clock.wall(), sent, self._rng)
        return topic.cursors.next_for(sent)

    async def until_connected(self, stream: Stream, wanted: str | None = None) -> None:
        """Wait briefly until the stream's new follower has confirmed the tail or failed, or until the bytes after the
        offset `wanted` are in memory."""
        topic = self._topics.get(stream)
        while topic is not None and not topic.is_confirmed and topic.failure is None and self.table.is_followed(topic):
            if wanted is not None and stream.tape.knows_after(wanted):
                return
            left = topic.connects_until - self._clock.now()
            if left <= 0 or stream.ended is not None or not await topic.changed.wait_within(self._clock, left):
                return

    def tail_named(self, stream: Stream, tail: str, asked_at: float) -> None:
        """Record that the reply to a request other than the follower's has stated `tail`.  The request was sent at
        `asked_at`."""
        topic = self._topics.get(stream)
        if topic is not None:
            topic.tail_named(tail, asked_at)

    def vary_by_origin(self, stream: Stream) -> None:
        """Share the stream only among requests without an Origin header from now on.  Other requests are relayed."""
        if not stream.varies_by_origin:
            self._store.vary_by_origin(stream)
            if (topic := self._topics.get(stream)) is not None:
                topic.wake()

    def expect(self, stream: Stream) -> None:
        """Check after a while whether the follower has received the latest acknowledged write.

        Otherwise the follower has stalled.  One fetch then gets the bytes for all readers, and the follower is
        restarted.
        """
        topic = self._topics.get(stream)
        acked = stream.acked.tail
        if topic is None or topic in self._stalls or not self.table.is_followed(topic):
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
        if self._has_brought(topic, acked) or not (topic.readers or topic in self.hot):
            self.expect(topic.stream)
        else:
            self._tasks.start(self._fetch_stalled(topic), f"fetch stalled {acked}")

    async def _fetch_stalled(self, topic: Topic) -> None:
        tape = topic.stream.tape
        head = await topic.access.fetch(tape.resolve(topic.position or tape.tail or START))
        if self.table.has(topic):
            if isinstance(head, StreamHead):
                if not self._is_at(topic, head.next_offset):
                    self.restart(topic.stream)
                topic.wake()
            self.expect(topic.stream)

    def watch_expiry(self, stream: Stream) -> None:
        """Set a timer that ends the live readers at the stream's absolute expiry.

        An origin may keep a live request open after the expiry.  Called whenever the origin has reported the lifetime.
        """
        topic = self._topics.get(stream)
        life = stream.expiry.latest
        if topic is None or life is None or life.expires_at is None:
            return
        # The new expiry may be earlier than the old expiry.
        if (timer := self._expiries.pop(topic, None)) is not None:
            timer.cancel()
        delay_s = life.expires_at - self._clock.wall()
        self._expiries[topic] = self._clock.call_later(delay_s, lambda: self._check_expiry(topic))

    def _check_expiry(self, topic: Topic) -> None:
        """Drop the stream if it has expired.  Its lifetime may have changed since the timer was set."""
        del self._expiries[topic]
        if topic.stream.expiry.has_passed(self._clock.wall()):
            self.drop_stream(topic.stream, End.EXPIRED)
        elif topic.stream.has_expired(self._clock.now(), self._clock.wall()):
            self.drop_stream(topic.stream, End.PURGED)
        else:
            self.watch_expiry(topic.stream)

    def _start(self, topic: Topic) -> None:
        if topic.stream.ended is not None or topic.stream.tape.closed_at is not None or self.table.is_followed(topic):
            return
        if topic.not_shareable is not None:
            return
        topic.connects_until = self._clock.now() + _CONNECTING_S
        follower = Follower(topic, self._upstream, self._store, self._surroundings, self._max_flight_bytes)
        self.table.follow(topic, self._run(topic, follower))

    async def _run(self, topic: Topic, follower: Follower) -> None:
        why = await follower.run()
        if why is not None:
            is_by_origin = why is not End.PURGED and not follower.is_by_hop
            self.drop_stream(topic.stream, why, is_by_origin=is_by_origin)

    def detach(self, topic: Topic) -> None:
        """Remove a live reader from the topic."""
        self.table.detach(topic, topic.times.linger_s)

    def _removed(self, topic: Topic) -> None:
        """Remove a topic that the table has removed."""
        del self._topics[topic.stream]
        self._kept_frames.forget_frames(topic.frames)
        for timers in (self._expiries, self._revalidations, self._stalls):
            if (timer := timers.pop(topic, None)) is not None:
                timer.cancel()
        topic.lost(self._clock.now(), None)

    def end_readers(self, stream: Stream, why: End) -> None:
        """End the live readers of a stream that has ended."""
        topic = self._topics.get(stream)
        if topic is not None:
            topic.end_readers(why)
            self.table.remove(topic)

    def drop_stream(self, stream: Stream, why: End, *, is_by_origin: bool = False) -> None:
        """End the stream (`TapeStore.drop_stream`) and its live readers."""
        if self._store.drop_stream(stream, why, is_by_origin=is_by_origin):
            self.end_readers(stream, why)

    def restart(self, stream: Stream) -> None:
        """Restart the stream's follower, because its open request may not show that the stream was replaced."""
        topic = self._topics.get(stream)
        if topic is None:
            return
        if self.table.unfollow(topic):
            topic.lost(self._clock.now(), None)
            self._start(topic)
        elif not topic.readers_now or topic.not_shareable is not None:
            return
        else:
            # The stream was closed and is not followed, but a reader is still receiving its last bytes.  The record of
            # the closure may have been dropped, so follow the stream again.  If no live request is available, the
            # reader fetches missing bytes itself, and this fetch shows the stream's state.
            with suppress(GatewayError):
                self.follow(topic)
        if not self.table.is_followed(topic):
            # The origin has closed the stream, so there is nothing to follow.  Readers fetch the last bytes.
            topic.given_up()

    def revalidate(self, stream: Stream) -> None:
        """Restart the follower, but at most once in `_REVALIDATION_PAUSE_S` seconds.

        The limit is necessary because any client can cause restarts by writes that fail.
        """
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

    def drain_readers(self, spread_s: float, within_s: float, ends: Callable[[LiveReader], bool]) -> None:
        """End the live readers for which `ends` returns True, at random times within `spread_s` seconds.  All of them
        must have ended after `within_s` seconds."""
        self.hot.cool_all()
        self._drain_topics(list(self._topics.values()), spread_s, within_s, ends)

    def drain_routes(self, routes: Collection[str], spread_s: float) -> None:
        """End the live readers of these routes at different times within `spread_s` seconds."""
        topics = [topic for topic in self._topics.values() if topic.stream.key.route in routes]
        self._drain_topics(topics, spread_s, spread_s, lambda _: True)

    def _drain_topics(
        self, topics: Iterable[Topic], spread_s: float, within_s: float, ends: Callable[[LiveReader], bool]
    ) -> None:
        for topic in topics:
            for reader in filter(ends, tuple(topic.readers_now)):
                for alone in reader.split():
                    alone.drain_within(self._rng.uniform(0, spread_s), within_s)
            topic.wake()

    def stay(self) -> None:
        """Give the remaining live readers a new lifetime, because the drain was cancelled."""
        for topic in self._topics.values():
            for reader in tuple(topic.readers_now):
                reader.stay(topic.times.lifetime_s * self._rng.uniform(0.8, 1))
