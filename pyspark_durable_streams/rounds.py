"""How a batch's bound is shared among streams: pure.

All that may have news get equal parts, or fewer larger ones; what some leave goes to those that have more, in further
rounds.  The first of
a batch is the stream behind the one that got the last of the batch before, so that a bound smaller than the number of
streams starves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_durable_streams.taken import Allowance


@dataclass(frozen=True, slots=True)
class Budget:
    """What may still be taken in this batch; None where nothing bounds it."""

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
        """What is left when so much was taken."""
        return replace(
            self,
            units=None if self.units is None else self.units - units,
            size=None if self.size is None else self.size - size,
            is_untouched=self.is_untouched and units == 0,
        )


def in_turn(streams: Sequence[str], last: str) -> list[str]:
    """Streams in order, beginning behind `last`."""
    ordered = sorted(streams)
    return [name for name in ordered if name > last] + [name for name in ordered if name <= last]


def dealt_out(pending: Sequence[str], budget: Budget, width: int) -> tuple[Sequence[str], Allowance]:
    """The streams that are asked next, `width` at most, and how much each may take: equal parts."""
    number = min(len(pending), width) if budget.units is None else min(len(pending), width, budget.units)
    return pending[:number], Allowance(
        None if budget.units is None else budget.units // number,
        None if budget.size is None else max(budget.size // number, 1),
        is_forced=number == 1 and budget.is_untouched,
    )


def narrowed(width: int, asked: int, took: int) -> int:
    """How many share the bound when of `asked` streams that have news `took` could take some of it.

    A part that most streams' next message is larger than is no use to them.  Parts are doubled then, so that streams
    are asked in vain a few times in a batch, and not once for each message of the others.
    """
    return width if 2 * took >= asked else max(width // 2, 1)
