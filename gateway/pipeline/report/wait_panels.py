"""Panels of waiting times: to the first byte, to the end of the answer, and from append to delivery."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.pipeline.report import axes, charts, wording
from gateway.pipeline.report.charts import Dots, Line
from gateway.pipeline.report.figures import Figures, Percentiles, Wait
from gateway.pipeline.report.numbers import Column, Numbers
from gateway.pipeline.report.panel import Key, Panel, drawn, legend, listed, over_time, time_axis

_PERCENTILES = (("quick", "Half within"), ("middle", "90 % within"), ("slow", "99 % within"))
_DASHES = ("", "long", "short")
_MOST_ROWS = 12


def first_byte(figures: Figures) -> Panel:
    """How long catch-up reads waited for their answer to begin, over time."""
    return _waits(
        figures,
        Panel(
            "first-byte",
            "Time to the first byte",
            "Of catch-up reads, from the request to the beginning of the answer.",
            "There were no catch-up reads that were answered.",
        ),
        figures.first_byte,
        figures.first_byte_all,
        "Reads",
    )


def delivery(figures: Figures) -> Panel:
    """How long an append took to reach the readers, over time."""
    return _waits(
        figures,
        Panel(
            "delivery",
            "Delivery delay",
            "From the end of an append through the gateway to the end of the long-poll that it woke.",
            "No append of this log woke a long-poll: writers bypass the gateway, or there are no long-polls.",
        ),
        figures.delivery,
        figures.delivery_all,
        "Deliveries",
    )


def latency(figures: Figures) -> Panel:
    """How long each mode took on each route."""
    panel = Panel(
        "latency",
        "Latency by route and mode",
        "How long requests took from end to end; live reads, whose time is their wait, are not among them.",
        "There were no requests but live reads.",
        is_wide=True,
    )
    known = [one for one in figures.latency if one.duration.count]
    if not known:
        return panel
    rows = [
        Dots(
            listed(f"{one.mode} · {one.route}"),
            f"half {wording.span(one.duration.p50_s)}, 99 % {wording.span(one.duration.p99_s)}",
            [(colour, value or 0.0) for (colour, _), value in zip(_PERCENTILES, _three(one.duration), strict=True)],
        )
        for one in known[:_MOST_ROWS]
    ]
    values = [value for row in rows for _, value in row.values]
    x = axes.spans(values)
    heads = [Column(f"{what} p{rank}", wording.span) for what in ("All", "First byte") for rank in (50, 90, 99)]
    return drawn(
        panel,
        charts.dots(rows, x),
        "Half of the requests, 90 % and 99 % of them took at most the times of the dots.",
        legend([*(Key(label, colour, "dot") for colour, label in _PERCENTILES), *_at_once(x, values)]),
        Numbers(
            "latency",
            [Column("Route"), Column("Mode"), Column("Requests", wording.count), *heads],
            [
                (one.route, one.mode, one.duration.count, *_three(one.duration), *_three(one.first_byte))
                for one in figures.latency
            ],
        ),
        note="The scale is logarithmic.",
    )


def _waits(figures: Figures, panel: Panel, waits: Sequence[Wait], whole: Percentiles | None, counted: str) -> Panel:
    if not waits or whole is None:
        return panel
    series = [
        Line(
            label,
            colour,
            [(1000 * (wait.at + figures.step_s / 2), _three(wait.waited)[nth]) for wait in waits],
            _DASHES[nth],
        )
        for nth, (colour, label) in enumerate(_PERCENTILES)
    ]
    values = [value for line in series for _, value in line.points]
    y = axes.spans(values)
    says = "; ".join(
        f"{label.lower()} {wording.span(value)}" for (_, label), value in zip(_PERCENTILES, _three(whole), strict=True)
    )
    keys = [Key(line.label, line.colour, f"line {line.dash}") for line in series]
    return drawn(
        panel,
        charts.lines(time_axis(figures), y, series),
        f"Over the whole time {says}.",
        legend([*keys, *_at_once(y, values)]),
        over_time(
            figures,
            panel.name,
            [*(Column(label, wording.span) for _, label in _PERCENTILES), Column(counted, wording.count)],
            [(*_three(wait.waited), wait.waited.count) for wait in waits],
        ),
        note=f"In all: {says}. The scale is logarithmic.",
    )


def _at_once(axis: axes.Axis, values: Sequence[float | None]) -> list[Key]:
    """What the triangles mean at the end of a logarithmic axis, which has no zero."""
    return [Key("At once: less than the log can tell", "quick", "out")] if charts.beyond(axis, values) else []


def _three(waited: Percentiles) -> tuple[float | None, float | None, float | None]:
    return waited.p50_s, waited.p90_s, waited.p99_s
