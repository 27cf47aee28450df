"""`python -m tests.s2.linear`: judge what clients of S2 streams see, or what is seen of gateways with seeded faults."""

from __future__ import annotations

import argparse
import sys
import time
from itertools import count, product

from tests.s2.linear.appenders import Workload
from tests.s2.linear.hunt import hunt, hunt_lives
from tests.s2.linear.lives import run_lives
from tests.s2.linear.mutants import LIVES, MUTANTS
from tests.s2.linear.run import Size, run


def main() -> int:
    """0 where all is well: every history linearizable, or every mutant caught."""
    parser = argparse.ArgumentParser(prog="linearizability", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="begin no run after this time (default 30)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first runs (default 1)")
    parser.add_argument("--rounds", type=int, default=Size().rounds, help="batches of each appender (default 20)")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="let these mutants be caught; without names all")
    arguments = parser.parse_args()
    size = Size(rounds=arguments.rounds)
    if arguments.mutants is not None:
        chosen = [one for one in (*MUTANTS, *LIVES) if not arguments.mutants or one.name in arguments.mutants]
        caught = 0
        for mutant in chosen:
            is_of_lives = mutant in LIVES
            found = (
                hunt_lives(mutant, seed=arguments.seed) if is_of_lives else hunt(mutant, seed=arguments.seed, size=size)
            )
            caught += found is not None
            outcome = "MISSED" if found is None else f"caught in run {found.runs}, seed {found.seed}: {found.why}"
            _say(f"{mutant.name} ({mutant.breaks})\n    {outcome}")
        _say(f"{caught} of {len(chosen)} mutants caught")
        return int(caught < len(chosen))
    wrong, until = 0, time.monotonic() + arguments.seconds
    for seed, (workload, gateways) in (
        (seed, one) for seed in count(arguments.seed) for one in product(Workload, (1, 2))
    ):
        if time.monotonic() >= until:
            break
        result = run(seed, workload, gateways, size=size)
        found_wrong = result.verdict.wrong
        _say(
            f"seed {seed}, {workload.value}, gateways {gateways}: {result.definite} of {result.calls} calls answered, "
            f"{result.records} records, {'NOT ' if found_wrong else ''}linearizable"
        )
        if workload is Workload.PLAIN:
            lives = run_lives(seed)
            found_wrong = [*found_wrong, *lives.wrong]
            _say(f"seed {seed}, streams that are created again: {lives.answers} answers, {len(lives.wrong)} wrong")
        for why in found_wrong:
            _say(f"\n{why}")
        wrong += bool(found_wrong)
    return min(wrong, 1)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
