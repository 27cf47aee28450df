"""Records on their way to readers, encoded once for all readers of one format."""

from __future__ import annotations

from gateway.live.reader import chunk
from gateway.s2 import protobuf
from gateway.s2.json_format import Format, encode_read_batch
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.s2.session import Compression, encode_message
from gateway.tape.records import Part


class Batch:
    """Records from `start` to `end`, and the tail if they reach it."""

    __slots__ = ("_chunks", "_jsons", "_rests", "batch", "end", "size", "start")

    def __init__(
        self, start: int, end: int, records: tuple[Record, ...], size: int, tail: StreamPosition | None = None
    ) -> None:
        self.start = start
        self.end = end
        self.size = size
        """Metered bytes."""
        self.batch = ReadBatch(records, tail)
        self._jsons: dict[Format, bytes] = {}
        self._rests: dict[Format, tuple[bytes, int]] = {}
        self._chunks: dict[Compression, tuple[bytes, int]] = {}

    def __repr__(self) -> str:
        return f"<Batch {self.start} to {self.end}>"

    @staticmethod
    def of(start: int, part: Part, tail: StreamPosition | None) -> Batch:
        """The batch of a part of the tape.  A tail beyond its end is left out: a client resumes from what it reads
        here, and would miss the records between."""
        return Batch(
            start, part.end, part.records, part.size, tail if tail is not None and tail.seq_num == part.end else None
        )

    def json(self, format_: Format) -> bytes:
        """The batch as JSON."""
        found = self._jsons.get(format_)
        if found is None:
            found = self._jsons[format_] = encode_read_batch(self.batch, format_)
        return found

    def rest_of_event(self, format_: Format) -> tuple[bytes, int]:
        """What follows `data: ` in the batch's event: framed as a chunk, and its size without that.

        It is the same for all readers, so that a large batch is in memory once, however many have yet to receive it.
        """
        found = self._rests.get(format_)
        if found is None:
            rest = self.json(format_) + b"\n\n"
            found = self._rests[format_] = chunk(rest), len(rest)
        return found

    def chunk(self, compression: Compression) -> tuple[bytes, int]:
        """The batch as one frame of a session: framed as a chunk (RFC 9112 section 7.1), and its size without that."""
        found = self._chunks.get(compression)
        if found is None:
            frame = encode_message(protobuf.encode_read_batch(self.batch), compression)
            found = self._chunks[compression] = chunk(frame), len(frame)
        return found
