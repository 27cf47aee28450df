"""A subscriber: one SSE client as an object of a few slots, with no task, no queue and no timer.

It knows where its client stands.  When its topic moves, or when its connection has room again, it reads on from there
and writes; when there is nothing more it stands still.  A client that does not read is not written to: it is moved back
to reading the tape by doing nothing at all, and its connection keeps the deadline.
"""

from __future__ import annotations

from typing import Protocol

from gateway.aio.clock import Clock
from gateway.aio.wheel import TICK_S, Wheel
from gateway.live.topic import BEATS, HEARTBEAT_BYTES, HEARTBEAT_CHUNK, Large, Step, Topic, chunk
from gateway.telemetry.access_record import CloseReason

PART_BYTES = 1 << 17
"""Of a large event so much is written at a time."""
SHORTEST_S = 1.0
"""The TypeScript client gives SSE up after three connections that lived less long than this."""


class Wire(Protocol):
    """A client's connection, as far as a subscriber sees it."""

    @property
    def is_full(self) -> bool:
        """Whether the client has left so much unread that nothing more is to be written."""

    def send(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of the body, framed as a chunk (RFC 9112 §7.1)."""

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """The response has ended, in order or in the middle.  Called once."""


class DrainState(Protocol):
    """Whether the gateway is leaving."""

    is_set: bool


class LiveContext(Protocol):
    """What all subscribers of a process share."""

    clock: Clock
    wheel: Wheel

    @property
    def drain(self) -> DrainState:
        """Whether the gateway is leaving."""

    def fill(self, subscriber: Subscriber) -> None:
        """Have what lies after the subscriber's place fetched; `filled` is called when it is done."""

    def left(self, topic: Topic) -> None:
        """A subscriber has left the topic."""


class Subscriber:
    """One SSE client at its place in the stream."""

    __slots__ = (
        "_context",
        "_has_missed",
        "_is_filling",
        "_is_over",
        "_is_told",
        "_large",
        "_large_sent",
        "_least_cursor",
        "_sent_at_beat",
        "_settled_tick",
        "_tick",
        "_wire",
        "at",
        "topic",
    )

    def __init__(
        self, topic: Topic, at: str, least_cursor: int, wire: Wire, context: LiveContext, lifetime_s: float
    ) -> None:
        self.topic = topic
        self.at = at
        self._is_told = False
        self._least_cursor = least_cursor
        self._wire = wire
        self._context = context
        self._large: Large | None = None
        """An event of which only `_large_sent` bytes have been written."""
        self._large_sent = 0
        self._is_filling = False
        self._has_missed = False
        """Whether the topic has changed while bytes were being fetched."""
        self._is_over = False
        self._sent_at_beat = topic.beats
        self._tick = context.wheel.add(self, max(SHORTEST_S, lifetime_s))
        self._established_tick = int((context.clock.now() + SHORTEST_S) / TICK_S) + 1
        """When the connection has lived long enough not to be taken for a failure."""

    @property
    def began(self) -> float:
        """When it came (monotonic seconds), to the tick."""
        return self._established_tick * TICK_S - SHORTEST_S

    def left(self, _: object) -> None:
        """The client at the other end of this wire has gone."""
        self.gone()

    def start(self) -> None:
        """Join the topic and write what there is."""
        self.topic.readers_now.add(self)
        self.pump()

    def pump(self) -> None:
        """Write on from where the client stands, as far as the tape and the connection allow."""
        topic, wire = self.topic, self._wire
        # Most stand at one place when something comes, and are sent the same and nothing else.
        step = topic.steps.get(self.at)
        if (
            step is not None
            and step.is_all
            and step.cursor >= self._least_cursor
            and not (wire.is_full or self._is_filling or self._is_over or self._large is not None)
        ):
            self.at = step.end
            self._is_told = step.is_told
            self._sent_at_beat = topic.beats
            topic.stream.sent_bytes += step.size
            wire.send(step.data, step.size)
            return
        if topic.foreign is not None:
            # When the client comes back it is relayed.
            self._finish(CloseReason.FAILED)
            return
        if self._is_filling or topic.stream.ended is not None:
            self._has_missed = True
            if topic.stream.ended is not None:
                self._finish(CloseReason.ENDED)
            return
        while not self._is_over and not wire.is_full:
            if self._large is not None:
                self._send_part(self._large)
                continue
            step = topic.step(self.at, self._is_told, self._least_cursor)
            if step.large is not None:
                self._large, self._large_sent = step.large, 0
                continue
            self.at = step.end
            if step.data:
                self._take(step)
                if step.is_all:
                    return
            elif step.needs_fill:
                self._is_filling = True
                self._has_missed = False
                self._context.fill(self)
                return
            else:
                return

    def _take(self, step: Step) -> None:
        self._sent_at_beat = self.topic.beats
        self._is_told = step.is_told
        self.topic.stream.sent_bytes += step.size
        self._wire.send(step.data, step.size)
        if step.is_last:
            self._finish(CloseReason.CLOSED)

    def _send_part(self, large: Large) -> None:
        part = large.data[self._large_sent : self._large_sent + PART_BYTES]
        self._large_sent += len(part)
        self._sent_at_beat = self.topic.beats
        self.topic.stream.sent_bytes += len(part)
        self._wire.send(chunk(part), len(part))
        if self._large_sent == len(large.data):
            self._large = None
            self.at = large.end
            self._take(self.topic.last_step(large, self._least_cursor))

    def filled(self, has_changed: bool | None) -> None:
        """What was to be fetched is on the tape (True), was not there (False), or cannot be had (None): then the client
        resumes from its last control event, and is told what is wrong as a status."""
        self._is_filling = False
        if has_changed is None:
            self._finish(CloseReason.FAILED)
        elif has_changed or self._has_missed:
            self.pump()

    def account(self, sent: object) -> None:
        """Nothing is put off: what comes next is written before the books are looked at."""

    def beat(self) -> None:
        """A sign of life, where nothing was written for the time of a heartbeat."""
        if self.topic.beats - self._sent_at_beat >= BEATS and self._large is None and not self._wire.is_full:
            self._sent_at_beat = self.topic.beats
            self._wire.send(HEARTBEAT_CHUNK, HEARTBEAT_BYTES)

    def apart(self) -> tuple[Subscriber]:
        """It stands alone."""
        return (self,)

    def leave(self, delay_s: float, within_s: float) -> None:
        """End after `delay_s`, but not so early that the client takes it for a failure, unless time is short: in order
        is better than cut off."""
        if self._is_over:
            return
        wheel = self._context.wheel
        wheel.drop(self, self._tick)
        established_s = self._established_tick * TICK_S - self._context.clock.now()
        left_s = self._tick * TICK_S - self._context.clock.now()
        self._tick = wheel.add(self, max(0.0, min(max(established_s, delay_s), within_s, left_s)))

    def due(self) -> None:
        """The connection has lived long enough."""
        if self._large is not None:
            # Nothing is to end in the middle of an event; who does not take it is its connection's concern.
            self._tick = self._context.wheel.add(self, SHORTEST_S)
        else:
            self._finish(CloseReason.DRAINED if self._context.drain.is_set else CloseReason.LIFETIME)

    def gone(self) -> None:
        """The client is no longer there."""
        self._finish(CloseReason.LEFT)

    def _finish(self, reason: CloseReason) -> None:
        if not self._is_over:
            self._is_over = True
            self._context.wheel.drop(self, self._tick)
            self.topic.readers_now.discard(self)
            self._context.left(self.topic)
            self._wire.over(reason, in_order=reason is not CloseReason.LEFT and self._large is None)
