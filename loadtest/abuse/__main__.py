"""`python -m loadtest.abuse`: good clients beside abusive ones, and beside hostile origins.

It writes `abuse.json` with the figures of each run, and prints tables.  Exit statuses: 0 nothing was refused or wrong,
memory stayed within its bound, and no p99 grew above its bound; 1 something did; 2 the run failed to start.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadtest.abuse import abusers, hostile
from loadtest.abuse.report import document, faults, gateway_table, good_table, got_table, slow
from loadtest.abuse.stage import Plan, run
from loadtest.bench.machine import BenchError, description

_CALLERS = 200
_ORIGINS = (*hostile.KINDS, hostile.REFUSES)


def main() -> int:
    """Run, print, and return the exit status."""
    parser = argparse.ArgumentParser(prog="make abuse", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="length of each phase: alone, beside, alone (default 60)"
    )
    parser.add_argument("--good", type=int, default=100, help="good clients (default 100)")
    parser.add_argument("--abusers", type=int, default=1_000, help="abusive clients (default 1000)")
    parser.add_argument("--only", nargs="+", metavar="KIND", choices=[*abusers.KINDS, *_ORIGINS], help="these kinds")
    parser.add_argument("--each", action="store_true", help="each kind in a run of its own, 100 clients of it")
    parser.add_argument(
        "--realtime", action="store_true", help="the measured processes go before all else that runs on the machine"
    )
    parser.add_argument("--out", type=Path, default=Path("build/abuse"))
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    chosen = options.only or [*abusers.KINDS, *_ORIGINS]
    kinds = tuple(kind for kind in chosen if kind in abusers.KINDS)
    origins = tuple(kind for kind in chosen if kind in _ORIGINS)
    share = options.abusers // len(abusers.KINDS)
    callers = _CALLERS // len(_ORIGINS)
    plans: dict[str, Plan] = {}
    if options.each:
        plans = {kind: Plan(options.seconds, options.good, share, (kind,)) for kind in kinds}
        plans |= {kind: Plan(options.seconds, options.good, callers, (), (kind,)) for kind in origins}
    else:
        if kinds:
            plans["clients"] = Plan(options.seconds, options.good, share * len(kinds), kinds)
        if origins:
            plans["origins"] = Plan(options.seconds, options.good, callers * len(origins), (), origins)
    kept: dict[str, Any] = {}
    is_bad = False
    try:
        for name, planned in plans.items():
            machine = description()
            plan = replace(planned, is_realtime=options.realtime, is_alone_again=True)
            figures = document(run(plan, options.out / name.replace(" ", "-")))
            kept[name] = {"machine": machine, **figures}
            print(f"\n{name}\n\n{good_table(figures)}\n{gateway_table(figures)}\n{got_table(figures)}", flush=True)
            complaints = faults(figures) + slow(figures)
            print("\n".join(complaints + figures["examples"] if complaints else ["nothing is refused, wrong or slow"]))
            is_bad |= bool(complaints)
            (options.out / "abuse.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    except BenchError as error:
        print(f"abuse: {error}", file=sys.stderr)
        return 2
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
