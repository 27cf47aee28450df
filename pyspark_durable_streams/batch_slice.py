"""The part of one stream that a batch takes, as stretches: pieces that were read, and runs that a gateway counted.

Pieces go to the spool.  A bound of the batch may cut a piece; a run is taken completely or not at all.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_durable_streams.admin import CountedRun
from pyspark_durable_streams.framing import BLOCK_BYTES, Piece, Unit
from pyspark_durable_streams.places import Evidence, Place, Stretch
from pyspark_durable_streams.spool import Extent, Spool
from pyspark_durable_streams.walk import Part

_STRETCHES: Final = 64
"""The size of a stream's stretches grows with the stream, so that there are not many more than this."""
EVIDENCE_UNITS: Final = {Unit.ELEMENT: 16, Unit.LINE: 16, Unit.BYTE: 256}

ExtentKey = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Allowance:
    """The most that may be taken; None means no bound."""

    units: int | None = None
    size: int | None = None
    is_forced: bool = False
    """Whether one message is taken whatever its size."""

    @property
    def is_bounded(self) -> bool:
        return self.units is not None or self.size is not None


class BatchSlice:
    """The part of one stream that a batch takes."""

    def __init__(
        self,
        stream: str,
        allowance: Allowance,
        spool: Spool | None,
        extents: dict[ExtentKey, Extent],
    ) -> None:
        self.units = 0
        self.size = 0
        self.was_cut = False
        self.rest: Part | None = None
        """The rest of a part that was cut."""
        self.is_limited = False
        """Whether the allowance cut it."""
        self.end = Place()
        self.begin: Evidence | None = None
        """Evidence from the first part that was read and begins at a token."""
        self.evidence: Evidence | None = None
        """Evidence from the latest such part."""
        self.stream = stream
        self._allowance = allowance
        self._spool = spool
        self._extents = extents
        self._done: list[Stretch] = []
        self._open: list[Part] = []
        self._open_size = 0

    def stop(self, place: Place) -> None:
        """Take nothing from this place on."""
        self.was_cut = True
        self.end = place

    def add(self, part: Part, unit: Unit | None, cut: int | None) -> bool:
        """Take as much of a part as is allowed and lies before the count `cut`; returns whether more may follow."""
        assert unit is not None
        most = part.piece.count
        if cut is not None:
            most = min(most, cut - part.place.count)
        if self._allowance.units is not None:
            most = min(most, self._allowance.units - self.units)
        if self._allowance.size is not None:
            most = min(most, self._fitting(part.piece, unit, self._allowance.size - self.size))
        if most < part.piece.count:
            self.is_limited = cut is None or part.place.count + most < cut
            self.stop(part.place if most <= 0 else part.inside(most, unit))
            self.rest = Part(self.end, part.piece.after(most, unit), part.end)
        if most > 0:
            taken = part if not self.was_cut else Part(part.place, part.piece.before(most, unit), self.end)
            self._take(taken, unit)
        return not self.was_cut

    def has_room(self, units: int, size: int) -> bool:
        """Whether this much more is allowed."""
        most = self._allowance
        return (most.units is None or self.units + units <= most.units) and (
            most.size is None or self.size + size <= most.size
        )

    def leap(self, place: Place, runs: Sequence[CountedRun], evidence: Evidence) -> Place:
        """Take consecutive runs from a place on; only the last was read, and gave the evidence.  Returns the place
        after them.
        """
        if self._open:
            self._close()
        for run in runs:
            self._done.append(Stretch(place, run.units, run.size, run.crc, run.next))
            self.units += run.units
            self.size += run.size
            place = Place(run.next, 0, place.count + run.units)
        self.evidence = evidence
        self.begin = self.begin or evidence
        return place

    def _fitting(self, piece: Piece, unit: Unit, left: int) -> int:
        if len(piece.data) <= left:
            return piece.count
        least = 1 if self._allowance.is_forced and self.units == 0 else 0
        if unit is Unit.BYTE:
            return max(left, least)
        return max(piece.data.count(b"\n", 0, max(left, 0)), least)

    def _take(self, part: Part, unit: Unit) -> None:
        piece = part.piece
        self.units += piece.count
        self.size += len(piece.data)
        if part.place.skip == 0:
            self.evidence = evidence_at(part, unit)
            if not self._done and not self._open:
                self.begin = self.evidence
        self._open.append(part)
        self._open_size += len(piece.data)
        if self._open_size >= max(BLOCK_BYTES, self.size // _STRETCHES):
            self._close()

    def _close(self) -> None:
        # Small pieces are joined, so that a task does not open the spool for each of them.
        data = b"".join([part.piece.data for part in self._open])
        extent = self._spool.add(data) if self._spool is not None else None
        place = self._open[0].place
        stretch = Stretch(place, sum(part.piece.count for part in self._open), len(data), zlib.crc32(data))
        self._done.append(stretch)
        if extent is not None:
            self._extents[self.stream, place.count] = extent
        self._open, self._open_size = [], 0

    def stretches(self) -> tuple[Stretch, ...]:
        """Everything taken."""
        if self._open:
            self._close()
        return tuple(self._done)


def evidence_at(part: Part, unit: Unit) -> Evidence:
    """Evidence of the stream's identity, from a part that begins at a token."""
    units = min(EVIDENCE_UNITS[unit], part.piece.count)
    digest = hashlib.blake2b(part.piece.before(units, unit).data, digest_size=8).hexdigest()
    return Evidence(part.place.token, units, digest)
