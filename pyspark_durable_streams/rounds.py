"""The distribution of a batch's bound over streams, as pure functions.

All streams that may have news get equal parts; if the parts would be too small, fewer streams get larger ones.  What
some streams leave goes to the others in further rounds.  A batch begins with the stream after the last one that the
batch before took from, so that a bound smaller than the number of streams starves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_durable_streams.batch_slice import Allowance


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be taken in this batch; None means no bound."""

    units: int | None = None
    size: int | None = None
    is_untouched: bool = True
    """Whether nothing was taken yet: a message larger than the whole bound is a batch of its own."""

    @property
    def is_bounded(self) -> bool:
        return self.units is not None or self.size is not None

    @property
    def is_spent(self) -> bool:
        return (self.units is not None and self.units <= 0) or (self.size is not None and self.size <= 0)

    def less(self, units: int, size: int) -> Budget:
        """The budget after taking this much."""
        return replace(
            self,
            units=None if self.units is None else self.units - units,
            size=None if self.size is None else self.size - size,
            is_untouched=self.is_untouched and units == 0,
        )


def rotated(streams: Sequence[str], last: str) -> list[str]:
    """The streams in order, beginning after `last`."""
    ordered = sorted(streams)
    return [name for name in ordered if name > last] + [name for name in ordered if name <= last]


def allocate(pending: Sequence[str], budget: Budget, width: int) -> tuple[Sequence[str], Allowance]:
    """The streams to read next, at most `width`, and the equal part that each may take."""
    number = min(len(pending), width) if budget.units is None else min(len(pending), width, budget.units)
    return pending[:number], Allowance(
        None if budget.units is None else budget.units // number,
        None if budget.size is None else max(budget.size // number, 1),
        is_forced=number == 1 and budget.is_untouched,
    )


def narrowed(width: int, asked: int, took: int) -> int:
    """The number of streams that share the bound in the next round, if `took` of `asked` streams with news could take
    a part.

    A part that is smaller than most streams' next message is useless.  The parts are then doubled, so that a stream is
    read in vain a few times in a batch, and not once for each message of the others.
    """
    return width if 2 * took >= asked else max(width // 2, 1)
