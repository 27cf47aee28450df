"""A subscriber: one SSE client, as a small object without a task, a queue or a timer of its own.

A subscriber has the offset up to which it has sent the stream.  When the stream changes, or the connection has room
again, the subscriber reads the tape (the stream's bytes in memory) from this offset and writes the bytes.  While the
client does not read, the subscriber writes nothing, and the bytes stay on the tape.  If the client does not read in
time, the connection ends the response.

`Drain` spreads the ends of live readers over time.
"""

from __future__ import annotations

import math
from random import Random
from typing import Final, Protocol

from gateway.aio.clock import Clock
from gateway.aio.timers import TICK_S, Wheel
from gateway.limits.memory import NOTHING, Holding
from gateway.live.frames import HEARTBEAT_BYTES, HEARTBEAT_CHUNK, LargeEvent, LiveStep
from gateway.live.topic import BEATS, Topic
from gateway.tape.origin_statements import FirstTail
from gateway.telemetry.access_record import CloseReason, LiveCounts

PART_BYTES = 1 << 17
"""The size of the parts in which a large event is written."""
SHORTEST_S = 1.0
"""The shortest lifetime of an SSE connection.  The TypeScript client stops using SSE after three shorter
connections."""


# Looking up a member of an enum is slow in Python 3.11.
_LEFT: Final = CloseReason.LEFT


class Wire(Protocol):
    """The view of a client's connection that a subscriber needs."""

    @property
    def carrier(self) -> int:
        """The number of the HTTP/2 connection of which this is a stream; 0 for any other connection."""

    @property
    def live_bytes(self) -> int:
        """The number of body bytes written so far."""

    @property
    def live_first_byte_s(self) -> float:
        """The seconds from the arrival of the request to the writing of the response head."""

    @property
    def is_full(self) -> bool:
        """Whether the write buffer is full, because the client does not read."""

    def send_chunk(self, chunk: bytes, size: int) -> None:
        """Write `size` bytes of the body, framed as a chunk (RFC 9112 §7.1)."""

    def send_view(self, piece: memoryview) -> None:
        """Write a piece of the body without a copy, because many clients receive the same piece."""

    def over(self, reason: CloseReason, *, in_order: bool) -> None:
        """End the response.  If `in_order`, the response is complete, otherwise truncated.  Called once."""


class LiveRead(Protocol):
    """A live read, before or after it has begun."""

    @property
    def is_handed(self) -> bool:
        """Whether the read comes from another worker, which reads for its own clients."""


class Drain:
    """The state of the drain.

    Live readers end at random times within `spread_s` seconds, so that they do not all reconnect at once.  All have
    ended after `within_s` seconds.  A reader that begins during the drain ends late in the drain, so that its client
    does not reconnect to the same gateway several times.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.spread_s = 0.0
        self._late_within_s = math.inf
        self._ends_at = 0.0
        self._gone_at = math.inf

    def begin_drain(self, now: float, spread_s: float, within_s: float = math.inf, *, is_final: bool = False) -> None:
        """`is_final` states that the gateway cuts its connections soon after `within_s`."""
        self.is_set = True
        self.spread_s = spread_s
        self._late_within_s = 0.0 if is_final else within_s
        self._ends_at = now + spread_s
        self._gone_at = now + within_s

    def undo(self) -> None:
        self.is_set = False

    def ends(self, read: LiveRead) -> bool:
        """Return whether the gateway drains, and the drain ends this read.

        A read of this worker for another worker (`is_handed`) continues, because it states the tail to the other
        worker.  Without this read, the other worker would have to ask for the tail before the end of each of its own
        long-polls.
        """
        return self.is_set and not read.is_handed

    def delay_s(self, now: float, rng: Random) -> float:
        """Return the seconds after which a reader that begins now should end."""
        left_s = self._ends_at - now
        return rng.uniform(left_s / 2, left_s) if left_s > 0 else rng.uniform(0, self.spread_s)

    def within_s(self, now: float) -> float:
        """Return the seconds within which a reader that begins now must end.

        During the drain, the result is the remaining time of the drain.  After a drain that is not final, the result is
        the whole length of the drain.  After a final drain, the reader must end at once.
        """
        left_s = self._gone_at - now
        return left_s if left_s > 0 else self._late_within_s


class LiveContext(Protocol):
    """The objects that all subscribers of a process share."""

    clock: Clock
    wheel: Wheel

    @property
    def drain(self) -> Drain:
        """The state of the drain."""

    def fill(self, subscriber: Subscriber) -> None:
        """Fetch the bytes after the subscriber's offset, and then call `filled`."""

    def reader_left(self, topic: Topic) -> None:
        """Remove a subscriber from the count of readers of its topic (the group of the stream's live readers)."""


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
        "carrier",
        "first",
        "is_handed",
        "least_cursor",
        "topic",
        "wire",
    )

    def __init__(
        self, topic: Topic, at: str, least_cursor: int, wire: Wire, context: LiveContext, now: float, lifetime_s: float
    ) -> None:
        """`now` is the time of the context's clock (monotonic seconds)."""
        self.topic = topic
        self.at = at
        self.first: FirstTail | None = None
        """The tail that the origin has stated to this read.  The caller sets it before `start`."""
        self.is_handed = False
        """Whether the client is another worker.  The caller sets it before `start`."""
        self._said_up_to_date = False
        """Whether the last control event has stated that the client is up to date."""
        self.least_cursor = least_cursor
        """The least cursor for this client's control events."""
        self.wire = wire
        """The client's connection.  The caller may replace it between two writes."""
        self.carrier = wire.carrier
        if self.carrier:
            topic.shares_connections = True
        self._context = context
        self._large: LargeEvent | None = None
        """The event that is being sent in parts."""
        self._large_sent = 0
        """The number of bytes of `_large` that have been written."""
        self._is_filling = False
        """Whether a fetch for this subscriber is running."""
        self._has_missed = False
        """Whether the topic has changed during a fetch for this subscriber, so that `pump` must be called again."""
        self._is_over = False
        self._sent_at_beat = topic.beats
        self._tick = context.wheel.add(self, max(SHORTEST_S, lifetime_s), now)
        self.began = now
        """The time at which the read began (monotonic seconds).  To save memory, other objects refer to the same float
        object."""

    def __repr__(self) -> str:
        return f"<Subscriber at {self.at}>"

    def holdings(self) -> tuple[Holding, ...]:
        """Return the bytes in memory that are kept for this client and not written yet."""
        large = self._large
        return (Holding(large.shared, len(large.data)),) if large is not None else NOTHING

    def live_counts(self) -> LiveCounts:
        """Return the figures of this read for the access log."""
        wire, readers = self.wire, self.topic.readers_now
        return wire.live_first_byte_s, self.at, wire.live_bytes, len(readers) + (self not in readers)

    def client_left(self, _: object) -> None:
        """End the subscriber, because its client has disconnected."""
        self._finish(_LEFT)

    def start(self) -> None:
        """Join the topic (the group of the stream's live readers) and write the bytes that are available."""
        self.topic.readers_now.add(self)
        self.pump()
        self.first = None

    def start_after(self, step: LiveStep) -> None:
        """Join the topic at the end of `step`, which must have all available bytes.  The caller writes these bytes."""
        topic = self.topic
        topic.readers_now.add(self)
        self._said_up_to_date = step.said_up_to_date
        # Inlined `Stream.count_reads`, because this is a hot path.
        topic.stream.reads += 1
        topic.stream.sent_bytes += step.size

    def pump(self) -> None:
        """Write the bytes after the client's offset, until the tape has no more bytes or the connection has no room."""
        topic, wire = self.topic, self.wire
        # Fast path: when bytes arrive, most subscribers are at one offset, and get the same single step.
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
            # Live replies may no longer be shared.  When the client reconnects, its request is relayed.
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
        """Continue after a fetch that stored bytes (True), found none (False) or failed (None).

        After a failure the response ends.  The client then resumes from its last control event, and the new response
        can have an error status.
        """
        self._is_filling = False
        if has_changed is None:
            self._finish(CloseReason.FAILED)
        elif has_changed or self._has_missed:
            self.pump()

    def account(self, sent: object) -> None:
        """Do nothing.  SSE writes are counted at once.  Only long-poll answers are counted after the delivery round."""

    def beat(self) -> None:
        """Send a heartbeat if nothing has been written for a heartbeat interval."""
        if self.topic.beats - self._sent_at_beat >= BEATS and self._large is None and not self.wire.is_full:
            self._sent_at_beat = self.topic.beats
            self.wire.send_chunk(HEARTBEAT_CHUNK, HEARTBEAT_BYTES)

    def split(self) -> tuple[Subscriber]:
        """Return only this subscriber, which has one client."""
        return (self,)

    def drain_within(self, delay_s: float, within_s: float) -> None:
        """End the response after `delay_s`, or after `within_s` if that is less.

        If `within_s` allows it, the connection lasts at least `SHORTEST_S`, so that the client counts it as successful.
        """
        if self._is_over:
            return
        wheel = self._context.wheel
        wheel.unlink(self, self._tick)
        # Clients measure the lifetime from the arrival of the response, so add one tick of the timer wheel for the
        # latency.
        established_s = self.began + SHORTEST_S + TICK_S - self._context.clock.now()
        left_s = self._tick * TICK_S - self._context.clock.now()
        self._tick = wheel.add(self, max(0.0, min(max(established_s, delay_s), within_s, left_s)))

    def stay(self, lifetime_s: float) -> None:
        """Begin a new lifetime, because the drain was cancelled."""
        if not self._is_over:
            wheel = self._context.wheel
            wheel.unlink(self, self._tick)
            self._tick = wheel.add(self, max(SHORTEST_S, lifetime_s))

    def due(self) -> None:
        """End the response, because its lifetime is over."""
        if self._large is not None:
            # Finish the event first.  If the client does not read, the connection's write deadline ends the response.
            self._tick = self._context.wheel.add(self, SHORTEST_S)
        else:
            self._finish(CloseReason.DRAINED if self._context.drain.is_set else CloseReason.LIFETIME)

    def gone(self) -> None:
        """End the subscriber, because its client has disconnected or it has failed."""
        self._finish(_LEFT)

    def _finish(self, reason: CloseReason) -> None:
        if not self._is_over:
            self._is_over = True
            self._context.wheel.unlink(self, self._tick)
            self.topic.readers_now.discard(self)
            self._context.reader_left(self.topic)
            self.wire.over(reason, in_order=reason is not _LEFT and self._large is None)
