"""A topic: the live readers of one stream.

A follower reads the stream from its origin, by one live request.  It stores the received bytes on the tape (the
stream's bytes in memory) and advances `Topic.position`.  Each live reader reads the tape from its own offset, and waits
when no more bytes are on the tape.  There are no queues, so a slow reader does not affect other readers.

`is_confirmed` means that the follower's request is open, and that the reply to it has stated `position` as the tail.
Only then may an answer state that its reader is up to date.  There is one exception.  If the gateway has sent a
separate request for a new reader, and the reply states the tail, the first answer to this reader may state that it is
up to date.

Bytes that arrive in one iteration of the event loop are delivered together, in one round.  `DeliveryTimes` measures a
round from the first arrival until the bytes have been sent to all live readers.  A round with many readers, or with
large answers, takes several turns of the loop, so that it does not delay other clients.  Each reader gets the stream's
state at the time of its own turn.  If the topic changes during a round, another round follows.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from gateway.aio.clock import DETACHED
from gateway.aio.signal import Signal
from gateway.errors import GatewayError
from gateway.live.frames import EVENT_BYTES, Frames, KeptFrames, LargeEvent, LiveReader, LiveStep, chunk, drop_failed
from gateway.protocol.cursor import Cursors
from gateway.protocol.header_forwarding import Headers
from gateway.protocol.names import is_before
from gateway.protocol.stream_version import Version
from gateway.tape.origin_statements import FirstTail, Sighting
from gateway.tape.stream import End, Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.upstream.flight import Head, NotShareable
from gateway.upstream.origin_call import Source

MOST_S: Final = 0.001
"""The longest time for which one turn of the loop serves readers of a delivery round, in seconds.  Further readers are
served in the next turn."""
MOST_READERS: Final = 256
"""The most readers that one turn serves.  `MOST_S` alone does not bound the length of a turn, because uvloop writes to
the connections only at the end of the turn."""
_carrier: Final = attrgetter("carrier")


class DeliveryTimes:
    """Measures the delivery rounds of one topic.  `now` returns monotonic seconds."""

    __slots__ = ("_arrived_at", "_began_at", "_metrics", "_route", "now")

    def __init__(self, metrics: MetricsRecorder, now: Callable[[], float], route: str) -> None:
        self._metrics = metrics
        self.now = now
        self._route = route
        self._arrived_at: float | None = None
        """The arrival time of the first bytes for the next round; None if there are no such bytes yet."""
        self._began_at: float | None = None
        """The arrival time of the first bytes of the present round; None between rounds, and in a round without new
        bytes."""

    def arrived(self) -> None:
        """Record that bytes have arrived.  The next round delivers them."""
        if self._arrived_at is None:
            self._arrived_at = self.now()

    def begin(self) -> None:
        """Begin a round."""
        self._began_at, self._arrived_at = self._arrived_at, None

    def delivered(self, readers: int) -> None:
        """End the round.  The bytes that had arrived before the round began have been sent to `readers` live
        readers."""
        began_at, self._began_at = self._began_at, None
        if began_at is not None and readers:
            self._metrics.delivered(readers, self.now() - began_at, self._route)


BEATS: Final = 16
"""The number of times that a topic's timer fires in a heartbeat interval.  Each firing is a beat.  All readers of the
topic share the timer."""


class OriginAccess(Protocol):
    """Requests to the origin of a topic's stream, with the credentials of its first reader."""

    @property
    def source(self) -> Source:
        """The stream's address and headers at the origin."""

    async def fetch(self, at: str | None) -> Head:
        """Fetch the bytes after `at` and store them.  If `at` is None, send a HEAD."""

    async def learn_facts(self) -> Head:
        """Ask whether the stream exists, and request its identity and lifetime."""

    async def fill(self, topic: Topic, at: str) -> bool:
        """Fetch the bytes after `at`, unless the follower will soon receive them.  Return whether a fetch has brought
        bytes or another tail."""

    def heard(self) -> None:
        """Record for the route that the origin has answered a live request."""

    def why_alone(self, status: int, headers: Headers) -> NotShareable | None:
        """Return the reason why a live reply of the origin may not be shared; None if it may be shared."""

    def record_verdict(self, why: NotShareable | None) -> None:
        """Record for the route why live replies may not be shared.  `why` is None if a live reply was shareable."""


class LiveTimes(NamedTuple):
    """The configured times of a route's live reads, in seconds."""

    lifetime_s: float
    heartbeat_s: float
    linger_s: float
    heard_s: float = 0.0
    """How long the tail stays valid for catch-up reads after the follower last received data.  With 0, catch-up reads
    always ask the origin."""


class Topic:
    """The live state of one stream.  Owner: `LiveTopics`.  The follower reports its progress by `moved` and `lost`."""

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
        """Whether the origin has refused a request with `access`, perhaps because of the credentials."""
        self.not_shareable: NotShareable | None = None
        """The reason why the origin's live replies may not be shared; None while they may be shared."""
        self.readers = 0
        self.revalidated_at = -math.inf
        """The time at which `LiveTopics.revalidate` last restarted the follower (monotonic seconds).  The rate of these
        restarts is limited."""
        self.position: str | None = None
        """The offset that the follower has reached; None before it has connected."""
        self.is_confirmed = False
        """Whether the reply to the follower's open request has stated `position` as the tail."""
        self.asked_from: str | None = None
        """The offset of the follower's latest live request; None before the first live request."""
        self.connects_until = -math.inf
        """The time until which a read that needs the tail may wait for `is_confirmed` (monotonic seconds)."""
        self.ended: End | None = None
        self.failure: GatewayError | None = None
        """The error with which the follower's last request failed; None if it has not failed or is connected again."""
        self.changed = Signal()
        self.beats = 0
        """The number of beats so far.  Readers use it as a clock for their heartbeats."""
        self.readers_now: set[LiveReader] = set()
        """The readers without a task.  When the topic changes, their `pump` is called.  Readers with a task wait for
        `changed` instead."""
        self.shares_connections = False
        """Whether several readers may share a connection.  Set when a reader is created for a stream of an HTTP/2
        connection."""
        self.extra_clients = 0
        """The number of clients of `readers_now`, minus the number of these readers.  One reader may serve several
        clients."""
        self.handed: dict[LiveReader, Callable[[], object]] = {}
        """The readers that are other workers, each with a function that cuts its connection.  Some of these readers may
        have left."""
        self.handed_untold = False
        """Whether a reader that is another worker has joined since `position` was last confirmed.  The tail was not
        stated to this reader yet."""
        self._named = "", -math.inf
        """The tail in the latest reply to any request other than the follower's live request, and the time of that
        request."""
        self._is_flushing = False
        self._has_news = False
        """Whether the topic has changed since the latest round began.  Another round must then follow."""
        self._unpumped: deque[LiveReader] = deque()
        """The readers whose `pump` has not been called in this round."""
        self._round_clients = 0
        """The number of clients that this round serves."""
        self.steps: dict[str, LiveStep] = {}
        """For each offset of readers, the step with the next bytes to send.  Valid for the present turn of a delivery
        round, and empty at all other times."""
        self._kept_steps: tuple[tuple[object, ...], dict[str, LiveStep]] | None = None
        """Between two turns of a round: the topic's state in the earlier turn, and the steps of that turn.  The steps
        are valid only for this state."""
        self.is_pumping = False
        """Whether a round is being delivered."""
        self._answers: dict[object, object] = {}
        self._answers_version: Version | None = None
        """The stream's version for which `_answers` are valid; None if they are valid for one round."""
        self._answers_second = 0
        """The time in the Date header of `_answers` (Unix seconds)."""
        self.answers_cursor = 0
        """The cursor of `_answers`.  A client with an equal or greater cursor gets a separate answer."""
        self.to_account: list[tuple[LiveReader, object]] = []
        """The readers answered in this round.  After the round they are counted in metrics and logs."""
        self.cursors = Cursors(wall)
        self.frames = Frames(stream, all_kept)

    def __repr__(self) -> str:
        state = "confirmed" if self.is_confirmed else "unconfirmed"
        return f"<Topic {self.readers} readers, {state} at {self.position}>"

    # -- for the follower

    def moved(self, position: str, stated_at: float, *, is_confirmed: bool) -> None:
        """Record that the follower has reached `position`, and wake all readers.  `stated_at` is the time of the
        origin's statement (monotonic seconds); -inf if it is unknown."""
        if self.position is not None and position != self.position and self.readers_now:
            self._delivery_times.arrived()
        self.position = position
        self.is_confirmed = is_confirmed
        self.handed_untold = self.handed_untold and not is_confirmed
        self.stream.followed()
        self.failure = None
        if stated_at > -math.inf:
            self.heard(stated_at)
        self._fire()

    def heard(self, now: float) -> None:
        """Record that the follower has received data.  The tail at its position is therefore still valid."""
        if self.is_confirmed and self.position is not None and self.times.heard_s:
            self.stream.saw_tail(Sighting(self.position, now, now + self.times.heard_s))

    def tail_named(self, tail: str, asked_at: float) -> None:
        """Record that the reply to a request other than the follower's has stated `tail`.  The request was sent at
        `asked_at`."""
        self._named = tail, asked_at
        if self.position is not None and self.stream.tape.resolve(self.position) == tail:
            self.heard(asked_at)

    def named_at(self, tail: str) -> float:
        """Return the time of the latest request recorded by `tail_named`; -inf if its reply has not stated `tail`."""
        named, asked_at = self._named
        return asked_at if named == tail else -math.inf

    def lost(self, now: float, failure: GatewayError | None) -> None:
        """Record that the follower's request has ended, regularly or with `failure`.  The tail becomes unknown."""
        if self.is_confirmed:
            self.stream.lost_tail()
        self.is_confirmed = False
        self.stream.unfollowed(now)
        self.failure = failure
        if failure is not None:
            self.cut_handed()
            self._fire()

    def cut_handed(self) -> None:
        """Cut the connections of other workers.  Their next requests get answers with the age of the bytes and the
        tail.  Other workers treat all data on an open connection as new, and trust the stream while the connection is
        open.  Both are right only while this worker follows the stream."""
        handed, self.handed = self.handed, {}
        for reader, cut in handed.items():
            if reader in self.readers_now:
                cut()

    def hand(self, reader: LiveReader, cut: Callable[[], object]) -> None:
        """Record that a reader is another worker.  `cut` cuts the connection of this worker.  If the follower's last
        request has failed, the connections of all such readers are cut at once."""
        self.handed = {one: function for one, function in self.handed.items() if one in self.readers_now}
        self.handed[reader] = cut
        self.handed_untold = self.handed_untold or not self.is_confirmed
        if self.failure is not None:
            self.cut_handed()

    @property
    def client_readers(self) -> int:
        """The number of readers that are clients of this worker."""
        return self.readers - sum(reader in self.readers_now for reader in self.handed)

    def given_up(self) -> None:
        """Wake the readers, because the stream is no longer followed.  They must fetch missing bytes themselves."""
        self.position = None
        self._fire()

    def end_readers(self, why: End) -> None:
        """End all readers, because the stream has ended."""
        self.ended = why
        self.is_confirmed = False
        self.stream.unfollowed(self.stream.contacted_at)
        self.stream.lost_tail()
        self._fire()

    def _fire(self) -> None:
        self.changed.fire()
        self._kept_steps = None
        if self.readers_now:
            self._has_news = True
            self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            # Deliver in the next iteration of the loop, so that events that arrive together are sent in one write.
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush, context=DETACHED)

    def _flush(self) -> None:
        """Begin a round or continue it, within the bounds of one turn."""
        self._is_flushing = False
        unpumped, present = self._unpumped, self.readers_now
        if not unpumped:
            self._has_news = False
            self.shares_connections = self.shares_connections and bool(present)
            # All bytes of one turn for one connection are sent in one write.  Serve the readers of a connection one
            # after the other, so that each turn writes to as few connections as possible.
            unpumped.extend(sorted(present, key=_carrier) if self.shares_connections else present)
            self._round_clients = len(unpumped) + self.extra_clients
            self.cursors.rise()
            self._delivery_times.begin()
        # A turn is synchronous, so the stream cannot change during a turn, and readers can share steps.  But the stream
        # may have changed since the round's earlier turn.
        kept, self._kept_steps = self._kept_steps, None
        self.steps = kept[1] if kept is not None and kept[0] == self._step_state() else {}
        self._begin_answers()
        self.is_pumping = True
        now = self._delivery_times.now
        until = now() + MOST_S
        try:
            for _ in range(min(len(unpumped), MOST_READERS)):
                reader = unpumped.popleft()
                # A reader may have left since the round began.
                if reader in present:
                    try:
                        reader.pump()
                    except Exception:
                        drop_failed(reader)
                    if now() > until:
                        break
        finally:
            # Drop the answers.  Otherwise they would keep bytes in memory after the tape has dropped these bytes.
            self._answers, self._answers_version = {}, None
            self.is_pumping = False
            self._account_all()
            self._end_turn()

    def _end_turn(self) -> None:
        """End a turn of a round.  End the round too if all its readers have been served."""
        steps, self.steps = self.steps, {}
        if self._unpumped:
            # Keep the steps for the readers that this turn has not served.  A step has bytes that the connections of
            # the served readers share.  Until these connections have sent the bytes, new steps would need a second copy
            # of the bytes.
            self._kept_steps = self._step_state(), steps
        else:
            self._delivery_times.delivered(self._round_clients)
        if self._unpumped or self._has_news:
            self._flush_soon()

    def _step_state(self) -> tuple[object, ...]:
        """Return the state on which the steps depend."""
        stream = self.stream
        tape = stream.tape
        return (
            stream.version,
            stream.ended,
            tape.tail,
            tape.closed_at,
            self.position,
            self.is_confirmed,
            self.not_shareable,
            self.cursors.shared(),
        )

    def _account_all(self) -> None:
        answered, self.to_account = self.to_account, []
        for reader, sent in answered:
            try:
                reader.account(sent)
            except Exception:
                drop_failed(reader)

    def shared_answers(self) -> dict[object, object]:
        """Return a dictionary of finished long-poll answers, for callers to use and to fill.

        Its keys are the values on which an answer depends.  During a delivery round the answers are valid for the
        round.  At other times they are valid until the stream's state or the Date header changes.
        """
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
        """Call `beat` of all readers, which may then send heartbeats.  Called `BEATS` times per heartbeat interval."""
        self.beats += 1
        for reader in tuple(self.readers_now):
            try:
                reader.beat()
            except Exception:
                drop_failed(reader)

    def wake(self) -> None:
        """Make all live readers check the stream's state again."""
        self._fire()

    # -- for the readers

    def is_current(self, at: str) -> bool:
        """Return whether an answer that ends at `at` may be marked up to date."""
        tape = self.stream.tape
        return (
            self.is_confirmed
            and self.position is not None
            and tape.resolve(self.position) == at
            # Another reply, or the acknowledgement of a write, may have stated a later tail.
            and (tape.tail is None or not is_before(at, tape.resolve(tape.tail)))
            and self.stream.holds_acknowledged(at)
        )

    def step(self, at: str, said_up_to_date: bool, least_cursor: int, first: FirstTail | None = None) -> LiveStep:
        """Return the next bytes for a reader at `at`.

        `said_up_to_date`: the reader's last control event has stated that the reader is up to date.  `least_cursor`:
        the least cursor for its frames.  `first`: the tail that the origin has stated to a reader that starts now.
        During a delivery round, a step that other readers can use is also kept in `steps`.
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
                # Keep steps with a large event too.  The step refers to the event, so the event is encoded only once in
                # a round.
                self.steps[at] = step
            return step
        if is_closed or (is_current and not said_up_to_date):
            frame = self.frames.control(end, is_current=True, is_closed=is_closed, cursor=str(cursor))
            return LiveStep(chunk(frame), len(frame), end, is_current, cursor, is_closed, is_current and not is_closed)
        return LiveStep(b"", 0, end, said_up_to_date, cursor, needs_fill=self.is_missing(end))

    def is_missing(self, at: str) -> bool:
        """Return whether bytes after `at` must be fetched, because `at` is neither the tail nor the follower's
        position."""
        tape = self.stream.tape
        if self.position is not None and tape.resolve(self.position) == at:
            return False
        return not tape.has_seen(at) or (tape.tail is not None and is_before(at, tape.tail))

    def last_step(self, large: LargeEvent, least_cursor: int) -> LiveStep:
        """Return the control event after a large event.  It describes the stream's current state."""
        end, cursor = large.end, max(self.cursors.shared(), least_cursor)
        is_current, is_closed = self.is_current(end), self.stream.tape.is_closed_at(end)
        frame = self.frames.control(end, is_current=is_current, is_closed=is_closed, cursor=str(cursor))
        return LiveStep(chunk(frame), len(frame), end, is_current, cursor, is_closed)
