"""Charts as Vega-Lite specifications, which depend on the width of the drawing.

A chart is made from rows, and a `Series` for each colour.  Colours are variables of the style sheet, so one drawing
suits the light and the dark theme and print.

A value outside an axis is drawn at the axis's end, as a triangle that points outwards.  `Axis.beyond` finds these
values for the legend.  A gap in the data is a gap in the line.  A value between two gaps is drawn as a dot.
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
"""Returns the specification of a chart for a width in pixels."""

_HEIGHT: Final = 210
_ROW: Final = 38
_NARROW: Final = 460
_LABEL: Final = 12
_DASHES: Final = {"": [1, 0], "long": [7, 5], "short": [2, 4], "mixed": [8, 4, 2, 4]}
_POINT: Final[Spec] = {"type": "point", "filled": True, "opacity": 1}
_AT: Final[Spec] = {"field": "at", "type": "ordinal", "axis": None}
_CONFIG: Final[Spec] = {
    "background": None,
    # The figure has one description for screen readers.  Descriptions of its parts would only repeat the table below.
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
    """One of the amounts that a chart draws: its field in the rows, its label, its colour, and the dash of its line."""

    field: str
    label: str
    colour: str
    dash: str = ""
    """`long`, `short`, `mixed`, or empty for a solid line.  Colour alone must not distinguish lines."""


def points(rows: Iterable[Row], series: Sequence[Series], x: Callable[[Row], float | str]) -> list[Spec]:
    """Return a point (`x`, `y`, `key`) for each row and series.  A `y` of None is a gap."""
    return [{"x": x(row), "y": row[one.field], "key": one.field} for row in rows for one in series]


def lines(x: Axis, y: Axis, values: Sequence[Row], series: Sequence[Series], above: Sequence[Spec] = ()) -> Chart:
    """Return a chart of lines through points.

    Points with `low` and `high` get a band behind the line.  The layers `above` are drawn on top.
    """
    on = {"x": x.of("x"), "y": y.of("y"), "color": _by_key("color", series)}
    band = on | {"y": y.of("low") | {"stack": None}, "y2": {"field": "high"}}
    path = {"type": "line", "strokeWidth": 2, "strokeCap": "round", "invalid": "break-paths-show-domains"}
    # A browser draws nothing for a path of a single point, so such a point gets a mark.  Values outside the axis get a
    # mark too.
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
    """Return a layer of horizontal lines."""
    look = {"type": "rule", "color": "var(--quiet)", "strokeDash": _DASHES["short"]}
    return [_layer(look, {"y": y.of("y")}, of=[{"y": height} for height in heights])]


def mark(x: Axis, y: Axis, at: float, value: float, error: float) -> list[Spec]:
    """Return the layers of a single point with its error bar."""
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
    """Return a chart of areas that change in steps.

    With `stacked`, the first series is at the bottom.  Otherwise each area begins at zero, and the last is in front.
    """
    nth = {"calculate": f"indexof({[one.field for one in series]}, datum.key)", "as": "nth"}
    stack = {"stack": "zero" if stacked else None}
    on = {"x": x.of("x"), "y": y.of("y") | stack, "color": _by_key("color", series), "order": {"field": "nth"}}
    layer = _layer({"type": "area", "opacity": 1, "interpolate": "step-after"}, on, transforms=[nth])
    return lambda width: _spec([layer], width, _HEIGHT, values)


def columns(y: Axis, values: Sequence[Row], series: Sequence[Series]) -> Chart:
    """Return a chart with a group of columns for each `x`, which is a label."""
    axis = {"labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 6}
    on = {
        "x": {"field": "x", "type": "ordinal", "sort": None, "axis": axis, "scale": {"paddingInner": 0.2}},
        "xOffset": {"field": "key", "type": "ordinal", "sort": None},
        "y": y.of("y"),
        "color": _by_key("color", series),
    }
    return lambda width: _spec([_layer({"type": "bar"}, on)], width, _HEIGHT, values)


def bars(x: Axis, rows: Sequence[Row], series: Sequence[Series]) -> Chart:
    """Return a chart with horizontal bars from zero for each row, below the texts `name` and `says` of the row.

    The bar of the last series is in front.
    """
    look = {"type": "bar", "height": 8, "yOffset": 10}
    return _listed([_layer(look | {"color": _colour(one)}, {"x": x.of(one.field), "y": _AT}) for one in series], rows)


def dots(x: Axis, rows: Sequence[Row], series: Sequence[Series]) -> Chart:
    """Return a chart with dots for each row, joined by a line, below the texts `name` and `says` of the row.

    The values of a row must be in ascending order.
    """
    line = {"type": "rule", "color": "var(--edge)", "strokeWidth": 3, "yOffset": 10}
    layers = [_layer(line, {"x": x.of(series[0].field), "x2": {"field": series[-1].field}, "y": _AT})]
    for one in series:
        on = {"x": x.of(one.field), "y": _AT, "shape": _shapes(x, one.field, "left", "right")}
        layers.append(_layer({**_POINT, "color": _colour(one), "size": 80, "yOffset": 10}, on))
    return _listed(layers, rows)


def _listed(layers: Sequence[Spec], rows: Sequence[Row]) -> Chart:
    """Return a chart of layers with one line for each of `rows`, and the row's texts above the line.

    The two texts are on one line, or on two lines if the chart is narrow.
    """
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
    """Return a layer that draws these rows, or the chart's rows if `of` is None, after `transforms`."""
    data = {} if of is None else {"data": {"values": of}}
    return {"mark": look, "encoding": encoding, "transform": list(transforms), **data}


def _shapes(axis: Axis, field: str, below: str, above: str) -> Spec:
    """Return the shape of points: a circle, or a triangle that points outwards for a value outside the axis."""
    low = {"test": f"datum.{field} < {axis.low}", "value": f"triangle-{below}"}
    high = {"test": f"datum.{field} > {axis.high}", "value": f"triangle-{above}"}
    return {"condition": [low, high], "value": "circle"}


def _spec(layers: Sequence[Spec], width: int, height: int | Spec, values: Sequence[Row]) -> Spec:
    return {
        "width": width,
        "height": height,
        # With a height in steps, each row has that height, and the chart's total height is not limited.
        "autosize": {"type": "fit-x" if isinstance(height, dict) else "fit", "contains": "padding"},
        "padding": {"left": 2, "right": 12, "top": 8, "bottom": 2},
        "config": _CONFIG,
        "data": {"values": list(values)},
        "layer": list(layers),
    }


def _by_key(channel: str, series: Sequence[Series]) -> Spec:
    """Return the channel that gives each series its colour or its dash."""
    values = [_DASHES[one.dash] if channel == "strokeDash" else _colour(one) for one in series]
    scale = {"domain": [one.field for one in series], "range": values}
    return {"field": "key", "type": "nominal", "scale": scale, "legend": None}


def _colour(one: Series) -> str:
    return f"var(--{one.colour})"
