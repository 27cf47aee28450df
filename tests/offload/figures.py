"""The offload table: `python -m tests.offload.figures` runs every case and prints it as Markdown.

The figures are the origin's own counters.  Requests are reads (GET and HEAD), bytes are those of bodies; for SSE that
includes event names and control events.  "Live at once" is the most live requests that were open at the origin at any
time.

Instead of a row, the case `flapping` prints the observations of its clients: 150 readers and 15 writers of an origin
that is down fifty times.

`--keep FILE` also stores them as JSON: `tests.offload.readme` writes the tables of the README and of
`docs/performance.md` from `docs/offload.json`.  `--workers N` runs every case with a gateway of N workers, and
`--members M` with a fleet of M such gateways.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import orjson
import uvloop

from tests.offload import cases, flapping, mixed, outage, spared
from tests.offload.stage import BINARY, JSON, TEXT, Figure, use_workers

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
"""Cases by the names under which their figures are stored."""

FLAPPING: Final = "flapping"

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


async def main(argv: Sequence[str]) -> None:
    """Run the cases one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.offload.figures", description="Play the offload cases.")
    names = [*CASES, FLAPPING]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--keep", type=Path, metavar="FILE", help="where to leave the figures of all cases as JSON")
    parser.add_argument("--workers", type=int, default=0, help="run the gateway as a program with so many workers")
    parser.add_argument("--members", type=int, default=1, help="run a fleet of so many such gateways")
    options = parser.parse_args(argv)
    use_workers(options.workers, options.members)
    if options.keep and options.only:
        parser.error("--keep is for all cases")
    figures: dict[str, Figure] = {}
    sys.stdout.write(HEAD + "\n")
    for name in options.only or names:
        if name == FLAPPING:
            sys.stdout.write(f"{await flapping.flapping()}\n")
            continue
        figures[name] = await CASES[name]()
        sys.stdout.write(row(figures[name]) + "\n")
        if name == "outage":
            refused, back_s = figures[name].refused, figures[name].back_s
            sys.stdout.write(f"{refused:,} requests refused; first answer {back_s:g} s after the origin was back\n")
        sys.stdout.flush()
    if options.keep:
        kept = {name: asdict(figure) for name, figure in figures.items()}
        options.keep.write_bytes(orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1:]))
