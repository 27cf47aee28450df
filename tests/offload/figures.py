"""The offload table: `python -m tests.offload.figures` plays every case and prints it as Markdown.

The figures are the origin's own counters.  Requests are reads (GET and HEAD), bytes are those of bodies; for SSE that
includes event names and control events.  "Live at once" is the most live requests that were ever open at the origin.

`--keep FILE` leaves them as JSON, too; the README shows some of the kept ones: `readme_table` makes its lines.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import orjson
import uvloop

from tests.offload import cases, mixed, outage, spared
from tests.offload.stage import BINARY, JSON, TEXT, Figure

CASES: Final[Mapping[str, Callable[[], Awaitable[Figure]]]] = {
    "newcomers": lambda: spared.newcomers(JSON),
    "newcomers-binary": lambda: spared.newcomers(BINARY),
    "hot-tail": lambda: spared.hot_tail(),
    "mixed": lambda: mixed.mixed(),
    "unknown": lambda: spared.unknown_names(),
    "cold": lambda: spared.cold_streams(),
    "outage": lambda: outage.outage(),
    "long-polls": lambda: cases.long_polls(JSON),
    "long-polls-text": lambda: cases.long_polls(TEXT),
    "sse": lambda: cases.subscribers(JSON),
    "sse-binary": lambda: cases.subscribers(BINARY),
    "sse-text": lambda: cases.subscribers(TEXT),
    "both": lambda: cases.both_modes(JSON),
    "growing": lambda: cases.growing(JSON),
    "growing-to-tail": lambda: cases.growing(JSON, max_chunk_bytes=64 * cases.MIB),
    "growing-binary": lambda: cases.growing(BINARY),
    "growing-to-tail-binary": lambda: cases.growing(BINARY, max_chunk_bytes=64 * cases.MIB),
    "growing-live": lambda: cases.growing(JSON, max_chunk_bytes=64 * cases.MIB, is_live=True),
    "growing-live-binary": lambda: cases.growing(BINARY, is_live=True),
    "closed": lambda: cases.closed_loop(JSON),
    "returning": lambda: cases.returning(JSON),
    "returning-text": lambda: cases.returning(TEXT),
    "streams": lambda: cases.many_streams(),
}
"""By the names under which their figures are kept."""

README_CASES: Final = {
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
"""What the README shows, and what it says of each."""

HEAD = (
    "| case | clients | requests asked | bytes given | requests at the origin | live at once | connections "
    "| bytes from the origin | requests, asked : origin | bytes, given : origin |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def row(figure: Figure) -> str:
    """One line of the table."""
    cells = [
        figure.case,
        f"{figure.clients:,}",
        f"{figure.asked:,}",
        f"{figure.given_bytes:,}",
        f"{figure.reads:,}",
        f"{figure.live_peak:,}",
        f"{figure.connections:,}",
        f"{figure.origin_bytes:,}",
        f"{figure.asked / max(1, figure.reads):,.0f} : 1",
        f"{figure.given_bytes / max(1, figure.origin_bytes):,.1f} : 1",
    ]
    return "| " + " | ".join(cells) + " |"


def readme_table(document: Mapping[str, Mapping[str, Any]]) -> str:
    """The README's lines, from figures that were kept."""
    lines = [
        "| what the clients did | clients | they asked | the origin saw | live at once | they got | the origin sent |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, title in README_CASES.items():
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


async def main(argv: Sequence[str]) -> None:
    """Play the cases, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.offload.figures", description="Play the offload cases.")
    parser.add_argument("--only", nargs="+", choices=[*CASES], metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where to leave the figures of all cases as JSON")
    options = parser.parse_args(argv)
    if options.keep and options.only:
        parser.error("--keep is for all cases")
    figures: dict[str, Figure] = {}
    sys.stdout.write(HEAD + "\n")
    for name in options.only or CASES:
        figures[name] = await CASES[name]()
        sys.stdout.write(row(figures[name]) + "\n")
        sys.stdout.flush()
    if options.keep:
        kept = {name: asdict(figure) for name, figure in figures.items()}
        options.keep.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1:]))
