"""A walk: one stream from a place on, piece by piece, along the chain of replies that Stream-Next-Offset forms.

A reply may be anything from one message to the whole stream, so it is processed as it arrives.  If a connection fails
in the middle, the walk reconnects at the place reached, as long as it makes progress.  The place after each piece is
known, so a walk may stop after any piece, and another walk may continue there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from pyspark_durable_streams.client import Client, Reply, origin_error
from pyspark_durable_streams.errors import BadReply, DataLost, Unreachable
from pyspark_durable_streams.framing import BLOCK_BYTES, Elements, GuessedElements, Piece, Unit, cut_lines, unit_of
from pyspark_durable_streams.places import START, Place

NEXT_OFFSET: Final = "Stream-Next-Offset"
UP_TO_DATE: Final = "Stream-Up-To-Date"
CLOSED: Final = "Stream-Closed"
_LONG_BYTES: Final = 1 << 20
_SAID_BYTES: Final = 1 << 10
_RESUMES: Final = 5
"""How often a reply may break off without a further message."""


class Gone(DataLost):
    """The stream no longer has the place: 404, 410, 400 for its own token, or a tail before it."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status

    def __reduce__(self) -> tuple[type[Gone], tuple[str, int]]:
        return type(self), (str(self), self.status)


@dataclass(frozen=True, slots=True)
class Part:
    """A piece, and the places before and after it."""

    place: Place
    piece: Piece
    end: Place

    def inside(self, units: int, unit: Unit) -> Place:
        """The place after the first `units`."""
        if units == self.piece.count:
            return self.end
        step = units if unit is not Unit.LINE else len(self.piece.before(units, unit).data)
        return Place(self.place.token, self.place.skip + step, self.place.count + units)


@dataclass(slots=True)
class Walk:
    """A stream from a place on; `place` is the current place."""

    client: Client
    stream: str
    place: Place
    as_chunks: bool = False
    unit: Unit | None = None
    """The unit, once a reply has shown the content type; given in advance for a place that was counted in it."""
    token: str | None = None
    """The furthest token seen."""
    is_at_tail: bool = False
    """Whether the last reply ended at the stream's tail."""
    is_closed: bool = False
    """Whether the stream is closed at its end."""
    replies: int = 0
    """Successful replies so far."""
    reply_end: str | None = None
    """The end token of the current reply."""
    reply_left: int | None = None
    """The bytes of the current reply that are in none of its parts yet; None if its length is unknown."""
    ends_at_tail: bool = False
    """Whether the current reply goes on to the stream's tail."""
    passed: list[tuple[str, int]] = field(default_factory=list)
    """The ends of replies and the counts there; of lines, only the ones that a line feed ends."""
    leap: Callable[[Place, Unit, str], Place | None] | None = None
    """Called before a long reply is read, with its place and ETag: returns the place up to which counts make reading
    unnecessary.  After a None it is not called again."""
    guesses: bool = False
    """Whether the elements of arrays are guessed; WrongGuess is raised if a guess is seen to fail."""
    _resumes: int = field(default=0, init=False)

    def parts(self) -> Generator[Part]:
        """Everything up to the tail at the time when it is reached.

        Raises Gone if the stream does not have the place (any more), BadReply, Refused and Unreachable.
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
                    headers = self._parse_head(reply.status, reply.headers, request, reply.chunks)
                    self.replies += 1
                    self.reply_end, self.reply_left = headers.next, headers.size
                    self.ends_at_tail = headers.is_at_tail
                    ahead = self._ahead(headers, request, is_amid=bool(left or carry.rest))
                    if ahead is None:
                        yield from self._reply(reply.chunks, request, left, headers, carry)
            except Unreachable:
                self._resumes = self._resumes + 1 if self.place == before else 0
                if not has_head or self._resumes >= _RESUMES:
                    raise  # the client has used up its tries
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
            # A repeated reply may end before the place that was reached.
            if not left:
                self.passed.append((headers.next, self.place.count - carry.unended))
            self.is_at_tail, self.is_closed = headers.is_at_tail, headers.is_closed
            if self.is_at_tail and left:
                raise Gone(
                    f"stream {self.stream}: it ends at {headers.next}, {left} units before the place that was read"
                )

    def _ahead(self, headers: _Headers, request: str, *, is_amid: bool) -> Place | None:
        """The place to continue at instead of reading this reply; None if it must be read."""
        if self.leap is None or is_amid or not headers.is_long or self.unit is None:
            return None
        ahead = self.leap(Place(request, 0, self.place.count), self.unit, headers.etag)
        if ahead is None:
            self.leap = None
        return ahead

    def _reply(
        self, chunks: Iterator[bytes], request: str, skip: int, headers: _Headers, carry: _Carry
    ) -> Iterator[Part]:
        """The parts of one reply; after the last, `place` is the reply's end, or where an unfinished line began."""
        assert self.unit is not None
        if self.unit is Unit.LINE:
            yield from self._lines(chunks, request, skip, headers, carry)
            return
        at = 0
        for piece in self._pieces(chunks):
            self._has_read(len(piece.data))
            if at + piece.count > skip:
                rest = piece.after(skip - at, self.unit)
                begin = Place(request, max(at, skip), self.place.count)
                end = Place(request, at + piece.count, begin.count + rest.count)
                self.place = end
                yield Part(begin, rest, end)
            at += piece.count
        carry.left = max(skip - at, 0)
        self.place = Place(headers.next, carry.left, self.place.count)

    def _has_read(self, size: int) -> None:
        if self.reply_left is not None:
            self.reply_left = max(self.reply_left - size, 0)

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
        """Lines may begin in one reply and end in another; their place is where they began."""
        at = 0
        for block in _blocks(chunks):
            self._has_read(len(block))
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

    def _parse_head(self, status: int, headers: Mapping[str, str], request: str, chunks: Iterator[bytes]) -> _Headers:
        if status != 200:
            whole = Reply(status, headers, _beginning(chunks))
            error = origin_error(whole, f"stream {self.stream} from offset {request}")
            # An offset that the origin issued and now rejects belongs to a stream that no longer exists.
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
            raise Gone(f"stream {self.stream} was re-created: it was counted in {self.unit}s and now has {unit}s")
        self.unit = unit
        is_closed = headers.get(CLOSED, "").lower() == "true"
        is_at_tail = is_closed or headers.get(UP_TO_DATE, "").lower() == "true" or following == request
        length = headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() and "Content-Encoding" not in headers else None
        if size and unit is Unit.ELEMENT:
            size -= 1  # of the array's brackets one is left, where each line has its end
        is_long = not is_at_tail or (size is not None and size > _LONG_BYTES)
        return _Headers(following, is_at_tail, is_closed, is_long, headers.get("ETag", ""), size)


@dataclass(slots=True)
class _Carry:
    """State carried from one reply to the next."""

    rest: bytes = b""
    """An unfinished line."""
    token: str = START
    skip: int = 0
    """Where that line began."""
    left: int = 0
    """Units still to be skipped: a reply ended before the place."""
    unended: int = 0
    """Lines that ended with the stream, without a line feed."""


@dataclass(frozen=True, slots=True)
class _Headers:
    next: str
    is_at_tail: bool
    is_closed: bool
    is_long: bool
    """Whether asking `leap` about it is worthwhile."""
    etag: str
    size: int | None
    """The body's length in bytes; None if it is unknown."""


def offset_path(stream: str, token: str) -> str:
    """The target of a catch-up read, relative to the URL."""
    return f"/{stream}{'&' if '?' in stream else '?'}offset={quote(token, safe='')}"


def _beginning(chunks: Iterator[bytes]) -> bytes:
    """The text of a refusal, as far as it arrives; its status is enough."""
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
