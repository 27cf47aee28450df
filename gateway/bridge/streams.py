"""Bridged streams: the names in URLs, offsets, and detection of re-created streams.

A URL from the engine has the form `route://<route>/<path of the origin>/<basin>/<stream>`.  If the route configures a
basin, the engine has inserted it; if not, the basin comes from the client's path.  The rest of the path is the stream's
name, including slashes.  An escaped slash is refused: it would be a second spelling of the same stream, and writes in
one spelling would not reach readers that use the other spelling.

An offset is the sequence number of the next record, so there is an offset at each record boundary.  Offsets have 20
digits, the width of the largest sequence number, so that they sort like the records.

An S2 stream that is deleted and re-created counts from 0 again, and S2 gives it no new name.  Timestamps distinguish
the earlier stream from the new stream.  Three facts prove a re-creation: a record has another timestamp than before,
the tail is before a known record, or an append got the number of a known record.  Each re-creation starts a new
*incarnation*, which is named in entity tags.  The engine then drops the bytes of the earlier incarnation.

Replies can overtake each other, so each is compared with the state known when its request was sent.  A reply without a
known record proves nothing, because it may belong to a re-created stream.  The last known record is then read again
before the reply is joined with earlier records.  A deleted stream never comes back.  So if the same record was read
before the reply and again after it, then the reply is of that record's stream.

The table of known states is bounded.  A stream that was evicted is not compared with its earlier state.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from gateway.bridge.content import is_close
from gateway.limits.memory import evict_oldest
from gateway.s2.records import MAX_U64, AppendAck, Record, StreamPosition

MOST_NAME_BYTES: Final = 512
"""The longest name of an S2 stream, in bytes."""

_BASIN: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


class BadName(ValueError):
    """The path does not name a stream.  The message is one line for the client."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """The basin and name of an S2 stream."""

    basin: str
    stream: str
    """The stream's name, decoded."""

    @property
    def path(self) -> str:
        """The path of the stream below the origin's base path."""
        return "/v1/streams/" + quote(self.stream, safe="")


def parse_name(path: str) -> StreamName:
    """Parse the path `/<basin>/<stream>`.  Raises `BadName`."""
    basin, slash, rest = path.removeprefix("/").partition("/")
    if not slash or not rest or _BASIN.fullmatch(basin) is None:
        raise BadName("The path must name a basin and a stream")
    if "%2F" in rest.upper():
        raise BadName("A slash in a stream's name must not be escaped")
    try:
        name = unquote_to_bytes(rest)
        if len(name) > MOST_NAME_BYTES:
            raise BadName(f"A stream's name has at most {MOST_NAME_BYTES} bytes")
        return StreamName(basin, name.decode())
    except UnicodeDecodeError:
        raise BadName("A stream's name must be UTF-8") from None


WIDTH: Final = len(str(MAX_U64))


class BadOffset(ValueError):
    """The text is not an offset of a bridged stream."""


def offset_at(seq_num: int) -> str:
    """Return the offset before the record `seq_num`."""
    return f"{seq_num:0{WIDTH}d}"


def parse_offset(text: str) -> int:
    """Return the sequence number of the record after an offset.  Raises `BadOffset`."""
    # Check for ASCII first, because `isdigit` accepts digits of other scripts.
    if len(text) != WIDTH or not text.isascii() or not text.isdigit():
        raise BadOffset(text)
    seq_num = int(text)
    if seq_num > MAX_U64:
        raise BadOffset(text)
    return seq_num


MOST_SIGHTINGS: Final = 65_536
"""The size of the table of known states.  The least recently used state is evicted."""


@dataclass(frozen=True, slots=True)
class KnownSighting:
    """The state of a stream as known when a request was sent."""

    incarnation: int
    position: StreamPosition | None
    """The position after the last record that was read, with that record's timestamp.  If no record was read, the tail
    as stated by the origin."""
    mark: int | None = None
    """A hash of the record before the position; None if no record was read."""

    def is_shown_by(self, records: Sequence[Record]) -> bool:
        """Return whether `records` include the record before the position.

        `records` are consecutive, at least one."""
        return self.position is not None and records[0].seq_num < self.position.seq_num <= records[-1].seq_num + 1


class S2Sighting:
    """The known state of one stream."""

    __slots__ = ("_incarnation", "_mark", "_position", "_read_to", "closed_at", "full_to")

    def __init__(self) -> None:
        self._incarnation = 0
        self._position: StreamPosition | None = None
        self._mark: int | None = None
        self.full_to = 0
        """The end of the latest reply to a read, if this reply had as many records as S2 allows; otherwise 0.  After
        such a reply, more records are likely."""
        self._read_to: StreamPosition | None = None
        """The position after the furthest record that was read.  A tail that the origin states does not count."""
        self.closed_at: int | None = None
        """The sequence number of the close marker (`content.py`), if it was seen."""

    def __repr__(self) -> str:
        return f"<S2Sighting {self.identity} at {self._position}>"

    @property
    def identity(self) -> str:
        """The incarnation's name in entity tags."""
        return f"s2-{self._incarnation}"

    def known(self) -> KnownSighting:
        """Return the present state, for comparison with the reply to a request that is about to be sent."""
        return KnownSighting(self._incarnation, self._position, self._mark)

    def has_read_to(self, tail: StreamPosition) -> bool:
        """Return whether the last record before this tail was read.  That record may be the close marker."""
        return tail.seq_num == 0 or tail == self._read_to

    def saw_tail(self, known: KnownSighting, tail: StreamPosition) -> None:
        """Process a tail stated in a reply."""
        position, is_other = known.position, False
        if position is not None:
            is_other = tail.seq_num < position.seq_num or (tail.seq_num == position.seq_num and tail != position)
        # Records between the last one read and the tail may belong to a re-created stream.
        self._saw(known, tail, None, is_other=is_other, is_known=known.mark is None)

    def saw_records(self, known: KnownSighting, records: Sequence[Record], *, is_proof: bool = False) -> None:
        """Process consecutive records, at least one, from a reply.

        `is_proof` states that the records are known to belong to the same stream.
        """
        last = records[-1]
        is_other = False
        if (position := known.position) is not None:
            index = position.seq_num - 1 - records[0].seq_num
            if index >= len(records):
                # All records are before the known position.  In the same stream, their timestamps cannot be later than
                # the timestamp at that position.
                is_other = last.timestamp > position.timestamp
            elif index >= 0:
                is_other = records[index].timestamp != position.timestamp
                is_other |= known.mark is not None and hash(records[index]) != known.mark
                is_proof = not is_other
            else:
                is_other = records[0].timestamp < position.timestamp
        end = StreamPosition(last.seq_num + 1, last.timestamp)
        self._saw(known, end, hash(last), is_other=is_other, is_known=is_proof)
        if known.incarnation == self._incarnation or is_other:
            if self._read_to is None or end.seq_num >= self._read_to.seq_num:
                self._read_to = end
            mark = next((record.seq_num for record in records if is_close(record)), None)
            if mark is not None:
                # The first marker ends the stream; S2 writers may append another marker.
                self.closed_at = mark if self.closed_at is None else min(mark, self.closed_at)

    def saw_append(self, known: KnownSighting, ack: AppendAck) -> None:
        """Process an acknowledgement: in the same stream, the appended records come after all records that were known
        before."""
        if known.position is not None and ack.start.seq_num < known.position.seq_num:
            self._saw(known, ack.end, None, is_other=True, is_known=False)

    def gone(self, known: KnownSighting) -> None:
        """Process a reply that shows that the stream does not exist or is new."""
        if known.incarnation == self._incarnation and self._position is not None:
            self._begin_another()

    def _saw(
        self, known: KnownSighting, position: StreamPosition, mark: int | None, *, is_other: bool, is_known: bool
    ) -> None:
        """Apply a position from a reply.

        `is_other` states that the position belongs to a re-created stream.  If it does not, `is_known` states that the
        position certainly belongs to the known stream.
        """
        if known.incarnation != self._incarnation:
            # The request was sent before the stream was re-created, so the reply may belong to either stream.
            return
        if is_other:
            self._begin_another()
        held = self._position
        if held is not None:
            is_first_read = self._mark is None and mark is not None
            if not is_known or (position.seq_num < held.seq_num and not is_first_read):
                return
            if position == held and mark is None:
                return
        self._position, self._mark = position, mark

    def _begin_another(self) -> None:
        self._incarnation += 1
        self._position = self._mark = self._read_to = self.closed_at = None
        self.full_to = 0


class S2Sightings:
    """The table of known states, by opaque keys."""

    def __init__(self, most: int = MOST_SIGHTINGS) -> None:
        self._most = most
        self._table: OrderedDict[object, S2Sighting] = OrderedDict()

    def __repr__(self) -> str:
        return f"<S2Sightings of {len(self._table)} streams>"

    def stream_of(self, key: object) -> S2Sighting:
        """Return the state for this key; create a new state if there is none."""
        found = self._table.get(key)
        if found is not None:
            self._table.move_to_end(key)
            return found
        found = self._table[key] = S2Sighting()
        evict_oldest(self._table, self._most)
        return found
