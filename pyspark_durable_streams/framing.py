"""From the bytes of replies to whole messages, a megabyte at a time.

What a message is depends on the stream's content type and on what is asked for:

    elements   `application/json`: one element of the arrays that replies are (section 7.1 of the protocol)
    lines      `text/*` and newline-delimited JSON: what a line feed ends; the last one without ends with the stream
    bytes      anything, asked for as chunks and not `application/json`: each byte by itself

Elements and lines leave here in one form, lines each ended by a line feed (an element's own line breaks, which can only
be between its tokens, become spaces), so that what follows need not know the difference.  Nothing leaves before its
end has been seen, and what leaves depends on the bytes of the stream alone, never on how they were cut into replies.
What stands between two commas is taken for an element and not looked into: whether it is JSON is for those to say who
parse it.

Where an array's elements begin and end is found by looking at quotes and brackets only, with numpy over whole blocks.
Whether a place lies in a string is a bit: that of the number of quotes up to it, 64 places at a time (as simdjson does
it: Langdale and Lemire, VLDB Journal 2019).  Some four million messages a second on one core, three times what parsing
them takes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from pyspark_durable_streams.errors import BadReply

BLOCK_BYTES: Final = 1 << 20
_JSON: Final = "application/json"
LINED: Final = frozenset({"application/ndjson", "application/x-ndjson", "application/jsonl", "application/x-jsonlines"})
"""Content types of newline-delimited JSON."""
_SPACE: Final = b" \t\r\n"
_QUOTE, _BACKSLASH, _COMMA = 0x22, 0x5C, 0x2C
_FEED, _RETURN, _BLANK = 0x0A, 0x0D, 0x20
# With bit 5 set `[` is `{` and `]` is `}`.
_OPEN, _CLOSE, _BIT = 0x7B, 0x7D, 0x20


class Unit(StrEnum):
    """What is counted in a stream."""

    ELEMENT = "element"
    LINE = "line"
    BYTE = "byte"


@dataclass(frozen=True, slots=True)
class Piece:
    """Whole messages: lines, each with its line feed, or bytes as they are."""

    data: bytes
    count: int

    def before(self, count: int, unit: Unit) -> Piece:
        """Its first `count` messages."""
        return self if count >= self.count else Piece(self.data[: self._at(count, unit)], count)

    def cut(self, count: int, unit: Unit) -> tuple[Piece, Piece]:
        """Its first `count` messages, and all others."""
        if count >= self.count:
            return self, Piece(b"", 0)
        at = self._at(count, unit)
        return Piece(self.data[:at], count), Piece(self.data[at:], self.count - count)

    def after(self, count: int, unit: Unit) -> Piece:
        """All but its first `count` messages."""
        return self if count <= 0 else Piece(self.data[self._at(count, unit) :], max(self.count - count, 0))

    def _at(self, count: int, unit: Unit) -> int:
        if count <= 0 or count >= self.count:
            return 0 if count <= 0 else len(self.data)
        if unit is Unit.BYTE:
            return count
        return int(line_ends(self.data)[count - 1]) + 1


@dataclass(slots=True)
class Tally:
    """What messages are known by: how many, in how many bytes, and the CRC-32 of these."""

    units: int = 0
    size: int = 0
    crc: int = 0

    def add(self, piece: Piece) -> None:
        """These too."""
        self.units += piece.count
        self.size += len(piece.data)
        self.crc = zlib.crc32(piece.data, self.crc)


def unit_of(content_type: str, *, as_chunks: bool) -> Unit | None:
    """What is counted in a stream of this content type; None where it has no messages, only bytes."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == _JSON:
        return Unit.ELEMENT
    if as_chunks:
        return Unit.BYTE
    return Unit.LINE if media_type.startswith("text/") or media_type in LINED else None


def line_ends(data: bytes) -> npt.NDArray[np.intp]:
    """Where the line feeds are."""
    return np.flatnonzero(np.frombuffer(data, np.uint8) == _FEED)


class WrongGuess(Exception):
    """The elements of an array are not what they were taken for."""


class GuessedElements:
    """The elements of one reply's array as lines, taken for objects that have `},{` between them and nowhere in them.

    In a third of the time, and right or wrong: for those who know the checksum of what has to come out.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._has_begun = False

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """More of the reply; what is whole by now.  WrongGuess where that can be seen."""
        self._rest.append(chunk)
        self._size += len(chunk)
        if self._size >= BLOCK_BYTES:
            yield from self._cut(is_end=False)

    def end(self) -> Iterator[Piece]:
        """The reply is over: the rest of it.  WrongGuess where that can be seen."""
        if self._size or not self._has_begun:
            yield from self._cut(is_end=True)

    def _cut(self, *, is_end: bool) -> Iterator[Piece]:
        rest = b"".join(self._rest)
        begin = 0 if self._has_begun else 1
        if begin and is_end and rest == b"[]":
            return
        if (begin and rest[:2] != b"[{") or (is_end and rest[-2:] != b"}]"):
            raise WrongGuess
        self._has_begun = True
        view = np.frombuffer(rest, np.uint8)
        between = view[1:-1] == _COMMA
        between &= view[:-2] == _CLOSE
        between &= view[2:] == _OPEN
        at = np.flatnonzero(between) + 1
        if not is_end and not at.size:
            raise WrongGuess  # an object longer than a block
        end = len(rest) - 1 if is_end else int(at[-1])
        lines = view[begin : end + 1].copy()
        lines[at - begin] = _FEED
        lines[-1] = _FEED
        left = b"" if is_end else rest[end + 1 :]
        self._rest, self._size = [left], len(left)
        yield Piece(lines.tobytes(), int(at.size) + is_end)


class Elements:
    """The elements of one reply's array, as lines; so many bytes are looked at in one go, and an element that is longer
    than `longest` is BadReply: whatever is looked at costs some 25 times its size in memory.
    """

    def __init__(self, block_bytes: int | None = None, longest: int | None = None) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._block_bytes = block_bytes or BLOCK_BYTES
        self._longest = longest
        self._scan_at = self._block_bytes
        self._has_begun = False
        self._has_ended = False
        self._wants_comma = False

    def feed(self, chunk: bytes) -> Iterator[Piece]:
        """More of the reply; what is whole by now."""
        self._rest.append(chunk)
        self._size += len(chunk)
        if self._size >= self._scan_at:
            yield from self._scan()
            if self._longest is not None and self._size > self._longest:
                raise BadReply(f"a message of more than {self._longest} bytes")
            # An element longer than a block is not looked at again for every chunk of it.
            self._scan_at = max(self._block_bytes, 2 * self._size)

    def end(self) -> Iterator[Piece]:
        """The reply is over: the rest of it.  BadReply when it is no whole array."""
        yield from self._scan()
        if self._has_begun and not self._has_ended:
            raise BadReply("a reply that is no whole JSON array")

    def _scan(self) -> Iterator[Piece]:
        rest = b"".join(self._rest)
        if not self._has_begun:
            rest = rest.lstrip(_SPACE)
            if not rest:
                self._rest, self._size = [], 0
                return
            if rest[:1] != b"[":
                raise BadReply("a reply that is no JSON array")
            self._has_begun, rest = True, rest[1:]
        piece, left = (None, rest) if self._has_ended else self._cut(rest)
        if self._has_ended and left.strip(_SPACE):
            raise BadReply("a reply with something behind its JSON array")
        self._rest, self._size = [left], len(left)
        if piece is not None:
            yield piece

    def _cut(self, rest: bytes) -> tuple[Piece | None, bytes]:
        """The whole elements of `rest`, and what is left.

        `rest` begins in the array and outside its elements: behind one of them, if there were any.
        """
        begin = 0
        if self._wants_comma:
            rest = rest.lstrip(_SPACE)
            if rest[:1] == b",":
                begin = 1
            elif rest and rest[:1] != b"]":
                raise BadReply("a reply whose JSON array lacks a comma")
        marks = _marks(rest)
        end = None
        if marks.depths.size and marks.depths.min() < 0:
            end = int(marks.at[np.argmax(marks.depths < 0)])
            if rest[end : end + 1] != b"]":
                raise BadReply("a reply whose JSON brackets do not match")
            self._has_ended = True
        piece, used = _containers(rest, begin, marks)
        if piece is None or (end is not None and rest[used:end].strip(_SPACE)):
            piece, used = _anything(rest, begin, marks, end)
        self._wants_comma = self._wants_comma or piece is not None
        return piece, rest[used if end is None else end + 1 :]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Brackets outside strings: where, whether they open or close, and how deep one is behind them."""

    at: npt.NDArray[np.intp]
    opens: npt.NDArray[np.bool_]
    depths: npt.NDArray[np.int32]
    in_string: npt.NDArray[np.uint64]
    """A bit for each byte, 64 in a word, the lowest first: whether it lies in a string."""

    def outside_strings(self, at: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
        """Which of these places lie in no string."""
        found: npt.NDArray[np.bool_] = _bits(self.in_string, at) == 0
        return found


def _marks(rest: bytes) -> _Marks:
    view = np.frombuffer(rest, np.uint8)
    in_string = _in_string(rest, view)
    low = view | _BIT
    at = np.flatnonzero((low == _OPEN) | (low == _CLOSE))
    at = at[_bits(in_string, at) == 0]
    opens = low[at] == _OPEN
    depths = np.cumsum(opens.view(np.int8) * 2 - 1, dtype=np.int32)
    return _Marks(at, opens, depths, in_string)


def _bits(words: npt.NDArray[np.uint64], at: npt.NDArray[np.intp]) -> npt.NDArray[np.uint8]:
    """The bits at these places."""
    found: npt.NDArray[np.uint8] = (words.view(np.uint8)[at >> 3] >> (at & 7).astype(np.uint8)) & np.uint8(1)
    return found


def _in_string(rest: bytes, view: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint64]:
    """A bit for each byte: whether the number of quotes up to it is odd."""
    is_quote = view == _QUOTE
    if b"\\" in rest:
        is_quote[_escaped(view)] = False
    words = np.zeros(-(-view.size // 64), "<u8")
    packed = np.packbits(is_quote, bitorder="little")
    words.view(np.uint8)[: packed.size] = packed
    # Each bit becomes the sum of those up to it: first within the words, then over them.
    for step in (1, 2, 4, 8, 16, 32):
        words ^= words << np.uint64(step)
    is_odd = np.bitwise_xor.accumulate((words >> np.uint64(63)).astype(np.bool_))
    words[1:] ^= -is_odd[:-1].astype(np.uint64)
    return words


def _escaped(view: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """The places that an odd number of backslashes stands before."""
    slashes = np.flatnonzero(view == _BACKSLASH)
    is_first = np.empty(slashes.size, np.bool_)
    is_first[0] = True
    is_first[1:] = np.diff(slashes) != 1
    firsts = np.flatnonzero(is_first)
    lengths = np.diff(np.append(firsts, slashes.size))
    escaped: npt.NDArray[np.intp] = (slashes[firsts] + lengths)[lengths % 2 == 1]
    return escaped[escaped < view.size]


def _containers(rest: bytes, begin: int, marks: _Marks) -> tuple[Piece | None, int]:
    """The quick way: elements are all objects or arrays, and there is nothing but one comma between two of them."""
    starts = marks.at[marks.opens & (marks.depths == 1)]
    ends = marks.at[~marks.opens & (marks.depths == 0)]
    if not ends.size or starts[0] != begin:
        return None, 0
    view = np.frombuffer(rest, np.uint8)
    between = ends[:-1] + 1
    is_plain = (starts[1 : ends.size] == between + 1).all() and (view[between] == _COMMA).all()
    if not is_plain:
        return None, 0
    used = int(ends[-1]) + 1
    lines = np.empty(used - begin + 1, np.uint8)
    lines[:-1] = view[begin:used]
    if rest.find(b"\n", begin, used) >= 0 or rest.find(b"\r", begin, used) >= 0:
        lines[(lines == _FEED) | (lines == _RETURN)] = _BLANK
    lines[between - begin] = _FEED
    lines[-1] = _FEED
    return Piece(lines.tobytes(), int(ends.size)), used


def _anything(rest: bytes, begin: int, marks: _Marks, end: int | None) -> tuple[Piece | None, int]:
    """The thorough way: whatever stands between commas that are in no string and in no bracket."""
    commas = np.flatnonzero(np.frombuffer(rest, np.uint8)[:end] == _COMMA)
    commas = commas[commas >= begin]
    depths = np.concatenate(([0], marks.depths))[np.searchsorted(marks.at, commas)]
    commas = commas[marks.outside_strings(commas) & (depths == 0)]
    at, used = begin, 0
    elements: list[bytes] = []
    for comma in commas.tolist():
        elements.append(rest[at:comma])
        at, used = comma + 1, comma
    if end is not None and (at or rest[:end].strip(_SPACE)):
        elements.append(rest[at:end])
    if not elements:
        return None, 0
    lines = [element.strip(_SPACE).replace(b"\n", b" ").replace(b"\r", b" ") for element in elements]
    if not all(lines):
        raise BadReply("a reply whose JSON array has an empty element")
    return Piece(b"\n".join([*lines, b""]), len(elements)), used


def cut_lines(rest: bytes) -> tuple[Piece | None, bytes]:
    """The whole lines of some bytes, and what is left."""
    end = rest.rfind(b"\n") + 1
    return (Piece(rest[:end], rest.count(b"\n")), rest[end:]) if end else (None, rest)
