"""An answer to a read, before any byte of it is written: status, headers, and the sources of its body.

The body is a sequence of parts: bytes in memory, and the bodies of flights that may still be in the air.  JSON parts
are the insides of arrays; the answer adds the brackets, and commas between the parts that are not empty.  The caller
must always call `close`, which detaches the answer from its flights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.limits.memory import Holding, SharedBytes
from gateway.protocol.cache_status import Outcome
from gateway.protocol.stream_version import Edition, Version
from gateway.tape.stream import Stream
from gateway.upstream.flight import Flight, FlightReader

_UNSIZED: Final = count(1)


class BodyRun(NamedTuple):
    """The run of a stream that a body holds, from one offset to another; it never changes."""

    stream: Stream
    start: str
    end: str
    edition: Edition
    """The stream's edition when the first of these bytes was read."""

    @property
    def may_be_kept(self) -> bool:
        """Whether data derived from these bytes may be kept for others, because the stream has dropped no bytes since
        they were read."""
        return self.edition == self.stream.version.edition


class NamedTail(NamedTuple):
    """The tail of an open stream, as an answer states it."""

    at: str
    version: Version
    """The stream's version when the tail was stated.  When the version changes, the tail may have moved."""


class _InMemory(NamedTuple):
    """Bytes in memory."""

    pieces: tuple[bytes, ...]
    size: int
    copied: int
    shared: SharedBytes
    """The account of the bytes that are not copied."""


class Parts:
    """The body so far, in order: bytes in memory and flights."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[_InMemory | FlightReader] = []

    @property
    def is_empty(self) -> bool:
        return not self._parts

    @property
    def size(self) -> int:
        """The bytes known to be in the body; a flight counts with the bytes that have arrived or were announced."""
        if not self._parts:
            return 0
        return sum(
            part.size if isinstance(part, _InMemory) else max(part.flight.size, part.flight.length or 0)
            for part in self._parts
        )

    def tag_size(self, is_json: bool) -> int | str:
        """The body's length, for its entity tag: the bytes in memory and the length that the origin has announced for
        the rest.  Without an announced length, a text that no other body has."""
        if (length := self.length(is_json)) is not None:
            return length
        flights = [part.flight.expected for part in self._parts if not isinstance(part, _InMemory)]
        held = sum(part.size for part in self._parts if isinstance(part, _InMemory))
        return f"{held}~{sum(size or 0 for size in flights)}" if None not in flights else f"~{next(_UNSIZED)}"

    @property
    def copied(self) -> int:
        """The number of bytes in memory that this answer alone holds, now or soon."""
        return sum(part.copied for part in self._parts if isinstance(part, _InMemory))

    def add_pieces(self, pieces: tuple[bytes, ...], copied: int, shared: SharedBytes) -> None:
        """Add bytes in memory: `copied` of them are held by this answer alone, the others belong to `shared`."""
        if pieces:
            self._parts.append(_InMemory(pieces, sum(map(len, pieces)), copied, shared))

    @property
    def shared(self) -> SharedBytes | None:
        """The account of the bytes in memory, without those of flights; None if there are no such bytes."""
        return next((part.shared for part in self._parts if isinstance(part, _InMemory)), None)

    def attach(self, flight: Flight) -> None:
        """Attach to a flight: its whole body is the next part."""
        self._parts.append(flight.attach())

    def drop_last(self) -> None:
        """Detach from the flight attached last and drop its part."""
        last = self._parts.pop()
        assert isinstance(last, FlightReader)
        last.detach()

    def held(self, is_json: bool) -> list[bytes] | None:
        """The whole body if every part is in memory, else None."""
        pieces: list[bytes] = []
        for part in self._parts:
            if not isinstance(part, _InMemory):
                return None
            if pieces and is_json:
                pieces.append(b",")
            pieces.extend(part.pieces)
        return [b"[", *pieces, b"]"] if is_json else pieces

    def complete_body(self, is_json: bool) -> list[bytes] | None:
        """The whole body if its last byte has arrived, on the tape or by a flight, else None."""
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
        """The whole body, in one piece, if its last byte has arrived and it has at most `limit` bytes; else None."""
        if len(self._parts) == 1 and not is_json and isinstance(part := self._parts[0], FlightReader):
            # This is the usual answer to a first read.
            flight = part.flight
            if not flight.has_landed or flight.base or flight.size > limit:
                return None
            return flight.kept[0] if len(flight.kept) == 1 else b"".join(flight.kept)
        length = self.length(is_json)
        if length is None or length > limit or (pieces := self.complete_body(is_json)) is None:
            return None
        return b"".join(pieces)

    def length(self, is_json: bool) -> int | None:
        """The body's length in bytes; None if it includes a flight of unknown length."""
        sizes: list[int] = []
        for part in self._parts:
            size = part.size if isinstance(part, _InMemory) else part.flight.length
            if size is None:
                return None
            if size:
                sizes.append(size)
        return sum(sizes) + 2 + max(0, len(sizes) - 1) if is_json else sum(sizes)

    def holdings(self) -> Iterator[Holding]:
        """The bytes that the body keeps in memory."""
        for part in self._parts:
            if isinstance(part, FlightReader):
                yield from part.flight.holdings()
            else:
                yield Holding(part.shared, part.size - part.copied)
                if part.copied:
                    yield Holding(SharedBytes(part.copied), part.copied)

    async def stream(self, is_json: bool) -> AsyncIterator[bytes]:
        """The body as it becomes available.  Raises when a flight fails, before the end of the body is yielded."""
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


@dataclass(slots=True)
class Answer:
    """A response; `parts` is None if `body` is all there is."""

    status: int
    headers: CIMultiDict[str]
    outcome: Outcome
    parts: Parts | None = None
    is_json: bool = False
    body: bytes = b""
    fwd_status: int | None = None
    stored: bool = False
    stream: Stream | None = None
    """The stream whose tape alone produced this answer.  The answer may be repeated while that tape is valid."""
    tail: NamedTail | None = None
    """The tail that the answer states, if the answer may be repeated while this is known to be the tail."""
    saved_bytes: int = 0
    """How many bytes content coding saved."""
    run: BodyRun | None = None
    """The run of a stream that the body holds or that a 304 leaves out; None if the body is no such run."""

    def pieces(self) -> tuple[bytes, ...]:
        """The body of an answer whose bytes are all in memory, in the pieces in which they are held."""
        if self.parts is None:
            return (self.body,) if self.body else ()
        held = self.parts.held(self.is_json)
        assert held is not None, "part of the answer is still in the air"
        return tuple(held)

    def whole(self) -> bytes:
        """The body of an answer whose bytes are all in memory, in one piece."""
        return b"".join(self.pieces())

    def holdings(self) -> Iterator[Holding]:
        """The bytes that its body keeps in memory."""
        if self.parts is not None:
            yield from self.parts.holdings()

    def close(self) -> None:
        if self.parts is not None:
            self.parts.close()
