"""A block: one run of a stream's bytes, with the offset tokens inside it.

A block grows only at its end, and only while it is the last of its chain and small.  Bytes handed out of it never
change, because its pieces are immutable `bytes`.  It knows nothing of tapes: positions in, bytes out.

A JSON stream is kept as the inside of an array, `v1,v2,v3`.  A token between two messages has the position of the comma
before the second one, so `cut` drops a leading comma and joining runs needs no other rule.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

SEAL_BYTES = 1 << 20
"""A block of at least this size is sealed: the next append starts another."""

_PIECE_BYTES = 1 << 14
"""Appends are merged into one piece up to this size: an 8 KB copy on average, against a list slot per tiny message."""


class Cut(NamedTuple):
    """Bytes cut out of a block."""

    pieces: list[bytes]
    copied: int
    """How many of these bytes the block does not share, now or as soon as it grows: keeping the pieces costs that much
    memory beside the tape."""


class Block:
    """The bytes from `start` to `end`, in pieces; `marks` are the positions of the tokens known inside."""

    __slots__ = ("_ends", "end", "is_json", "leads", "marks", "pieces", "size", "start", "stored_at")

    def __init__(self, start: str, end: str, pieces: Sequence[bytes], is_json: bool, now: float) -> None:
        self.start = start
        self.end = end
        self.is_json = is_json
        self.stored_at = now
        self.pieces: list[bytes] = []
        self._ends: list[int] = []
        self.size = 0
        self.marks: list[tuple[int, str]] = [(0, start)]
        self.leads: tuple[str, ...] = ()
        """Tokens from which the bytes inside may be read, but at which no reading stops."""
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
        """Grow to `end`; return the position of the old end, which is now a token inside the block."""
        position = self.size
        self.marks.append((position, self.end))
        if self.is_json and len(pieces) == 1 and len(pieces[0]) < _PIECE_BYTES:
            # One piece, so that the preceding piece is copied only once when the comma and the bytes are joined to it.
            pieces = (b"," + pieces[0],)
        elif self.is_json:
            self._push(b",")
        for piece in pieces:
            self._push(piece)
        self.end = end
        return position

    def mark(self, position: int, token: str) -> None:
        """Record that `token` lies at `position`."""
        insort(self.marks, (position, token))

    def unmark(self, is_dropped: Callable[[str], bool]) -> None:
        """Forget the tokens inside that are dropped."""
        self.marks = [mark for mark in self.marks if not is_dropped(mark[1])]
        self.leads = tuple(token for token in self.leads if not is_dropped(token))

    def stop_before(self, position: int, limit: int) -> tuple[int, str] | None:
        """The last known token in (`position`, `position + limit`], or None if there is none."""
        if self.size - position <= limit:
            return self.size, self.end
        at = bisect_right(self.marks, position + limit, key=lambda mark: mark[0]) - 1
        stop, token = self.marks[at]
        return (stop, token) if stop > position else None

    def stop_after(self, position: int) -> tuple[int, str]:
        """The first known token after `position`."""
        marks = self.marks
        if not marks or marks[-1][0] <= position:
            return self.size, self.end
        return marks[bisect_right(marks, position, key=lambda mark: mark[0])]

    def cut(self, start: int, stop: int) -> Cut:
        """The bytes in [`start`, `stop`), without a comma at `start`; whole pieces are not copied."""
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

    def rest(self, position: int, token: str) -> Block:
        """The bytes after `token`, which lies at `position`, as a block of its own.  It has no `leads`."""
        rest = Block(token, self.end, self.cut(position, self.size).pieces, self.is_json, self.stored_at)
        shift = self.size - rest.size
        rest.marks += [(at - shift, known) for at, known in self.marks if at > position]
        return rest

    def byte_at(self, position: int) -> bytes:
        """The byte at `position`."""
        index = bisect_right(self._ends, position)
        offset = position - (self._ends[index] - len(self.pieces[index]))
        return self.pieces[index][offset : offset + 1]

    def holds_at(self, start: int, stop: int, pieces: Sequence[bytes]) -> bool:
        """Whether the bytes in [`start`, `stop`) equal `pieces`."""
        return b"".join(self.cut(start, stop).pieces) == b"".join(pieces)
