"""`make simulation`: walk many steps through the life of a simulated fleet, or check that faulty gateways are caught.

Exit statuses: 0 no walk has failed, or all mutants were caught; 1 otherwise.  The same seed gives the same walk.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

from tests.fleet.simulation.mutants import MUTANTS
from tests.fleet.simulation.walk import walk

_FAILURES = (AssertionError, TimeoutError)


def main() -> int:
    """Walk, and print what has happened."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(prog="make simulation", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="of the first walk; each further walk has the next one")
    parser.add_argument("--walks", type=int, default=100)
    parser.add_argument("--steps", type=int, default=1_000, help="of each walk")
    parser.add_argument("--rest-each", type=int, default=100, help="steps after which all faults end")
    parser.add_argument("--mutants", action="store_true", help="walk through gateways with one fault each")
    parser.add_argument("--only", nargs="+", default=[one.name for one in MUTANTS], help="these mutants")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    seeds = range(options.seed, options.seed + options.walks)
    if options.mutants:
        return _hunt(options.only, list(seeds), options.steps, options.rest_each)
    total: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        try:
            counts = walk(seed, options.steps, options.rest_each)
        except _FAILURES as error:
            failed.append(seed)
            _print(f"seed {seed} FAILED: {_text(error)}")
        else:
            total += Counter({**counts.of, "most live": 0})
            _print(f"seed {seed}: {dict(total)}")
    _print(f"{len(failed)} of {len(seeds)} walks failed: {failed}")
    return int(bool(failed))


def _hunt(names: list[str], seeds: list[int], steps: int, rest_each: int) -> int:
    """Walk with each mutant until a walk fails that does not fail without it."""
    passing = [seed for seed in seeds if _failure(seed, steps, rest_each) is None]
    _print(f"{len(passing)} of {len(seeds)} walks pass without a mutant")
    missed = []
    for mutant in (one for one in MUTANTS if one.name in names):
        with mutant.at_work():
            failure = next(filter(None, (_failure(seed, steps, rest_each) for seed in passing)), None)
        _print(f"{'MISSED' if failure is None else 'caught'} {mutant.name:<40} {(failure or '')[:300]}")
        if failure is None:
            missed.append(mutant.name)
    return int(bool(missed) or not passing)


def _failure(seed: int, steps: int, rest_each: int) -> str | None:
    """Walk, and return why the walk has failed, or None."""
    try:
        walk(seed, steps, rest_each)
    except _FAILURES as error:
        return _text(error)
    return None


def _text(error: BaseException) -> str:
    return " ".join([str(error) or type(error).__name__, *getattr(error, "__notes__", ())])


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
