"""The reading side of a task: read its stretches exactly as planned, or fail.

The bytes come from the driver's spool if the task can access it, else from the stream: a walk from the stretch's place
takes exactly its units, and consecutive stretches share one walk.  Either way they are compared with the stretch's
checksum.  If a stream was re-created between planning and reading, or an origin's answers are not stable, the task
fails instead of returning wrong data.

With a checksum, elements can be parsed by a fast guess first.  If the result does not match, the stretch is walked
again with the exact parser.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql.datasource import InputPartition

from pyspark_durable_streams.client import Client, ClientConfig
from pyspark_durable_streams.continuity import continues, head
from pyspark_durable_streams.errors import DataLost
from pyspark_durable_streams.framing import BLOCK_BYTES, Checksum, Piece, Unit, WrongGuess, line_ends
from pyspark_durable_streams.places import START, Place
from pyspark_durable_streams.plan import Share
from pyspark_durable_streams.spool import Extent
from pyspark_durable_streams.walk import Gone, Part, Walk

_HELD_BYTES: Final = 32 << 20
"""The longest stretch to guess: it is buffered until its checksum is verified."""
_NOTHING: Final = Piece(b"", 0)


@dataclass(frozen=True, slots=True)
class Run:
    """A stretch to read, and its extent in the spool."""

    share: Share
    extent: Extent | None

    def leads_to(self, other: Run) -> bool:
        """Whether `other` continues this stretch and was not read by the driver either."""
        mine, its = self.share, other.share
        return its.stretch.next is not None and (its.stream, its.stretch.place.count) == (
            mine.stream,
            mine.stretch.end_count,
        )


class Task(InputPartition):
    """The work of one Spark task."""

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__(None)
        self.runs = tuple(runs)

    def __repr__(self) -> str:
        return f"Task({len(self.runs)} stretches, {sum(run.share.stretch.units for run in self.runs)} units)"


@dataclass(frozen=True, slots=True)
class Fragment:
    """Consecutive messages of a stream."""

    stream: str
    unit: Unit
    token: str
    """A token from which they can be read again."""
    pos: int
    """The first message's position in the stream, counted from where the query began."""
    piece: Piece
    is_last: bool
    """Whether it ends a stretch."""


def fragments(
    task: Task, config: ClientConfig, *, as_chunks: bool, fails_on_loss: bool, warn: Callable[[str], None]
) -> Iterator[Fragment]:
    """All messages of a task.  Raises DataLost if they differ from the plan, unless `fails_on_loss` is false."""
    client = Client(config)
    walks = _Walks(client, as_chunks)
    try:
        for run, following in zip(task.runs, [*task.runs[1:], None], strict=True):
            data = run.extent.read() if run.extent is not None else None
            stretch = run.share.stretch
            if data is not None and zlib.crc32(data) == stretch.crc:
                yield from _spooled(run.share, data)
                continue
            try:
                yield from _walked(run.share, walks, is_strict=fails_on_loss)
                if stretch.next is not None and not (following is not None and run.leads_to(following)):
                    _check_end(run.share, stretch.next, walks)
            except DataLost as lost:
                if fails_on_loss:
                    raise
                warn(f"{lost}; continuing with the available data, because failOnDataLoss=false")
                walks.forget()
    finally:
        walks.forget()
        client.close()


def _spooled(share: Share, data: bytes) -> Iterator[Fragment]:
    """The fragments of bytes in memory, a block at a time."""
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
    """The walk that continues from stretch to stretch, and the data it has read beyond the last one."""

    def __init__(self, client: Client, as_chunks: bool) -> None:
        self._client = client
        self._as_chunks = as_chunks
        self._stream = ""
        self._unit = Unit.BYTE
        self._place: Place | None = None
        """The end of the stretches taken so far, as this walk reached it."""
        self._walk: Walk | None = None
        self._parts: Generator[Part] | None = None
        self._part: Part | None = None
        self._rest = _NOTHING
        """The unused rest of the latest part."""
        self.is_warned = False
        """Whether a guess was wrong."""

    def take(self, share: Share, *, guesses: bool = False) -> Iterator[Piece]:
        """The pieces from the stretch's place on; the caller returns the excess by `back`.

        If the stretch before it was taken, the walk continues from there and not from a token that a gateway gave.
        """
        reached = self._reached(share)
        if reached is None or self._walk is None or self._walk.guesses is not guesses:
            self._open(share, reached or share.stretch.place, guesses=guesses)
        return self._pieces()

    def may_guess(self, share: Share) -> bool:
        """Whether a stretch may be guessed: no guess was wrong, and no exact walk to it is under way."""
        is_careful = self._walk is not None and not self._walk.guesses
        return not (self.is_warned or (is_careful and self._reached(share) is not None))

    def _reached(self, share: Share) -> Place | None:
        """The walk's place if the stretch begins there, else None."""
        place, mine = share.stretch.place, self._place
        is_new = place.token == START and not place.skip  # a new life of the stream, unless it is the first stretch
        if is_new or mine is None or (self._stream, mine.count) != (share.stream, place.count):
            return None
        return mine

    def _open(self, share: Share, place: Place, *, guesses: bool) -> None:
        self.leave()
        self._stream, self._unit, self._place, self._rest = share.stream, share.unit, place, _NOTHING
        self._walk = Walk(self._client, share.stream, place, self._as_chunks, share.unit, guesses=guesses)
        self._parts = self._walk.parts()

    def _pieces(self) -> Iterator[Piece]:
        if self._rest.count:
            rest, self._rest = self._rest, _NOTHING
            yield rest
        assert self._parts is not None
        for part in self._parts:
            self._part = part
            yield part.piece

    def back(self, rest: Piece) -> None:
        """End a stretch; `rest` was read beyond it."""
        part = self._part
        assert part is not None
        self._rest, self._place = rest, part.inside(part.piece.count - rest.count, self._unit)

    def ends_at(self, share: Share, token: str) -> bool:
        """Whether the data from here on equals the data after a token.  Gone if the stream does not have the token.

        Data read for the comparison is read again by the next stretch.
        """
        assert self._walk is not None
        assert self._place is not None
        try:
            if self._walk.guesses:
                try:
                    if self._begins(share, token, self._walk):
                        return True
                except WrongGuess:
                    pass
                self._open(share, self._place, guesses=False)
            return self._begins(share, token, self._walk)
        finally:
            self.leave()

    def _begins(self, share: Share, token: str, walk: Walk) -> bool:
        following = head(self._pieces())
        there = Walk(self._client, share.stream, Place(token), self._as_chunks, share.unit, guesses=walk.guesses)
        return continues(there, following, walk.place.token)

    def leave(self) -> None:
        """Drop the walk and its connection; another walk can continue at its place."""
        if self._parts is not None:
            self._parts.close()
        self._walk = self._parts = None

    def forget(self) -> None:
        """Drop the walk and its place."""
        self.leave()
        self._place = None


def _guessed(share: Share, walks: _Walks) -> list[Fragment] | None:
    """The fragments of a guessed stretch; None if the guess was wrong or the stream has changed."""
    stretch, unit = share.stretch, share.unit
    found: list[Fragment] = []
    checksum = Checksum()
    try:
        for piece in walks.take(share, guesses=True):
            at = checksum.units
            taken, rest = piece.cut(stretch.units - at, unit)
            checksum.add(taken)
            found.append(_fragment(share, at, taken, is_last=checksum.units == stretch.units))
            if checksum.units == stretch.units or checksum.size > stretch.size:
                break
    except (WrongGuess, Gone):
        return None
    if checksum != stretch.checksum:
        return None
    walks.back(rest)
    return found


def _walked(share: Share, walks: _Walks, *, is_strict: bool) -> Iterator[Fragment]:
    """The fragments of a stretch.  The last one is yielded only after the checksum of the stretch was verified.  If not
    `is_strict`, it is yielded in any case, before DataLost is raised.
    """
    stretch, unit = share.stretch, share.unit
    is_short = not stretch.place.skip and stretch.size <= _HELD_BYTES
    if unit is Unit.ELEMENT and is_short and walks.may_guess(share):
        found = _guessed(share, walks)
        if found is not None:
            yield from found
            return
        walks.is_warned = True
        walks.leave()
    checksum = Checksum()
    last: Fragment | None = None
    try:
        for piece in walks.take(share):
            at = checksum.units
            taken, rest = piece.cut(stretch.units - at, unit)
            checksum.add(taken)
            last = _fragment(share, at, taken, is_last=checksum.units == stretch.units)
            if checksum.units == stretch.units:
                walks.back(rest)
                break
            yield last
    except Gone as gone:
        raise DataLost(f"{gone}; it had {stretch.units} {unit}s there when the batch was planned") from gone
    if checksum.units < stretch.units:
        was = "had" if stretch.next is None else "was counted to have"
        raise _lost(share, f"{was} {stretch.units} {unit}s when the batch was planned, and has {checksum.units}")
    is_right = checksum == stretch.checksum
    if last is not None and (is_right or not is_strict):
        yield last
    if not is_right:
        raise _lost(share, "differs from what it was when the batch was planned")


def _check_end(share: Share, token: str, walks: _Walks) -> None:
    """Raise DataLost if a stretch does not end at this token."""
    said = f"does not end at {token}, as the gateway said"
    try:
        is_there = walks.ends_at(share, token)
    except Gone as gone:
        raise _lost(share, f"{said} ({gone})") from gone
    if not is_there:
        raise _lost(share, said)


def _lost(share: Share, what: str) -> DataLost:
    stretch = share.stretch
    said = f"stream {share.stream}: what follows {stretch.place.token} {what}"
    if stretch.next is not None:
        said += (
            "; if nothing changed the stream, the gateway counted wrong: without catalogue, and without the batch's"
            " file in the checkpoint's offsets, it is planned again"
        )
    return DataLost(said)
