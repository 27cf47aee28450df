"""Coded bodies and remembered answers, in miniature: the copies that a gateway keeps besides its tapes.

Both take bytes of the cache's budget, and tapes make room for them, as in `gateway.engine.coder` and
`gateway.server.remembered`:

- A body in a coding is kept for each start of a read, up to a share of the budget; the stream used least recently loses
  its bodies first.
- An answer that needs no question to the origin is remembered, up to another share; the oldest goes first.  A small
  body is held by its answer once more, and as part of the rendered response.

A read that misses may be coded, but its answer is not remembered before the next read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from gateway.tape.costs import (
    ANSWER_COST,
    ANSWER_SHARE,
    CODED_BODY_SHARE,
    CODED_COST,
    CODED_SHARE,
    CODED_USUAL_BYTES,
    SMALL_BYTES,
)

_ANSWER_TEXTS: Final = 1_400
"""About the bytes charged for the texts of an answer: its head twice, its key, an alias."""

Slot = tuple[int, int]
"""A body of one tape: the position at which its read starts, and its coding; 0 for no coding."""


class Lender(Protocol):
    """The budget that copies are charged to."""

    def lend(self, size: int, tape: int) -> bool:
        """Make room for `size` bytes made from a tape, but not at the tape's cost; False if that fails."""

    def take_back(self, size: int) -> None:
        """Return lent bytes."""


class Copies:
    """The copies in one cache of `budget_bytes`, which stands for `caches` caches of gateways."""

    def __init__(self, lender: Lender, budget_bytes: float, caches: float) -> None:
        self._lender = lender
        one = budget_bytes / caches
        self._most_coded = min(budget_bytes / CODED_SHARE, CODED_USUAL_BYTES * caches)
        self._most_answers = budget_bytes / ANSWER_SHARE
        # Of a single body, so not in miniature.
        self._largest = min(one / CODED_SHARE, CODED_USUAL_BYTES) / CODED_BODY_SHARE
        self._coded_cost = self._answers_cost = 0
        self._coded: OrderedDict[int, dict[Slot, tuple[int, int]]] = OrderedDict()
        """End and cost of coded bodies, by tape."""
        self._answers: OrderedDict[tuple[int, int, int, int], int] = OrderedDict()
        """Costs of answers, by tape, start, end and coding."""
        self._answers_of: dict[int, set[tuple[int, int, int, int]]] = {}

    def use(self, tape: int, low: int, high: int, sizes: Sequence[int], *, is_hit: bool) -> None:
        """The bytes of a tape from `low` to `high` were sent.

        `sizes` has the sent bytes without coding and in each coding, 0 where no reader was sent that; `is_hit` says
        that a reader needed nothing from the origin.
        """
        for coding, size in enumerate(sizes):
            if size and (not coding or self._code(tape, low, high, coding, size)) and is_hit:
                self._remember((tape, low, high, coding), size)

    def forget(self, tape: int) -> None:
        """The tape, or a part of it, is evicted."""
        self._forget_answers(tape)
        for _, cost in self._coded.pop(tape, {}).values():
            self._coded_cost -= cost
            self._lender.take_back(cost)

    def _code(self, tape: int, low: int, high: int, coding: int, size: int) -> bool:
        """Keep a coded body; return whether it is kept."""
        bodies = self._coded.get(tape)
        if bodies is not None:
            self._coded.move_to_end(tape)
            known = bodies.get((low, coding))
            if known is not None and known[0] == high:
                return True
            if known is not None:
                self._drop(tape, (low, coding))
        cost = CODED_COST + size
        if cost > self._largest:
            return False
        while self._coded_cost + cost > self._most_coded and self._coded:
            oldest = next(iter(self._coded))
            self._drop(oldest, next(iter(self._coded[oldest])))
        if self._coded_cost + cost > self._most_coded or not self._lender.lend(cost, tape):
            return False
        self._coded_cost += cost
        self._coded.setdefault(tape, {})[low, coding] = high, cost
        self._coded.move_to_end(tape)
        return True

    def _drop(self, tape: int, slot: Slot) -> None:
        bodies = self._coded[tape]
        _, cost = bodies.pop(slot)
        if not bodies:
            del self._coded[tape]
        self._coded_cost -= cost
        self._lender.take_back(cost)
        self._forget_answers(tape)

    def _remember(self, answer: tuple[int, int, int, int], size: int) -> None:
        if answer in self._answers:
            return
        cost = ANSWER_COST + _ANSWER_TEXTS + (2 * size if size <= SMALL_BYTES else 0)
        if cost > self._most_answers:
            return
        while self._answers_cost + cost > self._most_answers:
            self._drop_answer(next(iter(self._answers)))
        tape = answer[0]
        if self._lender.lend(cost, tape):
            self._answers_cost += cost
            self._answers[answer] = cost
            self._answers_of.setdefault(tape, set()).add(answer)

    def _drop_answer(self, answer: tuple[int, int, int, int]) -> None:
        cost = self._answers.pop(answer)
        siblings = self._answers_of[answer[0]]
        siblings.discard(answer)
        if not siblings:
            del self._answers_of[answer[0]]
        self._answers_cost -= cost
        self._lender.take_back(cost)

    def _forget_answers(self, tape: int) -> None:
        for answer in list(self._answers_of.get(tape, ())):
            self._drop_answer(answer)
