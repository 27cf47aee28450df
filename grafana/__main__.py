"""`python -m grafana` writes the dashboards, the alerts on the operator's page, and the links from the rules to it.

`--check` only lists the files that would change.  `--runbooks` is the URL of the published page, for `runbook_url`;
without it the links are the page's path in the repository.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana.alerts_page import PAGE, RULES, RUNBOOKS, with_alerts, with_runbooks
from grafana.board import rendered
from grafana.cache import CACHE
from grafana.connections import CONNECTIONS
from grafana.fleet import FLEET
from grafana.live import LIVE
from grafana.origin import ORIGIN
from grafana.overview import OVERVIEW
from grafana.pipeline import PIPELINE

FOLDER: Final = Path(__file__).parent / "dashboards"
BOARDS: Final = (OVERVIEW, LIVE, CACHE, ORIGIN, CONNECTIONS, FLEET, PIPELINE)


def files(runbooks: str = RUNBOOKS) -> Mapping[Path, str]:
    """Path and text of every generated file: the dashboards, the operator's page, and the rules."""
    boards = {FOLDER / f"{board.name}.json": rendered(board) for board in BOARDS}
    return {**boards, PAGE: with_alerts(PAGE.read_text()), RULES: with_runbooks(RULES.read_text(), runbooks)}


def drifted(runbooks: str = RUNBOOKS) -> list[str]:
    """Names of files that would change, are missing, or belong to no dashboard."""
    wanted = files(runbooks)
    wrong = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return sorted([*wrong, *(path.name for path in FOLDER.glob("*.json") if path not in wanted)])


def main() -> int:
    """Write or check the files; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m grafana", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with status 1 if a file would change")
    parser.add_argument("--runbooks", default=RUNBOOKS, metavar="URL", help="URL of the published page (%(default)s)")
    asked = parser.parse_args()
    if asked.check:
        wrong = drifted(asked.runbooks)
        if wrong:
            sys.stderr.write(f"not as generated: {', '.join(wrong)}; run make dashboards\n")
        return int(bool(wrong))
    for path, text in files(asked.runbooks).items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
