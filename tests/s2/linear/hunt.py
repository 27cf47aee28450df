"""Run a mutant, with one seed after the other, until the checker has seen what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.chaos.mutant import Mutant
from tests.s2.linear.appenders import Workload
from tests.s2.linear.lives import run_lives
from tests.s2.linear.run import Size, run

MOST_RUNS: Final = 30


@dataclass(frozen=True, slots=True)
class Caught:
    """A mutant was seen in a run with this seed, the last of so many."""

    seed: int
    runs: int
    why: str


def hunt(mutant: Mutant, *, seed: int = 1, most_runs: int = MOST_RUNS, size: Size | None = None) -> Caught | None:
    """The first run that sees the mutant; None if none of `most_runs` does."""
    with mutant.at_work():
        for number in range(most_runs):
            wrong = run(seed + number, Workload.PLAIN, 1 + number % 2, size=size).verdict.wrong
            if wrong:
                return Caught(seed + number, number + 1, wrong[0])
    return None


def hunt_lives(mutant: Mutant, *, seed: int = 1, most_runs: int = MOST_RUNS) -> Caught | None:
    """The same for streams that are created again."""
    with mutant.at_work():
        for number in range(most_runs):
            if wrong := run_lives(seed + number).wrong:
                return Caught(seed + number, number + 1, wrong[0])
    return None
