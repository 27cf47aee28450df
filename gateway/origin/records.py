"""The bytes stored by one append, and the pieces of them that reads return.

A record is immutable.  A byte record may be cut anywhere.  A JSON record holds messages joined by commas, and may be
cut only after a message (`cuts`), because a reply always holds whole messages.

In the stream a record takes up a frame followed by its payload.  Its positions are its start and, after the frame,
every point where it may be cut.  The position after `k` payload bytes is `lead + k` after the start.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from gateway.origin.positions import FRAME_BYTES, Position


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one record, as returned by a read; for JSON, messages joined by commas."""

    payload: bytes
    end: Position


@dataclass(frozen=True, slots=True)
class Record:
    """One append: its positions, its bytes, and for JSON the end of each message."""

    start: Position
    end: Position
    payload: bytes
    cuts: tuple[int, ...] = ()
    lead: int = FRAME_BYTES
    """The distance from `start` to the payload: a frame, or less if the bytes before have been trimmed."""

    @classmethod
    def of_bytes(cls, start: Position, payload: bytes) -> Record:
        """Return a record of raw bytes that begins at `start`."""
        return cls(start, Position(start.ordinal + 1, start.at + len(payload) + FRAME_BYTES), payload)

    @classmethod
    def of_messages(cls, start: Position, messages: list[bytes]) -> Record:
        """Return a record of JSON messages that begins at `start`."""
        cuts: list[int] = []
        at = -1
        for message in messages:
            at += 1 + len(message)
            cuts.append(at)
        payload = b",".join(messages)
        return cls(start, Position(start.ordinal + 1, start.at + len(payload) + FRAME_BYTES), payload, tuple(cuts))

    def skip_to(self, position: Position) -> int | None:
        """Return the number of payload bytes before `position`; None if it is not a position of this record."""
        if position == self.start:
            return 0
        skip = self._payload_before(position)
        if not 0 < skip < len(self.payload):
            return None
        return skip if not self.cuts or self._last_cut(skip) == skip else None

    def nearest(self, position: Position) -> Position:
        """Return the last position of this record up to `position`; the start if that is not in the payload."""
        skip = self._payload_before(position)
        if not 0 < skip < len(self.payload):
            return self.start
        if self.cuts:
            skip = self._last_cut(skip)
        return self._position_after(skip) if skip else self.start

    def rest(self, skip: int) -> Piece:
        """Return everything after the first `skip` payload bytes."""
        return Piece(self._from(skip), self.end)

    def cut(self, skip: int, limit: int, *, is_text: bool) -> Piece:
        """Return at most `limit` bytes after the first `skip`, but at least one message, byte or character."""
        if len(self.payload) - skip <= limit:
            return self.rest(skip)
        if self.cuts:
            last_fit = self.cuts[max(bisect_right(self.cuts, skip + limit) - 1, 0)]
            end = last_fit if last_fit > skip else self.cuts[bisect_right(self.cuts, skip)]
        else:
            end = skip + max(limit, 1)
            if is_text and end < len(self.payload):
                end = self._character_boundary(skip, end)
        if end >= len(self.payload):
            return self.rest(skip)
        return Piece(self._from(skip, end), self._position_after(end))

    def before(self, position: Position) -> Record:
        """Return the part of this record before a position inside it, as a new record."""
        skip = self._payload_before(position)
        cuts = tuple(cut for cut in self.cuts if cut <= skip)
        return Record(self.start, position, self.payload[:skip], cuts, self.lead)

    def after(self, position: Position) -> Record:
        """Return the part of this record after a position inside it, as a new record with the same later positions."""
        skip = self._payload_before(position)
        comma = 1 if self.cuts and skip else 0
        cuts = tuple(cut - skip - comma for cut in self.cuts if cut > skip)
        return Record(position, self.end, self._from(skip), cuts, comma)

    def messages(self, skip: int = 0) -> list[bytes]:
        """Return the JSON messages after the first `skip` payload bytes; empty for a byte record."""
        begin = skip + 1 if skip else 0
        found: list[bytes] = []
        for cut in self.cuts:
            if cut > skip:
                found.append(self.payload[begin:cut])
                begin = cut + 1
        return found

    def _position_after(self, skip: int) -> Position:
        """Return the position after the first `skip` payload bytes, at least one."""
        return Position(self.start.ordinal, self.start.at + self.lead + skip)

    def _payload_before(self, position: Position) -> int:
        """Return the number of payload bytes before `position`; out of range if it is not in the payload."""
        return position.at - self.start.at - self.lead if position.ordinal == self.start.ordinal else -1

    def _last_cut(self, skip: int) -> int:
        """Return the last cut within the first `skip` bytes; 0 if there is none."""
        before = bisect_right(self.cuts, skip)
        return self.cuts[before - 1] if before else 0

    def _from(self, skip: int, end: int | None = None) -> bytes:
        begin = skip + 1 if skip and self.cuts else skip
        return self.payload[begin:end]

    def _character_boundary(self, skip: int, end: int) -> int:
        # SSE cannot carry a partial UTF-8 sequence (section 5.8).  Go back at most three bytes, or else forward to the
        # end of the character.  Bytes that are not UTF-8 are cut at the limit.
        back = range(end, max(end - 4, skip), -1)
        onward = range(end + 1, min(skip + 5, len(self.payload)))
        boundary: int
        for boundary in (*back, *onward):
            if self.payload[boundary] & 0xC0 != 0x80:
                return boundary
        return len(self.payload) if len(self.payload) <= skip + 4 else end
