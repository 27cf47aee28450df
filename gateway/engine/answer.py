"""An answer to a read, before any byte of it is written: status, headers, and where the body comes from.

The body is a row of parts: bytes that are here, and flights that are still in the air.  JSON parts are the insides of
arrays; the answer puts the brackets around all and the commas between those that are not empty.  `close` is owed in
all cases: it gives back the seats on the flights.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multidict import CIMultiDict

from gateway.protocol.cache_status import Outcome
from gateway.tape.stream import Edition, Stream
from gateway.upstream.flight import Flight, FlightReader


class BodyRun(NamedTuple):
    """The run of a stream that a body shows, from one offset to another: it never changes."""

    stream: Stream
    start: str
    end: str
    edition: Edition
    """That of the stream when the first of it was read."""

    @property
    def may_be_kept(self) -> bool:
        """Whether what is made of these bytes may be kept for others: the stream has lost none of its own since."""
        return self.edition == self.stream.edition


class NamedTail(NamedTuple):
    """The tail of an open stream, as an answer names it."""

    at: str
    turn: int
    """`Stream.tail_turns` when it was named: another turn, and it may be elsewhere."""


@dataclass(frozen=True, slots=True)
class _Held:
    """Bytes that are here."""

    pieces: tuple[bytes, ...]
    size: int
    copied: int


@dataclass(frozen=True, slots=True)
class _Seat:
    """The whole body of a flight."""

    flight: Flight
    reader: FlightReader


class Parts:
    """The body so far: pieces of the tape and seats on flights, in order."""

    def __init__(self) -> None:
        self._row: list[_Held | _Seat] = []

    @property
    def is_empty(self) -> bool:
        return not self._row

    @property
    def size(self) -> int:
        """Bytes known to be in it; those of a flight count as far as they have arrived or were announced."""
        return sum(
            part.size if isinstance(part, _Held) else max(part.flight.size, part.flight.length or 0)
            for part in self._row
        )

    @property
    def copied(self) -> int:
        """Bytes among those that are here which nobody else holds, or not for long."""
        return sum(part.copied for part in self._row if isinstance(part, _Held))

    def add_pieces(self, pieces: tuple[bytes, ...], copied: int = 0) -> None:
        """Add bytes that are here; `copied` of them are held by nobody else."""
        if pieces:
            self._row.append(_Held(pieces, sum(map(len, pieces)), copied))

    def attach(self, flight: Flight) -> None:
        """Take a seat: the flight's whole body is the next part."""
        self._row.append(_Seat(flight, flight.attach()))

    def drop_last(self) -> None:
        """Take back the seat that was taken last."""
        last = self._row.pop()
        assert isinstance(last, _Seat)
        last.reader.leave()

    def held(self, is_json: bool) -> list[bytes] | None:
        """The whole body where every byte of it is here, else None."""
        pieces: list[bytes] = []
        for part in self._row:
            if not isinstance(part, _Held):
                return None
            if pieces and is_json:
                pieces.append(b",")
            pieces.extend(part.pieces)
        return [b"[", *pieces, b"]"] if is_json else pieces

    def complete_body(self, is_json: bool) -> list[bytes] | None:
        """The whole body where its last byte has arrived, be it on the tape or by a flight, else None."""
        row: list[Sequence[bytes]] = []
        for part in self._row:
            if isinstance(part, _Held):
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

    def length(self, is_json: bool) -> int | None:
        """The body's length in bytes, None while a flight that knows no length is part of it."""
        sizes: list[int] = []
        for part in self._row:
            size = part.size if isinstance(part, _Held) else part.flight.length
            if size is None:
                return None
            if size:
                sizes.append(size)
        return sum(sizes) + 2 + max(0, len(sizes) - 1) if is_json else sum(sizes)

    async def stream(self, is_json: bool) -> AsyncIterator[bytes]:
        """The body as it becomes available.  Raises when a flight fails: nothing of the end has been written then."""
        if is_json:
            yield b"["
        comma = b""
        for part in self._row:
            lead = comma
            if isinstance(part, _Held):
                for piece in part.pieces:
                    yield lead + piece if lead else piece
                    lead = b""
            else:
                async for chunk in part.reader.chunks():
                    yield lead + chunk if lead else chunk
                    lead = b""
                if lead or not part.flight.size:
                    continue
            comma = b"," if is_json else b""
        if is_json:
            yield b"]"

    def close(self) -> None:
        for part in self._row:
            if isinstance(part, _Seat):
                part.reader.leave()
        self._row.clear()


@dataclass(slots=True)
class Answer:
    """What a client is told; `parts` is None where there is no body beyond `text`."""

    status: int
    headers: CIMultiDict[str]
    outcome: Outcome
    parts: Parts | None = None
    is_json: bool = False
    body: bytes = b""
    fwd_status: int | None = None
    stored: bool = False
    stream: Stream | None = None
    """The stream whose tape alone gave this answer: it may be given again for as long as that lasts."""
    tail: NamedTail | None = None
    """The tail that it names, where it may be given again: for as long as that is known to be the tail."""
    saved_bytes: int = 0
    """How many more its body had before it was coded."""
    shown: BodyRun | None = None
    """What the body shows, or a 304 leaves out, where it is a run of a stream."""

    def whole(self) -> bytes:
        """The body of an answer that is made of bytes alone."""
        if self.parts is None:
            return self.body
        held = self.parts.held(self.is_json)
        assert held is not None, "part of the answer is still in the air"
        return b"".join(held)

    def close(self) -> None:
        if self.parts is not None:
            self.parts.close()
