"""One stream from a place on, piece by piece: the chain of replies that Stream-Next-Offset makes.

A reply may be anything from one message to the whole stream, so it is worked on as it comes.  A connection that fails
in the middle of one is made again from the place that has been reached, until there is no progress.  The place behind
each piece is known, so a walk may be left after any of them and gone on with by somebody else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from pyspark_durable_streams.client import Client, Reply, refusal
from pyspark_durable_streams.errors import BadReply, DataLost, Unreachable
from pyspark_durable_streams.framing import BLOCK_BYTES, Elements, GuessedElements, Piece, Unit, cut_lines, unit_of
from pyspark_durable_streams.places import START, Place

NEXT_OFFSET: Final = "Stream-Next-Offset"
UP_TO_DATE: Final = "Stream-Up-To-Date"
CLOSED: Final = "Stream-Closed"
_LONG_BYTES: Final = 1 << 20
_SAID_BYTES: Final = 1 << 10
_RESUMES: Final = 5
"""How often a reply may break off without one more message in it."""


class Gone(DataLost):
    """The stream does not have the place: 404, 410, 400 for a token of its own, or a tail before it."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> tuple[type[Gone], tuple[str, int]]:
        return type(self), (str(self), self.status)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece, and the places before and behind it."""

    place: Place
    piece: Piece
    end: Place

    def inside(self, units: int, unit: Unit) -> Place:
        """The place behind its first `units`."""
        if units == self.piece.count:
            return self.end
        step = units if unit is not Unit.LINE else len(self.piece.before(units, unit).data)
        return Place(self.place.token, self.place.skip + step, self.place.count + units)


@dataclass(slots=True)
class Walk:
    """A stream from a place on; `place` is where it stands."""

    client: Client
    stream: str
    place: Place
    as_chunks: bool = False
    unit: Unit | None = None
    """What is counted, once a reply has told the content type; given when a place was counted in it."""
    token: str | None = None
    """The furthest token seen."""
    is_at_tail: bool = False
    """Whether the last reply ended where the stream did."""
    is_closed: bool = False
    """Whether nothing will ever follow."""
    replies: int = 0
    """How many there were that had a stream in them."""
    reply_end: str | None = None
    """Where the reply that is being read ends."""
    passed: list[tuple[str, int]] = field(default_factory=list)
    """Where replies ended, and the counts there; of lines, those that a line feed ends."""
    leap: Callable[[Place, Unit, str], Place | None] | None = None
    """Asked before a long reply is read, with its place and ETag: how far nothing need be read, because it is counted.
    Where that is nowhere it is not asked again."""
    guesses: bool = False
    """Whether the elements of arrays are guessed: WrongGuess is raised where that is seen to be wrong."""
    _resumes: int = field(default=0, init=False)

    def parts(self) -> Generator[Part]:
        """Everything up to the tail as it is when it is reached.

        Raises Gone when the stream has no such place (any more), BadReply, Refused and Unreachable.
        """
        request = self.place.token
        left = self.place.skip
        carry = _Carry()
        self.is_at_tail = False
        while not self.is_at_tail:
            before, has_head = self.place, False
            try:
                with self.client.open(offset_path(self.stream, request)) as reply:
                    has_head = True
                    headers = self._judged(reply.status, reply.headers, request, reply.chunks)
                    self.replies += 1
                    self.reply_end = headers.next
                    ahead = self._ahead(headers, request, is_amid=bool(left or carry.rest))
                    if ahead is None:
                        yield from self._reply(reply.chunks, request, left, headers, carry)
            except Unreachable:
                self._resumes = self._resumes + 1 if self.place == before else 0
                if not has_head or self._resumes >= _RESUMES:
                    raise  # the client has tried often enough
                request, left = self.place.token, self.place.skip
                carry = _Carry()
                continue
            self._resumes = 0
            if ahead is not None:
                self.place, self.token, request = ahead, ahead.token, ahead.token
                self.passed.append((request, ahead.count))
                continue
            request, left = headers.next, carry.left
            self.token = headers.next
            # One that was asked for again may end before the place that was reached.
            if not left:
                self.passed.append((headers.next, self.place.count - carry.unended))
            self.is_at_tail, self.is_closed = headers.is_at_tail, headers.is_closed

    def _ahead(self, headers: _Headers, request: str, *, is_amid: bool) -> Place | None:
        """Where reading goes on in place of this reply; None where it is to be read."""
        if self.leap is None or is_amid or not headers.is_long or self.unit is None:
            return None
        ahead = self.leap(Place(request, 0, self.place.count), self.unit, headers.etag)
        if ahead is None:
            self.leap = None
        return ahead

    def _reply(
        self, chunks: Iterator[bytes], request: str, skip: int, headers: _Headers, carry: _Carry
    ) -> Iterator[Part]:
        """The parts of one reply; behind the last of them `place` is where its end is, or where a line began."""
        assert self.unit is not None
        if self.unit is Unit.LINE:
            yield from self._lines(chunks, request, skip, headers, carry)
            return
        at = 0
        for piece in self._pieces(chunks):
            if at + piece.count > skip:
                rest = piece.after(skip - at, self.unit)
                begin = Place(request, max(at, skip), self.place.count)
                end = Place(request, at + piece.count, begin.count + rest.count)
                self.place = end
                yield Part(begin, rest, end)
            at += piece.count
        carry.left = max(skip - at, 0)
        self.place = Place(headers.next, carry.left, self.place.count)

    def _pieces(self, chunks: Iterator[bytes]) -> Iterator[Piece]:
        if self.unit is Unit.BYTE:
            yield from (Piece(block, len(block)) for block in _blocks(chunks))
            return
        framer = GuessedElements() if self.guesses else Elements()
        try:
            for chunk in chunks:
                yield from framer.feed(chunk)
            yield from framer.end()
        except BadReply as error:
            raise BadReply(f"stream {self.stream}: {error}") from error

    def _lines(
        self, chunks: Iterator[bytes], request: str, skip: int, headers: _Headers, carry: _Carry
    ) -> Iterator[Part]:
        """Lines may begin in one reply and end in another: their place is where they began."""
        at = 0
        for block in _blocks(chunks):
            fresh = block[max(skip - at, 0) :] if at < skip else block
            at += len(block)
            if not fresh:
                continue
            if not carry.rest:
                carry.token, carry.skip = request, at - len(fresh)
            piece, rest = cut_lines(carry.rest + fresh)
            if piece is None:
                carry.rest = rest
                continue
            begin = Place(carry.token, carry.skip, self.place.count)
            carry.rest, carry.token, carry.skip = rest, request, at - len(rest)
            self.place = Place(request, carry.skip, begin.count + piece.count)
            yield Part(begin, piece, self.place)
        carry.left = max(skip - at, 0)
        if carry.rest and headers.is_closed:
            begin = Place(carry.token, carry.skip, self.place.count)
            piece = Piece(carry.rest + b"\n", 1)
            carry.rest, carry.unended = b"", 1
            self.place = Place(headers.next, 0, begin.count + 1)
            yield Part(begin, piece, self.place)
        elif not carry.rest:
            self.place = Place(headers.next, carry.left, self.place.count)
        else:
            self.place = Place(carry.token, carry.skip, self.place.count)

    def _judged(self, status: int, headers: Mapping[str, str], request: str, chunks: Iterator[bytes]) -> _Headers:
        if status != 200:
            whole = Reply(status, headers, _beginning(chunks))
            error = refusal(whole, f"stream {self.stream} from offset {request}")
            # A token that the origin gave and now refuses is one of a stream that is not there any more.
            is_gone = status in (404, 410) or (status == 400 and request != START)
            raise Gone(str(error), status) if is_gone else error
        following = headers.get(NEXT_OFFSET)
        if not following:
            raise BadReply(f"stream {self.stream}: a reply without {NEXT_OFFSET}; is url that of an origin or gateway?")
        if request != START and following < request:
            raise Gone(f"stream {self.stream}: it ends at {following}, before {request}, where it was read before")
        unit = unit_of(headers.get("Content-Type", ""), as_chunks=self.as_chunks)
        if unit is None:
            kind = headers.get("Content-Type", "no content type")
            raise BadReply(f"stream {self.stream} is {kind}, which has no messages: read it with format=chunks")
        if self.unit is not None and unit is not self.unit:
            raise Gone(f"stream {self.stream}: it was counted in {self.unit}s and now has {unit}s; it was made anew")
        self.unit = unit
        is_closed = headers.get(CLOSED, "").lower() == "true"
        is_at_tail = is_closed or headers.get(UP_TO_DATE, "").lower() == "true" or following == request
        length = headers.get("Content-Length", "")
        is_long = not is_at_tail or (length.isdigit() and int(length) > _LONG_BYTES)
        return _Headers(following, is_at_tail, is_closed, is_long, headers.get("ETag", ""))


@dataclass(slots=True)
class _Carry:
    """What one reply leaves to the next."""

    rest: bytes = b""
    """A line that has not ended."""
    token: str = START
    skip: int = 0
    """Where that line began."""
    left: int = 0
    """Units still to be passed over: a reply ended before the place did."""
    unended: int = 0
    """Lines that the stream's end ended."""


@dataclass(frozen=True, slots=True)
class _Headers:
    next: str
    is_at_tail: bool
    is_closed: bool
    is_long: bool
    """Whether it is worth asking how to get around it."""
    etag: str


def offset_path(stream: str, token: str) -> str:
    """The target of a catch-up read below the URL."""
    return f"/{stream}{'&' if '?' in stream else '?'}offset={quote(token, safe='')}"


def _beginning(chunks: Iterator[bytes]) -> bytes:
    """What a refusal says, as far as it can be had: its status is enough."""
    found = b""
    with suppress(Unreachable):
        for chunk in chunks:
            found += chunk
            if len(found) >= _SAID_BYTES:
                break
    return found


def _blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of about a megabyte."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= BLOCK_BYTES:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)
