"""The write log, in which each worker records the writes that it relays, so that the other workers can apply them.

A client's next connection may reach another worker.  This worker must not answer without the writes that earlier
answers have acknowledged.  Each worker therefore makes a record before it sends a write to the origin, and another
record before it sends a byte of the answer.  The other workers read these records when they next use the path, and
apply them as they apply their own writes.

Each worker has a *place* in the shared memory (`gateway.workers.shared_memory`).  For each path hash there is a *row*
with one *cell* for each place.  A cell has two values: the serial number of the place's latest record for a path with
this hash, and the number of the place's writes under way to paths with this hash.  A worker compares the row with its
content at the worker's previous look.  If they are equal, no other worker has written.  The comparison copies the row
only once, for any number of workers.  Paths with equal hashes share a row, so some records of a row may concern other
paths.

The records of one place in one row form a chain: each record has the serial number of the record before it.  A reader
follows the chain back to the latest record that it has already read.  A place keeps its latest `RECORDS` records.
Older records are *lost*.  A reader that needs a lost record must assume that any kind of write has happened to the
path.

If a worker dies, its supervisor makes an empty record for each row in which the worker had writes under way (`settle`).
The other workers treat an empty record like a lost record, because the origin may have executed the writes.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable
from typing import Final, NamedTuple

from gateway.workers.removals import Removals
from gateway.workers.shared_memory import HASHES, RECORD_BYTES, RECORDED, RECORDS, SharedMemory
from gateway.workers.write_counts import WriteCounts

_HEAD: Final = struct.Struct("=QQdIHH")
"""The fields at the beginning of a record: its number, the number of the place's previous record in the row, the time,
the checksum, the length, and the path hash (modulo `HASHES`)."""
_HEAD_BYTES: Final = 32
MOST_TEXT: Final = RECORD_BYTES - _HEAD_BYTES
_UNDER_WAY: Final = (1 << 16) - 1
"""The bits of a cell that count the writes under way.  The higher bits have the number of the latest record."""


class Record(NamedTuple):
    """One record of a write log."""

    at: float
    """The time at which the record was made (monotonic seconds, which all processes of a machine share)."""
    place: int
    number: int
    """The record's serial number in the place's log.  Records of one place with equal times are sorted by it."""
    text: bytes
    """The content of the record; empty if it was too long, or if the writer has died."""


class News(NamedTuple):
    """The result of a look at a row."""

    row: bytes
    """The present content of the row."""
    records: list[Record]
    """The records that the reader had not seen, in the order of their times."""
    lost: tuple[int, ...]
    """The places with a lost record."""


class WriteLog:
    """The write logs of all places, as one worker uses them."""

    def __init__(self, shared: SharedMemory, slot: int, now: Callable[[], float]) -> None:
        self._shared = shared
        self._place = shared.first + slot
        self.now = now
        self._width = shared.places * 8
        self.raw = shared.raw
        """The shared memory.  `raw[log.row(index)]` is the present content of a row."""
        self.blank: Final = bytes(self._width)
        """A row without records."""

    def __repr__(self) -> str:
        return f"<WriteLog of place {self._place}, {self._recorded(self._place)} records>"

    def row(self, index: int) -> slice:
        """Return the position of a path hash's row in `raw`."""
        at = self._shared.cells_at + index * self._width
        return slice(at, at + self._width)

    # -- writing

    def begin(self, index: int, text: bytes) -> bytes:
        """Record that a write to a path of this row is about to be sent; `end` must follow.  Returns the new content of
        this place's cell."""
        return self._record(self._place, index, text, 1)

    def end(self, index: int, text: bytes) -> bytes:
        """Record that a write has been answered, or will never be answered.  Returns the new content of this place's
        cell."""
        return self._record(self._place, index, text, -1)

    def with_own(self, row: bytes, cell: bytes) -> bytes:
        """Return `row` with `cell` in place of this worker's own cell."""
        at = self._place * 8
        return row[:at] + cell + row[at + 8 :]

    def note(self, index: int, text: bytes) -> None:
        """Record another kind of event for a path of this row."""
        self._record(self._place, index, text, 0)

    def settle(self, slot: int) -> int:
        """Record that a dead worker's writes under way will never be answered.  Returns the number of rows that had
        such writes.

        Only the supervisor calls this, and only before it starts the slot's next worker.
        """
        shared = self._shared
        place = shared.first + slot
        words, places = shared.words, shared.places
        first = (shared.cells_at >> 3) + place
        found = [
            (index, count)
            for index in shared.used(first * 8, self._width, HASHES)
            if (count := words[first + index * places] & _UNDER_WAY)
        ]
        counts, removals = WriteCounts(shared, slot), Removals(shared, slot)
        # Whoever sees a record of a removal must find the removal counted, or under way.
        for index, _ in found:
            removals.begin(index)
        for index, count in found:
            self._record(place, index, b"", -count)
            if shared.counts_writes:
                counts.add(index, is_append=False)
        removals.settle()
        return len(found)

    def _record(self, place: int, index: int, text: bytes, change: int) -> bytes:
        shared = self._shared
        words = shared.words
        counter = shared.place_word(place, RECORDED)
        # Take the number first, and write the record before the cell that refers to it.  If the worker dies before it
        # has written the cell, no reader then follows a reference to a missing record.
        number = words[counter] = words[counter] + 1
        cell = (shared.cells_at >> 3) + index * shared.places + place
        seen = words[cell]
        if len(text) > MOST_TEXT:
            text = b""
        at = shared.records_at + (place * RECORDS + number % RECORDS) * RECORD_BYTES
        raw, body = self.raw, at + _HEAD_BYTES
        raw[body : body + len(text)] = text
        _HEAD.pack_into(raw, at, number, seen >> 16, self.now(), zlib.crc32(text), len(text), index)
        words[cell] = value = number << 16 | min(max((seen & _UNDER_WAY) + change, 0), _UNDER_WAY)
        return value.to_bytes(8, sys.byteorder)

    def _recorded(self, place: int) -> int:
        return self._shared.words[self._shared.place_word(place, RECORDED)]

    # -- reading

    def under_way_elsewhere(self, row: bytes) -> int:
        """Return how many writes of other workers to paths of this row are under way."""
        return sum(cell & _UNDER_WAY for place, cell in enumerate(memoryview(row).cast("Q")) if place != self._place)

    def read(self, index: int, seen: bytes) -> News:
        """Return the records that other places have made for a row since the row had the content `seen`."""
        row = self.raw[self.row(index)]
        records: list[Record] = []
        lost = []
        for place, (now, before) in enumerate(zip(memoryview(row).cast("Q"), memoryview(seen).cast("Q"), strict=True)):
            if now != before and place != self._place and not self._read_back(place, now >> 16, before >> 16, records):
                lost.append(place)
        records.sort()
        return News(row, records, tuple(lost))

    def _read_back(self, place: int, number: int, seen: int, records: list[Record]) -> bool:
        """Add the records of one place with numbers above `seen` and up to `number`.  Return whether none of them is
        lost."""
        base = self._shared.records_at + place * RECORDS * RECORD_BYTES
        while number > seen:
            at = base + number % RECORDS * RECORD_BYTES
            copy = self.raw[at : at + RECORD_BYTES]
            found, earlier, made_at, checksum, length, _ = _HEAD.unpack_from(copy)
            text = copy[_HEAD_BYTES : _HEAD_BYTES + length]
            if found != number or zlib.crc32(text) != checksum:
                return False
            records.append(Record(made_at, place, number, text))
            number = earlier
        return True
