"""The offload table: `python -m tests.offload.figures` plays every case and prints it as Markdown.

The figures are the origin's own counters.  Requests are reads (GET and HEAD), bytes are those of bodies; for SSE that
includes event names and control events.  "Live at once" is the most live requests that were ever open at the origin.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

import uvloop

from tests.offload import cases
from tests.offload.stage import BINARY, JSON, TEXT, Figure

CASES: tuple[Callable[[], Awaitable[Figure]], ...] = (
    lambda: cases.long_polls(JSON),
    lambda: cases.long_polls(TEXT),
    lambda: cases.subscribers(JSON),
    lambda: cases.subscribers(BINARY),
    lambda: cases.subscribers(TEXT),
    lambda: cases.both_modes(JSON),
    lambda: cases.growing(JSON),
    lambda: cases.growing(JSON, max_chunk_bytes=64 * cases.MIB),
    lambda: cases.growing(BINARY),
    lambda: cases.growing(BINARY, max_chunk_bytes=64 * cases.MIB),
    lambda: cases.growing(JSON, max_chunk_bytes=64 * cases.MIB, is_live=True),
    lambda: cases.growing(BINARY, is_live=True),
    lambda: cases.closed_loop(JSON),
    lambda: cases.returning(JSON),
    lambda: cases.returning(TEXT),
    lambda: cases.many_streams(),
)

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


async def main() -> None:
    """Play every case, one after the other."""
    sys.stdout.write(HEAD + "\n")
    for case in CASES:
        sys.stdout.write(row(await case()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
