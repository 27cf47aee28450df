"""A session with one client: SSE or S2S, without a task and without a queue.

A session holds the position of its client and the rest of its limits.  It writes from the tape whenever there are
records to write and room for them.  At first it catches up: it fetches the records that the tape lacks, until the
origin says that the client is at the tail.  From then on it follows the stream's topic.  A client that does not read
stays behind, and goes on from the tape once it reads.

A heartbeat states the client's position as the tail and never a later one, because clients resume from it.  A complete
session ends in order.  A session that cannot go on ends with an error, because an end in order tells clients that no
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
from gateway.tape.decide import Awaited, RecordAnswer, RecordProgress, decide_records
from gateway.tape.records import UNARY, Limits, cut
from gateway.telemetry.access_record import CloseReason
from gateway.upstream.s2_client import FoundRecords, S2Refused

DRAINING: Final = refusal(S2ErrorCode.SERVER_DRAINING, "the gateway is shutting down")

LOOK_S: Final = 1.0
"""Seconds between two checks whether a session is at the tail, if its wait has passed while the tail was not known."""

REPLAY_BYTES: Final = 1 << 18
"""The most metered bytes of a replay in one batch, unless one record is larger.  A session whose client does not read
holds no more than this."""

_QUIET_BEATS: Final = 2
"""If a client receives nothing for this many beats of the topic, it is sent a heartbeat."""


class S2ReaderContext(Protocol):
    """The state that all sessions of a process share."""

    @property
    def clock(self) -> Clock:
        """Times of heartbeats."""

    @property
    def wheel(self) -> Wheel:
        """Deadlines of sessions."""

    def fetch(self, reader: S2SessionReader) -> None:
        """Fetch the records at the reader's position; call `fetched` or `failed` when done."""

    def follow(self, reader: S2SessionReader, tail: StreamPosition) -> S2Topic | None:
        """The topic of the reader's stream, whose tail was `tail` a moment ago; None if it cannot be followed."""

    def session_ended(self, reader: S2SessionReader) -> None:
        """The session has ended."""


@dataclass(frozen=True, slots=True)
class S2Session:
    """The request of a session."""

    stream: S2Stream
    form: S2Form
    read: RecordProgress
    longest_wait_s: float | None
    """Seconds that the session waits at the tail; None means for ever, 0 not at all."""


class S2SessionReader:
    """One session.  The subscriber of a channel (`gateway.server.request.LiveAnswer`)."""

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
        """The position of its client, and the rest of its limits."""
        self.topic: S2Topic | None = None
        """The topic, once the client has been at the tail."""
        self._form = session.form
        self.is_sse = session.form.reply is S2ReplyKind.SSE
        self._is_limited = session.read.left != Limits()
        self._longest_wait_s = session.longest_wait_s
        self._wire = wire
        self._context = context
        self._count = 0
        self._size = 0
        """Metered bytes that the client was sent; `_count` is the number of records."""
        self._large: S2LargePiece | None = None
        """Records of which the first `_large_sent` bytes have been written."""
        self._large_sent = 0
        self._ends_by: S2Refused | None = None
        """The error that ends the session once the large records are written."""
        self._is_fetching = False
        self._is_over = False
        self._owes_beat = False
        """Whether the client still has to learn, by a heartbeat, that it is at the tail."""
        self._quiet_beats = 0
        self._tick = NEVER

    def __repr__(self) -> str:
        state = "over" if self._is_over else "following" if self.topic is not None else "catching up"
        return f"<S2SessionReader at {self.at}, {state}>"

    @property
    def at(self) -> int:
        """The sequence number that the client is sent next."""
        return self.read.at

    @property
    def wanted(self) -> Limits:
        """The limits of the next batch."""
        return self.read.left.within(UNARY.count or 0, UNARY.bytes or 0)

    @property
    def _latest_tail(self) -> StreamPosition | None:
        """A tail that may be stated to the client, because the stream has had it since the client's request.

        The latest statement of the session at the origin may be older than the request, until the client has once
        reached a tail that is not.
        """
        return self.read.tail if self.topic is None else self.topic.tail

    # -- what the client has room for

    def pump(self) -> None:
        """Write from the client's position on, as far as the tape and the connection allow."""
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
                    # The client has more records than the stream.
                    self.lost(LOST)
                case RecordAnswer.GONE:
                    self.lost(REPLACED)
                case _:
                    if not self._take():
                        self._is_fetching = True
                        self._context.fetch(self)

    def _take(self) -> bool:
        """Send the next records that memory holds; return False if it holds none at the client's position."""
        read, wanted = self.read, self.wanted
        batch, is_closed = self.stream.batch(read.at, wanted.within(UNARY.count or 0, REPLAY_BYTES), self._latest_tail)
        if is_closed and not batch.count:
            # One record may be larger.
            batch, is_closed = self.stream.batch(read.at, wanted, self._latest_tail)
        if batch.count:
            self._send(batch)
        else:
            read.is_complete = is_closed
        return is_closed or batch.count > 0

    def deliver(self, batch: S2Batch) -> None:
        """Send records that have just arrived, unless the client is behind."""
        if self._is_over or self._is_fetching or self._wire.is_full or self._is_midway:
            return
        if self.read.at != batch.start:
            self.pump()
        elif not self._is_limited:
            self._send(batch)
        else:
            # Cut the batch and not the tape, because a trim command in the batch may have removed records of the batch
            # from the tape.
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
        if self.is_sse:
            format_ = self._form.format_
            if batch.is_large(format_):
                self._write(batch.head_of_event(self._count, self._size))
                if not self._is_over:
                    self._send_large(batch.rest_of_event(format_))
                return
            framed, size = batch.event(self._count, self._size, format_)
        else:
            if (large := batch.frame(self._form.compression)) is not None:
                self._send_large(large)
                return
            framed, size = batch.chunk(self._form.compression)
        self.stream.stream.sent_bytes += size
        self._wire.send_chunk(framed, size)
        self._batch_is_out()

    def _batch_is_out(self) -> None:
        """Record that a batch has been written completely."""
        if self.read.left.is_exhausted:
            self._finish(CloseReason.CLOSED)
        elif self._ends_by is not None:
            self.lost(self._ends_by)
        elif self._tick != NEVER:
            self._wait()

    def _send_large(self, large: S2LargePiece) -> None:
        """Write large records in parts: the first now, the others as the client takes them."""
        self._large, self._large_sent = large, 0
        self._send_parts()

    def _send_parts(self) -> None:
        """Write as many parts of the large records as there is room for."""
        large = self._large
        while large is not None and not self._is_over:
            part = memoryview(large.data)[self._large_sent : self._large_sent + PART_BYTES]
            if not part:
                # The client has taken nearly all of the data.  Until now the connection referred to the whole of it.
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
        """Whether large records are only partly written, so that nothing else may be written."""
        return self._large is not None and self._large_sent < len(self._large.data)

    def _write(self, data: bytes) -> None:
        self.stream.stream.sent_bytes += len(data)
        self._wire.send_chunk(chunk(data), len(data))

    # -- what the tape lacks

    def fetched(self, fetched: S2Fetched) -> None:
        """Take the result of the fetch that the session asked for."""
        self._is_fetching = False
        if self._is_over:
            return
        outcome = fetched.outcome
        if isinstance(outcome, S2Refused):
            self.lost(outcome)
            return
        if isinstance(outcome, FoundRecords):
            # The records are sent from the reply, because the tape may have had no room for them.
            end = outcome.records[-1].seq_num + 1 if outcome.records else self.at
            part = cut(outcome.records, self.at, end, self.wanted)
            if part.records:
                self._send(S2Batch.of(self.at, part, self._latest_tail))
            else:
                self.read.is_complete = part.is_closed or (fetched.is_all and not outcome.records)
        elif fetched.is_fresh:
            # The records before this tail have been removed.
            self.read.found_tail(outcome.tail)
            self._owes_beat = True
        self.pump()

    def _follow(self) -> None:
        """The client is at the tail: follow the stream from now on."""
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
        """The fetch that was asked for has failed."""
        self._is_fetching = False
        self.lost(error)

    # -- heartbeats and deadlines

    def beat(self, *, is_due: bool) -> None:
        """Send a heartbeat if one is owed, or if the client was sent nothing for some time."""
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
        """Begin to wait at the tail, from now on."""
        if self._longest_wait_s is not None and not self._is_over:
            self._context.wheel.unlink(self, self._tick)
            self._tick = self._context.wheel.add(self, self._longest_wait_s)

    def due(self) -> None:
        """The longest wait has passed without a record."""
        self._tick = NEVER
        topic = self.topic
        if self._is_midway or (topic is not None and self.at < topic.position):
            # The client has not read the records that have arrived in the meantime.
            self._wait()
        elif topic is not None and topic.tail is None:
            # Whether records have arrived is not known until the origin answers again or is given up.
            self._tick = self._context.wheel.add(self, LOOK_S)
        else:
            self._finish(CloseReason.TIMED_OUT)

    # -- the end

    def lost(self, error: S2Refused) -> None:
        """The session cannot go on: end it with this error, even if the connection is full."""
        if self._is_over:
            return
        if self._is_midway:
            if error is DRAINING:
                self._ends_by = error
            else:
                # A whole frame or event cannot follow half of one.
                self._end(CloseReason.FAILED, in_order=False)
            return
        if self.is_sse:
            self._write(sse.encode_event(sse.Failure(error.body), self._form.format_))
        else:
            self._write(encode_terminal(error.status, error.body))
        self._end(CloseReason.DRAINED if error is DRAINING else CloseReason.FAILED, in_order=True)

    def _finish(self, reason: CloseReason) -> None:
        """The session is complete."""
        if self._is_over:
            return
        if self.is_sse:
            self._write(sse.encode_event(sse.Done(), self._form.format_))
        self._end(reason, in_order=True)

    def holdings(self) -> tuple[Holding, ...]:
        """The bytes that the session keeps in memory for its client, except for written ones."""
        large = self._large
        return (Holding(large.shared, len(large.data)),) if large is not None else NOTHING

    def client_left(self, _: object) -> None:
        """The client has disconnected."""
        if not self._is_over:
            self._end(CloseReason.LEFT, in_order=False)

    def gone(self) -> None:
        """Drop the session after an error here."""
        self.client_left(None)

    def _end(self, reason: CloseReason, *, in_order: bool) -> None:
        self._is_over = True
        self._context.wheel.unlink(self, self._tick)
        self._context.session_ended(self)
        self._wire.over(reason, in_order=in_order)
