"""The live readers of one S2 stream, and the encoding of the records that they share.

A topic has a *position*: the sequence number of the record that the stream's session at the origin will bring next.
All records before the position have been stored.  A reader that is behind the position therefore reads from memory.  A
reader whose connection is full falls behind.  The tail is known as long as the session's latest statement shows that
the position is the tail.

Records that arrive in one turn of the event loop form one batch.  A batch is encoded once for each format, and written
to each connection at once.

A topic ends when it has no readers, or when `lost` is called, which ends all readers with an error.  Either end is
final.

The id of a server-sent event counts the records and bytes delivered by its response.  So readers share an event only if
they have received the same numbers of records and bytes, for instance because they joined between the same two batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import Final, Protocol

from gateway.aio.signal import Signal
from gateway.limits.memory import SharedBytes
from gateway.live.frames import chunk, drop_failed
from gateway.s2 import protobuf
from gateway.s2.errors import S2ErrorCode, error_body
from gateway.s2.json_format import Format, encode_read_batch
from gateway.s2.records import MAX_BATCH_RECORDS, ReadBatch, Record, StreamPosition, total_metered_bytes
from gateway.s2.session import Compression, encode_message
from gateway.tape.record_tape import Part
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import S2Refused, ended_with


def refusal(code: S2ErrorCode, message: str) -> S2Refused:
    """Return an error of the gateway in S2's format."""
    return ended_with(code.status, error_body(code, message))


LOST: Final = refusal(S2ErrorCode.UNAVAILABLE, "the origin cannot be reached")
REFUSED: Final = refusal(S2ErrorCode.UNAVAILABLE, "the origin has refused to go on")
REPLACED: Final = refusal(S2ErrorCode.UNAVAILABLE, "the stream has been deleted or created again")


_SHARED_BYTES: Final = 1 << 16
"""A batch of at least this size is not copied for each reader: all readers write from one shared copy."""


class S2LargePiece:
    """Encoded records that are too large for one write.  Sessions send them in parts."""

    __slots__ = ("data", "shared")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.shared = SharedBytes(len(data))
        """The memory account of the data, for the sessions that send it."""

    def __repr__(self) -> str:
        return f"<S2LargePiece {len(self.data)} bytes>"


class S2Batch:
    """Records from `start` to `end`, and the tail if the records reach it."""

    __slots__ = (
        "_chunks",
        "_event",
        "_event_of",
        "_frames",
        "_jsons",
        "_rests",
        "batch",
        "count",
        "end",
        "size",
        "start",
    )

    def __init__(
        self, start: int, end: int, records: tuple[Record, ...], size: int, tail: StreamPosition | None = None
    ) -> None:
        self.start = start
        self.end = end
        self.count = len(records)
        self.size = size
        """The records' metered bytes (S2's measure of size)."""
        self.batch = ReadBatch(records, tail)
        self._jsons: dict[Format, bytes] = {}
        self._rests: dict[Format, S2LargePiece] = {}
        self._frames: list[S2LargePiece | None] = [None] * len(Compression)
        self._chunks: list[tuple[bytes, int] | None] = [None] * len(Compression)
        self._event: tuple[bytes, int] = b"", 0
        """The event rendered last, kept for further readers with the same counts (`_event_of`)."""
        self._event_of: tuple[int, int, Format] | None = None

    def __repr__(self) -> str:
        return f"<S2Batch {self.start} to {self.end}>"

    @staticmethod
    def of(start: int, part: Part, tail: StreamPosition | None) -> S2Batch:
        """Return the batch for a part of the tape (the records in memory).

        A tail beyond the part's end is left out: a client that resumes from it would miss the records in between.
        """
        return S2Batch(
            start, part.end, part.records, part.size, tail if tail is not None and tail.seq_num == part.end else None
        )

    def json(self, format_: Format) -> bytes:
        """Return the batch as JSON."""
        found = self._jsons.get(format_)
        if found is None:
            found = self._jsons[format_] = encode_read_batch(self.batch, format_)
        return found

    def head_of_event(self, count: int, size: int) -> bytes:
        """Return the beginning of the event.

        `count` and `size` are the records and metered bytes that the response has delivered, including this event.
        """
        return b"event: batch\nid: %d,%d,%d\ndata: " % (self.batch.records[-1].seq_num, count, size)

    def rest_of_event(self, format_: Format) -> S2LargePiece:
        """Return the rest of the event, after `data: `.

        This rest is the same for all readers, so a large batch is in memory only once.
        """
        found = self._rests.get(format_)
        if found is None:
            found = self._rests[format_] = S2LargePiece(self.json(format_) + b"\n\n")
        return found

    def frame(self, compression: Compression) -> S2LargePiece:
        """Return the session frame that is too large for `chunk`."""
        large = self._frames[compression]
        assert large is not None, "a small one is sent by `chunk`"
        return large

    def chunk(self, compression: Compression) -> tuple[bytes, int] | None:
        """Return the batch as a session frame in chunked coding (RFC 9112 section 7.1), and the frame's size.  Return
        None if the frame is so large that all readers share it (see `frame`).
        """
        found = self._chunks[compression]
        if found is None and self._frames[compression] is None:
            frame = encode_message(protobuf.encode_read_batch(self.batch), compression)
            if len(frame) >= _SHARED_BYTES:
                self._frames[compression] = S2LargePiece(frame)
            else:
                found = self._chunks[compression] = chunk(frame), len(frame)
        return found

    def event(self, count: int, size: int, format_: Format) -> tuple[bytes, int] | None:
        """Return the batch as an event in chunked coding, and the event's size.  None if the event is so large that
        only its head is made for each reader, and all readers share the rest.

        `count` and `size` are as in `head_of_event`.
        """
        of = count, size, format_
        if self._event_of != of:
            json = self.json(format_)
            if len(json) >= _SHARED_BYTES:
                return None
            data = b"%b%b\n\n" % (self.head_of_event(count, size), json)
            self._event, self._event_of = (chunk(data), len(data)), of
        return self._event


_MERGED_BYTES: Final = 1 << 18
"""The most metered bytes of a batch merged from several.  S2 allows more.  But records that are mostly headers take
twice their metered size when encoded, and the size of a frame is limited."""


class S2LiveReader(Protocol):
    """A client's session that follows the stream."""

    def deliver(self, batch: S2Batch) -> None:
        """Send records that have just arrived."""

    def beat(self, *, is_due: bool) -> None:
        """Send a heartbeat if one is needed.

        `is_due` is true if a beat of the topic has passed.  Otherwise a heartbeat is sent only if the client does not
        know yet that it is at the tail.
        """

    def lost(self, error: S2Refused) -> None:
        """End the session with this error, because no more records will come."""

    def gone(self) -> None:
        """Drop the session after an internal error."""


class S2Topic:
    """The live state of one stream, owned by `S2Streams` and updated by the follower's task.

    `soon` schedules a function for the end of the event loop's turn.  `on_beat` is called at each beat: at regular
    intervals, when heartbeats may be due.
    """

    __slots__ = (
        "_come",
        "_come_from",
        "_come_size",
        "_on_beat",
        "_soon",
        "changed",
        "error",
        "heard_at",
        "last_timestamp",
        "position",
        "readers",
        "readers_now",
        "stream",
        "tail",
    )

    def __init__(
        self,
        stream: Stream,
        tail: StreamPosition,
        soon: Callable[[Callable[[], object]], object],
        on_beat: Callable[[], object] = lambda: None,
    ) -> None:
        self.stream = stream
        self._soon = soon
        self._on_beat = on_beat
        self.position = tail.seq_num
        self.last_timestamp = tail.timestamp
        """The timestamp of the record before the position, for comparison when this record is read again."""
        self.tail: StreamPosition | None = tail
        """The stream's tail; None if there may be records after the position."""
        self.heard_at = -inf
        """When the session last stated the tail (monotonic seconds)."""
        self.readers_now: dict[S2LiveReader, None] = {}
        """The sessions, which get records at once.  Unary reads wait for `changed` instead."""
        self.readers = 0
        """The number of readers, including waiting unary reads."""
        self.changed = Signal()
        """Fires when records arrive, and when the topic ends."""
        self.error: S2Refused | None = None
        """The reason why no more records will come."""
        self._come: list[Record] = []
        """Records that arrived in this turn of the event loop and have not been delivered yet."""
        self._come_from = 0
        """The topic's position before the records in `_come` arrived."""
        self._come_size = 0
        """The metered bytes of the records in `_come`."""

    def __repr__(self) -> str:
        state = "lost" if self.error is not None else "at the tail" if self.tail is not None else "catching up"
        return f"<S2Topic at {self.position}, {state}, {len(self.readers_now)} readers>"

    def join(self, reader: S2LiveReader) -> None:
        """Add a reader, which gets all records from now on."""
        self.readers_now[reader] = None

    def detach(self, reader: S2LiveReader) -> None:
        self.readers_now.pop(reader, None)

    def publish(self, records: Sequence[Record], tail: StreamPosition | None, now: float) -> None:
        """Publish stored records that begin at the position; `tail` is the tail that the origin stated with them."""
        size = total_metered_bytes(records)
        if self._come and (
            self._come_size + size > _MERGED_BYTES or len(self._come) + len(records) > MAX_BATCH_RECORDS
        ):
            self._deliver()
        if not self._come:
            self._come_from = self.position
            self._soon(self._deliver)
        self._come += records
        self._come_size += size
        end = records[-1].seq_num + 1
        self.position, self.last_timestamp = end, records[-1].timestamp
        self.tail = tail if tail is not None and tail.seq_num == end else None
        if self.tail is not None:
            self.heard_at = now
        self.changed.fire()

    def _deliver(self) -> None:
        """Send the readers the records of this turn."""
        if not self._come:
            return
        records, self._come = self._come, []
        size, self._come_size = self._come_size, 0
        batch = S2Batch(self._come_from, self.position, tuple(records), size, self.tail)
        # Do not use `_each`, which would cost each delivery a further call.
        for reader in tuple(self.readers_now):
            try:
                reader.deliver(batch)
            except Exception:
                drop_failed(reader)

    def _each(self, readers: Iterable[S2LiveReader], call: Callable[[S2LiveReader], object]) -> None:
        for reader in readers:
            try:
                call(reader)
            except Exception:
                drop_failed(reader)

    def heard(self, tail: StreamPosition, now: float) -> None:
        """Record a tail that the origin stated without records."""
        if tail.seq_num == self.position:
            self.tail = tail
            self.heard_at = now
            self._each(tuple(self.readers_now), lambda reader: reader.beat(is_due=False))

    def disconnected(self) -> None:
        """Record that the session is interrupted: the tail is unknown until the session continues."""
        self.tail = None

    def beat(self) -> None:
        """Send a heartbeat to readers that have received nothing for a while.

        No heartbeat is sent while the tail is unknown, so that clients can tell a lost stream from a quiet stream.
        """
        if self.tail is not None:
            self._each(tuple(self.readers_now), lambda reader: reader.beat(is_due=True))
        self._on_beat()

    def lost(self, error: S2Refused) -> None:
        """End all readers with this error, because no more records will come."""
        if self.error is None:
            self._deliver()
            self.error = error
            readers, self.readers_now = self.readers_now, {}
            self._each(readers, lambda reader: reader.lost(error))
            self.changed.fire()
