"""The result of a run: as a table for people, as JSON for programs.  Pure, but for printing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import orjson
from rich.console import Console

from loadtest.bench.figures import GATEWAY, Growth, Row

PEERS: Final = (
    "fast path off",
    "none stalled",
    "inside the tape",
    "nothing set",
    "access log",
    "trusted proxy",
    "shared tokens",
    "judged tokens",
    "signed URLs",
    "forward-auth",
    "browsers",
    "rate limit",
    "nginx",
    "auth_request",
    "varnish",
    "nchan",
    "bare",
    "Durable Stream",
    "direct",
)
"""The gateway's peers, in the order of the table."""


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run."""

    machine: dict[str, str | int]
    versions: dict[str, str]
    settings: dict[str, float]
    rows: Sequence[Row]
    growth: Sequence[Growth]
    notes: Sequence[str]
    """One line each for what was not measured and what readers must know."""


def to_json(result: Result) -> bytes:
    """Every sample, every median and every verdict."""
    document = {
        "machine": result.machine,
        "versions": result.versions,
        "settings": result.settings,
        "rows": [_row(row) for row in result.rows],
        "growth": [asdict(growth) for growth in result.growth],
        "notes": list(result.notes),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _row(row: Row) -> dict[str, Any]:
    return {
        "key": row.key,
        "title": row.title,
        "unit": row.unit,
        "peers": {
            peer: {
                "median": row.median_of(peer),
                "gateway_ratio": row.ratio_to(peer),
                "busy": row.busy_of(peer),
                "cpu_us": row.cpu_us_of(peer),
                "gateway_cpu_ratio": row.cpu_ratio_to(peer),
                "is_load_bound": row.is_load_bound(peer),
                "samples": [asdict(sample) for sample in samples],
            }
            for peer, samples in row.samples.items()
        },
        "targets": [
            {"target": target.text(), "peer": target.shown_at, "is_reached": target.is_reached(row)}
            for target in row.targets
        ],
    }


def foreign_share(rows: Sequence[Row]) -> float | None:
    """Median load of the server's core by other processes, over all samples."""
    shares = [
        sample.foreign
        for row in rows
        for samples in row.samples.values()
        for sample in samples
        if sample.foreign is not None
    ]
    return median(shares) if shares else None


def table(result: Result) -> str:
    """The table: for each benchmark a line per peer, with the ratio of the gateway's figure to it and the target."""
    lines = [_line("", "median", "gateway's", "cpu µs", "gateway's", "must", "reached")]
    for row in result.rows:
        lines += ["", f"{row.title}, {row.unit}"]
        lines += [_line(*cells) for peer in (GATEWAY, *PEERS) if peer in row.samples for cells in _cells(row, peer)]
    return "\n".join(line.rstrip() for line in lines)


def _line(*cells: str) -> str:
    peer, value, ratio, cpu, cpu_ratio, must, reached = cells
    return f"  {peer:<16}{value:>13}{ratio:>11}{cpu:>10}{cpu_ratio:>11}   {must:<22} {reached}"


def _cells(row: Row, peer: str) -> list[tuple[str, ...]]:
    """A peer's line under a row's title, and one more for each further target."""
    value = row.median_of(peer) or 0.0
    own = [target for target in row.targets if target.shown_at == peer]
    musts = [(target.text(), verdict(target.is_reached(row))) for target in own] or [("", "")]
    is_other = peer != GATEWAY
    first = (
        peer,
        f"{value:,.{row.digits}f}" + ("~" if row.is_load_bound(peer) else " "),
        _times(row.ratio_to(peer)) if is_other else "",
        _microseconds(row.cpu_us_of(peer)),
        _times(row.cpu_ratio_to(peer)) if is_other else "",
        *musts[0],
    )
    return [first, *(("", "", "", "", "", *more) for more in musts[1:])]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} x"


def _microseconds(time_us: float | None) -> str:
    return "" if time_us is None else f"{time_us:,.{0 if time_us >= 100 else 1 if time_us >= 10 else 2}f}"


def verdict(is_reached: bool | None) -> str:
    """The word for a verdict."""
    if is_reached is None:
        return "not measured"
    return "yes" if is_reached else "no"


def show(result: Result, console: Console) -> None:
    """Print the table, its legend, growth, and the notes."""
    console.print(table(result), end="\n\n")
    console.print(
        "cpu µs: processor time of all the server's processes an operation: a request, a delivery, a reader let in.\n"
        "gateway's: the gateway's figure as a multiple of the peer's.\n"
        "~: the load or its schedule was the limit, not the server; the processor time holds."
    )
    for growth in result.growth:
        console.print(f"\ngateway, cached 1 KB, by {growth.of}:")
        for point in growth.points:
            console.print(
                f"  {point.count:>6,}  {point.requests_per_s:>10,.0f} requests/s  {point.busy:4.0%} busy  "
                f"{point.requests_per_s / point.busy if point.busy else 0:>10,.0f} per cpu s  "
                f"{point.pss_bytes / (1 << 20):>7,.1f} MiB"
            )
    for note in result.notes:
        console.print(f"note: {note}")
