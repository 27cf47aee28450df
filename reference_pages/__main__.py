"""`python -m reference_pages` writes the generated parts of the reference pages, and the picture of the layers.

`--check` writes nothing and names the pages that are out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from reference_pages.access_log import access_log
from reference_pages.admin_api import admin_api
from reference_pages.commands import commands
from reference_pages.configuration import configuration
from reference_pages.layers import layers
from reference_pages.metrics import metrics
from reference_pages.part import with_part
from reference_pages.pipeline_tables import pipeline_tables

FOLDER: Final = Path(__file__).parent.parent / "docs" / "reference"
PARTS: Final[Mapping[str, tuple[str, Callable[[], str]]]] = {
    "configuration.md": ("configuration", configuration),
    "commands.md": ("commands", commands),
    "admin-api.md": ("admin api", admin_api),
    "metrics.md": ("metrics", metrics),
    "access-log.md": ("access log", access_log),
    "pipeline-tables.md": ("tables", pipeline_tables),
}
"""By page: the name of its generated part, and the function that makes it."""
PICTURE: Final = FOLDER.parent / "layers.svg"


def wanted(page: str) -> str:
    """The text of a page in `PARTS` with its part generated from the code."""
    name, make = PARTS[page]
    return with_part((FOLDER / page).read_text(encoding="utf-8"), name, make())


def drifted() -> list[str]:
    """Names of the files that are out of date."""
    wrong = [page for page in PARTS if (FOLDER / page).read_text(encoding="utf-8") != wanted(page)]
    return wrong if PICTURE.read_text(encoding="utf-8") == layers() else [*wrong, PICTURE.name]


def main() -> int:
    """Write or check the pages; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m reference_pages", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page would change")
    if parser.parse_args().check:
        wrong = drifted()
        if wrong:
            sys.stderr.write(f"not as generated: {', '.join(wrong)}; run make reference\n")
        return int(bool(wrong))
    for page in PARTS:
        (FOLDER / page).write_text(wanted(page), encoding="utf-8")
    PICTURE.write_text(layers(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
