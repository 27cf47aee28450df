"""Where offsets lie: a byte scale for one tape, laid by what its readers were sent.

Offsets are opaque: equal or not, earlier or later, and nothing else is asked of them.  But a read from one offset to
another that was sent so many bytes says how far apart the two are.  So offsets are placed by such steps, forwards and
backwards, beginning at the stream's beginning, by as few of them as will do: the framing of JSON arrays is counted with
each step, and makes the scale that much too long (two bytes a step at most, and no more is wanted of it).

Offsets that no chain of known lengths ties to the beginning are *loose*: the first of those that hang together lies
where the last before it in the order of offsets does.  Distances among them are as good as any other; what lies before
them seems shorter than it is.  In the end a later offset never lies before an earlier one.

Pure, and no Spark: one tape's steps in, positions out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.protocol.offsets import NOW, START, is_before


class Step(NamedTuple):
    """Somebody read from `start` to `end` and was sent `length` bytes; None where what was sent tells no length."""

    start: str
    end: str
    length: int | None


@dataclass(frozen=True, slots=True)
class Scale:
    """The positions of one tape's offsets, in bytes from its beginning."""

    positions: dict[str, int]
    loose: frozenset[str]
    """Offsets that no known length leads to."""

    @property
    def extent(self) -> int:
        """Bytes from the beginning to the furthest offset."""
        return max(self.positions.values(), default=0)


def place(steps: Iterable[Step]) -> Scale:
    """Lay a tape's offsets on a scale of bytes.  What names no place (`now`) is left out."""
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
    """Place what steps tie to `root`, which is placed, by the fewest of them."""
    queue = deque([root])
    while queue:
        token = queue.popleft()
        for other, distance in neighbours.get(token, ()):
            if other not in positions:
                positions[other] = max(0, positions[token] + distance)
                queue.append(other)
