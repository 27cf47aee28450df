"""A session with one client, over SSE or S2's session protocol (S2S), without a task or a queue.

A session keeps its client's position and the rest of its limits.  It writes records from memory whenever there are some
and the connection has room.  While it catches up, missing records are fetched, until the origin states that the client
is at the tail.  From then on the session follows the stream's topic, the group of readers that wait at the tail.  A
client that does not read stays behind, and continues from memory when it reads again.

A heartbeat states the client's position as the tail, never a later position, because clients resume from it.  A
complete session ends regularly.  A session that cannot continue ends with an error, because a regular end means that no
more records will come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from gateway.aio.clock import Clock
from gateway.aio.timers import NEVER, Wheel
from gateway.engine.s2.fetch import S2Fetched
from gateway.engine.s2.request import S2Form, S2ReplyKind
from gateway.engine.s2.stream import S2Stream
from gateway.engine.s2.topic import LOST, REPLACED, S2Batch, S2LargePiece, S2Topic, refusal
from gateway.limits.memory import NOTHING, Holding
from gateway.live.frames import chunk
from gateway.live.subscriber import PART_BYTES, Wire
from gateway.s2 import protobuf, sse
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.session import encode_message, encode_terminal
from gateway.tape.decide import Awaited
from gateway.tape.decide_records import RecordAnswer, RecordProgress, decide_records
from gateway.tape.record_tape import UNARY, Limits, cut
from gateway.telemetry.access_record import CloseReason
from gateway.upstream.s2_client import FoundRecords, S2Refused

DRAINING: Final = refusal(S2ErrorCode.SERVER_DRAINING, "the gateway is shutting down")

LOOK_S: Final = 1.0
"""Seconds until a session checks again for new records, if its wait ends while the tail is unknown."""
REPLAY_BYTES: Final = 1 << 18
"""The most metered bytes (S2's measure of size) in one batch from memory, unless one record is larger.  This also
limits how much memory a client can occupy by not reading."""

_QUIET_BEATS: Final = 2
"""A client that receives nothing for this many beats (intervals of the topic's timer) gets a heartbeat."""


class S2ReaderContext(Protocol):
    """State that all sessions of a process share."""

    @property
    def clock(self) -> Clock:
        """The clock for heartbeats."""

    @property
    def wheel(self) -> Wheel:
        """The timers for deadlines."""

    def fetch(self, reader: S2SessionReader) -> None:
        """Fetch the records at the reader's position, then call `fetched` or `failed`."""

    def follow(self, reader: S2SessionReader, tail: StreamPosition) -> S2Topic | None:
        """Return the topic of the reader's stream; None if the stream cannot be followed.

        `tail` was the stream's tail a moment ago.
        """

    def session_ended(self, reader: S2SessionReader) -> None:
        """Release the resources of a session that has ended."""


@dataclass(frozen=True, slots=True)
class S2Session:
    """The parameters of a session."""

    stream: S2Stream
    form: S2Form
    read: RecordProgress
    longest_wait_s: float | None
    """How long the session waits at the tail, in seconds; None means forever, 0 not at all."""


class S2SessionReader:
    """One session: the object that feeds a live response (`gateway.server.request.LiveAnswer`)."""

    __slots__ = (
        "_context",
        "_count",
        "_ends_by",
        "_form",
        "_is_fetching",
        "_is_limited",
        "_is_over",
        "_large",
        "_large_sent",
        "_longest_wait_s",
        "_owes_beat",
        "_quiet_beats",
        "_size",
        "_tick",
        "_wire",
        "is_sse",
        "read",
        "stream",
        "topic",
    )

    def __init__(self, session: S2Session, wire: Wire, context: S2ReaderContext) -> None:
        self.stream = session.stream
        self.read = session.read
        """The client's position and the rest of its limits."""
        self.topic: S2Topic | None = None
        """The stream's topic, once the client has reached the tail."""
        self._form = session.form
        self.is_sse = session.form.reply is S2ReplyKind.SSE
        self._is_limited = session.read.left != Limits()
        self._longest_wait_s = session.longest_wait_s
        self._wire = wire
        self._context = context
        self._count = 0
        self._size = 0
        """Metered bytes sent to the client; `_count` is the number of records sent.  Both are part of the ids of
        server-sent events."""
        self._large: S2LargePiece | None = None
        """The latest large batch, of which `_large_sent` bytes have been written."""
        self._large_sent = 0
        self._ends_by: S2Refused | None = None
        """The error with which the session ends when the large batch has been written."""
        self._is_fetching = False
        self._is_over = False
        self._owes_beat = False
        """Whether a heartbeat must still inform the client that it is at the tail."""
        self._quiet_beats = 0
        self._tick = NEVER

    def __repr__(self) -> str:
        state = "over" if self._is_over else "following" if self.topic is not None else "catching up"
        return f"<S2SessionReader at {self.at}, {state}>"

    @property
    def at(self) -> int:
        """The sequence number of the next record for the client."""
        return self.read.at

    @property
    def wanted(self) -> Limits:
        """The limits of the next batch."""
        return self.read.left.within(UNARY.count or 0, UNARY.bytes or 0)

    @property
    def _latest_tail(self) -> StreamPosition | None:
        """The tail that may be stated to the client: no earlier than the stream's tail at the time of the request.

        The live session may have stated its latest tail before the request.  So that tail is used only after the client
        has reached a tail that was stated after the request.
        """
        return self.read.tail if self.topic is None else self.topic.tail

    # -- sending records

    def pump(self) -> None:
        """Write records from the client's position on, as far as memory and the connection allow."""
        while not (self._is_over or self._is_fetching or self._wire.is_full):
            if self._large is not None:
                self._send_parts()
                continue
            match decide_records(self.stream.stream, self.read):
                case Awaited.CHANGE if self.topic is not None:
                    self.beat(is_due=False)
                    return
                case Awaited.CHANGE:
                    self._follow()
                case RecordAnswer.RECORDS:
                    self._finish(CloseReason.CLOSED)
                case RecordAnswer.UNWRITTEN:
                    # The client is beyond the end of the stream.
                    self.lost(LOST)
                case RecordAnswer.GONE:
                    self.lost(REPLACED)
                case _:
                    if not self._take():
                        self._is_fetching = True
                        self._context.fetch(self)

    def _take(self) -> bool:
        """Send the next records in memory; return False if there are none at the client's position."""
        read, wanted = self.read, self.wanted
        batch, is_closed = self.stream.batch(read.at, wanted.within(UNARY.count or 0, REPLAY_BYTES), self._latest_tail)
        if is_closed and not batch.count:
            # Try again without `REPLAY_BYTES`, because the next record may be larger.
            batch, is_closed = self.stream.batch(read.at, wanted, self._latest_tail)
        if batch.count:
            self._send(batch)
        else:
            read.is_complete = is_closed
        return is_closed or batch.count > 0

    def deliver(self, batch: S2Batch) -> None:
        """Send records that have just arrived, unless the client is behind."""
        if self._is_over or self._is_fetching or self._wire.is_full or (self._large is not None and self._is_midway):
            return
        if self.read.at != batch.start:
            self.pump()
        elif not self._is_limited:
            self._send(batch)
        else:
            # Cut the batch instead of reading from memory: a trim command in the batch may already have removed the
            # batch's records from memory.
            part = cut(batch.batch.records, self.at, batch.end, self.wanted)
            if part.records:
                self._send(S2Batch.of(self.at, part, self._latest_tail))
            self.pump()

    def _send(self, batch: S2Batch) -> None:
        self.read.came_to(batch.end)
        self._quiet_beats = 0
        if batch.batch.tail is not None:
            self._owes_beat = False
        self._count += batch.count
        self._size += batch.size
        if self._is_limited:
            self.read.left = self.read.left.after(batch.count, batch.size)
        form = self._form
        small = batch.event(self._count, self._size, form.format_) if self.is_sse else batch.chunk(form.compression)
        if small is None:
            self._begin_large(batch)
            return
        framed, size = small
        self.stream.stream.sent_bytes += size
        self._wire.send_chunk(framed, size)
        if self._is_limited or self._tick != NEVER:
            self._batch_is_out()

    def _batch_is_out(self) -> None:
        """Handle the end of a batch that has been written completely."""
        if self.read.left.is_exhausted:
            self._finish(CloseReason.CLOSED)
        elif self._ends_by is not None:
            self.lost(self._ends_by)
        elif self._tick != NEVER:
            self._wait()

    def _begin_large(self, batch: S2Batch) -> None:
        """Write a large batch in parts: the first part now, and each later part when the client has taken its
        predecessor."""
        if self.is_sse:
            self._write(batch.head_of_event(self._count, self._size))
            if self._is_over:
                return
            self._large = batch.rest_of_event(self._form.format_)
        else:
            self._large = batch.frame(self._form.compression)
        self._large_sent = 0
        self._send_parts()

    def _send_parts(self) -> None:
        """Write parts of the large batch while the connection has room."""
        large = self._large
        while large is not None and not self._is_over:
            part = memoryview(large.data)[self._large_sent : self._large_sent + PART_BYTES]
            if not part:
                # The client has taken nearly all of the batch.  Only now may the data be freed, because the connection
                # has referred to the data until now.
                self._large = None
                return
            self._large_sent += len(part)
            self.stream.stream.sent_bytes += len(part)
            self._wire.send_view(part)
            if not self._is_midway:
                self._batch_is_out()
            if self._wire.is_full:
                return

    @property
    def _is_midway(self) -> bool:
        """Whether a large batch has been written only in part, so that nothing else may be written."""
        return self._large is not None and self._large_sent < len(self._large.data)

    def _write(self, data: bytes) -> None:
        self.stream.stream.sent_bytes += len(data)
        self._wire.send_chunk(chunk(data), len(data))

    # -- fetching records

    def fetched(self, fetched: S2Fetched) -> None:
        """Handle the result of the fetch that the session has requested."""
        self._is_fetching = False
        if self._is_over:
            return
        outcome = fetched.outcome
        if isinstance(outcome, S2Refused):
            self.lost(outcome)
            return
        if isinstance(outcome, FoundRecords):
            if outcome.records and self._is_held(outcome.records[-1].seq_num):
                # `pump` sends the records in batches of `REPLAY_BYTES`, one after the other.
                self.pump()
                return
            # Send the records of the reply itself, because there was no memory to store them.
            end = outcome.records[-1].seq_num + 1 if outcome.records else self.at
            part = cut(outcome.records, self.at, end, self.wanted)
            if part.records:
                self._send(S2Batch.of(self.at, part, self._latest_tail))
            else:
                self.read.is_complete = part.is_closed or (fetched.is_all and not outcome.records)
        elif fetched.is_fresh:
            # The origin has trimmed all records before this tail.
            self.read.found_tail(outcome.tail)
            self._owes_beat = True
        self.pump()

    def _is_held(self, seq_num: int) -> bool:
        """Return whether this record and the record at the client's position are in memory."""
        one = Limits(count=1)
        return all(self.stream.batch(at, one, None)[0].count for at in (self.at, seq_num))

    def _follow(self) -> None:
        """Follow the stream from now on, because the client is at the tail."""
        tail = self.read.tail
        assert tail is not None
        topic = self.read.topic = self.topic = self._context.follow(self, tail)
        if topic is None:
            self.lost(LOST)
            return
        topic.join(self)
        self._wait()
        self._heartbeat(tail)

    def failed(self, error: S2Refused = LOST) -> None:
        """Handle a fetch that has failed."""
        self._is_fetching = False
        self.lost(error)

    # -- heartbeats and deadlines

    def beat(self, *, is_due: bool) -> None:
        """Send a heartbeat if the client has received nothing for a while, or does not know yet that it is at the
        tail."""
        if is_due:
            self._quiet_beats += 1
        topic = self.topic
        if topic is None or topic.tail is None or self._is_over or self._wire.is_full or self.at != topic.tail.seq_num:
            return
        if self._is_midway:
            return
        if self._owes_beat or self._quiet_beats >= _QUIET_BEATS:
            self._heartbeat(topic.tail)

    def _heartbeat(self, tail: StreamPosition) -> None:
        self._owes_beat = False
        self._quiet_beats = 0
        if self.is_sse:
            wall_ms = int(self._context.clock.wall() * 1000)
            self._write(sse.encode_event(sse.Ping(wall_ms, tail), self._form.format_))
        else:
            self._write(encode_message(protobuf.encode_read_batch(ReadBatch((), tail))))

    def _wait(self) -> None:
        """Start, or restart, the wait at the tail."""
        if self._longest_wait_s is not None and not self._is_over:
            self._context.wheel.unlink(self, self._tick)
            self._tick = self._context.wheel.add(self, self._longest_wait_s)

    def due(self) -> None:
        """Handle the end of a wait in which no record has come."""
        self._tick = NEVER
        topic = self.topic
        if self._is_midway or (topic is not None and self.at < topic.position):
            # Records have arrived, and the client has not read them yet.
            self._wait()
        elif topic is not None and topic.tail is None:
            # Records may have been appended.  The session learns of them only when the origin answers again, or when
            # the stream is given up.
            self._tick = self._context.wheel.add(self, LOOK_S)
        else:
            self._finish(CloseReason.TIMED_OUT)

    # -- the end

    def lost(self, error: S2Refused) -> None:
        """End the session with this error, because it cannot continue.  May be called while the connection is full."""
        if self._is_over:
            return
        if self._is_midway:
            if error is DRAINING:
                self._ends_by = error
            else:
                # Nothing can follow half a frame or event.
                self._end(CloseReason.FAILED, in_order=False)
            return
        if self.is_sse:
            self._write(sse.encode_event(sse.Failure(error.body), self._form.format_))
        else:
            self._write(encode_terminal(error.status, error.body))
        self._end(CloseReason.DRAINED if error is DRAINING else CloseReason.FAILED, in_order=True)

    def _finish(self, reason: CloseReason) -> None:
        """End a session that is complete."""
        if self._is_over:
            return
        if self.is_sse:
            self._write(sse.encode_event(sse.Done(), self._form.format_))
        self._end(reason, in_order=True)

    def holdings(self) -> tuple[Holding, ...]:
        """Return the memory that the session keeps for its client, apart from the connection's own buffers."""
        large = self._large
        return (Holding(large.shared, len(large.data)),) if large is not None else NOTHING

    def client_left(self, _: object) -> None:
        """Handle the client's disconnection."""
        if not self._is_over:
            self._end(CloseReason.LEFT, in_order=False)

    def gone(self) -> None:
        """Drop the session after an internal error."""
        self.client_left(None)

    def _end(self, reason: CloseReason, *, in_order: bool) -> None:
        self._is_over = True
        self._context.wheel.unlink(self, self._tick)
        self._context.session_ended(self)
        self._wire.over(reason, in_order=in_order)
