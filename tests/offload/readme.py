"""Kept figures as the README's table: what is shown there is what was counted, number for number.

`python -m tests.offload.readme docs/offload.json` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

_TITLES: Final = {
    "newcomers": "1,000 clients, one after the other: all from the start, then live",
    "hot-tail": "10,000 reads of one tail in 10 s, nobody live",
    "mixed": "180 live readers of 12 streams, who come and go, and writers, for a minute",
    "unknown": "1,000 reads of 100 streams that do not exist",
    "cold": "1,000 streams, each read once",
    "outage": "500 requests a second for 10 s, origin down: what it saw are connections tried",
    "long-polls": "1,000 long-polls with 50 cursors, woken by one append",
    "sse": "1,000 SSE subscribers from 20 offsets, then live",
    "both": "500 SSE + 500 long-poll on one stream",
    "growing": "100 readers of a 10 MiB stream while it grows",
    "growing-live": "the same, origin answers always to the tail, then long-poll",
    "returning": "100 long-poll clients, 20 rounds",
    "closed": "20 clients that loop at the end of a closed stream",
    "streams": "100 streams with 10 live readers each",
}
"""The cases that are shown, and what is said of each."""


def table(document: Mapping[str, Mapping[str, Any]]) -> str:
    """The cases that the README shows, in Markdown."""
    lines = [
        "| what the clients did | clients | they asked | the origin saw | live at once | they got | the origin sent |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, title in _TITLES.items():
        kept = document[name]
        cells = [
            title,
            f"{kept['clients']:,}",
            f"{kept['asked']:,}",
            f"**{kept['fetches'] + kept['live_requests']:,}**",
            f"{kept['live_peak']:,}",
            _size(kept["given_bytes"]),
            _size(kept["origin_bytes"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _size(count: int) -> str:
    if count < 1_000_000:
        return f"{count / 1_000:,.{1 if count < 100_000 else 0}f} kB" if count else "0"
    return f"{count / 1_000_000:,.{1 if count < 100_000_000 else 0}f} MB"


if __name__ == "__main__":
    sys.stdout.write(table(orjson.loads(Path(sys.argv[1]).read_bytes())))
