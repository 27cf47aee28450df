"""A card of the report: its heading, its chart or list, its legend and its numbers.

A card without data says so, and why, instead of showing an empty chart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.pipeline.report import charts, scales, wording
from gateway.pipeline.report.figures import Figures, Moment
from gateway.pipeline.report.findings import shortened
from gateway.pipeline.report.markup import Html, element
from gateway.pipeline.report.numbers import Column, Numbers

_MOST_CHARS = 72


@dataclass(frozen=True, slots=True)
class Panel:
    """A card; if `body`, the chart, is None, `nothing` says why."""

    name: str
    title: str
    about: str
    nothing: str
    body: Html | None = None
    legend: Html | None = None
    numbers: Numbers | None = None
    is_wide: bool = False
    note: str = ""


def drawn(panel: Panel, body: Html, legend: Html | None, table: Numbers, note: str = "") -> Panel:
    """The panel with its chart."""
    return Panel(
        panel.name, panel.title, panel.about, panel.nothing, body, legend, table, is_wide=panel.is_wide, note=note
    )


def over_time(
    figures: Figures, name_: str, columns: Sequence[Column], rows: Sequence[Sequence[float | None]]
) -> Numbers:
    """A table with a row for each step, which begins with the time; `rows` are in the order of the moments."""
    x = time_axis(figures)
    return Numbers(
        name_,
        [Column("From (UTC)"), *columns],
        [(wording.moment(moment.at), *row) for moment, row in zip(figures.moments, rows, strict=True)],
        places=[x.place(middle(figures, moment)) for moment in figures.moments],
    )


def row(label: str, says: str, parts: Sequence[tuple[str, float]]) -> Html:
    """One bar of a list: `parts` are colours and where each ends, from 0 to 1."""
    short = shortened(label, _MOST_CHARS)
    return element(
        "li",
        element("span", element("bdi", short), class_="bar-name", title=label),
        element("span", says, class_="bar-says"),
        charts.bar(parts),
    )


def time_axis(figures: Figures) -> scales.Axis:
    """The time axis of all moments."""
    moments = edges(figures)
    return scales.times(moments[0], moments[-1])


def edges(figures: Figures) -> list[int]:
    """The beginnings of the moments, and the end of the last."""
    starts = [moment.at for moment in figures.moments]
    return [*starts, starts[-1] + figures.step_s] if starts else [0]


def middle(figures: Figures, moment: Moment) -> float:
    """The middle of a moment."""
    return moment.at + figures.step_s / 2
