"""Bridged streams: how URLs name them, and by which last sighting a stream that took their place is recognised.

A URL of the engine's is `route://<route>/<path of the origin>/<basin>/<stream>`: the engine has put a configured basin
where clients' paths name one otherwise.  The rest of the path is the stream's name, slashes included.  A slash that is
escaped would be a second spelling of the same stream, whose writes and reads were kept apart, so it is refused.

An offset is the sequence number of the record that comes next, in 20 digits: there is one at each record boundary.  All
have the width of the largest sequence number, so that they compare as text in the order of the records.

An S2 stream that is deleted and created again counts from 0, and S2 has no name for the one life or the other.  The
timestamp of a record tells them apart: a number that had another timestamp earlier belongs to another stream, and so
does a tail that lies before a known record, or an append that got such a number.  Each stream found in this way is
another *incarnation*.  Entity tags name it, and the engine drops what it holds of the earlier one.

A reply is compared with the knowledge at the time of its request, because replies overtake each other.  A reply without
a known record proves nothing: its records may be another stream's.  They are joined to earlier records only after the
last known record has been asked for again.  A deleted stream never comes back, so a record that is the same before and
after a reply shows whose the reply is.

The table of sightings is bounded.  A stream that falls out of it counts as the same when it is seen again.
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
"""The longest name of an S2 stream."""

_BASIN: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


class BadName(ValueError):
    """The path names no stream; the message is one line for the client."""


@dataclass(frozen=True, slots=True)
class StreamName:
    """An S2 stream."""

    basin: str
    stream: str
    """Its name, decoded."""

    @property
    def path(self) -> str:
        """The path of the stream below the origin's own."""
        return "/v1/streams/" + quote(self.stream, safe="")


def parse_name(path: str) -> StreamName:
    """The stream that the path `/<basin>/<stream>` names.  Raises `BadName`."""
    basin, slash, rest = path.removeprefix("/").partition("/")
    if not slash or not rest or _BASIN.fullmatch(basin) is None:
        raise BadName("The path is that of a basin and a stream")
    if "%2F" in rest.upper():
        raise BadName("A slash in a stream's name is not escaped")
    try:
        name = unquote_to_bytes(rest)
        if len(name) > MOST_NAME_BYTES:
            raise BadName(f"A stream's name has at most {MOST_NAME_BYTES} bytes")
        return StreamName(basin, name.decode())
    except UnicodeDecodeError:
        raise BadName("A stream's name is UTF-8") from None


WIDTH: Final = len(str(MAX_U64))


class BadOffset(ValueError):
    """The text is no offset of a bridged stream."""


def offset_at(seq_num: int) -> str:
    """The offset before the record `seq_num`."""
    return f"{seq_num:0{WIDTH}d}"


def parse_offset(text: str) -> int:
    """The sequence number of the record after an offset.  Raises `BadOffset`."""
    # ASCII first: `isdigit` takes digits of other scripts.
    if len(text) != WIDTH or not text.isascii() or not text.isdigit():
        raise BadOffset(text)
    seq_num = int(text)
    if seq_num > MAX_U64:
        raise BadOffset(text)
    return seq_num


MOST_SIGHTINGS: Final = 65_536
"""Streams in the table; the least recently used one falls out."""


@dataclass(frozen=True, slots=True)
class KnownSighting:
    """The state of a stream, as known when a request was sent."""

    incarnation: int
    position: StreamPosition | None
    """The number after the last record that was read of the stream, and the timestamp of that record; of a stream of
    which none was read, the tail."""
    mark: int | None = None
    """A hash of that record; None if it was not read."""

    def is_shown_by(self, records: Sequence[Record]) -> bool:
        """Whether these consecutive records, of which there is at least one, have the record before the position."""
        return self.position is not None and records[0].seq_num < self.position.seq_num <= records[-1].seq_num + 1


class S2Sighting:
    """One stream."""

    __slots__ = ("_incarnation", "_mark", "_position", "_read_to", "closed_at", "full_to")

    def __init__(self) -> None:
        self._incarnation = 0
        self._position: StreamPosition | None = None
        self._mark: int | None = None
        self.full_to = 0
        """Where the last page ended that was as long as S2 allows: more records are likely to follow."""
        self._read_to: StreamPosition | None = None
        """The furthest position whose record before it was read, and not only named as a tail."""
        self.closed_at: int | None = None
        """The sequence number of the mark of the close, once it was seen."""

    def __repr__(self) -> str:
        return f"<S2Sighting {self.identity} at {self._position}>"

    @property
    def identity(self) -> str:
        """The incarnation's name in entity tags."""
        return f"s2-{self._incarnation}"

    def known(self) -> KnownSighting:
        """The knowledge of now, for comparison with the reply to a request that is about to be sent."""
        return KnownSighting(self._incarnation, self._position, self._mark)

    def has_read_to(self, tail: StreamPosition) -> bool:
        """Whether the last record before this tail, which may be the mark of the close, has been seen."""
        return tail.seq_num == 0 or tail == self._read_to

    def saw_tail(self, known: KnownSighting, tail: StreamPosition) -> None:
        """A reply has named the tail."""
        position, is_other = known.position, False
        if position is not None:
            is_other = tail.seq_num < position.seq_num or (tail.seq_num == position.seq_num and tail != position)
        # Between the last record read and the tail may be another stream's.
        self._saw(known, tail, None, is_other=is_other, is_known=known.mark is None)

    def saw_records(self, known: KnownSighting, records: Sequence[Record], *, is_proof: bool = False) -> None:
        """A reply has brought these consecutive records, of which there is at least one.  `is_proof` means that they
        are known to belong to the same stream."""
        last = records[-1]
        is_other = False
        if (position := known.position) is not None:
            index = position.seq_num - 1 - records[0].seq_num
            if index >= len(records):
                # All of them lie before it: timestamps never decrease.
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
                # S2 writers may fence twice with the token: the first mark ends the stream.
                self.closed_at = mark if self.closed_at is None else min(mark, self.closed_at)

    def saw_append(self, known: KnownSighting, ack: AppendAck) -> None:
        """Records were appended: in the same stream, behind all that was seen before they were sent."""
        if known.position is not None and ack.start.seq_num < known.position.seq_num:
            self._saw(known, ack.end, None, is_other=True, is_known=False)

    def gone(self, known: KnownSighting) -> None:
        """The origin has no such stream, or has begun a new one."""
        if known.incarnation == self._incarnation and self._position is not None:
            self._begin_another()

    def _saw(
        self, known: KnownSighting, position: StreamPosition, mark: int | None, *, is_other: bool, is_known: bool
    ) -> None:
        """A record was seen; `is_known` means that it belongs to the known stream unless `is_other`."""
        if known.incarnation != self._incarnation:
            # It was asked for before the stream took the other's place: it may belong to either.
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
    """The streams that were seen, by an opaque key.  Owner of the table."""

    def __init__(self, most: int = MOST_SIGHTINGS) -> None:
        self._most = most
        self._table: OrderedDict[object, S2Sighting] = OrderedDict()

    def __repr__(self) -> str:
        return f"<S2Sightings of {len(self._table)} streams>"

    def stream_of(self, key: object) -> S2Sighting:
        """The stream of this key."""
        found = self._table.get(key)
        if found is not None:
            self._table.move_to_end(key)
            return found
        found = self._table[key] = S2Sighting()
        evict_oldest(self._table, self._most)
        return found
