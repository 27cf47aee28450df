"""`python -m grafana` writes the dashboards and the operator's table of alerts.

`--check` only says which of them are not as they would be written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from grafana.alerts_page import PAGE, with_alerts
from grafana.board import rendered
from grafana.cache import CACHE
from grafana.live import LIVE
from grafana.origin import ORIGIN
from grafana.overview import OVERVIEW
from grafana.pipeline import PIPELINE

FOLDER: Final = Path(__file__).parent / "dashboards"
BOARDS: Final = (OVERVIEW, LIVE, CACHE, ORIGIN, PIPELINE)


def files() -> Mapping[Path, str]:
    """Every dashboard's file and what belongs into it; and the operator's page."""
    boards = {FOLDER / f"{board.name}.json": rendered(board) for board in BOARDS}
    return {**boards, PAGE: with_alerts(PAGE.read_text())}


def drifted() -> list[str]:
    """Names of files that are not as they would be written, are missing, or are nobody's."""
    wanted = files()
    wrong = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    return sorted([*wrong, *(path.name for path in FOLDER.glob("*.json") if path not in wanted)])


def main() -> int:
    """Write, or check; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m grafana", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a file would change")
    if parser.parse_args().check:
        wrong = drifted()
        if wrong:
            sys.stderr.write(f"not as generated: {', '.join(wrong)}; run make dashboards\n")
        return int(bool(wrong))
    for path, text in files().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
