"""A subscriber: one SSE client as an object of a few slots, with no task and no queue.

It knows where its client stands.  When its topic moves, or when its connection has room again, it reads on from there
and writes; when there is nothing more it stands still.  A client that does not read is not written to: it is moved back
to reading the tape by doing nothing at all, and its connection keeps the deadline.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from gateway.clock import Clock, Timer
from gateway.live.topic import BEATS, HEARTBEAT_CHUNK, Topic

SHORTEST_S = 1.0
"""The TypeScript client gives SSE up after three connections that lived less long than this."""


class Wire(Protocol):
    """A client's connection, as far as a live reader sees it."""

    @property
    def is_full(self) -> bool:
        """Whether the client has left so much unread that nothing more is to be written."""

    def send(self, chunk: bytes) -> None:
        """Write a part of the body, framed as a chunk (RFC 9112 §7.1)."""


class Subscriber:
    """One SSE client at its place in the stream.

    `fill` has what lies after the place fetched, where that is not the follower's to bring, and calls `filled` when it
    is done.  `on_over` is called once: with True when the response is to end in order, False when the client has gone.
    """

    __slots__ = (
        "_clock",
        "_ends_at",
        "_fill",
        "_has_missed",
        "_is_filling",
        "_is_over",
        "_is_told",
        "_least_cursor",
        "_on_over",
        "_sent_at_beat",
        "_settled_at",
        "_timer",
        "_topic",
        "_wire",
        "at",
    )

    def __init__(
        self,
        topic: Topic,
        at: str,
        least_cursor: int,
        wire: Wire,
        clock: Clock,
        lifetime_s: float,
        fill: Callable[[Subscriber], None],
        on_over: Callable[[bool], None],
    ) -> None:
        self._topic = topic
        self.at = at
        self._is_told = False
        self._least_cursor = least_cursor
        self._wire = wire
        self._clock = clock
        self._fill = fill
        self._on_over = on_over
        self._is_filling = False
        self._has_missed = False
        """Whether the topic has changed while bytes were being fetched."""
        self._is_over = False
        self._sent_at_beat = topic.beats
        self._settled_at = clock.now() + SHORTEST_S
        """When the connection has lived long enough not to be taken for a failure."""
        self._ends_at = math.inf
        self._timer: Timer | None = None
        self._end_at(max(self._settled_at, clock.now() + lifetime_s))

    def start(self) -> None:
        """Join the topic and write what there is."""
        self._topic.readers_now.add(self)
        self.pump()

    def pump(self) -> None:
        """Write on from where the client stands, as far as the tape and the connection allow."""
        topic, wire = self._topic, self._wire
        self._has_missed = True
        if topic.stream.ended is not None:
            self._end()
        while not self._is_over and not self._is_filling and not wire.is_full:
            step = topic.step(self.at, self._is_told, self._least_cursor)
            self.at = step.end
            if step.data:
                self._sent_at_beat = topic.beats
                self._is_told = step.is_told
                wire.send(step.data)
                if step.is_last:
                    self._end()
            elif step.needs_fill:
                self._is_filling = True
                self._has_missed = False
                self._fill(self)
            else:
                return

    def filled(self, has_changed: bool | None) -> None:
        """What was to be fetched is on the tape (True), was not there (False), or cannot be had (None): then the client
        resumes from its last control event, and is told what is wrong as a status."""
        self._is_filling = False
        if has_changed is None:
            self._end()
        elif has_changed or self._has_missed:
            self.pump()

    def beat(self) -> None:
        """A sign of life, where nothing was written for the time of a heartbeat."""
        if self._topic.beats - self._sent_at_beat >= BEATS and not self._wire.is_full:
            self._sent_at_beat = self._topic.beats
            self._wire.send(HEARTBEAT_CHUNK)

    def leave(self, delay_s: float, within_s: float) -> None:
        """End after `delay_s`, but not so early that the client takes it for a failure, unless time is short: in order
        is better than cut off."""
        now = self._clock.now()
        self._end_at(min(max(self._settled_at, now + delay_s), now + within_s))

    def _end_at(self, when: float) -> None:
        if when < self._ends_at and not self._is_over:
            self._ends_at = when
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._clock.call_later(when - self._clock.now(), self._end)

    def _end(self) -> None:
        self._finish(in_order=True)

    def gone(self) -> None:
        """The client is no longer there."""
        self._finish(in_order=False)

    def _finish(self, *, in_order: bool) -> None:
        if not self._is_over:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._topic.readers_now.discard(self)
            self._on_over(in_order)
