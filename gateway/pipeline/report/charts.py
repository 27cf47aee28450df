"""Charts as Vega-Lite specifications, by the width that they are drawn in.

A chart has the rows that it draws, and a `Series` for each colour.  Colours are the style sheet's variables, so one
drawing serves light, dark and print.  A value beyond an axis is drawn at its end and marked by a triangle that points
outwards; `Axis.beyond` counts them for the legend.  A gap in the data is a gap in the line, and a value between two
gaps is a dot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.pipeline.report.axes import Axis
from gateway.pipeline.report.figures import Row
from gateway.pipeline.report.markup import shown

Spec = dict[str, Any]
Chart = Callable[[int], Spec]
"""The specification of a chart that is so many pixels wide."""

_HEIGHT: Final = 210
_ROW: Final = 38
_NARROW: Final = 460
_LABEL: Final = 12
_DASHES: Final = {"": [1, 0], "long": [7, 5], "short": [2, 4], "mixed": [8, 4, 2, 4]}
_POINT: Final[Spec] = {"type": "point", "filled": True, "opacity": 1}
_AT: Final[Spec] = {"field": "at", "type": "ordinal", "axis": None}
_CONFIG: Final[Spec] = {
    "background": None,
    # The figure as a whole has a description; its parts would repeat the table below it, out of order.
    "aria": False,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--quiet)",
        "labelFontSize": _LABEL,
        "gridColor": "var(--line)",
        "domainColor": "var(--edge)",
        "tickColor": "var(--edge)",
        "title": None,
    },
    "text": {"color": "var(--text)", "fontSize": _LABEL},
}


@dataclass(frozen=True, slots=True)
class Series:
    """One of the amounts that a chart draws: its field in the rows, its label, its colour, and its line's dash."""

    field: str
    label: str
    colour: str
    dash: str = ""
    """`long`, `short`, `mixed` or nothing: colour alone must not distinguish lines."""


def points(rows: Iterable[Row], series: Sequence[Series], x: Callable[[Row], float | str]) -> list[Spec]:
    """A point (`x`, `y`, `key`) for each row and series; None is a gap."""
    return [{"x": x(row), "y": row[one.field], "key": one.field} for row in rows for one in series]


def lines(x: Axis, y: Axis, values: Sequence[Row], series: Sequence[Series], above: Sequence[Spec] = ()) -> Chart:
    """Lines through points.  Points with `low` and `high` have a band behind them; other layers are `above`."""
    on = {"x": x.of("x"), "y": y.of("y"), "color": _by_key("color", series)}
    outside = f"isValid(datum.y) && (datum.y < {y.low} || datum.y > {y.high})"
    bands = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "area", "opacity": 0.2},
        "encoding": on | {"y": y.of("low") | {"stack": None}, "y2": {"field": "high"}},
    }
    paths = {
        "mark": {"type": "line", "strokeWidth": 2, "strokeCap": "round", "invalid": "break-paths-show-domains"},
        "encoding": on | {"strokeDash": _by_key("strokeDash", series)},
    }
    # A path of one point has no length, and a browser draws none of it.
    neighbours = [{"op": "lag", "field": "y", "as": "before"}, {"op": "lead", "field": "y", "as": "after"}]
    single = {
        "transform": [
            {"window": neighbours, "groupby": ["key"], "sort": [{"field": "x"}]},
            {"filter": "isValid(datum.y) && !isValid(datum.before) && !isValid(datum.after)"},
            {"filter": {"not": outside}},
        ],
        "mark": {**_POINT, "shape": "circle", "size": 16},
        "encoding": on,
    }
    beyond = {
        "transform": [{"filter": outside}],
        "mark": {**_POINT, "size": 90},
        "encoding": on
        | {"shape": {"condition": {"test": f"datum.y < {y.low}", "value": "triangle-down"}, "value": "triangle-up"}},
    }
    return lambda width: _spec([bands, paths, single, beyond, *above], width, _HEIGHT, values)


def rules(y: Axis, heights: Sequence[float]) -> list[Spec]:
    """A layer: horizontal rules."""
    layer = {
        "data": {"values": [{"y": height} for height in heights]},
        "mark": {"type": "rule", "color": "var(--quiet)", "strokeDash": _DASHES["short"]},
        "encoding": {"y": y.of("y")},
    }
    return [layer]


def mark(x: Axis, y: Axis, at: float, value: float, error: float) -> list[Spec]:
    """Layers: one point, with the bounds of its error."""
    data = {"values": [{"x": at, "y": value, "low": value - error, "high": value + error}]}
    upright = {"type": "rule", "color": "var(--chosen)", "strokeDash": [1, 4]}
    reach = {"type": "rule", "color": "var(--chosen)", "strokeWidth": 2}
    ring = {**_POINT, "fill": "var(--surface)", "stroke": "var(--chosen)", "strokeWidth": 3, "size": 110}
    return [
        {"data": data, "mark": upright, "encoding": {"x": x.of("x")}},
        {"data": data, "mark": reach, "encoding": {"x": x.of("x"), "y": y.of("low"), "y2": {"field": "high"}}},
        {"data": data, "mark": ring, "encoding": {"x": x.of("x"), "y": y.of("y")}},
    ]


def areas(x: Axis, y: Axis, values: Sequence[Row], series: Sequence[Series], *, stacked: bool) -> Chart:
    """Amounts that change in steps: stacked, the first at the bottom, or each from zero, the last in front."""
    layer = {
        "transform": [{"calculate": f"indexof({[one.field for one in series]}, datum.key)", "as": "nth"}],
        "mark": {"type": "area", "opacity": 1, "interpolate": "step-after"},
        "encoding": {
            "x": x.of("x"),
            "y": y.of("y") | {"stack": "zero" if stacked else None},
            "color": _by_key("color", series),
            "order": {"field": "nth"},
        },
    }
    return lambda width: _spec([layer], width, _HEIGHT, values)


def columns(y: Axis, values: Sequence[Row], series: Sequence[Series]) -> Chart:
    """A group of columns for each `x`, which is a label."""
    axis = {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 6}
    layer = {
        "mark": "bar",
        "encoding": {
            "x": {"field": "x", "type": "ordinal", "sort": None, "axis": axis, "scale": {"paddingInner": 0.2}},
            "xOffset": {"field": "key", "type": "ordinal", "sort": None},
            "y": y.of("y"),
            "color": _by_key("color", series),
        },
    }
    return lambda width: _spec([layer], width, _HEIGHT, values)


def bars(x: Axis, rows: Sequence[Row], series: Sequence[Series]) -> Chart:
    """A horizontal bar for each row, from zero, under its `name` and what it `says`; the last series is in front."""
    layers = [
        {
            "mark": {"type": "bar", "color": _colour(one), "height": 8, "yOffset": 10},
            "encoding": {"x": x.of(one.field), "y": _AT},
        }
        for one in series
    ]
    return _listed(layers, rows)


def dots(x: Axis, rows: Sequence[Row], series: Sequence[Series]) -> Chart:
    """The values of each row on one axis, in rising order, joined by a line, under its `name` and what it `says`."""
    joined = {
        "mark": {"type": "rule", "color": "var(--edge)", "strokeWidth": 3, "yOffset": 10},
        "encoding": {"x": x.of(series[0].field), "x2": {"field": series[-1].field}, "y": _AT},
    }
    layers = [
        {
            "mark": {**_POINT, "color": _colour(one), "size": 80, "yOffset": 10},
            "encoding": {
                "x": x.of(one.field),
                "y": _AT,
                "shape": {
                    "condition": [
                        {"test": f"datum.{one.field} < {x.low}", "value": "triangle-left"},
                        {"test": f"datum.{one.field} > {x.high}", "value": "triangle-right"},
                    ],
                    "value": "circle",
                },
            },
        }
        for one in series
    ]
    return _listed([joined, *layers], rows)


def _listed(layers: Sequence[Spec], rows: Sequence[Row]) -> Chart:
    """Layers with a line for each of `rows`, and above it the texts: beside each other, or in two lines where it is
    narrow."""
    values = [{**row, "at": at, "name": shown(row["name"])} for at, row in enumerate(rows)]

    def text(field: str, x: int | str, **look: Any) -> Spec:
        encoding = {"x": {"value": x}, "y": _AT, "text": {"field": field, "type": "nominal"}}
        return {"mark": {"type": "text", **look}, "encoding": encoding}

    def chart(width: int) -> Spec:
        if width <= _NARROW:
            limit = int(width * 0.84)
            name = text("name", 0, align="left", yOffset=-16, limit=limit)
            says = text("says", 0, align="left", yOffset=-2, limit=limit, color="var(--quiet)")
            return _spec([*layers, name, says], width, {"step": _ROW + 14}, values)
        name = text("name", 0, align="left", yOffset=-5, limit=width // 2)
        says = text("says", "width", align="right", yOffset=-5, limit=int(width * 0.4), color="var(--quiet)")
        return _spec([*layers, name, says], width, {"step": _ROW}, values)

    return chart


def _spec(layers: Sequence[Spec], width: int, height: int | Spec, values: Sequence[Row]) -> Spec:
    return {
        "width": width,
        "height": height,
        # A height in steps is that of the rows, whatever the texts beside them take.
        "autosize": {"type": "fit-x" if isinstance(height, dict) else "fit", "contains": "padding"},
        "padding": {"left": 2, "right": 12, "top": 8, "bottom": 2},
        "config": _CONFIG,
        "data": {"values": list(values)},
        "layer": list(layers),
    }


def _by_key(channel: str, series: Sequence[Series]) -> Spec:
    """The channel's value of each series."""
    values = [_DASHES[one.dash] if channel == "strokeDash" else _colour(one) for one in series]
    scale = {"domain": [one.field for one in series], "range": values}
    return {"field": "key", "type": "nominal", "scale": scale, "legend": None}


def _colour(one: Series) -> str:
    return f"var(--{one.colour})"
