"""An answer to a read: the status, the headers, and the parts that make up the body.

A part is either bytes in memory or the body of a flight (a shared upstream fetch), which may still be arriving.  In a
JSON stream each part holds array elements without the brackets.  The answer adds the brackets, and commas between
non-empty parts.  The caller must always call `close`, which detaches the answer from its flights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.limits.memory import Holding, SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.cursor import parse_cursor
from gateway.protocol.names import STREAM_CURSOR
from gateway.protocol.stream_version import Edition, Version
from gateway.tape.stream import Stream
from gateway.upstream.flight import Flight, FlightReader

_UNSIZED: Final = count(1)


class BodyRun(NamedTuple):
    """The range of a stream, from one offset to another, that a body holds."""

    stream: Stream
    start: str
    end: str
    edition: Edition
    """The stream's edition when the first of these bytes was read.  The edition changes when bytes are dropped."""

    @property
    def may_be_kept(self) -> bool:
        """Whether data made from this range, such as a compressed body, may be cached: the stream has dropped no bytes
        since the read."""
        return self.edition == self.stream.version.edition


class NamedTail(NamedTuple):
    """The tail of an open stream, stated in an answer."""

    at: str
    version: Version
    """The stream's version when the tail was read.  After the version changes, the tail may have moved."""


class _InMemory(NamedTuple):
    """A part whose bytes are in memory."""

    pieces: tuple[bytes, ...]
    size: int
    copied: int
    shared: SharedBytes
    """The memory account of the bytes that do not count in `copied`.  Other answers may share these bytes."""


class Parts:
    """The parts of a body, in order."""

    __slots__ = ("_parts",)

    def __init__(self, reader: FlightReader | None = None) -> None:
        """Make the flight of `reader`, if given, the first part."""
        self._parts: list[_InMemory | FlightReader] = [] if reader is None else [reader]

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def size(self) -> int:
        """The known size in bytes.  A flight counts with its announced length, or with the number of bytes received if
        that is more."""
        if not self._parts:
            return 0
        return sum(
            part.size if isinstance(part, _InMemory) else max(part.flight.size, part.flight.length or 0)
            for part in self._parts
        )

    def tag_size(self, is_json: bool) -> int | str:
        """Return the body's length, for the body's entity tag.

        The length of a JSON flight under way is taken from its Content-Length, which is exact if the origin adds no
        white space.  If a flight has no Content-Length, the result is a unique string.
        """
        length = _joint_length((_tag_length(part, is_json) for part in self._parts), is_json)
        return length if length is not None else f"~{next(_UNSIZED)}"

    @property
    def as_of(self) -> float | None:
        """When the origin had the bytes of the first part (`Flight.as_of`), if that is a flight; else None."""
        return self._parts[0].flight.as_of if self._parts and isinstance(self._parts[0], FlightReader) else None

    @property
    def copied(self) -> int:
        """How many bytes take memory for this answer alone.  They are copies of bytes on the tape (the stream's bytes
        in memory), or small pieces of the tape.  The tape replaces its small pieces by larger ones as the stream grows,
        so that only the answer still needs them."""
        return sum(part.copied for part in self._parts if isinstance(part, _InMemory))

    def add_pieces(self, pieces: tuple[bytes, ...], copied: int, shared: SharedBytes) -> None:
        """Add bytes in memory as the next part.  `copied` of the bytes take memory for this answer alone; `shared` is
        the account of the other bytes."""
        if pieces:
            self._parts.append(_InMemory(pieces, sum(map(len, pieces)), copied, shared))

    @property
    def shared(self) -> SharedBytes | None:
        """The memory account of the parts that are in memory; None if all parts are flights."""
        return next((part.shared for part in self._parts if isinstance(part, _InMemory)), None)

    def attach(self, flight: Flight) -> None:
        """Attach to a flight and add its whole body as the next part."""
        self._parts.append(flight.attach())

    def drop_last(self) -> None:
        """Detach from the last part, which must be a flight, and remove it."""
        last = self._parts.pop()
        assert isinstance(last, FlightReader)
        last.detach()

    def held(self, is_json: bool) -> list[bytes] | None:
        """Return the whole body if all parts are in memory, else None."""
        pieces: list[bytes] = []
        for part in self._parts:
            if not isinstance(part, _InMemory):
                return None
            if pieces and is_json:
                pieces.append(b",")
            pieces.extend(part.pieces)
        return [b"[", *pieces, b"]"] if is_json else pieces

    def complete_body(self, is_json: bool) -> list[bytes] | None:
        """Return the whole body if all of it has arrived, else None."""
        row: list[Sequence[bytes]] = []
        for part in self._parts:
            if isinstance(part, _InMemory):
                row.append(part.pieces)
            elif not part.flight.has_landed or part.flight.base:
                return None
            elif part.flight.size:
                row.append(part.flight.kept)
        body = [b"["] if is_json else []
        for at, pieces in enumerate(row):
            if at and is_json:
                body.append(b",")
            body.extend(pieces)
        return [*body, b"]"] if is_json else body

    def small_body(self, is_json: bool, limit: int) -> bytes | None:
        """Return the whole body as one piece if it has arrived and is at most `limit` bytes long, else None."""
        if len(self._parts) == 1 and not is_json and isinstance(part := self._parts[0], FlightReader):
            # The usual answer to the first read of a stream: the body of one flight, and nothing else.
            flight = part.flight
            if not flight.has_landed or flight.base or flight.size > limit:
                return None
            return flight.kept[0] if len(flight.kept) == 1 else b"".join(flight.kept)
        length = self.length(is_json)
        if length is None or length > limit or (pieces := self.complete_body(is_json)) is None:
            return None
        return b"".join(pieces)

    def length(self, is_json: bool) -> int | None:
        """Return the body's length in bytes; None if the length of a flight is not known."""
        sizes = (part.size if isinstance(part, _InMemory) else part.flight.length for part in self._parts)
        return _joint_length(sizes, is_json)

    def holdings(self) -> Iterator[Holding]:
        """Yield the memory that the body keeps alive."""
        for part in self._parts:
            if isinstance(part, FlightReader):
                yield from part.flight.holdings()
            else:
                yield Holding(part.shared, part.size - part.copied)
                if part.copied:
                    yield Holding(SharedBytes(part.copied), part.copied)

    async def stream(self, is_json: bool) -> AsyncIterator[bytes]:
        """Yield the body as it arrives.  Raises an error in place of the rest of the body if a flight fails."""
        if is_json:
            yield b"["
        comma = b""
        for part in self._parts:
            lead = comma
            if isinstance(part, _InMemory):
                for piece in part.pieces:
                    yield lead + piece if lead else piece
                    lead = b""
            else:
                async for chunk in part.chunks():
                    yield lead + chunk if lead else chunk
                    lead = b""
                if lead or not part.flight.size:
                    continue
            comma = b"," if is_json else b""
        if is_json:
            yield b"]"

    def close(self) -> None:
        for part in self._parts:
            if isinstance(part, FlightReader):
                part.detach()
        self._parts.clear()


def _tag_length(part: _InMemory | FlightReader, is_json: bool) -> int | None:
    """Return the length of a part of a body, for `Parts.tag_size`; None if it is not known."""
    if isinstance(part, _InMemory):
        return part.size
    flight = part.flight
    if flight.length is None and flight.expected is not None and is_json:
        return max(0, flight.expected - len("[]"))
    return flight.length


def _joint_length(lengths: Iterable[int | None], is_json: bool) -> int | None:
    """Return the length of a body whose parts have these lengths; None if one of these is not known."""
    known: list[int] = []
    for length in lengths:
        if length is None:
            return None
        if length:
            known.append(length)
    return sum(known) + len("[]") + max(0, len(known) - 1) if is_json else sum(known)


@dataclass(slots=True)
class Answer:
    """A response.  Its body is `parts`, or `body` if `parts` is None."""

    status: int
    headers: CIMultiDict[str]
    outcome: Outcome
    parts: Parts | None = None
    is_json: bool = False
    body: bytes = b""
    fwd_status: int | None = None
    stored: bool = False
    stream: Stream | None = None
    """The stream, if its cached bytes alone produced the answer.  The answer may be repeated while the stream's version
    stays the same."""
    tail: NamedTail | None = None
    """The tail that the answer states, if the answer may be repeated while the tail stays the same."""
    saved_bytes: int = 0
    """The number of bytes that compression saved."""
    run: BodyRun | None = None
    """The range of the stream that the body holds, or that a 304 leaves out; None if the body is not such a range."""

    def allow_repeat(self, run: BodyRun, *, is_tail: bool) -> None:
        """Let the answer be repeated to other readers.  An answer with the tail of an open stream (`is_tail`) is valid
        until the tail may move."""
        self.stream, self.run = run.stream, run
        self.tail = NamedTail(run.end, run.stream.version) if is_tail else None

    def pieces(self) -> tuple[bytes, ...]:
        """Return the body as the pieces in memory.  All of the body must be in memory."""
        if self.parts is None:
            return (self.body,) if self.body else ()
        held = self.parts.held(self.is_json)
        assert held is not None, "part of the answer has not arrived yet"
        return tuple(held)

    def whole(self) -> bytes:
        """Return the body as one piece.  All of the body must be in memory."""
        return b"".join(self.pieces())

    def holdings(self) -> Iterator[Holding]:
        """Yield the memory that the body keeps alive."""
        if self.parts is not None:
            yield from self.parts.holdings()

    def close(self) -> None:
        if self.parts is not None:
            self.parts.close()


class Rendered(NamedTuple):
    """A whole response as bytes."""

    head: bytes
    """The head, followed by the body if the body is small."""
    body: tuple[bytes, ...]
    """A large body, as the pieces on the tape (the stream's bytes in memory).  Responses with different heads share
    it."""
    body_bytes: int
    answer: Answer
    """The answer that was rendered."""
    shared: SharedBytes
    """The memory account of a large body."""
    keeps: bool = True
    """Whether the connection stays open after the response."""

    @property
    def cursor(self) -> int | None:
        """The cursor in the response; None if the response has none."""
        return parse_cursor(self.answer.headers.get(STREAM_CURSOR))
