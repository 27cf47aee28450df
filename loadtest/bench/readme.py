"""Turns a run's JSON into the tables of `docs/performance.md` and of the README, which show the figures unchanged.

`python -m loadtest.bench.readme build/bench` publishes a run: JSON and pictures under docs/, tables in the pages.  A
whole run replaces everything.  A run of selected benchmarks replaces their rows, which are marked in the tables.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from loadtest.bench.catalogue import every_benchmark
from loadtest.bench.chart import bars
from loadtest.bench.figures import Row, Sample
from reference_pages.part import with_part

_GATEWAY: Final = "gateway"
_OWN_RUN: Final = "is_own_run"
"""Marks a row of `bench.json` that comes from a run of its own."""
_MARK: Final = "°"


class _Headline(NamedTuple):
    """A row of the short tables."""

    key: str
    title: str
    peers: Sequence[str]
    is_cpu: bool = False
    """Whether the figure is the processor time of an operation, in microseconds."""


_IN_PRODUCTION: Final = (
    _Headline("production-hit", "cached 1 KB, processor time, µs", ("nginx",), is_cpu=True),
    _Headline("production-poll", "long-poll answered, processor time, µs", ("nchan",), is_cpu=True),
    _Headline("production-join", "SSE reader joins and leaves, processor time, µs", ("nchan",), is_cpu=True),
    _Headline("production-memory", "memory per idle SSE reader, bytes", ("nchan",)),
    _Headline("conversations-appends-core", "conversations, appends/s for each core of server and origin", ("nginx",)),
    _Headline("conversations-deliveries-core", "conversations, deliveries/s for each core", ("nginx",)),
    _Headline("conversations-p50", "conversations, delay, p50, ms", ("nginx",)),
    _Headline("conversations-p99", "conversations, delay, p99, ms", ("nginx",)),
)
_BARE: Final = (
    _Headline("same", "cached 1 KB, same headers, requests/s", ("nginx", "varnish")),
    _Headline("64k", "cached 64 KB, requests/s", ("nginx",)),
    _Headline("poll-rate", "long-poll answered, processor time, µs", ("nchan",), is_cpu=True),
    _Headline("fanout-rate", "SSE, 1,000 subscribers, spaced out, deliveries/s", ("nchan",)),
    _Headline("saturation-rate", "SSE, 1,000 subscribers, saturation, deliveries/s", ("nchan",)),
    _Headline("wake-last", "long-poll, 5,000 woken: last answer, ms", ("nchan",)),
    _Headline("memory-sse", "memory per idle SSE subscriber, bytes", ("nchan",)),
    _Headline("post", "relayed POST, processor time, µs", ("nginx",), is_cpu=True),
    _Headline("cold-1k", "1 KB never asked for, processor time, µs", ("nginx",), is_cpu=True),
)


def headlines(document: dict[str, Any]) -> str:
    """The most important figures, in Markdown: as in production, then with nothing set.  Rows that the run lacks are
    left out."""
    found = {row["key"]: row for row in document["rows"]}
    parts = []
    for title, chosen in (("in production", _IN_PRODUCTION), ("with nothing set", _BARE)):
        lines = [line for one in chosen if one.key in found for line in _headline(one, found[one.key])]
        if lines:
            parts.append("\n".join([f"| {title} | gateway | beside | | ratio |", "|---|--:|---|--:|--:|", *lines, ""]))
    return "\n".join(parts)


def _headline(one: _Headline, row: dict[str, Any]) -> list[str]:
    figure, ratio = ("cpu_us", "gateway_cpu_ratio") if one.is_cpu else ("median", "gateway_ratio")
    own = row["peers"][_GATEWAY]
    lines: list[str] = []
    for name in one.peers:
        if (peer := row["peers"].get(name)) is not None:
            cells = [
                _marked(one.title, row) if not lines else "",
                _number(own[figure]) if not lines else "",
                name,
                _number(peer[figure]) + ("~" if peer.get("is_load_bound") and not one.is_cpu else ""),
                _times(peer.get(ratio)),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def _marked(title: str, row: dict[str, Any]) -> str:
    return f"{title} {_MARK}" if row.get(_OWN_RUN) else title


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
    """Make the project at `home` show the run that `make bench` left in the folder `run`."""
    docs = home / "docs"
    document = orjson.loads((run / "bench.json").read_bytes())
    if document["growth"]:
        for name in ("bench.svg", "growth.svg"):
            shutil.copyfile(run / name, docs / name)
    else:
        document = _merged(orjson.loads((docs / "bench.json").read_bytes()), document)
        (docs / "bench.svg").write_text(bars(_known_rows(document)), encoding="utf-8")
    (docs / "bench.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    for page, name, text in (
        (home / "README.md", "headlines", headlines(document)),
        (docs / "performance.md", "headlines", headlines(document)),
        (docs / "performance.md", "bench", tables(document)),
    ):
        page.write_text(with_part(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def _merged(kept: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The kept run with the rows of a run of selected benchmarks in place of its own."""
    rows = {row["key"]: row for row in kept["rows"]} | {row["key"]: row | {_OWN_RUN: True} for row in part["rows"]}
    order = {row.key: number for number, row in enumerate(_definitions())}
    return kept | {"rows": sorted(rows.values(), key=lambda row: order.get(row["key"], len(order)))}


def _definitions() -> list[Row]:
    return [row for benchmark in every_benchmark() for row in benchmark.rows]


def _known_rows(document: dict[str, Any]) -> list[Row]:
    """The rows with their samples, to be drawn."""
    known = {row.key: row for row in _definitions()}
    drawn = []
    for kept in document["rows"]:
        if (row := known.get(kept["key"])) is not None:
            for peer, figures in kept["peers"].items():
                for sample in figures["samples"]:
                    row.add(peer, Sample(**sample))
            drawn.append(row)
    return drawn


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
            _marked(f"{row['title']}, {row['unit']}", row) if not lines else "",
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
