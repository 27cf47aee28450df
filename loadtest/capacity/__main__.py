"""`python -m loadtest.capacity measure|check|page`: the costs, the measured points, the guide.

`measure` writes `costs.json`, `check` writes `checked.json`, both next to this file.  `page` writes the chart and the
tables of `docs/guides/million-readers.md`.  Exit statuses: 0 written, 1 not measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from loadtest.bench.machine import BenchError, description
from loadtest.capacity import check, page
from loadtest.capacity.costs import CHECKED, COSTS, Measured
from loadtest.capacity.measure import QUICK, Sizes, measure

HOME = Path(__file__).parents[2]


def main() -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.capacity", description=__doc__)
    parser.add_argument("work", choices=("measure", "check", "page"), nargs="?", default="page")
    parser.add_argument("--quick", action="store_true", help="tiny counts, to try the program")
    parser.add_argument("--out", type=Path, help="another file than costs.json or checked.json")
    options = parser.parse_args()
    try:
        _work(options)
    except BenchError as error:
        print(f"capacity: {error}", file=sys.stderr)
        return 1
    return 0


def _work(options: argparse.Namespace) -> None:
    day, machine = time.strftime("%Y-%m-%d"), f"{description()['cores']} cores"
    match options.work:
        case "measure":
            Measured(measure(QUICK if options.quick else Sizes()), day, machine).write(options.out or COSTS)
        case "check":
            check.Checked(day, check.measured(is_quick=options.quick)).write(options.out or CHECKED)
        case _:
            page.keep(HOME)


if __name__ == "__main__":
    sys.exit(main())
