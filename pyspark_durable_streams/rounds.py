"""How a batch's bound is shared among streams: pure.

All that may have news get equal parts; what some leave goes to those that have more, in further rounds.  The first of
a batch is the stream behind the one that got the last of the batch before, so that a bound smaller than the number of
streams starves none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark_durable_streams.survey import Allowance


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


def dealt_out(pending: Sequence[str], budget: Budget, *, to_first: bool) -> tuple[Sequence[str], Allowance]:
    """Who is asked next and how much each may take: equal parts, or all to the first where a part was no use."""
    if to_first:
        return pending[:1], Allowance(budget.units, budget.size, is_forced=budget.is_untouched)
    number = len(pending) if budget.units is None else min(len(pending), budget.units)
    return pending[:number], Allowance(
        None if budget.units is None else budget.units // number,
        None if budget.size is None else max(budget.size // number, 1),
    )
