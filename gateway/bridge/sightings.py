"""What was last seen of each stream, by which a stream that took its place is recognised.

An S2 stream that is deleted and created again counts from 0, and S2 has no name for the one life or the other.  What
tells them apart is the timestamp of a record: a number that had another one before belongs to another stream, and so
does a tail that lies before a record that was seen.  Each stream found in this way is another *incarnation*; entity
tags name it, and the engine drops what it holds of the one before.

A reply is compared with what was known when it was asked for, because replies overtake each other.  Records appended
after a tail that was seen have no timestamp to compare, so a read from there asks for the record before as well, unless
the stream was recognised a moment ago.

The table is bounded.  A stream that falls out of it is taken for the same when it is seen again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.bridge.page import is_close
from gateway.s2.records import Record, StreamPosition

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

    __slots__ = ("_incarnation", "_position", "_seen", "_verified_at", "closed_at")

    def __init__(self) -> None:
        self._incarnation = 0
        self._seen: StreamPosition | None = None
        """The furthest position whose record before it was read, and not only named as a tail."""
        self.closed_at: int | None = None
        """The sequence number of the mark of the close, once it was seen."""
        self._position: StreamPosition | None = None
        self._verified_at = 0.0

    def __repr__(self) -> str:
        return f"<Sighting {self.identity} at {self._position}>"

    @property
    def identity(self) -> str:
        """The incarnation's name in entity tags."""
        return f"s2-{self._incarnation}"

    def known(self) -> Known:
        """What is known now, to compare the reply with to a request that is about to be sent."""
        return Known(self._incarnation, self._position)

    def needs_overlap(self, seq_num: int, now: float) -> bool:
        """Whether a read from `seq_num` should ask for the record before it as well."""
        position = self._position
        return position is not None and 0 < seq_num == position.seq_num and now - self._verified_at > VERIFIED_S

    def has_read_to(self, tail: StreamPosition) -> bool:
        """Whether every record before this tail that can be the mark of the close has been seen."""
        return tail.seq_num == 0 or tail == self._seen

    def saw_tail(self, known: Known, tail: StreamPosition, now: float) -> None:
        """A reply has named the tail."""
        position = known.position
        is_other = position is not None and (
            tail.seq_num < position.seq_num
            or (tail.seq_num == position.seq_num and tail.timestamp != position.timestamp)
        )
        self._saw(known, tail, now, is_other=is_other)

    def saw_records(self, known: Known, records: Sequence[Record], now: float) -> None:
        """A reply has brought these consecutive records, of which there is at least one."""
        last = records[-1]
        is_other = False
        if (position := known.position) is not None:
            index = position.seq_num - 1 - records[0].seq_num
            if index >= len(records):
                # All of them lie before it: timestamps never decrease.
                is_other = last.timestamp > position.timestamp
            elif index >= 0:
                is_other = records[index].timestamp != position.timestamp
            else:
                is_other = records[0].timestamp < position.timestamp
        position = StreamPosition(last.seq_num + 1, last.timestamp)
        self._saw(known, position, now, is_other=is_other)
        if self._position == position:
            self._seen = position
            self.closed_at = next((record.seq_num for record in records if is_close(record)), self.closed_at)

    def _saw(self, known: Known, position: StreamPosition, now: float, *, is_other: bool) -> None:
        if known.incarnation != self._incarnation:
            # It was asked for before the stream took the other's place: it may be of either.
            return
        if is_other:
            self._begin_another()
        if is_other or self._position is None or position.seq_num >= self._position.seq_num:
            self._position = position
            self._verified_at = now

    def _begin_another(self) -> None:
        self._incarnation += 1
        self._position = self._seen = self.closed_at = None

    def gone(self, known: Known) -> None:
        """The origin has said that there is no such stream."""
        if known.incarnation == self._incarnation and self._position is not None:
            self._begin_another()


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
