"""What was last seen of each stream, by which a stream that took its place is recognised.

An S2 stream that is deleted and created again counts from 0, and S2 has no name for the one life or the other.  What
tells them apart is the timestamp of a record: a number that had another one before belongs to another stream, and so
does a tail that lies before a record that was seen, or an append that got such a number.  Each stream found in this way
is another *incarnation*; entity tags name it, and the engine drops what it holds of the one before.

A reply is compared with what was known when it was asked for, because replies overtake each other.  A reply that says
nothing of a record that was seen proves nothing.  It is believed for `VERIFIED_S` after the last proof; then the
furthest record that was seen is asked for again (`is_due`).

The table is bounded.  A stream that falls out of it is taken for the same when it is seen again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.bridge.page import is_close
from gateway.s2.records import AppendAck, Record, StreamPosition

MOST_SIGHTINGS: Final = 65_536
"""Streams in the table; the one that was used least recently falls out."""

VERIFIED_S: Final = 10.0
"""How long after it was recognised a stream is taken for the same without a question, in seconds."""


@dataclass(frozen=True, slots=True)
class Known:
    """What was known of a stream when a request was sent."""

    incarnation: int
    position: StreamPosition | None
    """The furthest position seen: the number after a record, and the timestamp of that record."""


class Sighting:
    """One stream."""

    __slots__ = ("_incarnation", "_position", "_read_to", "_verified_at", "closed_at")

    def __init__(self) -> None:
        self._incarnation = 0
        self._position: StreamPosition | None = None
        self._verified_at = 0.0
        self._read_to: StreamPosition | None = None
        """The furthest position whose record before it was read, and not only named as a tail."""
        self.closed_at: int | None = None
        """The sequence number of the mark of the close, once it was seen."""

    def __repr__(self) -> str:
        return f"<Sighting {self.identity} at {self._position}>"

    @property
    def identity(self) -> str:
        """The incarnation's name in entity tags."""
        return f"s2-{self._incarnation}"

    def known(self) -> Known:
        """What is known now, to compare the reply with to a request that is about to be sent."""
        return Known(self._incarnation, self._position)

    def is_due(self, now: float) -> bool:
        """Whether the stream should be recognised before what follows the known position is believed."""
        position = self._position
        return position is not None and position.seq_num > 0 and now - self._verified_at > VERIFIED_S

    def has_read_to(self, tail: StreamPosition) -> bool:
        """Whether the last record before this tail, which may be the mark of the close, has been seen."""
        return tail.seq_num == 0 or tail == self._read_to

    def saw_tail(self, known: Known, tail: StreamPosition, now: float) -> None:
        """A reply has named the tail."""
        position, is_other, is_proof = known.position, False, False
        if position is not None:
            is_other = tail.seq_num < position.seq_num
            if tail.seq_num == position.seq_num:
                is_proof = tail == position
                is_other = not is_proof
        self._saw(known, tail, now, is_other=is_other, is_proof=is_proof)

    def saw_records(self, known: Known, records: Sequence[Record], now: float, *, is_proof: bool = False) -> None:
        """A reply has brought these consecutive records, of which there is at least one.  `is_proof` means that they
        follow others of the same stream."""
        last = records[-1]
        is_other = False
        if (position := known.position) is not None:
            index = position.seq_num - 1 - records[0].seq_num
            if index >= len(records):
                # All of them lie before it: timestamps never decrease.
                is_other = last.timestamp > position.timestamp
            elif index >= 0:
                is_proof = records[index].timestamp == position.timestamp
                is_other = not is_proof
            else:
                is_other = records[0].timestamp < position.timestamp
        end = StreamPosition(last.seq_num + 1, last.timestamp)
        self._saw(known, end, now, is_other=is_other, is_proof=is_proof)
        if known.incarnation == self._incarnation or is_other:
            if self._read_to is None or end.seq_num >= self._read_to.seq_num:
                self._read_to = end
            mark = next((record.seq_num for record in records if is_close(record)), None)
            if mark is not None:
                # S2 writers may fence twice with the token: the first mark ends the stream.
                self.closed_at = mark if self.closed_at is None else min(mark, self.closed_at)

    def saw_append(self, known: Known, ack: AppendAck, now: float) -> None:
        """Records were appended: in the same stream, behind all that was seen before they were sent."""
        if known.position is not None and ack.start.seq_num < known.position.seq_num:
            self._saw(known, ack.end, now, is_other=True, is_proof=False)

    def cannot_tell(self, now: float) -> None:
        """The record that was asked for again has been trimmed: take the stream for the same."""
        self._verified_at = now

    def gone(self, known: Known) -> None:
        """The origin has no such stream, or has begun a new one."""
        if known.incarnation == self._incarnation and self._position is not None:
            self._begin_another()

    def _saw(self, known: Known, position: StreamPosition, now: float, *, is_other: bool, is_proof: bool) -> None:
        if known.incarnation != self._incarnation:
            # It was asked for before the stream took the other's place: it may be of either.
            return
        if is_other:
            self._begin_another()
        if is_proof or self._position is None:
            self._verified_at = now
        elif self.is_due(now):
            return
        if self._position is None or position.seq_num >= self._position.seq_num:
            self._position = position

    def _begin_another(self) -> None:
        self._incarnation += 1
        self._position = self._read_to = self.closed_at = None


class Sightings:
    """The streams that were seen, by an opaque key.  Owner of the table."""

    def __init__(self, most: int = MOST_SIGHTINGS) -> None:
        self._most = most
        self._table: OrderedDict[object, Sighting] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Sightings of {len(self._table)} streams>"

    def of(self, key: object) -> Sighting:
        """The stream of this key."""
        found = self._table.get(key)
        if found is not None:
            self._table.move_to_end(key)
            return found
        found = self._table[key] = Sighting()
        if len(self._table) > self._most:
            self._table.popitem(last=False)
        return found
