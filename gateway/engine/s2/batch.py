"""Records on their way to readers, encoded once for all readers of one format.

The event id of server-sent events counts what its response has delivered.  So an event is shared by the readers that
have been sent as much, which readers that have joined between the same two batches have.
"""

from __future__ import annotations

from typing import Final

from gateway.limits.shared_bytes import SharedBytes
from gateway.live.reader import chunk
from gateway.s2 import protobuf
from gateway.s2.json_format import Format, encode_read_batch
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.s2.session import Compression, encode_message
from gateway.tape.records import Part

_SHARED_BYTES: Final = 1 << 16
"""Records of this size are written as they are for all readers: in JSON not as a part of each reader's event, and
without copies that frame them as chunks."""


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
        """The event that was asked for last."""
        self._event_of: tuple[int, int, Format] | None = None

    def __repr__(self) -> str:
        return f"<S2Batch {self.start} to {self.end}>"

    @staticmethod
    def of(start: int, part: Part, tail: StreamPosition | None) -> S2Batch:
        """The batch of a part of the tape.  A tail beyond its end is left out: a client resumes from what it reads
        here, and would miss the records between."""
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
        """Whether readers are sent the rest of the event as it is for all of them, and its head by itself."""
        return len(self.json(format_)) >= _SHARED_BYTES

    def head_of_event(self, count: int, size: int) -> bytes:
        """The beginning of the event of a response that has delivered so many records and metered bytes with it."""
        return b"event: batch\nid: %d,%d,%d\ndata: " % (self.batch.records[-1].seq_num, count, size)

    def rest_of_event(self, format_: Format) -> S2LargePiece:
        """The rest of the batch's event, behind `data: `.

        It is the same for all readers, so that a large batch is in memory once, however many have yet to receive it.
        """
        found = self._rests.get(format_)
        if found is None:
            found = self._rests[format_] = S2LargePiece(self.json(format_) + b"\n\n")
        return found

    def frame(self, compression: Compression) -> S2LargePiece | None:
        """The batch as one frame of a session if that is large; None if it is to be sent as a `chunk`."""
        found = self._frames[compression]
        if found is None:
            frame = encode_message(protobuf.encode_read_batch(self.batch), compression)
            found = self._frames[compression] = S2LargePiece(frame) if len(frame) >= _SHARED_BYTES else frame
        return found if isinstance(found, S2LargePiece) else None

    def chunk(self, compression: Compression) -> tuple[bytes, int]:
        """A small batch as one frame of a session: framed as a chunk (RFC 9112 section 7.1), and its size without
        that."""
        found = self._chunks[compression]
        if found is None:
            assert self.frame(compression) is None, "a large one is sent in parts"
            frame = self._frames[compression]
            assert isinstance(frame, bytes)
            found = self._chunks[compression] = chunk(frame), len(frame)
        return found

    def event(self, count: int, size: int, format_: Format) -> tuple[bytes, int]:
        """The batch as an event of a response that has delivered so many records and metered bytes with it: as a chunk,
        and its size without that."""
        of = count, size, format_
        if self._event_of != of:
            data = b"%b%b\n\n" % (self.head_of_event(count, size), self.json(format_))
            self._event, self._event_of = (chunk(data), len(data)), of
        return self._event
