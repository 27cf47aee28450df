"""Panels of waiting times: to the first byte, to the end of the answer, and from append to delivery."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.charts import Series
from gateway.pipeline.report.figures import Figures, Percentiles, Rows
from gateway.pipeline.report.panel import BEGAN, Column, Key, Panel, shortened
from gateway.pipeline.report.panels import line_keys, lines_over_time
from gateway.pipeline.report.wording import count, span

PERCENTILES = (
    Series("p50_s", "Half within", "quick"),
    Series("p90_s", "90 % within", "middle", "long"),
    Series("p99_s", "99 % within", "slow", "short"),
)
_MOST_ROWS = 12
_MOST_CHARS = 72


def first_byte(figures: Figures) -> Panel:
    """How long catch-up reads waited for their answer to begin, over time."""
    panel = Panel(
        "first-byte",
        "Time to the first byte",
        "Of catch-up reads, from the request to the beginning of the answer.",
        "There were no catch-up reads that were answered.",
    )
    return _waits(figures, panel, figures.first_byte, figures.first_byte_all, "Reads")


def delivery(figures: Figures) -> Panel:
    """How long an append took to reach the readers, over time."""
    panel = Panel(
        "delivery",
        "Delivery delay",
        "From the end of an append through the gateway to the end of the long-poll that it woke.",
        "No append of this log woke a long-poll: writers bypass the gateway, or there are no long-polls.",
    )
    return _waits(figures, panel, figures.delivery, figures.delivery_all, "Deliveries")


def latency(figures: Figures) -> Panel:
    """How long each mode took on each route."""
    panel = Panel(
        "latency",
        "Latency by route and mode",
        "How long requests took from end to end; live reads, whose time is their wait, are not among them.",
        "There were no requests but live reads.",
        is_wide=True,
    )
    rows = [
        {
            **row,
            "name": shortened(f"{row['mode']} · {row['route']}", _MOST_CHARS),
            "says": f"half {span(row['p50_s'])}, 99 % {span(row['p99_s'])}",
        }
        for row in figures.latency
        if row["count"]
    ][:_MOST_ROWS]
    if not rows:
        return panel
    values = [row[one.field] for row in rows for one in PERCENTILES]
    x = axes.spans(values)
    return panel.drawn(
        charts.dots(x, rows, PERCENTILES),
        "Half of the requests, 90 % and 99 % of them took at most the times of the dots.",
        [*(Key(f"dot {one.colour}", one.label) for one in PERCENTILES), *_at_once(x, values)],
        [
            Column("Route", "route"),
            Column("Mode", "mode"),
            Column("Requests", "count", count),
            *(Column(f"All p{rank}", f"p{rank}_s", span) for rank in (50, 90, 99)),
            *(Column(f"First byte p{rank}", f"first_byte_p{rank}_s", span) for rank in (50, 90, 99)),
        ],
        figures.latency,
        "The scale is logarithmic.",
    )


def _waits(figures: Figures, panel: Panel, waits: Rows, whole: Percentiles, counted: str) -> Panel:
    if not waits:
        return panel
    values = [row[one.field] for row in waits for one in PERCENTILES]
    y = axes.spans(values)
    says = "; ".join(f"{one.label.lower()} {span(getattr(whole, one.field))}" for one in PERCENTILES)
    return panel.drawn(
        lines_over_time(figures, y, waits, PERCENTILES),
        f"Over the whole time {says}.",
        [*line_keys(PERCENTILES), *_at_once(y, values)],
        [BEGAN, *(Column(one.label, one.field, span) for one in PERCENTILES), Column(counted, "count", count)],
        waits,
        f"In all: {says}. The scale is logarithmic.",
    )


def _at_once(axis: axes.Axis, values: Iterable[float | None]) -> list[Key]:
    """What the triangles mean at the end of a logarithmic axis, which has no zero."""
    return [Key("out quick", "At once: less than the log can tell")] if axis.beyond(values) else []
