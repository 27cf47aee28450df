"""Turns a run's JSON into the tables of `docs/performance.md`, which show the measured figures unchanged.

`python -m loadtest.bench.readme build/bench` publishes a whole run: JSON and pictures under docs/, tables in the page.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any, Final

import orjson

_GATEWAY: Final = "gateway"
_BEGIN: Final = "<!-- bench -->\n"
_END: Final = "<!-- /bench -->"


def tables(document: dict[str, Any]) -> str:
    """The figures compared with the peers', and growth of cost, in Markdown."""
    lines = [
        "| benchmark | gateway | cpu µs | beside | | cpu µs | ratio | of cpu µs | aim | |",
        "|---|---:|---:|---|---:|---:|---:|---:|---|---|",
    ]
    for row in document["rows"]:
        lines += _row(row)
    for growth in document["growth"]:
        lines += [
            "",
            f"| {growth['of']} | requests/s | per cpu s | memory |",
            "|---:|---:|---:|---:|",
            *(_point(point) for point in growth["points"]),
        ]
    return "\n".join(lines) + "\n"


def keep(run: Path, home: Path) -> None:
    """Make the project at `home` show the run that `make bench` left in the folder `run`.

    Raises ValueError for a run of selected benchmarks only: the page's rows are those of one run.
    """
    document = orjson.loads((run / "bench.json").read_bytes())
    if not document["growth"]:
        raise ValueError(f"{run} is not a whole run: it has no growth")
    page = home / "docs" / "performance.md"
    before, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} has no part between {_BEGIN.strip()} and {_END}")
    page.write_text(f"{before}{begin}{tables(document)}{end}{after}", encoding="utf-8")
    for name in ("bench.json", "bench.svg", "growth.svg"):
        shutil.copyfile(run / name, home / "docs" / name)


def _row(row: dict[str, Any]) -> list[str]:
    peers = dict(row["peers"])
    own = peers.pop(_GATEWAY, None)
    if own is None:
        return []
    left = list(row["targets"])
    lines: list[str] = []
    for name, peer in (peers or {"": {}}).items():
        # A target without a peer, or with an unmeasured one, is shown next to the first peer.
        aims = [one for one in left if one["peer"] == name or not (lines or one["peer"] in peers)]
        aim, reached = "", ""
        if aims:
            left.remove(aims[0])
            aim, reached = aims[0]["target"], {True: "yes", False: "**no**", None: ""}[aims[0]["is_reached"]]
        cells = [
            f"{row['title']}, {row['unit']}" if not lines else "",
            _number(own["median"]) if not lines else "",
            _number(own["cpu_us"]) if not lines else "",
            name,
            _number(peer.get("median")) + ("~" if peer.get("is_load_bound") else ""),
            _number(peer.get("cpu_us")),
            _times(peer.get("gateway_ratio")),
            _times(peer.get("gateway_cpu_ratio")),
            aim.removesuffix(f" x {name}").removesuffix(f" {name}") if name else aim,
            reached,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _point(point: dict[str, Any]) -> str:
    per_busy_s = point["requests_per_s"] / point["busy"] if point["busy"] else 0.0
    memory = f"{point['pss_bytes'] / (1 << 20):,.0f} MiB"
    return f"| {point['count']:,} | {point['requests_per_s']:,.0f} | {per_busy_s:,.0f} | {memory} |"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f} x"


if __name__ == "__main__":
    keep(Path(sys.argv[1]), Path(__file__).parents[2])
