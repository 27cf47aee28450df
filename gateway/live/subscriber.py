"""A subscriber: one SSE client as an object of a few slots, without a task, a queue or a timer.

A subscriber holds the offset of its client.  When the topic moves, or the connection has room again, it reads the tape
from that offset and writes.  It does not write to a client that does not read.  Such a client is sent the bytes from
the tape later, and its connection enforces the write deadline.
"""

from __future__ import annotations

from typing import Final, Protocol

from gateway.aio.clock import Clock
from gateway.aio.timers import TICK_S, Wheel
from gateway.limits.memory import NOTHING, Holding
from gateway.live.frames import HEARTBEAT_BYTES, HEARTBEAT_CHUNK, LargeEvent, LiveStep
from gateway.live.topic import BEATS, Topic
from gateway.tape.origin_statements import FirstTail
from gateway.telemetry.access_record import CloseReason, LiveCounts

PART_BYTES = 1 << 17
"""A large event is written in parts of this size."""
SHORTEST_S = 1.0
"""The TypeScript client gives up SSE after three connections that were shorter than this."""


# Enum members are slow to reach in Python 3.11.
_LEFT: Final = CloseReason.LEFT


class Wire(Protocol):
    """A client's connection, as a subscriber uses it."""

    @property
    def live_bytes(self) -> int:
        """Body bytes written so far."""

    @property
    def live_first_byte_s(self) -> float:
        """Seconds from the reading of the request to the writing of the head."""

    @property
    def is_full(self) -> bool:
        """Whether the client has so many unread bytes that no more may be written."""

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of the body, framed as a chunk (RFC 9112 §7.1)."""

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of the body without copying it, because many clients receive the same piece."""

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """The response has ended, in order or truncated.  Called once."""


class DrainState(Protocol):
    """Whether the gateway is draining."""

    is_set: bool


class LiveContext(Protocol):
    """The parts that all subscribers of a process share."""

    clock: Clock
    wheel: Wheel

    @property
    def drain(self) -> DrainState:
        """Whether the gateway is draining."""

    def fill(self, subscriber: Subscriber) -> None:
        """Fetch the bytes after the subscriber's offset; call `filled` when done."""

    def reader_left(self, topic: Topic) -> None:
        """A subscriber has left the topic."""


class Subscriber:
    """One SSE client and its offset in the stream."""

    __slots__ = (
        "_context",
        "_has_missed",
        "_is_filling",
        "_is_over",
        "_large",
        "_large_sent",
        "_said_up_to_date",
        "_sent_at_beat",
        "_tick",
        "at",
        "began",
        "first",
        "least_cursor",
        "topic",
        "wire",
    )

    def __init__(
        self,
        topic: Topic,
        at: str,
        least_cursor: int,
        wire: Wire,
        context: LiveContext,
        now: float,
        lifetime_s: float,
    ) -> None:
        """`now` is the time of the context's clock (monotonic seconds)."""
        self.topic = topic
        self.at = at
        self.first: FirstTail | None = None
        """The tail that the origin has named to the subscriber's own request, set by the caller; None once the
        subscriber has started."""
        self._said_up_to_date = False
        self.least_cursor = least_cursor
        """The least cursor that the subscriber's frames may carry."""
        self.wire = wire
        """The connection to which it writes; the caller may replace it between two writes."""
        self._context = context
        self._large: LargeEvent | None = None
        """An event of which only the first `_large_sent` bytes have been written."""
        self._large_sent = 0
        self._is_filling = False
        self._has_missed = False
        """Whether the topic changed during a fetch."""
        self._is_over = False
        self._sent_at_beat = topic.beats
        self._tick = context.wheel.add(self, max(SHORTEST_S, lifetime_s), now)
        self.began = now
        """When the read began (monotonic seconds).  Other objects refer to the same float."""

    def __repr__(self) -> str:
        return f"<Subscriber at {self.at}>"

    def holdings(self) -> tuple[Holding, ...]:
        """The bytes that the subscriber keeps in memory for its client, except for written ones."""
        large = self._large
        return (Holding(large.shared, len(large.data)),) if large is not None else NOTHING

    def live_counts(self) -> LiveCounts:
        """The figures of the read so far."""
        wire, readers = self.wire, self.topic.readers_now
        return wire.live_first_byte_s, self.at, wire.live_bytes, len(readers) + (self not in readers)

    def client_left(self, _: object) -> None:
        """The client of this wire has disconnected."""
        self._finish(_LEFT)

    def start(self) -> None:
        """Join the topic, and write the bytes that are there."""
        self.topic.readers_now.add(self)
        self.pump()
        self.first = None

    def start_after(self, step: LiveStep) -> None:
        """Join the topic at the end of `step`, which the caller writes, and after which there is nothing to write.
        Counts the read."""
        topic = self.topic
        topic.readers_now.add(self)
        self._said_up_to_date = step.said_up_to_date
        # The same as `Stream.count_reads`, without the call.
        topic.stream.reads += 1
        topic.stream.sent_bytes += step.size

    def pump(self) -> None:
        """Write from the client's offset on, as far as the tape and the connection allow."""
        topic, wire = self.topic, self.wire
        # When bytes arrive, most subscribers stand at the same offset and are sent the same single step.
        step = topic.steps.get(self.at)
        if (
            step is not None
            and step.is_all
            and step.cursor >= self.least_cursor
            and not (wire.is_full or self._is_filling or self._is_over or self._large is not None)
        ):
            self.at = step.end
            self._said_up_to_date = step.said_up_to_date
            self._sent_at_beat = topic.beats
            topic.stream.sent_bytes += step.size
            wire.send_chunk(step.data, step.size)
            return
        if topic.not_shareable is not None:
            # The client is relayed when it reconnects.
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
            step = topic.step(self.at, self._said_up_to_date, self.least_cursor, self.first)
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

    def _take(self, step: LiveStep) -> None:
        self._sent_at_beat = self.topic.beats
        self._said_up_to_date = step.said_up_to_date
        self.topic.stream.sent_bytes += step.size
        self.wire.send_chunk(step.data, step.size)
        if step.is_last:
            self._finish(CloseReason.CLOSED)

    def _send_part(self, large: LargeEvent) -> None:
        part = memoryview(large.data)[self._large_sent : self._large_sent + PART_BYTES]
        self._large_sent += len(part)
        self._sent_at_beat = self.topic.beats
        self.topic.stream.sent_bytes += len(part)
        self.wire.send_view(part)
        if self._large_sent == len(large.data):
            self._large = None
            self.at = large.end
            self._take(self.topic.last_step(large, self.least_cursor))

    def filled(self, has_changed: bool | None) -> None:
        """Go on after a fetch: bytes were stored (True), there were none (False), or the fetch failed (None).  After a
        failure the response ends; the client resumes from its last control event, and receives the error as a
        status."""
        self._is_filling = False
        if has_changed is None:
            self._finish(CloseReason.FAILED)
        elif has_changed or self._has_missed:
            self.pump()

    def account(self, sent: object) -> None:
        """Do nothing: an SSE write needs no accounting afterwards."""

    def beat(self) -> None:
        """Send a heartbeat if nothing was written for a heartbeat interval."""
        if self.topic.beats - self._sent_at_beat >= BEATS and self._large is None and not self.wire.is_full:
            self._sent_at_beat = self.topic.beats
            self.wire.send_chunk(HEARTBEAT_CHUNK, HEARTBEAT_BYTES)

    def split(self) -> tuple[Subscriber]:
        """Return itself: a subscriber stands for one client."""
        return (self,)

    def drain_within(self, delay_s: float, within_s: float) -> None:
        """End after `delay_s`, but not before clients count the connection as successful, unless `within_s` is shorter:
        a response that ends in order is better than a truncated one."""
        if self._is_over:
            return
        wheel = self._context.wheel
        wheel.unlink(self, self._tick)
        # One tick is added, because clients measure from the arrival of the answer.
        established_s = self.began + SHORTEST_S + TICK_S - self._context.clock.now()
        left_s = self._tick * TICK_S - self._context.clock.now()
        self._tick = wheel.add(self, max(0.0, min(max(established_s, delay_s), within_s, left_s)))

    def stay(self, lifetime_s: float) -> None:
        """Begin another lifetime."""
        if not self._is_over:
            wheel = self._context.wheel
            wheel.unlink(self, self._tick)
            self._tick = wheel.add(self, max(SHORTEST_S, lifetime_s))

    def due(self) -> None:
        """The connection has reached its lifetime."""
        if self._large is not None:
            # Never end in the middle of an event; the connection's write deadline handles a client that does not read.
            self._tick = self._context.wheel.add(self, SHORTEST_S)
        else:
            self._finish(CloseReason.DRAINED if self._context.drain.is_set else CloseReason.LIFETIME)

    def gone(self) -> None:
        """The client has disconnected."""
        self._finish(_LEFT)

    def _finish(self, reason: CloseReason) -> None:
        if not self._is_over:
            self._is_over = True
            self._context.wheel.unlink(self, self._tick)
            self.topic.readers_now.discard(self)
            self._context.reader_left(self.topic)
            self.wire.over(reason, in_order=reason is not _LEFT and self._large is None)
