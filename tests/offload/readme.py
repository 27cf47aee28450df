"""Writes the stored figures as tables into the README and `docs/performance.md`, number for number.

`python -m tests.offload.readme` writes both tables from `docs/offload.json`: chosen cases into the README, all of the
shown cases into the page.  The page also has tables that compare one process with four workers, whose figures are in
`docs/offload-workers.json`, and with a fleet of four members with two workers each, in `docs/offload-fleet.json`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from reference_pages.part import with_part

_TITLES: Final = {
    "newcomers": "1,000 clients, one after the other: all from the start, then live",
    "hot-tail": "10,000 reads of one tail in 10 s, no live reader",
    "mixed": "180 live readers that come and go on 12 streams, and writers, for a minute",
    "unknown": "1,000 reads of 100 streams that do not exist",
    "cold": "1,000 streams, each read once",
    "outage": (
        "500 requests a second for 10 s, origin down (it saw connection attempts; {refused:,} requests got 503; "
        "first answer {back_s:g} s after it was back)"
    ),
    "long-polls": "1,000 long-polls with 50 cursors, woken by one append",
    "sse": "1,000 SSE subscribers from 20 offsets, then live",
    "both": "500 SSE + 500 long-poll on one stream",
    "growing": "100 readers of a 10 MiB stream while it grows",
    "growing-live": "the same, origin always answers to the tail, then long-poll",
    "returning": "100 long-poll clients, 20 rounds",
    "closed": "20 clients that loop at the end of a closed stream",
    "streams": "100 streams with 10 live readers each",
}
"""The cases that are shown, and their titles."""

_HEADLINES: Final = ("newcomers", "hot-tail", "mixed", "long-polls", "sse", "growing", "outage")
"""The cases that the README shows."""


def table(document: Mapping[str, Mapping[str, Any]], names: Collection[str] = tuple(_TITLES)) -> str:
    """The cases of these names, in Markdown."""
    lines = [
        "| what the clients did | clients | they asked | the origin saw | live at once | they got | the origin sent |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in names:
        kept = document[name]
        cells = [
            _TITLES[name].format(**kept),
            f"{kept['clients']:,}",
            f"{kept['asked']:,}",
            f"**{kept['fetches'] + kept['live_requests']:,}**",
            f"{kept['live_peak']:,}",
            _size(kept["given_bytes"]),
            _size(kept["origin_bytes"]),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def headlines(document: Mapping[str, Mapping[str, Any]]) -> str:
    """The cases that the README shows, in Markdown."""
    return table(document, _HEADLINES)


def compared(one: Mapping[str, Mapping[str, Any]], others: Mapping[str, Mapping[str, Any]], shown: str) -> str:
    """What the origin sees of one process and of several, shown under this title, in Markdown."""
    lines = [
        f"| what the clients did | requests, one process | {shown} | bytes, one process | {shown} |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, title in _TITLES.items():
        requests = [f"{kept[name]['fetches'] + kept[name]['live_requests']:,}" for kept in (one, others)]
        sizes = [_size(kept[name]["origin_bytes"]) for kept in (one, others)]
        lines.append(f"| {title.partition(' (')[0]} | {' | '.join(requests)} | {' | '.join(sizes)} |")
    return "\n".join(lines) + "\n"


def keep(home: Path) -> None:
    """Write the tables of the project at `home`.  Raises NoSuchPart if a page has no marks for its table."""
    document = orjson.loads((home / "docs" / "offload.json").read_bytes())
    workers = orjson.loads((home / "docs" / "offload-workers.json").read_bytes())
    fleet = orjson.loads((home / "docs" / "offload-fleet.json").read_bytes())
    for page, part, text in (
        ("README.md", "offload", headlines(document)),
        ("docs/performance.md", "offload", table(document)),
        ("docs/performance.md", "offload-workers", compared(document, workers, "four workers")),
        ("docs/performance.md", "offload-fleet", compared(document, fleet, "four members")),
    ):
        path = home / page
        path.write_text(with_part(path.read_text(encoding="utf-8"), part, text), encoding="utf-8")


def _size(count: int) -> str:
    if count < 1_000_000:
        return f"{count / 1_000:,.{1 if count < 100_000 else 0}f} kB" if count else "0"
    return f"{count / 1_000_000:,.{1 if count < 100_000_000 else 0}f} MB"


if __name__ == "__main__":
    keep(Path(__file__).parents[2])
