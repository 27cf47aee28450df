"""A block: one run of a stream's bytes, with the positions of the tokens (offsets as the origin spells them) in it.

A block grows only at its end, until it has `SEAL_BYTES`.  Its pieces are immutable `bytes`, so a reader can keep them.

The messages of a JSON stream are kept as the inside of an array, `v1,v2,v3`.  The token between two messages lies at
the comma between them.  Bytes that start at this token would begin with the comma, so `cut` leaves the comma out.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

SEAL_BYTES = 1 << 20
"""A block of at least this size is sealed: the next append starts a new block."""

_PIECE_BYTES = 1 << 14
"""Appends are merged into pieces of up to this size.  A merge copies 8 KB on average, which costs less than a list slot
for each small message."""


class Cut(NamedTuple):
    """Consecutive bytes of a block."""

    pieces: list[bytes]
    copied: int
    """The number of these bytes that count as memory of the answer, in addition to the memory of the block.  Copied
    bytes count.  If the block's last piece is small, this piece counts too.  A growing block replaces a small last
    piece, and then only this `Cut` refers to the old piece."""


class Block:
    """The bytes from the token `start` to the token `end`.  `marks` has `start` and the tokens up to `end`, each with
    its position."""

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
        """Tokens inside the block at which a read may start.  No read may end there, because a client may have invented
        these tokens."""
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
        """Append bytes up to the token `end`.  The previous end becomes a mark.  Return the position of this mark."""
        position = self.size
        self.marks.append((position, self.end))
        if self.is_json and len(pieces) == 1 and len(pieces[0]) < _PIECE_BYTES:
            # Join the comma and the bytes, so that `_push` copies the preceding piece once instead of twice.
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
        """Remove the tokens for which `is_dropped` is true."""
        self.marks = [mark for mark in self.marks if not is_dropped(mark[1])]
        self.leads = tuple(token for token in self.leads if not is_dropped(token))

    def stop_before(self, position: int, limit: int) -> tuple[int, str] | None:
        """Return the last token in (`position`, `position + limit`] and its position; None if there is none."""
        if self.size - position <= limit:
            return self.size, self.end
        at = bisect_right(self.marks, position + limit, key=lambda mark: mark[0]) - 1
        stop, token = self.marks[at]
        return (stop, token) if stop > position else None

    def stop_after(self, position: int) -> tuple[int, str]:
        """Return the first token after `position`, and its position."""
        marks = self.marks
        if not marks or marks[-1][0] <= position:
            return self.size, self.end
        return marks[bisect_right(marks, position, key=lambda mark: mark[0])]

    def cut(self, start: int, stop: int) -> Cut:
        """Return the bytes in [`start`, `stop`), without a comma at `start`.  Whole pieces are not copied."""
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
        """Return a new block with the bytes after `token`, which lies at `position`.  The new block has no `leads`."""
        return self.part(position, token, self.size, self.end)

    def part(self, position: int, token: str, stop: int, end: str) -> Block:
        """Return a new block with the bytes from `token`, which lies at `position`, to `end`, which lies at `stop`.

        The new block has no `leads`.
        """
        part = Block(token, end, self.cut(position, stop).pieces, self.is_json, self.stored_at)
        shift = stop - part.size
        part.marks += [(at - shift, known) for at, known in self.marks if position < at < stop]
        return part

    def byte_at(self, position: int) -> bytes:
        """Return the byte at `position`."""
        index = bisect_right(self._ends, position)
        offset = position - (self._ends[index] - len(self.pieces[index]))
        return self.pieces[index][offset : offset + 1]

    def holds_at(self, start: int, stop: int, pieces: Sequence[bytes]) -> bool:
        """Return whether the bytes in [`start`, `stop`) equal `pieces`."""
        return b"".join(self.cut(start, stop).pieces) == b"".join(pieces)
