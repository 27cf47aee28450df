"""Panels of waiting times: to the first byte, to the end of the answer, and from append to delivery."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.pipeline.report import charts, scales, wording
from gateway.pipeline.report.charts import Layer, Line
from gateway.pipeline.report.figures import Figures, Percentiles, Wait
from gateway.pipeline.report.markup import element
from gateway.pipeline.report.numbers import Column, Numbers
from gateway.pipeline.report.panel import Panel, drawn, over_time, row, time_axis

_PERCENTILES = (("quick", "Half within"), ("middle", "90 % within"), ("slow", "99 % within"))


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
    if not figures.latency:
        return panel
    known = [one for one in figures.latency if one.duration.p99_s]
    most = scales.spans([one.duration.p99_s for one in known] + [one.duration.p50_s for one in known])
    rows = [
        row(
            f"{one.mode} · {one.route}",
            f"half {wording.span(one.duration.p50_s)}, 99 % {wording.span(one.duration.p99_s)}",
            [
                ("slow", most.place(one.duration.p99_s or 0)),
                ("middle", most.place(one.duration.p90_s or 0)),
                ("quick", most.place(one.duration.p50_s or 0)),
            ],
        )
        for one in known[:12]
    ]
    heads = [Column(f"{what} p{rank}", wording.span) for what in ("All", "First byte") for rank in (50, 90, 99)]
    return drawn(
        panel,
        element("ol", rows, class_="bars"),
        charts.legend(Layer(label, colour, ()) for colour, label in _PERCENTILES),
        Numbers(
            "latency",
            [Column("Route"), Column("Mode"), Column("Requests", wording.count), *heads],
            [
                (one.route, one.mode, one.duration.count, *_three(one.duration), *_three(one.first_byte))
                for one in figures.latency
            ],
        ),
        note="The bars are on a logarithmic scale.",
    )


def _waits(figures: Figures, panel: Panel, waits: Sequence[Wait], whole: Percentiles | None, counted: str) -> Panel:
    if not waits or whole is None:
        return panel
    dashes = ("", "long", "short")
    series = [
        Line(label, colour, [(wait.at + figures.step_s / 2, _three(wait.waited)[nth]) for wait in waits], dashes[nth])
        for nth, (colour, label) in enumerate(_PERCENTILES)
    ]
    y = scales.spans([value for line in series for _, value in line.points])
    says = "; ".join(
        f"{label.lower()} {wording.span(value)}" for (_, label), value in zip(_PERCENTILES, _three(whole), strict=True)
    )
    return drawn(
        panel,
        charts.lines(time_axis(figures), y, series, says=f"{panel.title} over time. Over the whole time {says}."),
        charts.legend(series),
        over_time(
            figures,
            panel.name,
            [
                *(Column(label, wording.span, colour) for colour, label in _PERCENTILES),
                Column(counted, wording.count),
            ],
            [(*_three(wait.waited), wait.waited.count) for wait in waits],
        ),
        note=f"In all: {says}. The scale is logarithmic.",
    )


def _three(waited: Percentiles) -> tuple[float | None, float | None, float | None]:
    return waited.p50_s, waited.p90_s, waited.p99_s
