"""The messages of the command line: READY lines on stdout, one-line messages on stderr."""

from __future__ import annotations

import sys
from typing import Final

PROGRAM: Final = "durable-gateway"


def print_message(text: str) -> None:
    """Print `text` on stderr as one line, after the program's name."""
    print(f"{PROGRAM}: {' '.join(text.split())}", file=sys.stderr)  # noqa: T201


def print_ready(name: str, url: str) -> None:
    """Print `READY name url` on stdout and flush it, because a parent process may wait for the line on a pipe."""
    print(f"READY {name} {url}", flush=True)  # noqa: T201
