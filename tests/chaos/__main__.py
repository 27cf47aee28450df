"""`python -m tests.chaos`: run chaos and say what it has found, or what it finds of gateways with seeded faults."""

from __future__ import annotations

import argparse
import sys
import time

from tests.chaos.chaos import Result, chaos
from tests.chaos.mutant import Mutant
from tests.chaos.mutants import FAST_PATH_MUTANTS, LOG_MUTANTS, MUTANTS, RARE
from tests.chaos.rules import hunted
from tests.server.fast_and_strict import tells

_MOST_TRAFFIC = 400
"""Runs of traffic in which a mutant of the fast path is to be told."""


def main() -> int:
    """0 where all is well: no violation, or every mutant caught."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="longest time of a run (default 20; mutants 60)")
    parser.add_argument("--answers", type=int, default=0, help="end a run after so many answers (default: never)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run (default 1)")
    parser.add_argument("--runs", type=int, default=1, help="runs, each with the next seed (default 1)")
    parser.add_argument(
        "--production", action="store_true", help="have log, proxy and tokens in each run, not one in four"
    )
    parser.add_argument(
        "--auth", action="store_true", help="have log, proxy and rules who may, with tokens that expire, in each run"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="run the gateway as a program with so many workers, and kill some"
    )
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="let these mutants be caught; without names all")
    parser.add_argument("--rules", nargs="*", metavar="NAME", help="let the tests of the rules catch these mutants")
    arguments = parser.parse_args()
    if arguments.rules is not None:
        return hunted(arguments.rules)
    if arguments.mutants is not None:
        chosen = [one for one in MUTANTS if not arguments.mutants or one.name in arguments.mutants]
        # Chaos seldom meets the orders of events that these need.
        rare = [one for one in chosen if one.name in RARE and not arguments.mutants]
        chosen = [one for one in chosen if one not in rare]
        of_hits = [one for one in FAST_PATH_MUTANTS if not arguments.mutants or one.name in arguments.mutants]
        seconds = 60.0 if arguments.seconds == parser.get_default("seconds") else arguments.seconds
        caught = [hunted([one.name]) == 0 for one in rare]
        caught += [_hunted(one, arguments.seed, seconds) for one in chosen] + [_compared(one) for one in of_hits]
        _say(f"{sum(caught)} of {len(caught)} mutants caught")
        return int(not all(caught))
    found = 0
    for seed in range(arguments.seed, arguments.seed + arguments.runs):
        is_production = True if arguments.production or arguments.auth else None
        result = chaos(
            seed,
            arguments.seconds,
            most_answers=arguments.answers,
            is_production=is_production,
            has_auth=arguments.auth,
            workers=arguments.workers,
        )
        _say(_summary(result))
        for violation in result.violations:
            _say(f"\n{violation}")
        found += len(result.violations)
    return min(found, 1)


def _hunted(mutant: Mutant, seed: int, seconds: float) -> bool:
    with mutant.at_work():
        result = chaos(seed, seconds, most_violations=1, is_production=True if mutant in LOG_MUTANTS else None)
    if not result.violations:
        _say(f"MISSED {mutant.name:<48} {result.answers:>6} answers in {result.seconds:4.1f} s ({mutant.breaks})")
        return False
    found = result.violations[0]
    _say(f"caught {mutant.name:<48} {found.answers:>6} answers in {result.seconds:4.1f} s")
    _say(f"       {found.asked[:100]}: {found.why[:200]}")
    return True


def _compared(mutant: Mutant) -> bool:
    """Whether a gateway with the fault answers other than one that remembers nothing."""
    began = time.monotonic()
    with mutant.at_work():
        is_told = tells(_MOST_TRAFFIC)
    verdict, seconds = "caught" if is_told else "MISSED", time.monotonic() - began
    _say(f"{verdict} {mutant.name:<48} beside a gateway without a fast path, in {seconds:4.1f} s ({mutant.breaks})")
    return is_told


def _summary(result: Result) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.counts.items()))
    violations = f"{len(result.violations)} violations"
    logged = f", {result.logged} requests in the log" if result.logged is not None else ""
    return f"seed {result.seed}: {result.answers} answers in {result.seconds:.0f} s ({kinds}){logged}, {violations}"


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
