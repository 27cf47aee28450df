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
    band = on | {"y": y.of("low") | {"stack": None}, "y2": {"field": "high"}}
    path = {"type": "line", "strokeWidth": 2, "strokeCap": "round", "invalid": "break-paths-show-domains"}
    # A path of one point has no length, and a browser draws none of it: it is marked, as a value beyond the axis is.
    neighbours = [{"op": "lag", "field": "y", "as": "before"}, {"op": "lead", "field": "y", "as": "after"}]
    outside = f"datum.y < {y.low} || datum.y > {y.high}"
    marked: list[Spec] = [
        {"window": neighbours, "groupby": ["key"], "sort": [{"field": "x"}]},
        {"filter": f"isValid(datum.y) && ({outside} || !isValid(datum.before) && !isValid(datum.after))"},
    ]
    sizes = {"condition": {"test": outside, "value": 90}, "value": 16}
    layers = [
        _layer({"type": "area", "opacity": 0.2}, band, transforms=[{"filter": "isValid(datum.low)"}]),
        _layer(path, on | {"strokeDash": _by_key("strokeDash", series)}),
        _layer(_POINT, on | {"shape": _shapes(y, "y", "down", "up"), "size": sizes}, transforms=marked),
        *above,
    ]
    return lambda width: _spec(layers, width, _HEIGHT, values)


def rules(y: Axis, heights: Sequence[float]) -> list[Spec]:
    """A layer: horizontal rules."""
    look = {"type": "rule", "color": "var(--quiet)", "strokeDash": _DASHES["short"]}
    return [_layer(look, {"y": y.of("y")}, of=[{"y": height} for height in heights])]


def mark(x: Axis, y: Axis, at: float, value: float, error: float) -> list[Spec]:
    """Layers: one point, with the bounds of its error."""
    point = [{"x": at, "y": value, "low": value - error, "high": value + error}]
    upright = {"type": "rule", "color": "var(--chosen)", "strokeDash": [1, 4]}
    reach = {"type": "rule", "color": "var(--chosen)", "strokeWidth": 2}
    ring = {**_POINT, "fill": "var(--surface)", "stroke": "var(--chosen)", "strokeWidth": 3, "size": 110}
    across = {"x": x.of("x")}
    return [
        _layer(upright, across, of=point),
        _layer(reach, across | {"y": y.of("low"), "y2": {"field": "high"}}, of=point),
        _layer(ring, across | {"y": y.of("y")}, of=point),
    ]


def areas(x: Axis, y: Axis, values: Sequence[Row], series: Sequence[Series], *, stacked: bool) -> Chart:
    """Amounts that change in steps: stacked, the first at the bottom, or each from zero, the last in front."""
    nth = {"calculate": f"indexof({[one.field for one in series]}, datum.key)", "as": "nth"}
    stack = {"stack": "zero" if stacked else None}
    on = {"x": x.of("x"), "y": y.of("y") | stack, "color": _by_key("color", series), "order": {"field": "nth"}}
    layer = _layer({"type": "area", "opacity": 1, "interpolate": "step-after"}, on, transforms=[nth])
    return lambda width: _spec([layer], width, _HEIGHT, values)


def columns(y: Axis, values: Sequence[Row], series: Sequence[Series]) -> Chart:
    """A group of columns for each `x`, which is a label."""
    axis = {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 6}
    on = {
        "x": {"field": "x", "type": "ordinal", "sort": None, "axis": axis, "scale": {"paddingInner": 0.2}},
        "xOffset": {"field": "key", "type": "ordinal", "sort": None},
        "y": y.of("y"),
        "color": _by_key("color", series),
    }
    return lambda width: _spec([_layer({"type": "bar"}, on)], width, _HEIGHT, values)


def bars(x: Axis, rows: Sequence[Row], series: Sequence[Series]) -> Chart:
    """A horizontal bar for each row, from zero, under its `name` and what it `says`; the last series is in front."""
    look = {"type": "bar", "height": 8, "yOffset": 10}
    return _listed([_layer(look | {"color": _colour(one)}, {"x": x.of(one.field), "y": _AT}) for one in series], rows)


def dots(x: Axis, rows: Sequence[Row], series: Sequence[Series]) -> Chart:
    """The values of each row on one axis, in rising order, joined by a line, under its `name` and what it `says`."""
    line = {"type": "rule", "color": "var(--edge)", "strokeWidth": 3, "yOffset": 10}
    layers = [_layer(line, {"x": x.of(series[0].field), "x2": {"field": series[-1].field}, "y": _AT})]
    for one in series:
        on = {"x": x.of(one.field), "y": _AT, "shape": _shapes(x, one.field, "left", "right")}
        layers.append(_layer({**_POINT, "color": _colour(one), "size": 80, "yOffset": 10}, on))
    return _listed(layers, rows)


def _listed(layers: Sequence[Spec], rows: Sequence[Row]) -> Chart:
    """Layers with a line for each of `rows`, and above it the texts: beside each other, or in two lines where it is
    narrow."""
    values = [{**row, "at": at, "name": shown(row["name"])} for at, row in enumerate(rows)]

    def text(field: str, x: int | str, **look: Any) -> Spec:
        return _layer(
            {"type": "text", **look}, {"x": {"value": x}, "y": _AT, "text": {"field": field, "type": "nominal"}}
        )

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


def _layer(look: Spec, encoding: Spec, *, of: Sequence[Row] | None = None, transforms: Sequence[Spec] = ()) -> Spec:
    """Marks of these rows, or else of the chart's, after `transforms`."""
    data = {} if of is None else {"data": {"values": of}}
    return {"mark": look, "encoding": encoding, "transform": list(transforms), **data}


def _shapes(axis: Axis, field: str, below: str, above: str) -> Spec:
    """A circle; a triangle that points outwards where the axis does not reach the value."""
    low = {"test": f"datum.{field} < {axis.low}", "value": f"triangle-{below}"}
    high = {"test": f"datum.{field} > {axis.high}", "value": f"triangle-{above}"}
    return {"condition": [low, high], "value": "circle"}


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
