"""Where reading stands: places in streams, stretches between them, and the offset that Spark keeps of it all.

Offset tokens are opaque and come only at the ends of replies, so a place between two of them is the last token before
it and how many units (messages, or bytes) to pass over behind that.  `count` is what makes places comparable: units
read since the query's start in this stream.  To read from one place to another is to walk from the first and to take
exactly the difference of their counts, whatever cuts the replies have by then.

An offset has for each stream its place, and evidence of what stream it is: the digest of a few units behind a token
that was passed before, which a stream that was deleted and made anew does not have there.  An *end* offset has the
batch's plan as well: where each stream was entered (what the start offset does not say, or says no more), the
stretches to read with their checksums, and how many tasks share them.  What Spark reads for a batch is thus a pure
function of the start and end that are in its checkpoint, on any machine and at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.framing import Tally, Unit

VERSION: Final = 1
START: Final = "-1"
"""The protocol's own token for a stream's beginning."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a stream: `skip` units behind a token; `count` units behind where the query began."""

    token: str = START
    skip: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """The first `units` behind `token`, digested."""

    token: str
    units: int
    digest: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many units from a place on: `size` bytes with this CRC-32, in the form in which `framing` hands them out."""

    place: Place
    units: int
    size: int
    crc: int
    next: str | None = None
    """Where nobody has read it, because a gateway has counted it: the token that is said to be behind it."""

    @property
    def tally(self) -> Tally:
        """What is read there has this one."""
        return Tally(self.units, self.size, self.crc)

    @property
    def end_count(self) -> int:
        """The count behind it."""
        return self.place.count + self.units


@dataclass(frozen=True, slots=True)
class Position:
    """How far one stream has been read."""

    place: Place
    unit: Unit
    is_closed: bool = False
    """Nothing will ever come behind this place."""
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Offset:
    """How far all streams have been read, and for the batch that ended here, how it is read."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    stretches: Mapping[str, tuple[Stretch, ...]] = field(default_factory=dict)
    partitions: int = 1
    """The most tasks that share the batch."""
    last: str = ""
    """The stream that got the last of a limited batch; the next one begins behind it, so that none starves."""
    as_chunks: bool = False
    """Streams that are no JSON are counted in bytes."""
    has_begun: bool = False
    """Streams that are found from now on are new, and are read from their beginnings."""

    def to_json(self) -> dict[str, Any]:
        """As Spark keeps it."""
        return {
            "version": VERSION,
            "streams": {name: _position_to_json(position) for name, position in sorted(self.positions.items())},
            "batch": {
                name: [_stretch_to_json(stretch) for stretch in stretches]
                for name, stretches in sorted(self.stretches.items())
            },
            "partitions": self.partitions,
            "last": self.last,
            "chunks": self.as_chunks,
            "begun": self.has_begun,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        """What `to_json` made; BadOption when a checkpoint is not from here."""
        try:
            version = value["version"]
            if version != VERSION:
                raise BadOption(f"the checkpoint's offsets are of version {version}; this is {VERSION}")
            return cls(
                {name: _position_from_json(row) for name, row in value["streams"].items()},
                {
                    name: tuple(Stretch(Place(row[0], row[1], row[2]), *row[3:7]) for row in rows)
                    for name, rows in value["batch"].items()
                },
                value["partitions"],
                value["last"],
                value["chunks"],
                value["begun"],
            )
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            if isinstance(error, BadOption):
                raise
            raise BadOption("the checkpoint's offsets were not written by this source") from error


def _stretch_to_json(stretch: Stretch) -> list[Any]:
    place = stretch.place
    row: list[Any] = [place.token, place.skip, place.count, stretch.units, stretch.size, stretch.crc]
    return row if stretch.next is None else [*row, stretch.next]


def _position_to_json(position: Position) -> list[Any]:
    place, evidence = position.place, position.evidence
    row: list[Any] = [place.token, place.skip, place.count, position.unit.value, position.is_closed]
    if evidence is not None:
        row += [evidence.token, evidence.units, evidence.digest]
    return row


def _position_from_json(row: list[Any]) -> Position:
    evidence = Evidence(row[5], row[6], row[7]) if len(row) > 5 else None
    return Position(Place(row[0], row[1], row[2]), Unit(row[3]), row[4], evidence)
