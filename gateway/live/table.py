"""The live table, for both protocols: the streams with live readers, and those that are followed at their origin.

A topic starts with its first live reader and outlives its last one by a linger time, because a long-poll client is away
between any two of its requests.  A topic pins its stream, so one key has one topic and one live request at the origin.

The table has only the parts of a topic that both protocols share: its readers, its beats, and the task that follows the
stream.  The protocols have the rest: they decide when a stream is followed and by which task, and release the other
state of a topic when it is removed.

The number of live requests at origins is bounded, and each followed stream takes one.  Until its topic ends, the live
request is charged to the client net whose read began it.  Each invented query makes another stream and another live
request, and one net must not use up all of them.  Relayed live reads count as well, because over HTTP/2 a client may
send any number of them on one connection.  A *hot* topic is followed without live readers.  If a live reader finds no
place, a hot topic ends and gives its place to it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
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

_SPREAD_S: Final = 0.5
"""Seconds over which the followers of an origin spread their live requests when the origin is back."""


class LiveTopic(Protocol):
    """A topic as the table sees it."""

    readers: int
    """Live readers of all kinds; only the table changes it."""

    @property
    def stream(self) -> Stream:
        """The stream that the readers read."""

    def beat(self) -> None:
        """Some time has passed: send heartbeats to the readers that need one."""


class _Entry:
    """A topic's place in the table."""

    __slots__ = ("beat", "linger", "net", "removed", "run", "topic")

    def __init__(self, topic: LiveTopic, removed: Callable[[], object]) -> None:
        self.topic = topic
        self.removed = removed
        self.run: asyncio.Task[None] | None = None
        """The task that follows the stream."""
        self.net: str | None = None
        """The client net that the live request is charged to."""
        self.linger: Timer | None = None
        self.beat: Timer | None = None


class LiveTable:
    """The topics by stream, their followers, and the live requests at origins.

    Owner of the counts of readers, the lingers, the beats, and the followers' tasks.
    """

    def __init__(self, store: TapeStore, surroundings: Surroundings, most: int, accounts: Accounts) -> None:
        self.most = most
        """The most live requests at once."""
        self.most_per_client = most
        """The most live requests that one client net may have caused."""
        self.followed = 0
        """Followed streams."""
        self.relayed = 0
        """Relayed live reads."""
        self.hot: dict[LiveTopic, Timer] = {}
        """Topics that are followed with or without live readers, each with its next check."""
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
        """The topic's place; None if the topic has left the table, even if its stream has another topic now."""
        entry = self._entries.get(topic.stream)
        return entry if entry is not None and entry.topic is topic else None

    def has(self, topic: LiveTopic) -> bool:
        """Whether the topic is in the table."""
        return self._entry(topic) is not None

    # -- readers

    def add_topic(self, topic: LiveTopic, beat_s: float, removed: Callable[[], object]) -> None:
        """Add a topic, which beats every `beat_s` seconds, for a stream that has none.  `removed` is called when the
        topic leaves the table, to end its readers and its timers."""
        assert topic.stream not in self._entries
        self._entries[topic.stream] = entry = _Entry(topic, removed)
        topic.stream.hold()
        topic.stream.has_topic = True
        self._beat_later(entry, beat_s)

    def _beat_later(self, entry: _Entry, beat_s: float) -> None:
        def beat() -> None:
            entry.topic.beat()
            # The last reader may have failed on this beat.
            if self.has(entry.topic):
                self._beat_later(entry, beat_s)

        entry.beat = self._clock.call_later(beat_s, beat)

    def attach(self, topic: LiveTopic) -> None:
        """Count a live reader; `detach` must follow."""
        topic.readers += 1
        entry = self._entries[topic.stream]
        if entry.linger is not None:
            entry.linger.cancel()
            entry.linger = None

    def attach_followed(self, topic: LiveTopic) -> bool:
        """Count a live reader, like `attach`, if the topic is in the table and followed; else return False."""
        entry = self._entries.get(topic.stream)
        if entry is None or entry.topic is not topic or entry.run is None:
            return False
        topic.readers += 1
        if entry.linger is not None:
            entry.linger.cancel()
            entry.linger = None
        return True

    def detach(self, topic: LiveTopic, linger_s: float) -> None:
        """Remove a live reader.  After the last one the topic ends: at once if it is not followed, else after the
        linger time."""
        topic.readers -= 1
        if topic.readers or (entry := self._entry(topic)) is None:
            return
        if entry.run is None and topic not in self.hot:
            self.remove(topic)
        else:
            entry.linger = self._clock.call_later(linger_s, lambda: self._expire(entry))

    def _expire(self, entry: _Entry) -> None:
        entry.linger = None
        self.remove_unused(entry.topic)

    def remove_unused(self, topic: LiveTopic) -> None:
        """Remove the topic unless it has readers, had one until a moment ago, or is hot."""
        entry = self._entry(topic)
        if entry is not None and entry.linger is None and not topic.readers and topic not in self.hot:
            self.remove(topic)

    def remove(self, topic: LiveTopic) -> None:
        """End the topic and its request at the origin."""
        entry = self._entry(topic)
        if entry is None:
            return
        del self._entries[topic.stream]
        if entry.net is not None:
            self._give_back(entry.net)
        for timer in (entry.linger, entry.beat, self.hot.pop(topic, None)):
            if timer is not None:
                timer.cancel()
        # Drop the timers, because they refer to the entry.
        entry.linger = entry.beat = None
        run = self._stop(entry)
        if run is not None and run is not asyncio.current_task():
            run.cancel()
        entry.removed()
        topic.stream.has_topic = False
        self._store.release(topic.stream)

    def close(self) -> None:
        """Remove every topic; called at shutdown, after the readers have gone."""
        for topic in self:
            self.remove(topic)

    # -- followers

    def is_followed(self, topic: LiveTopic) -> bool:
        """Whether a task follows the topic's stream."""
        entry = self._entry(topic)
        return entry is not None and entry.run is not None

    def follow(self, topic: LiveTopic, work: Coroutine[Any, Any, None]) -> None:
        """Start a task with this work, which follows the topic's stream.  No task may follow it already."""
        entry = self._entries[topic.stream]
        assert entry.run is None
        self.followed += 1
        entry.run = self._tasks.start(self._run(entry, work), f"follow {topic.stream.key.group.path}")
        # A callback, because a task that is cancelled before its first step never reaches its `finally`.
        entry.run.add_done_callback(lambda _: work.close())

    async def _run(self, entry: _Entry, work: Coroutine[Any, Any, None]) -> None:
        # The follower outlives the reader that started it.
        detach()
        detach_record()
        try:
            await work
        finally:
            if entry.run is asyncio.current_task():
                entry.run = None
                self.followed -= 1

    def unfollow(self, topic: LiveTopic) -> bool:
        """Stop following the topic's stream; returns whether it was followed."""
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
        """Whether the net may cause one more live request, or the topic's live request is charged already."""
        is_charged = topic is not None and (entry := self._entry(topic)) is not None and entry.net is not None
        account = self._accounts.find(net)
        return is_charged or account is None or account.followed < self.most_per_client

    def charge(self, topic: LiveTopic, net: str) -> None:
        """Charge the topic's live request to the net, unless it is charged already."""
        entry = self._entries[topic.stream]
        if entry.net is None:
            entry.net = net
            self._take(net)

    def make_room(self, net: str, topic: LiveTopic | None = None) -> None:
        """Make room for one more live request of this net, for `topic` if one is given.  If necessary, end a hot topic.
        Raises TooManyFollowed, ShortOfMemory or TooManyRequests."""
        if not self._store.may_grow:
            raise ShortOfMemory
        if not self.has_share(net, topic) and not self._remove_hot(net):
            raise TooManyFollowed if self.is_full else self._refusal()
        if self.is_full and not self._remove_hot(None):
            raise TooManyFollowed

    def _remove_hot(self, net: str | None) -> bool:
        """Remove a hot topic without readers, of this net if one is given; False if there is none."""
        for topic in self.hot:
            entry = self._entries[topic.stream]
            if entry.run is not None and not topic.readers and net in (None, entry.net):
                self.remove(topic)
                return True
        return False

    def _refusal(self) -> TooManyRequests:
        """Count the refusal of a live read whose net has used up its share; returns the error for it."""
        self._metrics.client_limited("client_followed_streams")
        return TooManyRequests(retry_after_s(UNKNOWN_WAIT_S, self._rng), "Too many live streams")

    def begin_relayed(self, net: str) -> RelayedLive:
        """Take a place for a live read of this net that is relayed; `RelayedLive.give_back` must follow.  Raises what
        `make_room` does."""
        self.make_room(net)
        self.relayed += 1
        self._take(net)
        return RelayedLive(self, net)

    def end_relayed(self, net: str) -> None:
        """Give back the place of a relayed live read of this net."""
        self.relayed -= 1
        self._give_back(net)

    def _take(self, net: str) -> None:
        if (account := self._accounts.open_account(net)) is not None:
            account.followed += 1

    def _give_back(self, net: str) -> None:
        if (account := self._accounts.find(net)) is not None:
            account.followed -= 1
            account.forget_if_unused()


class RelayedLive:
    """The place of one relayed live read."""

    __slots__ = ("_net", "_table")

    def __init__(self, table: LiveTable, net: str) -> None:
        self._table = table
        self._net = net

    def __repr__(self) -> str:
        return f"<RelayedLive of {self._net!r}>"

    def give_back(self) -> None:
        """The live read has ended."""
        self._table.end_relayed(self._net)


async def pause_before_reconnect(
    clock: Clock, rng: random.Random, failure: GatewayError | None, longest_s: float
) -> bool:
    """Wait for `longest_s` before the next live request.  If an open circuit has refused the last one, wait only until
    a probe has been answered.  Returns whether a probe has been answered."""
    if not isinstance(failure, CircuitOpen) or failure.recovered is None:
        await pause(clock, longest_s)
        return False
    if not await failure.recovered.wait_within(clock, longest_s):
        return False
    await pause(clock, rng.uniform(0, _SPREAD_S))
    return True
