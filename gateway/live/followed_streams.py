"""The table of followed streams: all topics with their followers, and the bound on live requests at origins.

A topic is the group of live readers of one stream.  Its follower is a task with one live request at the origin.  A
topic is created for its first live reader.  After its last live reader has left, the topic is kept for a linger time,
because a long-poll client is absent between two requests.  The table has at most one topic for each `Stream` object.  A
topic keeps this object in memory, so all requests for the stream find the same object.  Therefore a stream has at most
one topic and one follower.

The table is used for both Durable Streams and S2.  It has only the state that both need: the number of readers, a
periodic timer (the beat), and the follower's task.  The code of each protocol decides when a stream is followed and by
which task.

The number of live requests at origins is bounded.  Each followed stream has one live request.  Until the topic ends,
this request is charged to the client network (`net`) whose read started the follower.  Without these charges, one
network could use up all live requests, because a client can invent any number of queries, and each query leads to
another stream.  Relayed live reads are counted too, because an HTTP/2 client can send many of them on one connection.

If the bound is reached, a hot topic without live readers is removed to make room for a live reader
(`gateway.live.hot_topics`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any, Final, Protocol

from gateway.aio.clock import Clock, Timer, pause
from gateway.errors import CircuitOpen, GatewayError, ShortOfMemory, TooManyFollowed, TooManyRequests
from gateway.limits.accounts import Accounts
from gateway.limits.rate_limits import UNKNOWN_WAIT_S, retry_after_s
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.access_record import detach_record
from gateway.telemetry.surroundings import Surroundings
from gateway.telemetry.tracing import detach

_LEAST_LINGER: Final = 0.95
"""The least time that a topic lingers, as a fraction of the linger time.  The exact time is random."""
_SPREAD_S: Final = 0.5
"""The seconds over which followers spread their reconnects after an origin has recovered."""


class LiveTopic(Protocol):
    """The view of a topic that the table needs."""

    readers: int
    """The number of live readers of all kinds.  Only the table changes it."""

    @property
    def stream(self) -> Stream:
        """The topic's stream."""

    def beat(self) -> None:
        """Send heartbeats to readers that need one.  Called periodically."""


class _Entry:
    """The table's state of one topic."""

    __slots__ = ("beat", "linger", "net", "removed", "run", "topic")

    def __init__(self, topic: LiveTopic, removed: Callable[[], object]) -> None:
        self.topic = topic
        self.removed = removed
        self.run: asyncio.Task[None] | None = None
        """The task that follows the stream."""
        self.net: str | None = None
        """The client network to which the live request is charged."""
        self.linger: Timer | None = None
        self.beat: Timer | None = None


class LiveTable:
    """The topics by stream.  Owner of the counts of readers, the linger and beat timers, and the followers' tasks."""

    def __init__(self, store: TapeStore, surroundings: Surroundings, most: int, accounts: Accounts) -> None:
        self.most = most
        """The most live requests at once."""
        self.most_per_client = most
        """The most live requests charged to one client network."""
        self.followed = 0
        """The number of followed streams."""
        self._relayed: dict[RelayedLive, None] = {}
        self.hot: dict[LiveTopic, Timer] = {}
        """The hot topics, each with the timer of its next check."""
        self._store = store
        self._clock = surroundings.clock
        self._tasks = surroundings.tasks
        self._metrics = surroundings.metrics
        self._rng = surroundings.rng
        self._accounts = accounts
        self._entries: dict[Stream, _Entry] = {}

    def __repr__(self) -> str:
        return f"<LiveTable {len(self._entries)} topics, {self.followed} followed, {self.relayed} relayed>"

    def __iter__(self) -> Iterator[LiveTopic]:
        return (entry.topic for entry in tuple(self._entries.values()))

    def _entry(self, topic: LiveTopic) -> _Entry | None:
        """Return the topic's entry; None if the topic was removed, even if its stream has a new topic."""
        entry = self._entries.get(topic.stream)
        return entry if entry is not None and entry.topic is topic else None

    def has(self, topic: LiveTopic) -> bool:
        """Return whether the topic is in the table."""
        return self._entry(topic) is not None

    # -- readers

    def add_topic(self, topic: LiveTopic, beat_s: float, removed: Callable[[], object]) -> None:
        """Add the topic of a stream that has no topic yet.

        `topic.beat` is called every `beat_s` seconds, and `removed` when the topic has been removed.
        """
        assert topic.stream not in self._entries
        self._entries[topic.stream] = entry = _Entry(topic, removed)
        topic.stream.hold()
        topic.stream.has_topic = True
        self._beat_later(entry, beat_s)

    def _beat_later(self, entry: _Entry, beat_s: float) -> None:
        def beat() -> None:
            entry.topic.beat()
            # If the last reader failed in `beat`, the topic may have been removed.
            if self.has(entry.topic):
                self._beat_later(entry, beat_s)

        entry.beat = self._clock.call_later(beat_s, beat)

    def attach(self, topic: LiveTopic) -> None:
        """Count a live reader.  The caller must call `detach` when the reader ends."""
        topic.readers += 1
        entry = self._entries[topic.stream]
        if entry.linger is not None:
            entry.linger.cancel()
            entry.linger = None

    def attach_followed(self, topic: LiveTopic) -> bool:
        """Count a live reader like `attach`, but only if the topic is followed; otherwise return False."""
        entry = self._entries.get(topic.stream)
        if entry is None or entry.topic is not topic or entry.run is None:
            return False
        topic.readers += 1
        if entry.linger is not None:
            entry.linger.cancel()
            entry.linger = None
        return True

    def detach(self, topic: LiveTopic, linger_s: float) -> None:
        """Remove a live reader from the count.

        A topic without readers is removed: at once if it is not followed, and after about `linger_s` if it is followed.
        A hot topic is not removed.
        """
        topic.readers -= 1
        if topic.readers or (entry := self._entry(topic)) is None:
            return
        if entry.run is None and topic not in self.hot:
            self.remove(topic)
        else:
            # Many readers may leave together, because they share a connection.  End the live requests of their topics
            # at different times.
            linger_s *= self._rng.uniform(_LEAST_LINGER, 1.0)
            entry.linger = self._clock.call_later(linger_s, lambda: self._expire(entry))

    def _expire(self, entry: _Entry) -> None:
        entry.linger = None
        self.remove_unused(entry.topic)

    def remove_unused(self, topic: LiveTopic) -> None:
        """Remove the topic unless it has readers, lingers, or is hot."""
        entry = self._entry(topic)
        if entry is not None and entry.linger is None and not topic.readers and topic not in self.hot:
            self.remove(topic)

    def remove(self, topic: LiveTopic) -> None:
        """Remove the topic and cancel its follower."""
        entry = self._entry(topic)
        if entry is None:
            return
        del self._entries[topic.stream]
        if entry.net is not None:
            self._give_back(entry.net)
        for timer in (entry.linger, entry.beat, self.hot.pop(topic, None)):
            if timer is not None:
                timer.cancel()
        # The timers refer to the entry.  Break this reference cycle.
        entry.linger = entry.beat = None
        run = self._stop(entry)
        if run is not None and run is not asyncio.current_task():
            run.cancel()
        entry.removed()
        topic.stream.has_topic = False
        self._store.release(topic.stream)

    def close(self) -> None:
        """Remove all topics.  Called at shutdown, after all readers have ended."""
        for topic in self:
            self.remove(topic)

    # -- followers

    def is_followed(self, topic: LiveTopic) -> bool:
        """Return whether a task follows the topic's stream."""
        entry = self._entry(topic)
        return entry is not None and entry.run is not None

    def follow(self, topic: LiveTopic, work: Coroutine[Any, Any, None]) -> None:
        """Start a task that follows the topic's stream by running `work`.  The stream must not be followed yet."""
        entry = self._entries[topic.stream]
        assert entry.run is None
        self.followed += 1
        entry.run = self._tasks.start(self._run(entry, work), f"follow {topic.stream.key.group.path}")
        # A task cancelled before its first step does not run its `finally`, so close the coroutine in a callback.
        entry.run.add_done_callback(lambda _: work.close())

    async def _run(self, entry: _Entry, work: Coroutine[Any, Any, None]) -> None:
        # The follower outlives the request that started it, so it runs outside of that request's trace and access
        # record.
        detach()
        detach_record()
        try:
            await work
        finally:
            if entry.run is asyncio.current_task():
                entry.run = None
                self.followed -= 1

    def unfollow(self, topic: LiveTopic) -> bool:
        """Stop following the topic's stream; return whether it was followed."""
        entry = self._entry(topic)
        run = self._stop(entry) if entry is not None else None
        return run is not None and run.cancel()

    def _stop(self, entry: _Entry) -> asyncio.Task[None] | None:
        run, entry.run = entry.run, None
        self.followed -= run is not None
        return run

    # -- live requests

    @property
    def is_full(self) -> bool:
        """Whether the bound on live requests is reached."""
        return self.followed + self.relayed >= self.most

    def has_share(self, net: str, topic: LiveTopic | None = None) -> bool:
        """Return whether one more live request may be charged to the network.  Also return True if the topic's request
        is already charged."""
        is_charged = topic is not None and (entry := self._entry(topic)) is not None and entry.net is not None
        account = self._accounts.find(net)
        return is_charged or account is None or account.followed < self.most_per_client

    def charge(self, topic: LiveTopic, net: str) -> None:
        """Charge the topic's live request to the network.  Do nothing if the request is charged already."""
        entry = self._entries[topic.stream]
        if entry.net is None:
            entry.net = net
            self._take(net)

    def make_room(self, net: str, topic: LiveTopic | None = None) -> None:
        """Make room for one more live request of this network.  If necessary, remove a hot topic.  `topic` is the topic
        that will be followed; None for a relayed live read.

        Raises ShortOfMemory while the process is short of memory, TooManyFollowed if the bound is reached, and
        TooManyRequests if the network has used up its share.
        """
        if not self._store.may_grow:
            raise ShortOfMemory
        if not self.has_share(net, topic) and not self._remove_hot(net):
            raise TooManyFollowed if self.is_full else self._refusal()
        if self.is_full and not self._remove_hot(None):
            raise TooManyFollowed

    def _remove_hot(self, net: str | None) -> bool:
        """Remove a hot topic without readers; return False if there is none.  If `net` is given, only topics that are
        charged to this network are removed."""
        for topic in self.hot:
            entry = self._entries[topic.stream]
            if entry.run is not None and not topic.readers and net in (None, entry.net):
                self.remove(topic)
                return True
        return False

    def _refusal(self) -> TooManyRequests:
        """Count a live read that is refused because its network has used up its share.  Return the error."""
        self._metrics.client_limited("client_followed_streams")
        return TooManyRequests(retry_after_s(UNKNOWN_WAIT_S, self._rng), "Too many live streams")

    @property
    def relayed(self) -> int:
        """The number of relayed live reads."""
        return len(self._relayed)

    def begin_relayed(self, net: str, route: str, end: Callable[[], None]) -> RelayedLive:
        """Count a relayed live read of this network.  When the read ends, the caller must call `give_back` on the
        result.

        `end` ends the read early.
        Raises the errors of `make_room`.
        """
        self.make_room(net)
        self._take(net)
        relayed = RelayedLive(self, net, route, end)
        self._relayed[relayed] = None
        return relayed

    def end_relayed(self, relayed: RelayedLive) -> None:
        """Remove a relayed live read from the count."""
        del self._relayed[relayed]
        self._give_back(relayed.net)

    def end_relayed_of(self, routes: Collection[str]) -> None:
        """End the relayed live reads of these routes early."""
        for relayed in tuple(self._relayed):
            if relayed.route in routes:
                relayed.end()

    def _take(self, net: str) -> None:
        if (account := self._accounts.open_account(net)) is not None:
            account.followed += 1

    def _give_back(self, net: str) -> None:
        if (account := self._accounts.find(net)) is not None:
            account.followed -= 1
            account.forget_if_unused()


class RelayedLive:
    """One relayed live read, as counted by the table."""

    __slots__ = ("_table", "end", "net", "route")

    def __init__(self, table: LiveTable, net: str, route: str, end: Callable[[], None]) -> None:
        self._table = table
        self.net = net
        self.route = route
        self.end = end

    def __repr__(self) -> str:
        return f"<RelayedLive of {self.net!r}>"

    def give_back(self) -> None:
        """Remove the live read from the table's count."""
        self._table.end_relayed(self)


async def pause_before_reconnect(
    clock: Clock, rng: random.Random, failure: GatewayError | None, longest_s: float
) -> bool:
    """Wait for `longest_s` before the next live request.

    If an open circuit breaker has refused the last request, the wait may be shorter: it ends a short random time after
    the breaker's probe has succeeded.  Returns whether the probe has succeeded.
    """
    if not isinstance(failure, CircuitOpen) or failure.recovered is None:
        await pause(clock, longest_s)
        return False
    if not await failure.recovered.wait_within(clock, longest_s):
        return False
    await pause(clock, rng.uniform(0, _SPREAD_S))
    return True
