"""Records on their way to readers, encoded once for all readers of one format."""

from __future__ import annotations

from gateway.s2 import protobuf
from gateway.s2.json_format import Format, encode_read_batch
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.s2.session import Compression, encode_message
from gateway.tape.records import Part


class Batch:
    """Records from `start` to `end`, and the tail if they reach it."""

    __slots__ = ("_frames", "_jsons", "batch", "end", "size", "start")

    def __init__(
        self, start: int, end: int, records: tuple[Record, ...], size: int, tail: StreamPosition | None = None
    ) -> None:
        self.start = start
        self.end = end
        self.size = size
        """Metered bytes."""
        self.batch = ReadBatch(records, tail)
        self._jsons: dict[Format, bytes] = {}
        self._frames: dict[Compression, bytes] = {}

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

    def frame(self, compression: Compression) -> bytes:
        """The batch as one frame of a session."""
        found = self._frames.get(compression)
        if found is None:
            found = self._frames[compression] = encode_message(protobuf.encode_read_batch(self.batch), compression)
        return found
