"""Byte positions of the offsets of one tape, derived from the bytes sent to its readers.

Offsets are opaque, but the number of bytes sent for a read from one to another is the distance between the two.  So
positions follow from such steps, forwards and backwards, from the stream's beginning, over as few steps as possible.
The framing of JSON arrays lengthens each step by at most two bytes.

Offsets without a chain of known lengths to the beginning are *loose*.  The first of a connected group gets the position
of the last offset before it: distances within the group are exact, the part before it seems shorter than it is.  A
later offset never has a position before an earlier one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.protocol.offsets import NOW, START, is_before


class Step(NamedTuple):
    """A read from `start` to `end` that was sent `length` bytes; None if the length is unknown."""

    start: str
    end: str
    length: int | None


@dataclass(frozen=True, slots=True)
class Scale:
    """The positions of one tape's offsets, in bytes from its beginning."""

    positions: dict[str, int]
    loose: frozenset[str]
    """Offsets without a chain of known lengths to the beginning."""

    @property
    def extent(self) -> int:
        """Bytes from the beginning to the furthest offset."""
        return max(self.positions.values(), default=0)


def place(steps: Iterable[Step]) -> Scale:
    """Give each of a tape's offsets a byte position.  Offsets without a position (`now`) are left out."""
    tokens = {START}
    lengths: dict[tuple[str, str], int] = {}
    for start, end, length in steps:
        if end in (START, NOW) or start == NOW:
            continue
        tokens |= {start, end}
        if length is not None and is_before(start, end):
            lengths[start, end] = min(length, lengths.get((start, end), length))
    neighbours: dict[str, list[tuple[str, int]]] = {}
    for (start, end), length in sorted(lengths.items()):
        neighbours.setdefault(start, []).append((end, length))
        neighbours.setdefault(end, []).append((start, -length))
    in_order = [START, *sorted(tokens - {START})]
    positions = {START: 0}
    _spread(START, positions, neighbours)
    tied = frozenset(positions)
    furthest = 0
    for token in in_order:
        if token not in positions:
            positions[token] = furthest
            _spread(token, positions, neighbours)
        furthest = positions[token] = max(positions[token], furthest)
    return Scale(positions, frozenset(tokens - tied))


def _spread(root: str, positions: dict[str, int], neighbours: dict[str, list[tuple[str, int]]]) -> None:
    """Set the positions of the offsets that steps connect to `root`, over the fewest steps."""
    queue = deque([root])
    while queue:
        token = queue.popleft()
        for other, distance in neighbours.get(token, ()):
            if other not in positions:
                positions[other] = max(0, positions[token] + distance)
                queue.append(other)
