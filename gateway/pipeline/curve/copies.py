"""A simulation of the copies that a gateway keeps besides its tapes: coded bodies and remembered answers.

Both are charged to the cache's budget, and tapes are evicted for them.  The rules are those of
`gateway.engine.compression` and `gateway.server.remembered`:

- Compressed bodies are kept up to a share of the budget, one for each start of a read and each coding.  The tape used
  least recently loses its bodies first.
- A remembered answer is a whole answer that needs no request to the origin.  Answers are kept up to another share of
  the budget, and the oldest is dropped first.  An answer with a small body holds two more copies of that body: one by
  itself, and one in the rendered response.

A miss may create a coded body, but no remembered answer.
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
"""Approximate bytes charged for the texts of an answer: its head twice, its key and an alias."""

Slot = tuple[int, int]
"""Identifies a body of one tape: the position at which its read starts, and its coding (0: none)."""


class Lender(Protocol):
    """The budget that copies are charged to."""

    def lend(self, size: int, tape: int) -> bool:
        """Make room for `size` bytes that were made from a tape, without evicting that tape.

        Return False if there is no room.
        """

    def take_back(self, size: int) -> None:
        """Return lent bytes."""


class Copies:
    """The copies in one simulated cache of `budget_bytes`, which represents the caches of `caches` gateways."""

    def __init__(self, lender: Lender, budget_bytes: float, caches: float) -> None:
        self._lender = lender
        one = budget_bytes / caches
        self._most_coded = min(budget_bytes / CODED_SHARE, CODED_USUAL_BYTES * caches)
        self._most_answers = budget_bytes / ANSWER_SHARE
        # A simulated body has its real size, although the budget is scaled.  The limit on a body is therefore that of
        # one gateway's cache.
        self._largest = min(one / CODED_SHARE, CODED_USUAL_BYTES) / CODED_BODY_SHARE
        self._coded_cost = self._answers_cost = 0
        self._coded: OrderedDict[int, dict[Slot, tuple[int, int]]] = OrderedDict()
        """The end and the cost of each coded body, by tape."""
        self._answers: OrderedDict[tuple[int, int, int, int], int] = OrderedDict()
        """The cost of each answer, by tape, start, end and coding."""
        self._answers_of: dict[int, set[tuple[int, int, int, int]]] = {}

    def use(self, tape: int, low: int, high: int, sizes: Sequence[int], *, is_hit: bool) -> None:
        """Record that the bytes of a tape from `low` to `high` were sent.

        `sizes` has the bytes sent without coding, then those sent in each coding; 0 for a form that no reader got.
        `is_hit` means that at least one reader needed nothing from the origin.
        """
        for coding, size in enumerate(sizes):
            if size and (not coding or self._code(tape, low, high, coding, size)) and is_hit:
                self._remember((tape, low, high, coding), size)

    def forget(self, tape: int) -> None:
        """Drop the copies of a tape, which was evicted in whole or in part."""
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
