"""The course of one read: the next batch, whether the read waits, and when it is over.

A unary read takes one batch, an SSE read and a read session take all.  A `Reading` decides synchronously and changes
only itself.  The caller sends, waits and watches the time.  A read passes through these states:

    starting  the start is resolved by the present tail; a start beyond the tail is refused, or moved to the tail with
              `clamp`; a start at the tail is refused unless the read may wait there
    catching  each batch is as large as allowed
    live      all records have been sent, and a heartbeat has stated the tail
    over      a limit is reached, or the read is at the tail and may not wait

A batch that reaches the tail includes the tail.  A read may wait at the tail if it has neither limits nor `until`, or
if `wait` is above 0.  With a `wait` of 0 it is over at the tail.  A read that starts before the tail is not refused,
even if all records in between have been removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from gateway.origin.s2.refusals import Refused, Unwritten
from gateway.origin.s2.stream import Stream
from gateway.s2.errors import S2ErrorCode
from gateway.s2.read_query import FromSeqNum, FromTailOffset, FromTimestamp, ReadQuery
from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS, ReadBatch, Record, metered_bytes


class Pause(Enum):
    """The reason why there is no batch."""

    WAITING = "waiting"
    """The read is at the tail, and may wait for a record."""
    OVER = "over"


class Reading:
    """One read of one stream."""

    def __init__(self, stream: Stream, query: ReadQuery) -> None:
        """Raises Unwritten if the read can return nothing."""
        self.wait_s = query.wait_s
        """How long to wait at the tail for a record, in seconds; None without a limit."""
        self._stream = stream
        self._count = query.count
        self._bytes = query.bytes
        self._until = query.until
        self._may_wait = not query.is_bounded or bool(query.wait_s)
        self._is_live = False
        self._kept: list[Record] = []
        """Records that were appended while the read was at the tail, and may have been removed from the stream
        since."""
        self._next = self._start(query)

    def _start(self, query: ReadQuery) -> int:
        stream, tail = self._stream, self._stream.tail
        match query.start:
            case FromSeqNum(seq_num):
                found, is_beyond = seq_num, seq_num > tail.seq_num
            case FromTimestamp(timestamp):
                found, is_beyond = stream.seq_num_at(timestamp), timestamp > tail.timestamp
            case FromTailOffset(tail_offset):
                found, is_beyond = max(0, tail.seq_num - tail_offset), False
        if is_beyond and not query.is_clamped:
            raise Unwritten(tail)
        if found >= tail.seq_num and not self._may_wait:
            raise Unwritten(tail)
        return min(max(found, stream.first_seq_num), tail.seq_num)

    def advance(self) -> ReadBatch | Pause:
        """Return the next batch, or the reason why there is none now.  Raises Refused (503) if the stream was
        deleted."""
        stream = self._stream
        if stream.is_deleted:
            # When the client tries again, it learns that the stream does not exist.
            raise Refused(S2ErrorCode.UNAVAILABLE, "the stream is gone")
        if self._count == 0 or self._bytes == 0:
            return Pause.OVER
        if not self._kept:
            # Retention may have removed records that were not read yet.
            self._next = max(self._next, stream.first_seq_num)
        if self._next < stream.tail.seq_num:
            records = self._take()
            if not records:
                return Pause.OVER
            is_at_tail = self._next == stream.tail.seq_num
            self._is_live = self._is_live and (is_at_tail or bool(self._kept))
            return ReadBatch(tuple(records), stream.tail if is_at_tail else None)
        if not self._may_wait or self.wait_s == 0:
            return Pause.OVER
        if not self._is_live:
            self._is_live = True
            stream.followers.add(self)
            return ReadBatch((), stream.tail)
        return Pause.WAITING

    @property
    def expects(self) -> int:
        """The sequence number of the next record to keep."""
        return self._kept[-1].seq_num + 1 if self._kept else self._next

    def keep(self, records: Iterable[Record]) -> None:
        """Keep these records, which the stream is about to remove, if the read is live."""
        if self._is_live:
            self._kept += records

    def heartbeat(self) -> ReadBatch:
        """Return the heartbeat of a waiting read: the tail, up to which all records have been sent."""
        return ReadBatch((), self._stream.tail)

    def _take(self) -> list[Record]:
        records: list[Record] = []
        size = 0
        for record in self._kept or self._stream.records_from(self._next):
            record_bytes = metered_bytes(record)
            if not self._allows(record, len(records) + 1, size + record_bytes):
                break
            if len(records) == MAX_BATCH_RECORDS or (records and size + record_bytes > MAX_BATCH_METERED_BYTES):
                break
            records.append(record)
            size += record_bytes
        if records:
            self._next = records[-1].seq_num + 1
            del self._kept[: len(records)]
            if self._count is not None:
                self._count -= len(records)
            if self._bytes is not None:
                self._bytes -= size
        return records

    def _allows(self, record: Record, count: int, size: int) -> bool:
        """Return whether the limits allow this record as the last of `count` records with `size` metered bytes."""
        return (
            (self._until is None or record.timestamp < self._until)
            and (self._count is None or count <= self._count)
            and (self._bytes is None or size <= self._bytes)
        )
