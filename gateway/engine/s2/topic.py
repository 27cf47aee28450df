"""The live readers of one S2 stream, and the records that the stream's one session at the origin brings them.

A topic is at a *position*: the sequence number that the session brings next.  All records before it have been stored.
So a reader that is behind goes on from the tape, and a reader whose connection is full simply stays behind.  `tail` is
known once the session has stated that its position is the stream's tail.

Records that arrive in one turn of the event loop are one batch for the readers: encoded once for each form, and sent by
one write to each connection.

The topic ends in one of two ways, both final: `lost`, with the error that all readers are given, or without readers.

Records are encoded once for all readers of one format.  The id of a server-sent event counts the records and bytes that
its response has delivered.  So an event is shared only by readers that have received equally much, such as readers that
have joined between the same two batches.
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
from gateway.tape.records import Part
from gateway.tape.stream import Stream
from gateway.upstream.s2_client import S2Refused, ended_with


def refusal(code: S2ErrorCode, message: str) -> S2Refused:
    """An error of the gateway's own in S2's form."""
    return ended_with(code.status, error_body(code, message))


LOST: Final = refusal(S2ErrorCode.UNAVAILABLE, "the origin cannot be reached")
REFUSED: Final = refusal(S2ErrorCode.UNAVAILABLE, "the origin has refused to go on")
REPLACED: Final = refusal(S2ErrorCode.UNAVAILABLE, "the stream has been deleted or created again")


_SHARED_BYTES: Final = 1 << 16
"""A batch of this size is written from one copy that all readers share.  In JSON it is not copied into each reader's
event, and it is not copied to be framed as a chunk."""


class S2LargePiece:
    """Encoded records that sessions are sent in parts, as they take them."""

    __slots__ = ("data", "shared")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.shared = SharedBytes(len(data))
        """The account of the data, for the sessions that receive it."""

    def __repr__(self) -> str:
        return f"<S2LargePiece {len(self.data)} bytes>"


class S2Batch:
    """Records from `start` to `end`, and the tail if they reach it."""

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
        """Metered bytes."""
        self.batch = ReadBatch(records, tail)
        self._jsons: dict[Format, bytes] = {}
        self._rests: dict[Format, S2LargePiece] = {}
        self._frames: list[bytes | S2LargePiece | None] = [None] * len(Compression)
        self._chunks: list[tuple[bytes, int] | None] = [None] * len(Compression)
        self._event: tuple[bytes, int] = b"", 0
        """The latest event that was rendered."""
        self._event_of: tuple[int, int, Format] | None = None

    def __repr__(self) -> str:
        return f"<S2Batch {self.start} to {self.end}>"

    @staticmethod
    def of(start: int, part: Part, tail: StreamPosition | None) -> S2Batch:
        """The batch of a part of the tape.  A tail beyond the end of the part is left out, because a client resumes
        from the stated tail and would miss the records between."""
        return S2Batch(
            start, part.end, part.records, part.size, tail if tail is not None and tail.seq_num == part.end else None
        )

    def json(self, format_: Format) -> bytes:
        """The batch as JSON."""
        found = self._jsons.get(format_)
        if found is None:
            found = self._jsons[format_] = encode_read_batch(self.batch, format_)
        return found

    def is_large(self, format_: Format) -> bool:
        """Whether each reader is sent its own head of the event, and then the rest, which all readers share."""
        return len(self.json(format_)) >= _SHARED_BYTES

    def head_of_event(self, count: int, size: int) -> bytes:
        """The beginning of the event.  `count` and `size` are the records and metered bytes that the response has
        delivered, this event included."""
        return b"event: batch\nid: %d,%d,%d\ndata: " % (self.batch.records[-1].seq_num, count, size)

    def rest_of_event(self, format_: Format) -> S2LargePiece:
        """The rest of the batch's event, behind `data: `.

        It is the same for all readers, so that a large batch is in memory once, for any number of them.
        """
        found = self._rests.get(format_)
        if found is None:
            found = self._rests[format_] = S2LargePiece(self.json(format_) + b"\n\n")
        return found

    def frame(self, compression: Compression) -> S2LargePiece | None:
        """The batch as one frame of a session, if that is large; None if the batch is to be sent as a `chunk`."""
        found = self._frames[compression]
        if found is None:
            frame = encode_message(protobuf.encode_read_batch(self.batch), compression)
            found = self._frames[compression] = S2LargePiece(frame) if len(frame) >= _SHARED_BYTES else frame
        return found if isinstance(found, S2LargePiece) else None

    def chunk(self, compression: Compression) -> tuple[bytes, int]:
        """A small batch as one frame of a session, framed as a chunk (RFC 9112 section 7.1); and its size without the
        framing."""
        found = self._chunks[compression]
        if found is None:
            assert self.frame(compression) is None, "a large one is sent in parts"
            frame = self._frames[compression]
            assert isinstance(frame, bytes)
            found = self._chunks[compression] = chunk(frame), len(frame)
        return found

    def event(self, count: int, size: int, format_: Format) -> tuple[bytes, int]:
        """The batch as an event, framed as a chunk; and its size without the framing.  `count` and `size` are as in
        `head_of_event`."""
        of = count, size, format_
        if self._event_of != of:
            data = b"%b%b\n\n" % (self.head_of_event(count, size), self.json(format_))
            self._event, self._event_of = (chunk(data), len(data)), of
        return self._event


_MERGED_BYTES: Final = 1 << 18
"""The most metered bytes of a batch that is merged from several.  S2 allows more, but if records consist almost only of
headers, their encoding takes twice their metered size, and the size of a frame is bounded."""


class S2LiveReader(Protocol):
    """A session with a client that follows the stream."""

    def deliver(self, batch: S2Batch) -> None:
        """Send records that have just arrived."""

    def beat(self, *, is_due: bool) -> None:
        """Send a heartbeat.  If `is_due`, send it unless other bytes were sent lately; otherwise only if the first one
        has not been sent."""

    def lost(self, error: S2Refused) -> None:
        """End the session with this error, because no more records will come."""

    def gone(self) -> None:
        """Drop the session after an error here."""


class S2Topic:
    """The live state of one stream.  Owner: `S2Streams`; the session's task moves it.

    `soon` calls a function at the end of the event loop's turn.  `on_beat` is called at each beat.
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
        """The timestamp of the record before the position."""
        self.tail: StreamPosition | None = tail
        """The stream's tail; None if there may be records after the position."""
        self.heard_at = -inf
        """When the session last stated the tail (monotonic seconds)."""
        self.readers_now: dict[S2LiveReader, None] = {}
        """The sessions; other readers wait for `changed`."""
        self.readers = 0
        """Readers of all kinds, waiting unary reads included."""
        self.changed = Signal()
        """Fires when records have come, and at the end."""
        self.error: S2Refused | None = None
        """Why no more records will come."""
        self._come: list[Record] = []
        """Records that have come in this turn of the loop, for the readers."""
        self._come_from = 0
        """The position before these records."""
        self._come_size = 0
        """Their metered bytes."""

    def __repr__(self) -> str:
        state = "lost" if self.error is not None else "at the tail" if self.tail is not None else "catching up"
        return f"<S2Topic at {self.position}, {state}, {len(self.readers_now)} readers>"

    def join(self, reader: S2LiveReader) -> None:
        """Add a reader, which is sent all records from now on."""
        self.readers_now[reader] = None

    def detach(self, reader: S2LiveReader) -> None:
        """Remove a reader."""
        self.readers_now.pop(reader, None)

    def publish(self, records: Sequence[Record], tail: StreamPosition | None, now: float) -> None:
        """Publish stored records that follow the position; `tail` is the origin's statement with them."""
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
        self._each(tuple(self.readers_now), lambda reader: reader.deliver(batch))

    def _each(self, readers: Iterable[S2LiveReader], call: Callable[[S2LiveReader], object]) -> None:
        for reader in readers:
            try:
                call(reader)
            except Exception:
                drop_failed(reader)

    def heard(self, tail: StreamPosition, now: float) -> None:
        """Record a statement of the tail that came without records."""
        if tail.seq_num == self.position:
            self.tail = tail
            self.heard_at = now
            self._each(tuple(self.readers_now), lambda reader: reader.beat(is_due=False))

    def disconnected(self) -> None:
        """The session is interrupted: the tail is not known until it goes on."""
        self.tail = None

    def beat(self) -> None:
        """Send a heartbeat to readers that have received nothing for long.  None is sent while the tail is not known,
        so that clients can tell a lost stream from a quiet one."""
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
