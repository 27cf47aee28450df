"""The result as two hand-drawn SVG pictures: bars side by side, and lines of growth.

Every benchmark has its own scale, because units differ: the longest bar of a group has the full width.  Benchmarks
judged by processor time are drawn by it.  Figures in, text out; the colours work on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from loadtest.bench.figures import GATEWAY, Growth, GrowthPoint, Row
from loadtest.bench.report import PEERS
from loadtest.svg import INK, picture, text

COLOURS: Final = {
    GATEWAY: "#d9480f",
    "fast path off": "#f4a27a",
    "none stalled": "#f4a27a",
    "inside the tape": "#f4a27a",
    "nothing set": "#f4a27a",
    "access log": "#f4a27a",
    "trusted proxy": "#f4a27a",
    "shared tokens": "#f4a27a",
    "judged tokens": "#f4a27a",
    "signed URLs": "#f4a27a",
    "forward-auth": "#f4a27a",
    "browsers": "#f4a27a",
    "rate limit": "#f4a27a",
    "nginx": "#2b8a3e",
    "auth_request": "#2b8a3e",
    "varnish": "#1971c2",
    "nchan": "#5c940d",
    "bare": "#868e96",
    "Durable Stream": "#f4a27a",
    "direct": "#868e96",
}
_WIDTH: Final = 760
_LABELS: Final = 110
_VALUES: Final = 150
_BAR: Final = 14
_GROUP_GAP: Final = 16


def bars(rows: Sequence[Row]) -> str:
    """A group of bars for every row that compares the gateway with another server."""
    shown = [row for row in rows if len(row.samples) > 1 and GATEWAY in row.samples]
    parts: list[str] = []
    y = 8
    for row in shown:
        of_cpu = row.is_judged_by_cpu
        unit = f"processor time behind {row.unit}, µs each" if of_cpu else row.unit
        parts.append(text(0, y + 12, f"{row.title}, {unit}", weight="600"))
        if of_cpu or not row.is_rate:
            parts.append(text(_WIDTH, y + 12, "shorter is better", anchor="end", size=10))
        y += 20
        peers = [peer for peer in (GATEWAY, *PEERS) if peer in row.samples]
        figure, ratio_to = (row.cpu_us_of, row.cpu_ratio_to) if of_cpu else (row.median_of, row.ratio_to)
        digits = 1 if of_cpu else row.digits
        values = {peer: figure(peer) or 0.0 for peer in peers}
        longest = max(values.values()) or 1.0
        for peer, value in values.items():
            width = max(1.0, value / longest * (_WIDTH - _LABELS - _VALUES))
            parts.append(text(_LABELS - 8, y + 11, peer, anchor="end"))
            parts.append(
                f"<rect x='{_LABELS}' y='{y}' width='{width:.1f}' height='{_BAR - 2}' rx='2' fill='{COLOURS[peer]}'/>"
            )
            ratio = ratio_to(peer)
            beside = "" if peer == GATEWAY or ratio is None else f"  (gateway {ratio:.2f} x)"
            parts.append(text(_LABELS + width + 6, y + 11, f"{value:,.{digits}f}{beside}"))
            y += _BAR
        y += _GROUP_GAP
    return picture(_WIDTH, y, parts)


def lines(growths: Sequence[Growth]) -> str:
    """Throughput and memory by the number of streams and of connections, on logarithmic axes."""
    panels: list[tuple[str, Growth, Callable[[GrowthPoint], float], str]] = []
    for growth in growths:
        panels.append((f"requests/s by {growth.of}", growth, _rate, COLOURS[GATEWAY]))
        panels.append((f"memory in MiB by {growth.of}", growth, _mebibytes, COLOURS["varnish"]))
    width, height = _WIDTH // 2, 190
    parts = [
        f"<g transform='translate({index % 2 * width},{index // 2 * height})'>{_panel(*panel, width, height)}</g>"
        for index, panel in enumerate(panels)
    ]
    return picture(_WIDTH, height * math.ceil(len(panels) / 2), parts)


def _rate(point: GrowthPoint) -> float:
    return point.requests_per_s


def _mebibytes(point: GrowthPoint) -> float:
    return point.pss_bytes / (1 << 20)


def _panel(
    title: str, growth: Growth, value: Callable[[GrowthPoint], float], colour: str, width: int, height: int
) -> str:
    left, right, top, bottom = 40, width - 40, 50, height - 34
    largest = max((value(point) for point in growth.points), default=1.0) or 1.0
    steps = [math.log10(point.count) for point in growth.points]
    first, span = min(steps, default=0.0), (max(steps, default=1.0) - min(steps, default=0.0)) or 1.0
    at = [
        (left + (step - first) / span * (right - left), bottom - value(point) / largest * (bottom - top))
        for step, point in zip(steps, growth.points, strict=True)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    parts = [
        text(8, 18, title, weight="600"),
        f"<line x1='{left}' y1='{bottom}' x2='{right}' y2='{bottom}' stroke='{INK}' stroke-width='0.5'/>",
        f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2'/>",
    ]
    for (x, y), point in zip(at, growth.points, strict=True):
        parts.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3' fill='{colour}'/>")
        parts.append(text(x, y - 8, f"{value(point):,.0f}", anchor="middle", size=10))
        parts.append(text(x, bottom + 16, f"{point.count:,}", anchor="middle", size=10))
    return "".join(parts)
