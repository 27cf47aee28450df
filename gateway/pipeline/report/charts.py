"""Charts as Vega-Lite specifications, by the width that they are drawn in.

Colours are the style sheet's variables, so one drawing serves light, dark and print.  A chart draws no value outside
its axes: a value beyond an end is drawn at that end and marked by a triangle that points outwards; `beyond` counts them
for the legend.  A gap in the data is a gap in the line, and a value between two gaps is a dot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.pipeline.report.axes import Axis
from gateway.pipeline.report.markup import shown

Spec = dict[str, Any]
Chart = Callable[[int], Spec]
"""The specification of a chart that is so many pixels wide."""

_HEIGHT: Final = 210
_ROW: Final = 38
_NARROW: Final = 460
_LABEL: Final = 12
_DASHES: Final = {"": [1, 0], "long": [7, 5], "short": [2, 4], "mixed": [8, 4, 2, 4]}
_LINE: Final[Spec] = {"strokeWidth": 2, "strokeCap": "round", "invalid": "break-paths-show-domains"}
_POINT: Final[Spec] = {"filled": True, "opacity": 1}
_Y2: Final[Spec] = {"y2": {"field": "y2"}}
_AS_GIVEN: Final[Spec] = {"type": "nominal", "scale": None, "legend": None}
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
class Line:
    """Values of y by x; None is a gap."""

    label: str
    colour: str
    points: Sequence[tuple[float, float | None]]
    dash: str = ""
    """`long`, `short`, `mixed` or nothing: colour alone must not distinguish lines."""


@dataclass(frozen=True, slots=True)
class Band:
    """The area between two values of y, by x."""

    colour: str
    points: Sequence[tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Layer:
    """One of several amounts in the same steps."""

    label: str
    colour: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Mark:
    """One point; `low` and `high` bound its error."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Bars:
    """A row of a list: a name, its figures in words, and the lengths of its bars by colour, the longest first."""

    name: str
    says: str
    parts: Sequence[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Dots:
    """A row of a list: a name, its figures in words, and values by colour in rising order."""

    name: str
    says: str
    values: Sequence[tuple[str, float]]


def beyond(axis: Axis, values: Iterable[float | None]) -> list[float]:
    """The values that the axis does not reach, in order."""
    return [value for value in values if value is not None and not axis.low <= value <= axis.high]


def lines(
    x: Axis, y: Axis, series: Sequence[Line], *, bands: Sequence[Band] = (), mark: Mark | None = None, rule: float = -1
) -> Chart:
    """Lines, with bands behind them, and in front a point and a horizontal rule at the height `rule`, if that is not
    negative."""
    layers = [
        _layer(
            "area",
            [{"x": at, "y": _within(y, low), "y2": _within(y, high)} for at, low, high in band.points],
            _on(x, y) | _Y2,
            color=_colour(band.colour),
            opacity=0.2,
        )
        for band in bands
    ]
    for line in series:
        values = [{"x": at, "y": None if value is None else _within(y, value)} for at, value in line.points]
        colour = _colour(line.colour)
        layers.append(_layer("line", values, _on(x, y), **_LINE, color=colour, strokeDash=_DASHES[line.dash]))
    for line in series:
        known = [(at, value) for at, value in line.points if value is not None]
        below = [{"x": at, "y": y.low} for at, value in known if value < y.low]
        above = [{"x": at, "y": y.high} for at, value in known if value > y.high]
        for out, shape in ((below, "triangle-down"), (above, "triangle-up")):
            if out:
                colour = _colour(line.colour)
                layers.append(_layer("point", out, _on(x, y), **_POINT, color=colour, shape=shape, size=90))
    if rule >= 0:
        height = [{"y": _within(y, rule)}]
        layers.append(_layer("rule", height, {"y": _y(y)}, color="var(--quiet)", strokeDash=_DASHES["short"]))
    if mark is not None:
        at = {"x": _within(x, mark.x)}
        reach = [at | {"y": _within(y, mark.low), "y2": _within(y, mark.high)}]
        ring = {"fill": "var(--surface)", "stroke": "var(--chosen)", "strokeWidth": 3, "size": 110}
        layers += [
            _layer("rule", [at], {"x": _x(x)}, color="var(--chosen)", strokeDash=[1, 4]),
            _layer("rule", reach, _on(x, y) | _Y2, color="var(--chosen)", strokeWidth=2),
            _layer("point", [at | {"y": _within(y, mark.y)}], _on(x, y), **_POINT, **ring),
        ]
    return _drawn(layers)


def areas(x: Axis, y: Axis, edges: Sequence[int], layers: Sequence[Layer], *, stacked: bool) -> Chart:
    """Amounts by step, stacked or each from zero; `edges` are the beginnings of the steps and the end of the last."""
    ground = [0.0] * (len(edges) - 1)
    drawn: list[Spec] = []
    for layer in layers:
        top = [low + value for low, value in zip(ground, layer.values, strict=True)]
        # The last step is as wide as the others: its values once more at its end.
        steps = zip(edges, [*ground, *ground[-1:]], [*top, *top[-1:]], strict=True)
        values = [{"x": 1000 * at, "y": low, "y2": high} for at, low, high in steps]
        look = {"color": _colour(layer.colour), "opacity": 1, "interpolate": "step-after"}
        drawn.append(_layer("area", values, {"x": _x(x), "y": _y(y) | {"stack": None}} | _Y2, **look))
        if stacked:
            ground = top
    return _drawn(drawn)


def columns(labels: Sequence[str], y: Axis, groups: Sequence[Layer]) -> Chart:
    """A group of columns for each label."""
    values = [
        {"x": at, "group": nth, "y": group.values[at], "colour": _colour(group.colour)}
        for nth, group in enumerate(groups)
        for at in range(len(labels))
    ]
    names = ", ".join(f"'{label}'" for label in labels)
    axis = {"labelExpr": f"[{names}][datum.value]", "labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 6}
    encoding = {
        "x": {"field": "x", "type": "ordinal", "axis": axis, "scale": {"paddingInner": 0.2}},
        "xOffset": {"field": "group", "type": "ordinal"},
        "y": _y(y),
        "color": {"field": "colour", **_AS_GIVEN},
    }
    return _drawn([_layer("bar", values, encoding)])


def bars(rows: Sequence[Bars], x: Axis) -> Chart:
    """A horizontal bar for each row, from zero, under the row's name and figures."""
    # Longest first: the next one is drawn in front of it.
    layers = [
        _layer(
            "bar",
            [{"at": at, "x": row.parts[nth][1]} for at, row in enumerate(rows)],
            {"x": _x(x), "y": _rows(rows)},
            color=_colour(colour),
            height=8,
            yOffset=10,
        )
        for nth, (colour, _) in enumerate(rows[0].parts)
    ]
    return _listed(layers, rows)


def dots(rows: Sequence[Dots], x: Axis) -> Chart:
    """Values on one axis for each row, joined by a line, under the row's name and figures."""
    ends = [
        {"at": at, "x": _within(x, row.values[0][1]), "x2": _within(x, row.values[-1][1])}
        for at, row in enumerate(rows)
    ]
    points = [
        {
            "at": at,
            "x": _within(x, value),
            "colour": _colour(colour),
            "shape": "triangle-left" if value < x.low else "triangle-right" if value > x.high else "circle",
        }
        for at, row in enumerate(rows)
        for colour, value in row.values
    ]
    encoding = {"x": _x(x), "y": _rows(rows)}
    looks = {"color": {"field": "colour", **_AS_GIVEN}, "shape": {"field": "shape", **_AS_GIVEN}}
    joined = _layer("rule", ends, encoding | {"x2": {"field": "x2"}}, color="var(--edge)", strokeWidth=3, yOffset=10)
    return _listed([joined, _layer("point", points, encoding | looks, **_POINT, size=80, yOffset=10)], rows)


def _listed(layers: Sequence[Spec], rows: Sequence[Bars | Dots]) -> Chart:
    """Layers with a row for each of `rows`, and above it the texts: beside each other, or in two lines where it is
    narrow."""
    values = [{"at": at, "name": shown(row.name), "says": row.says} for at, row in enumerate(rows)]

    def text(field: str, x: int | str, **look: Any) -> Spec:
        encoding = {"x": {"value": x}, "y": _rows(rows), "text": {"field": field, "type": "nominal"}}
        return _layer("text", values, encoding, **look)

    def chart(width: int) -> Spec:
        if width <= _NARROW:
            limit = int(width * 0.84)
            name = text("name", 0, align="left", yOffset=-16, limit=limit)
            says = text("says", 0, align="left", yOffset=-2, limit=limit, color="var(--quiet)")
            return _spec([*layers, name, says], width, {"step": _ROW + 14})
        name = text("name", 0, align="left", yOffset=-5, limit=width // 2)
        says = text("says", "width", align="right", yOffset=-5, limit=int(width * 0.4), color="var(--quiet)")
        return _spec([*layers, name, says], width, {"step": _ROW})

    return chart


def _drawn(layers: Sequence[Spec]) -> Chart:
    return lambda width: _spec(layers, width, _HEIGHT)


def _spec(layers: Sequence[Spec], width: int, height: int | Spec) -> Spec:
    return {
        "width": width,
        "height": height,
        # A height in steps is that of the rows, whatever the texts beside them take.
        "autosize": {"type": "fit-x" if isinstance(height, dict) else "fit", "contains": "padding"},
        "padding": {"left": 2, "right": 12, "top": 8, "bottom": 2},
        "config": _CONFIG,
        "layer": list(layers),
    }


def _layer(kind: str, values: Sequence[Spec], encoding: Spec, **look: Any) -> Spec:
    return {"data": {"values": list(values)}, "mark": {"type": kind, **look}, "encoding": encoding}


def _on(x: Axis, y: Axis) -> Spec:
    return {"x": _x(x), "y": _y(y)}


def _x(axis: Axis) -> Spec:
    return {"field": "x", **axis.channel}


def _y(axis: Axis) -> Spec:
    return {"field": "y", **axis.channel}


def _rows(rows: Sequence[object]) -> Spec:
    return {"field": "at", "type": "ordinal", "axis": None, "scale": {"domain": [*range(len(rows))]}}


def _within(axis: Axis, value: float) -> float:
    return min(max(value, axis.low), axis.high)


def _colour(name: str) -> str:
    return f"var(--{name})"
