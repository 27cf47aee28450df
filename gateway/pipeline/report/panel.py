"""A card of the report: its heading, its chart, its legend and its numbers.

A card without data says so, and why, instead of showing an empty chart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.pipeline.report import axes, wording
from gateway.pipeline.report.charts import Chart
from gateway.pipeline.report.drawing import figure
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


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of a legend."""

    label: str
    colour: str
    sample: str = "area"
    """The style sheet's class of its sample: `area`, `line` with a dash, `dot`, `out` (a triangle)."""
    whole: str = ""
    """The total."""


def drawn(panel: Panel, chart: Chart, says: str, legend: Html | None, table: Numbers, note: str = "") -> Panel:
    """The panel with its chart; `says` describes it to a screen reader."""
    body = figure(chart, f"{panel.title}. {says}", is_wide=panel.is_wide)
    return Panel(
        panel.name, panel.title, panel.about, panel.nothing, body, legend, table, is_wide=panel.is_wide, note=note
    )


def legend(keys: Iterable[Key]) -> Html:
    """The meaning of colours, dashes and shapes."""
    return element(
        "ul",
        [
            element(
                "li",
                element("i", class_=f"swatch {key.sample} {key.colour}", aria_hidden="true"),
                key.label,
                element("b", key.whole) if key.whole else None,
            )
            for key in keys
        ],
        class_="legend",
    )


def over_time(
    figures: Figures, name: str, columns: Sequence[Column], rows: Sequence[Sequence[float | None]]
) -> Numbers:
    """A table with a row for each step, which begins with the time; `rows` are in the order of the moments."""
    return Numbers(
        name,
        [Column("From (UTC)"), *columns],
        [(wording.moment(moment.at), *row) for moment, row in zip(figures.moments, rows, strict=True)],
    )


def listed(name: str) -> str:
    """A name in a list."""
    return shortened(name, _MOST_CHARS)


def time_axis(figures: Figures) -> axes.Axis:
    """The time axis of all moments."""
    moments = edges(figures)
    return axes.times(moments[0], moments[-1])


def edges(figures: Figures) -> list[int]:
    """The beginnings of the moments, and the end of the last."""
    starts = [moment.at for moment in figures.moments]
    return [*starts, starts[-1] + figures.step_s] if starts else [0]


def middle(figures: Figures, moment: Moment) -> float:
    """The middle of a moment, in milliseconds."""
    return 1000 * (moment.at + figures.step_s / 2)
