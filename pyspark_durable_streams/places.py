"""Reading positions: places in streams, stretches between them, and the offset that Spark stores.

Offset tokens are opaque and come only at the ends of replies.  A place between two tokens is therefore the last token
before it and a number of units (messages, or bytes) to skip after that.  `count`, the units read since the query's
start in this stream, makes places comparable.  To read from one place to another, a walk starts at the first and takes
exactly the difference of their counts, however the replies are cut by then.

An offset holds each stream's place and evidence of the stream's identity: the digest of a few units after a token that
was passed before.  A stream that was deleted and re-created differs there.  An *end* offset also holds the batch's
plan: where each stream was entered (unless the start offset says it), the stretches to read with their checksums, and
the number of tasks that share them.  The content of a batch is thus a pure function of the start and end in the
checkpoint, on any machine and at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.framing import Checksum, Unit

VERSION: Final = 1
START: Final = "-1"
"""The protocol's token for the beginning of a stream."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a stream: `skip` units after a token, `count` units after the point where the query began."""

    token: str = START
    skip: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class Evidence:
    """The digest of the first `units` after `token`."""

    token: str
    units: int
    digest: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """A number of units from a place on: `size` bytes with this CRC-32, in the form that `framing` yields."""

    place: Place
    units: int
    size: int
    crc: int
    next: str | None = None
    """For a stretch that was counted by a gateway and not read: the token that the gateway gives for its end."""

    @property
    def checksum(self) -> Checksum:
        """The checksum that a read of the stretch must match."""
        return Checksum(self.units, self.size, self.crc)

    @property
    def end_count(self) -> int:
        """The count after the stretch."""
        return self.place.count + self.units


@dataclass(frozen=True, slots=True)
class Position:
    """How far one stream has been read."""

    place: Place
    unit: Unit
    is_closed: bool = False
    """Whether the stream ends at this place."""
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Offset:
    """How far all streams have been read, and the plan of the batch that ended here."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    stretches: Mapping[str, tuple[Stretch, ...]] = field(default_factory=dict)
    partitions: int = 1
    """The most tasks that share the batch."""
    last: str = ""
    """The last stream that a limited batch took from; the next batch begins after it, so that no stream starves."""
    as_chunks: bool = False
    """Whether non-JSON streams are counted in bytes."""
    has_begun: bool = False
    """Whether streams found from now on are new and read from their beginnings."""

    def to_json(self) -> dict[str, Any]:
        """The form that Spark stores."""
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
        """Parse the result of `to_json`; BadOption if the checkpoint is not from this source."""
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
