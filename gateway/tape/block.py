"""A block: one run of a stream's bytes with the offset tokens that fall inside it.

A block only ever grows at its end, while it is the last of its chain and small; what has been handed out of it never
changes, because its pieces are immutable `bytes`.  It knows no tape: positions in, bytes out.

JSON streams are kept as the inside of an array, `v1,v2,v3`.  A token that lies between two messages has the position
of the comma before the second one, so `cut` drops a leading comma and joins need to know nothing else.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

SEAL_BYTES = 1 << 20
"""A block of this size takes no more; the next append begins another."""

_PIECE_BYTES = 1 << 14
"""Appends are merged into one piece up to here: a copy of 8 KB on average, against a slot per tiny message."""


class Cut(NamedTuple):
    """Bytes taken out of a block."""

    pieces: list[bytes]
    copied: int
    """How many of them are held for the taker alone, now or as soon as the block grows: whoever keeps the pieces keeps
    so much beside the tape."""


class Block:
    """Bytes from `start` to `end`, in pieces; `marks` are the positions of tokens known inside."""

    __slots__ = ("_ends", "end", "is_json", "laid_at", "leads", "marks", "pieces", "size", "start")

    def __init__(self, start: str, end: str, pieces: Sequence[bytes], is_json: bool, now: float) -> None:
        self.start = start
        self.end = end
        self.is_json = is_json
        self.laid_at = now
        self.pieces: list[bytes] = []
        self._ends: list[int] = []
        self.size = 0
        self.marks: list[tuple[int, str]] = [(0, start)]
        self.leads: list[str] = []
        """Tokens from which bytes inside are read, and at which no reading stops."""
        for piece in pieces:
            self._push(piece)

    def _push(self, piece: bytes) -> None:
        if not piece:
            return
        self.size += len(piece)
        if self.pieces and len(self.pieces[-1]) + len(piece) <= _PIECE_BYTES:
            self.pieces[-1] += piece
            self._ends[-1] = self.size
        else:
            self.pieces.append(piece)
            self._ends.append(self.size)

    @property
    def is_sealed(self) -> bool:
        return self.size >= SEAL_BYTES

    def extend(self, end: str, pieces: Sequence[bytes]) -> int:
        """Grow to `end`; the position of the old end, which is a token inside from now on."""
        position = self.size
        self.marks.append((position, self.end))
        if self.is_json:
            self._push(b",")
        for piece in pieces:
            self._push(piece)
        self.end = end
        return position

    def mark(self, position: int, token: str) -> None:
        """Remember that `token` lies at `position`."""
        insort(self.marks, (position, token))

    def stop_before(self, position: int, limit: int) -> tuple[int, str] | None:
        """The last known token in (`position`, `position + limit`], or None when no token lies there."""
        if self.size - position <= limit:
            return self.size, self.end
        at = bisect_right(self.marks, position + limit, key=lambda mark: mark[0]) - 1
        stop, token = self.marks[at]
        return (stop, token) if stop > position else None

    def stop_after(self, position: int) -> tuple[int, str]:
        """The first known token after `position`."""
        at = bisect_right(self.marks, position, key=lambda mark: mark[0])
        return self.marks[at] if at < len(self.marks) else (self.size, self.end)

    def cut(self, start: int, stop: int) -> Cut:
        """The bytes in [`start`, `stop`), without the comma that `start` may stand on; whole pieces are not copied."""
        if self.is_json and start > 0:
            start += 1
        if start >= stop:
            return Cut([], 0)
        first = bisect_right(self._ends, start)
        out: list[bytes] = []
        copied = 0
        for index in range(first, len(self.pieces)):
            piece_end = self._ends[index]
            piece = self.pieces[index]
            piece_start = piece_end - len(piece)
            if piece_start >= stop:
                break
            if piece_start >= start and piece_end <= stop:
                is_apart = piece_end == self.size and len(piece) < _PIECE_BYTES
            else:
                piece = piece[max(0, start - piece_start) : stop - piece_start]
                is_apart = True
            out.append(piece)
            copied += len(piece) if is_apart else 0
        return Cut(out, copied)

    def byte_at(self, position: int) -> bytes:
        """The one byte at `position`."""
        index = bisect_right(self._ends, position)
        offset = position - (self._ends[index] - len(self.pieces[index]))
        return self.pieces[index][offset : offset + 1]

    def comes_out_as(self, start: int, stop: int, pieces: Sequence[bytes]) -> bool:
        """Whether the bytes in [`start`, `stop`) are those of `pieces`."""
        return b"".join(self.cut(start, stop).pieces) == b"".join(pieces)
