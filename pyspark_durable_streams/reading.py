"""What a task does: read its stretches again, exactly as they were planned, or fail.

The bytes come from the driver's spool where that can be reached, else from the stream, by a walk from the stretch's
place that takes exactly its units; stretches that follow each other are one walk.  Either way they are held against the
stretch's checksum, so a stream that was made anew between planning and reading, or an origin that answers one way now
and another way then, ends the task instead of passing for data.

With a checksum at hand, elements can be guessed first: where the guess comes out as the checksum says, it is right, and
where it does not, the stretch is walked again with care.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.framing import BLOCK_BYTES, Piece, Unit, WrongGuess, line_ends
from pyspark_durable_streams.places import Stretch
from pyspark_durable_streams.plan import Share
from pyspark_durable_streams.spool import Extent
from pyspark_durable_streams.walk import Gone, Part, Walk

_HELD_BYTES: Final = 32 << 20
"""The longest stretch that is guessed: all of it is held until it has been found right."""


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch to read, and where the driver has it."""

    share: Share
    extent: Extent | None


class Task(InputPartition):
    """What one Spark task reads."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(None)
        self.runs = tuple(runs)

    def __repr__(self) -> str:
        return f"Task({len(self.runs)} stretches, {sum(run.share.stretch.units for run in self.runs)} units)"


@dataclass(frozen=True, slots=True)
class Fragment:
    """Messages that follow each other in a stream."""

    stream: str
    unit: Unit
    token: str
    """From here they are to be had again."""
    pos: int
    """The first message's place in the stream, counted from where the query began."""
    piece: Piece
    is_last: bool
    """Whether a stretch ends with it."""


def fragments(
    task: Task, config: ClientConfig, *, as_chunks: bool, fails_on_loss: bool, warn: Callable[[str], None]
) -> Iterator[Fragment]:
    """All messages of a task.  DataLost when they are not what was planned, unless that is to be passed over."""
    client = Client(config)
    walks = _Walks(client, as_chunks)
    try:
        for run in task.runs:
            data = run.extent.read() if run.extent is not None else None
            stretch = run.share.stretch
            if data is not None and zlib.crc32(data) == stretch.crc:
                yield from _spooled(run.share, data)
                continue
            try:
                yield from _walked(run.share, walks)
            except DataLost as lost:
                if fails_on_loss:
                    raise
                warn(f"{lost}; going on with what is there, as failOnDataLoss=false wants it")
                walks.forget()
    finally:
        walks.forget()
        client.close()


def _spooled(share: Share, data: bytes) -> Iterator[Fragment]:
    """Bytes that are there, a block at a time."""
    units = share.stretch.units
    if len(data) <= 2 * BLOCK_BYTES:
        yield _fragment(share, 0, Piece(data, units), is_last=True)
        return
    at = done = 0
    while at < len(data):
        if share.unit is Unit.BYTE:
            piece = Piece(data[at : at + BLOCK_BYTES], min(BLOCK_BYTES, len(data) - at))
        else:
            end = data.index(b"\n", min(at + BLOCK_BYTES, len(data)) - 1) + 1
            block = data[at:end]
            piece = Piece(block, int(line_ends(block).size))
        at += len(piece.data)
        yield _fragment(share, done, piece, is_last=at == len(data))
        done += piece.count


def _fragment(share: Share, at: int, piece: Piece, *, is_last: bool) -> Fragment:
    place = share.stretch.place
    return Fragment(share.stream, share.unit, place.token, place.count + at, piece, is_last)


class _Walks:
    """The walk that goes on from stretch to stretch, and what it has read beyond the last."""

    def __init__(self, client: Client, as_chunks: bool) -> None:
        self._client = client
        self._as_chunks = as_chunks
        self._stream = ""
        self._parts: Iterator[Part] | None = None
        self._rest: Piece | None = None
        self._count = -1
        self._guesses = False
        self.may_guess = True
        """Until one was wrong."""

    def take(self, share: Share, *, guesses: bool = False) -> Iterator[Piece]:
        """The pieces from the stretch's place on; whoever takes them tells by `back` what was too much."""
        place = share.stretch.place
        if (
            self._parts is None
            or self._stream != share.stream
            or self._count != place.count
            or self._guesses is not guesses
        ):
            self.forget()
            walk = Walk(self._client, share.stream, place, self._as_chunks, share.unit, guesses=guesses)
            self._stream, self._parts, self._rest, self._count = share.stream, walk.parts(), None, place.count
            self._guesses = guesses
        if self._rest is not None and self._rest.count:
            rest, self._rest = self._rest, None
            yield rest
        for part in self._parts:
            yield part.piece

    def back(self, rest: Piece, count: int) -> None:
        """The walk stands at `count`, with `rest` read beyond it."""
        self._rest, self._count = rest, count

    def forget(self) -> None:
        """Leave the walk, and its connection."""
        close = getattr(self._parts, "close", None)
        if close is not None:
            close()
        self._parts = None


def _guessed(share: Share, walks: _Walks) -> list[Fragment] | None:
    """All of a stretch, guessed and right; None where it was wrong, or the stream is not as it was."""
    stretch, unit = share.stretch, share.unit
    found: list[Fragment] = []
    done = size = crc = 0
    try:
        for piece in walks.take(share, guesses=True):
            taken, rest = piece.cut(stretch.units - done, unit)
            size += len(taken.data)
            if size > stretch.size:
                return None
            crc = zlib.crc32(taken.data, crc)
            at, done = done, done + taken.count
            found.append(_fragment(share, at, taken, is_last=done == stretch.units))
            if done == stretch.units:
                walks.back(rest, stretch.end_count)
                break
    except (WrongGuess, Gone):
        return None
    return found if (done, crc) == (stretch.units, stretch.crc) else None


def _walked(share: Share, walks: _Walks) -> Iterator[Fragment]:
    stretch, unit = share.stretch, share.unit
    if walks.may_guess and unit is Unit.ELEMENT and not stretch.place.skip and stretch.size <= _HELD_BYTES:
        found = _guessed(share, walks)
        if found is not None:
            yield from found
            return
        walks.may_guess = False
        walks.forget()
    done, crc = 0, 0
    try:
        for piece in walks.take(share):
            taken, rest = piece.cut(stretch.units - done, unit)
            crc = zlib.crc32(taken.data, crc)
            at, done = done, done + taken.count
            if done == stretch.units:
                walks.back(rest, stretch.end_count)
                if crc != stretch.crc:
                    raise DataLost(f"stream {share.stream}: {_where(stretch)} reads otherwise than when it was planned")
            yield _fragment(share, at, taken, is_last=done == stretch.units)
            if done == stretch.units:
                return
    except Gone as gone:
        raise DataLost(f"{gone}; it had {stretch.units} {unit}s there when the batch was planned") from gone
    raise DataLost(f"stream {share.stream}: {_where(stretch)} had {stretch.units} {unit}s when planned, and has {done}")


def _where(stretch: Stretch) -> str:
    return f"what follows {stretch.place.token}"
