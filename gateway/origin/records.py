"""What one append stored, and the pieces of it that reads return.

A record is immutable.  A byte record may be cut anywhere; a JSON record holds its messages joined by commas and may be
cut only after a message (`cuts`), because a reply is always whole messages.

Its positions are its start and, behind its frame, every place where it may be cut: the place after `k` bytes of payload
is `lead + k` after the start.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from gateway.origin.positions import FRAME_BYTES, Position


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one record as a read returns them; for JSON, messages joined by commas."""

    payload: bytes
    end: Position


@dataclass(frozen=True, slots=True)
class Record:
    """One append: where it lies, its bytes, and for JSON where each of its messages ends."""

    start: Position
    end: Position
    payload: bytes
    cuts: tuple[int, ...] = ()
    lead: int = FRAME_BYTES
    """How far the payload lies behind `start`: a frame, and less where what came before has been trimmed."""

    @classmethod
    def of_bytes(cls, start: Position, payload: bytes) -> Record:
        """A record of raw bytes that begins at `start`."""
        return cls(start, Position(start.ordinal + 1, start.at + len(payload) + FRAME_BYTES), payload)

    @classmethod
    def of_messages(cls, start: Position, messages: list[bytes]) -> Record:
        """A record of JSON messages that begins at `start`."""
        cuts: list[int] = []
        at = -1
        for message in messages:
            at += 1 + len(message)
            cuts.append(at)
        payload = b",".join(messages)
        return cls(start, Position(start.ordinal + 1, start.at + len(payload) + FRAME_BYTES), payload, tuple(cuts))

    def skip_to(self, position: Position) -> int | None:
        """Bytes of the payload that lie before `position`; None when it is no position of this record."""
        if position == self.start:
            return 0
        skip = self._behind(position)
        if not 0 < skip < len(self.payload):
            return None
        return skip if not self.cuts or self._last_cut(skip) == skip else None

    def nearest(self, position: Position) -> Position:
        """The last position of this record that is not after `position`; its start for what is not in its payload."""
        skip = self._behind(position)
        if not 0 < skip < len(self.payload):
            return self.start
        if self.cuts:
            skip = self._last_cut(skip)
        return self._place(skip) if skip else self.start

    def rest(self, skip: int) -> Piece:
        """Everything after the first `skip` payload bytes."""
        return Piece(self._from(skip), self.end)

    def cut(self, skip: int, limit: int, *, is_text: bool) -> Piece:
        """At most `limit` bytes after the first `skip`, but at least one message, byte or character."""
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
        return Piece(self._from(skip, end), self._place(end))

    def before(self, position: Position) -> Record:
        """The part of this record before a place inside it, as a record of its own."""
        skip = self._behind(position)
        cuts = tuple(cut for cut in self.cuts if cut <= skip)
        return Record(self.start, position, self.payload[:skip], cuts, self.lead)

    def after(self, position: Position) -> Record:
        """The part of this record from a place inside it, as a record of its own; its other places stay where they
        are."""
        skip = self._behind(position)
        comma = 1 if self.cuts and skip else 0
        cuts = tuple(cut - skip - comma for cut in self.cuts if cut > skip)
        return Record(position, self.end, self._from(skip), cuts, comma)

    def messages(self, skip: int = 0) -> list[bytes]:
        """The JSON messages after the first `skip` payload bytes; empty for a record of raw bytes."""
        begin = skip + 1 if skip else 0
        found: list[bytes] = []
        for cut in self.cuts:
            if cut > skip:
                found.append(self.payload[begin:cut])
                begin = cut + 1
        return found

    def _place(self, skip: int) -> Position:
        """The position after the first `skip` bytes of payload, at least one."""
        return Position(self.start.ordinal, self.start.at + self.lead + skip)

    def _behind(self, position: Position) -> int:
        """Bytes of the payload before `position`, if it lies in the payload; else a number that no place has."""
        return position.at - self.start.at - self.lead if position.ordinal == self.start.ordinal else -1

    def _last_cut(self, skip: int) -> int:
        """The last cut among the first `skip` bytes; 0 where there is none."""
        before = bisect_right(self.cuts, skip)
        return self.cuts[before - 1] if before else 0

    def _from(self, skip: int, end: int | None = None) -> bytes:
        begin = skip + 1 if skip and self.cuts else skip
        return self.payload[begin:end]

    def _character_boundary(self, skip: int, end: int) -> int:
        # A cut inside a UTF-8 sequence could not be sent as an SSE event (section 5.8): at most three bytes back, else
        # on to the end of the one character.  Bytes that are no UTF-8 at all are cut where the limit says.
        back = range(end, max(end - 4, skip), -1)
        onward = range(end + 1, min(skip + 5, len(self.payload)))
        boundary: int
        for boundary in (*back, *onward):
            if self.payload[boundary] & 0xC0 != 0x80:
                return boundary
        return len(self.payload) if len(self.payload) <= skip + 4 else end
