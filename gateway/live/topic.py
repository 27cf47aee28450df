"""A topic: the live readers of one stream.

A topic has no queues.  The follower stores what it receives on the tape and moves `position`.  Each live reader reads
the tape from its own offset and waits here when it has read everything.  A slow reader therefore costs the others
nothing; it simply reads from the tape.  Frames are encoded once for all readers at the same offset
(`gateway.live.frames`), and readers that wait together share a cursor.

`is_confirmed` means that the follower's live request is open and the origin has said on it that `position` is the tail.
Only then may an answer say that its reader is up to date.  The one exception is the beginning of an answer, if the
origin has just named the tail to the reader's own request.

A delivery round is the time from the arrival of bytes until every live reader of the stream has been handed them.  It
starts with the first arrival after the previous round, because arrivals of one turn of the loop go out together.
Arrivals without readers make no round.

`Cursors` has the cursors of one stream's live readers (section 8.1): those that wait together get the shared one, so
that they return with one request.  The shared cursor is above every cursor that a client has shown.  Clients whose
cursors are far ahead share another one, so that they do not draw ordinary clients up to it.  `gateway.protocol.cursor`
has the arithmetic; `gateway.engine.live_start` asks for cursors.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from gateway.aio.clock import DETACHED
from gateway.aio.signal import Signal
from gateway.errors import GatewayError
from gateway.live.frames import EVENT_BYTES, Frames, KeptFrames, LargeEvent, LiveReader, LiveStep, chunk, drop_failed
from gateway.protocol.cursor import interval, next_cursor, parse_cursor, shared_cursor
from gateway.protocol.forwarded_headers import Headers
from gateway.protocol.names import is_before
from gateway.protocol.stream_version import Version
from gateway.tape.origin_statements import FirstTail, Sighting
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.call import Source
from gateway.upstream.flight import Head, NotShareable

_REACH: Final = 1_000
"""If a client's cursor is more intervals ahead than this, it does not raise the shared cursor."""
_HIGH_REACH: Final = 1 << 40
"""If a cursor is more intervals ahead than this, it does not raise the cursor of far-ahead clients either.  Events can
never advance a cursor this far, and the bound is far below the largest valid cursor."""


class Cursors:
    """The cursors of one stream.  `wall` gives Unix seconds."""

    __slots__ = ("_floor", "_high_floor", "_wall")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._floor = 0
        self._high_floor = 0
        """The least cursor of clients whose cursors are far ahead.  Each answer advances the clients that read on."""

    def __repr__(self) -> str:
        return f"<Cursors {self.shared()}>"

    def note(self, cursor: str | None, wall: float) -> None:
        """Record a client's cursor, so that shared frames carry a greater one."""
        value = parse_cursor(cursor)
        if value is None:
            return
        ahead = value - interval(wall)
        if ahead <= _REACH:
            self._floor = max(self._floor, value)
        elif ahead <= _HIGH_REACH:
            self._high_floor = max(self._high_floor, value)

    def is_far(self, cursor: int) -> bool:
        """Whether a client that showed this cursor shares the cursor of the far-ahead clients."""
        return interval(self._wall()) + _REACH < cursor <= self._high_floor

    def shared(self) -> int:
        """The cursor that shared frames carry now."""
        return self._shared_at(self._wall())

    def next_for(self, client: str | None, wall: float, rng: random.Random) -> str:
        """The cursor of the next frame for a client that showed the cursor `client`: the shared one, unless the
        client's is higher."""
        shared = self._shared_at(wall)
        own = parse_cursor(client)
        if own is None or own < shared:
            return str(shared)
        return str(self._high_floor + 1) if self.is_far(own) else next_cursor(wall, client, rng)

    def _shared_at(self, wall: float) -> int:
        return shared_cursor(wall, self._floor) if self._floor else interval(wall)


class DeliveryTimes:
    """The rounds of one topic.  `now` gives monotonic seconds."""

    __slots__ = ("_arrived_at", "_metrics", "_now", "_route")

    def __init__(self, metrics: MetricsRecorder, now: Callable[[], float], route: str) -> None:
        self._metrics = metrics
        self._now = now
        self._route = route
        self._arrived_at: float | None = None

    def arrived(self) -> None:
        """Record that bytes have arrived for the readers."""
        if self._arrived_at is None:
            self._arrived_at = self._now()

    def delivered(self, readers: int) -> None:
        """Record that `readers` live readers were handed all bytes that had arrived."""
        arrived_at, self._arrived_at = self._arrived_at, None
        if arrived_at is not None and readers:
            self._metrics.delivered(readers, self._now() - arrived_at, self._route)


BEATS: Final = 16
"""A topic's one timer beats this often per heartbeat interval, so that its readers need no timers."""


class OriginAccess(Protocol):
    """A topic's access to its origin, with the credentials of its first reader."""

    @property
    def source(self) -> Source:
        """The stream at its origin."""

    async def fetch(self, at: str | None) -> Head:
        """Read the offset, or the metadata alone, at the origin; the bytes are on the tape when it returns."""

    async def fill(self, topic: Topic, at: str) -> bool:
        """Fetch the bytes after an offset of the topic if the follower will not bring them; return whether that changed
        anything."""

    def why_alone(self, status: int, headers: Headers) -> NotShareable | None:
        """Why a live answer of the origin may not be shared; None if it may."""

    def record_verdict(self, why: NotShareable | None) -> None:
        """Record why the origin's live answers may not be shared; None once one has proved to be shareable."""


class LiveTimes(NamedTuple):
    """A route's times for live reads, in seconds."""

    lifetime_s: float
    heartbeat_s: float
    linger_s: float
    heard_s: float = 0.0
    """How long, after the live request was last heard from, catch-up reads may repeat its tail; 0 if they must ask the
    origin."""


class Topic:
    """The live state of one stream.  Owner: the `LiveTopics` table; the follower moves it."""

    def __init__(
        self,
        stream: Stream,
        access: OriginAccess,
        times: LiveTimes,
        wall: Callable[[], float],
        delivery_times: DeliveryTimes,
        all_kept: KeptFrames,
    ) -> None:
        self.stream = stream
        self._delivery_times = delivery_times
        self.access = access
        self.times = times
        self._wall = wall
        self.is_refused = False
        """Whether the origin has refused the source's headers."""
        self.not_shareable: NotShareable | None = None
        """Why the origin's live answers may not be shared, once that is known."""
        self.readers = 0
        self.revalidated_at = -math.inf
        """When the live request was last restarted by `LiveTopics.revalidate`."""
        self.position: str | None = None
        self.is_confirmed = False
        self.connects_until = -math.inf
        """Until when a read that asks for the tail may wait for the live request to be confirmed."""
        self.ended: End | None = None
        self.failure: GatewayError | None = None
        """Why the follower is not connected, if it failed."""
        self.changed = Signal()
        self.beats = 0
        """Beats so far, by which readers measure how long they have been silent."""
        self.readers_now: set[LiveReader] = set()
        """The readers pumped when the topic changes; all other readers wait for `changed`."""
        self.extra_clients = 0
        """Clients in `readers_now` beyond one per reader."""
        self._is_flushing = False
        self.steps: dict[str, LiveStep] = {}
        """The step sent at each offset while readers are pumped.  It is made once for all readers at the offset."""
        self.is_pumping = False
        self._answers: dict[object, object] = {}
        self._answers_version: Version | None = None
        """The stream's version that shared answers are valid for; None if they are valid for one round."""
        self._answers_second = 0
        """The second in the Date of shared answers (Unix seconds)."""
        self.answers_cursor = 0
        """The cursor of shared answers.  Clients that showed an equal or higher cursor get separate answers."""
        self.to_account: list[tuple[LiveReader, object]] = []
        """Readers that were answered in this round.  All are answered before any is accounted for."""
        self.cursors = Cursors(wall)
        self.frames = Frames(stream, all_kept)

    def __repr__(self) -> str:
        state = "confirmed" if self.is_confirmed else "unconfirmed"
        return f"<Topic {self.readers} readers, {state} at {self.position}>"

    # -- the follower's side

    def moved(self, position: str, now: float, *, is_confirmed: bool) -> None:
        """Record that the follower is at `position`, and wake all readers."""
        if self.position is not None and position != self.position and self.readers_now:
            self._delivery_times.arrived()
        self.position = position
        self.is_confirmed = is_confirmed
        self.stream.followed()
        self.failure = None
        self.heard(now)
        self._fire()

    def heard(self, now: float) -> None:
        """Record that the live request is alive, so that its statement of the tail still holds."""
        if self.is_confirmed and self.position is not None and self.times.heard_s:
            self.stream.saw_tail(Sighting(self.position, now, now + self.times.heard_s))

    def tail_named(self, tail: str, asked_at: float) -> None:
        """Record that the origin has named the tail to another request, sent at `asked_at`."""
        if self.position is not None and self.stream.tape.resolve(self.position) == tail:
            self.heard(asked_at)

    def lost(self, now: float, failure: GatewayError | None) -> None:
        """Record that the live request is closed, as planned or because of `failure`.  The tail is unknown from now
        on."""
        if self.is_confirmed:
            self.stream.lost_tail()
        self.is_confirmed = False
        self.stream.unfollowed(now)
        self.failure = failure
        if failure is not None:
            self._fire()

    def given_up(self) -> None:
        """No live request will bring more bytes: readers fetch the bytes that they still need."""
        self.position = None
        self._fire()

    def end_readers(self, why: End) -> None:
        """The stream has ended: end every reader at once."""
        self.ended = why
        self.is_confirmed = False
        self.stream.unfollowed(self.stream.contacted_at)
        self.stream.lost_tail()
        self._fire()

    def _fire(self) -> None:
        self.changed.fire()
        if self.readers_now and not self._is_flushing:
            # Events that arrive in one turn of the loop go out in one write.
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush, context=DETACHED)

    def _flush(self) -> None:
        self._is_flushing = False
        # The stream cannot change during this loop: pumping is synchronous.
        self.steps = {}
        self._begin_answers()
        self.is_pumping = True
        readers = tuple(self.readers_now)
        clients = len(readers) + self.extra_clients
        try:
            for reader in readers:
                try:
                    reader.pump()
                except Exception:
                    drop_failed(reader)
        finally:
            self.steps = {}
            # Shared answers hold bytes that the tape may drop.
            self._answers, self._answers_version = {}, None
            self.is_pumping = False
            self._account_all()
            self._delivery_times.delivered(clients)

    def _account_all(self) -> None:
        answered, self.to_account = self.to_account, []
        for reader, sent in answered:
            try:
                reader.account(sent)
            except Exception:
                drop_failed(reader)

    def shared_answers(self) -> dict[object, object]:
        """Answers to long-polls, by the values that determine them.  While readers are pumped, answers are valid for
        that round.  At other times they are valid until something that they state changes, including their Date."""
        if not self.is_pumping:
            stream = self.stream
            seen, second = self._answers_version, int(self._wall())
            if seen is None or second != self._answers_second or not seen.same_answers_as(stream.version):
                self._begin_answers(stream.version, second)
        return self._answers

    def _begin_answers(self, version: Version | None = None, second: int = 0) -> None:
        self._answers, self._answers_version, self._answers_second = {}, version, second
        self.answers_cursor = self.cursors.shared()

    def beat(self) -> None:
        """One beat of the heartbeat interval has passed."""
        self.beats += 1
        for reader in tuple(self.readers_now):
            try:
                reader.beat()
            except Exception:
                drop_failed(reader)

    def wake(self) -> None:
        """Make every live reader check the topic again."""
        self._fire()

    # -- the readers' side

    def is_current(self, at: str) -> bool:
        """Whether an answer may say that a reader with everything before `at` is up to date."""
        tape = self.stream.tape
        return (
            self.is_confirmed
            and self.position is not None
            and tape.resolve(self.position) == at
            # Another reply or a write may have named a tail that the follower has not reached.
            and (tape.tail is None or not is_before(at, tape.resolve(tape.tail)))
            and self.stream.holds_acknowledged(at)
        )

    def step(self, at: str, said_up_to_date: bool, least_cursor: int, first: FirstTail | None = None) -> LiveStep:
        """The next step of a reader at `at`; `least_cursor` is the least cursor that its frames may carry.  `first` is
        the tail that the origin has named to a reader that begins now.

        While readers are pumped, a step with the shared cursor is left in `steps`.
        """
        shared = self.cursors.shared()
        cursor = max(shared, least_cursor)
        tape = self.stream.tape
        reading = tape.read(at, EVENT_BYTES)
        end = reading.end
        is_closed = tape.is_closed_at(end)
        is_current = self.is_current(end) or (first is not None and self.stream.is_still(first, end))
        if reading.size:
            frame = self.frames.frame(at, reading, is_current=is_current, is_closed=is_closed, cursor=str(cursor))
            if isinstance(frame, LargeEvent):
                step = LiveStep(b"", 0, end, said_up_to_date, cursor, large=frame)
            else:
                step = LiveStep(
                    chunk(frame), len(frame), end, is_current, cursor, is_closed, is_current and not is_closed
                )
            if self.is_pumping and cursor == shared and first is None:
                # Keep the step of a large event, too, because readers that take the event whole do not keep it.
                self.steps[at] = step
            return step
        if is_closed or (is_current and not said_up_to_date):
            frame = self.frames.control(end, is_current=True, is_closed=is_closed, cursor=str(cursor))
            return LiveStep(chunk(frame), len(frame), end, is_current, cursor, is_closed, is_current and not is_closed)
        return LiveStep(b"", 0, end, said_up_to_date, cursor, needs_fill=self.is_missing(end))

    def is_missing(self, at: str) -> bool:
        """Whether the bytes after `at` must be fetched: `at` is neither the tail nor the follower's position."""
        tape = self.stream.tape
        if self.position is not None and tape.resolve(self.position) == at:
            return False
        return not tape.has_seen(at) or (tape.tail is not None and is_before(at, tape.tail))

    def last_step(self, large: LargeEvent, least_cursor: int) -> LiveStep:
        """The control event after a large event.  It describes the stream now, not at the beginning of the event."""
        end, cursor = large.end, max(self.cursors.shared(), least_cursor)
        is_current, is_closed = self.is_current(end), self.stream.tape.is_closed_at(end)
        frame = self.frames.control(end, is_current=is_current, is_closed=is_closed, cursor=str(cursor))
        return LiveStep(chunk(frame), len(frame), end, is_current, cursor, is_closed)
