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
_LINE: Final[Spec] = {
    "type": "line",
    "strokeWidth": 2,
    "strokeCap": "round",
    "invalid": "break-paths-show-domains",
}
_OUT: Final[Spec] = {"type": "point", "filled": True, "size": 90, "opacity": 1}
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
    layers: list[Spec] = []
    for band in bands:
        values = [{"x": at, "low": _within(y, low), "high": _within(y, high)} for at, low, high in band.points]
        layers.append(
            {
                "data": {"values": values},
                "mark": {"type": "area", "color": _colour(band.colour), "opacity": 0.2},
                "encoding": {"x": _x(x), "y": {"field": "low", **y.channel}, "y2": {"field": "high"}},
            }
        )
    for line in series:
        points: list[Spec] = [{"x": at, "y": None if value is None else _within(y, value)} for at, value in line.points]
        layers.append(_layer(points, _LINE | {"color": _colour(line.colour), "strokeDash": _DASHES[line.dash]}, x, y))
    for line in series:
        known = [(at, value) for at, value in line.points if value is not None]
        below: list[Spec] = [{"x": at, "y": y.low} for at, value in known if value < y.low]
        above: list[Spec] = [{"x": at, "y": y.high} for at, value in known if value > y.high]
        for out, shape in ((below, "triangle-down"), (above, "triangle-up")):
            if out:
                layers.append(_layer(out, _OUT | {"color": _colour(line.colour), "shape": shape}, x, y))
    if rule >= 0:
        dashed = {"type": "rule", "color": "var(--quiet)", "strokeDash": _DASHES["short"]}
        layers.append({"data": {"values": [{"y": _within(y, rule)}]}, "mark": dashed, "encoding": {"y": _y(y)}})
    if mark is not None:
        layers.extend(_mark(x, y, mark))
    return _drawn(layers)


def areas(x: Axis, y: Axis, edges: Sequence[int], layers: Sequence[Layer], *, stacked: bool) -> Chart:
    """Amounts by step, stacked or each from zero; `edges` are the beginnings of the steps and the end of the last."""
    ground = [0.0] * (len(edges) - 1)
    drawn: list[Spec] = []
    for layer in layers:
        top = [low + value for low, value in zip(ground, layer.values, strict=True)]
        # The last step is as wide as the others: its values once more at its end.
        values = [
            {"x": 1000 * at, "low": low, "high": high}
            for at, low, high in zip(edges, [*ground, *ground[-1:]], [*top, *top[-1:]], strict=True)
        ]
        drawn.append(
            {
                "data": {"values": values},
                "mark": {"type": "area", "color": _colour(layer.colour), "opacity": 1, "interpolate": "step-after"},
                "encoding": {"x": _x(x), "y": {"field": "low", **y.channel, "stack": None}, "y2": {"field": "high"}},
            }
        )
        if stacked:
            ground = top
    return _drawn(drawn)


def columns(labels: Sequence[str], y: Axis, groups: Sequence[Layer]) -> Chart:
    """A group of columns for each label."""
    values = [
        {"at": at, "label": label, "group": nth, "y": group.values[at]}
        for nth, group in enumerate(groups)
        for at, label in enumerate(labels)
    ]
    names = ", ".join(f"'{label}'" for label in labels)
    axis = {"labelExpr": f"[{names}][datum.value]", "labelAngle": 0, "labelOverlap": "greedy", "labelSeparation": 6}
    layer = {
        "data": {"values": values},
        "mark": {"type": "bar"},
        "encoding": {
            "x": {"field": "at", "type": "ordinal", "axis": axis, "scale": {"paddingInner": 0.2}},
            "xOffset": {"field": "group", "type": "ordinal"},
            "y": _y(y),
            "color": {
                "field": "group",
                "type": "ordinal",
                "legend": None,
                "scale": {"domain": [*range(len(groups))], "range": [_colour(group.colour) for group in groups]},
            },
        },
    }
    return _drawn([layer])


def bars(rows: Sequence[Bars], x: Axis) -> Chart:
    """A horizontal bar for each row, from zero, under the row's name and figures."""
    layers = [
        {
            "data": {
                "values": [{"at": at, "x": row.parts[nth][1]} for at, row in enumerate(rows) if len(row.parts) > nth]
            },
            "mark": {"type": "bar", "color": _colour(rows[0].parts[nth][0]), "height": 8, "yOffset": 10},
            "encoding": {"x": {"field": "x", **x.channel}, "y": _rows(len(rows))},
        }
        for nth in range(len(rows[0].parts))
    ]
    return _listed(layers, [(row.name, row.says) for row in rows])


def dots(rows: Sequence[Dots], x: Axis) -> Chart:
    """Values on one axis for each row, joined by a line, under the row's name and figures."""
    ends = [
        {"at": at, "x": _within(x, min(v for _, v in row.values)), "x2": _within(x, max(v for _, v in row.values))}
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
    same = {"scale": None, "legend": None, "type": "nominal"}
    layers = [
        {
            "data": {"values": ends},
            "mark": {"type": "rule", "color": "var(--edge)", "strokeWidth": 3, "yOffset": 10},
            "encoding": {"x": {"field": "x", **x.channel}, "x2": {"field": "x2"}, "y": _rows(len(rows))},
        },
        {
            "data": {"values": points},
            "mark": {"type": "point", "filled": True, "size": 80, "opacity": 1, "yOffset": 10},
            "encoding": {
                "x": {"field": "x", **x.channel},
                "y": _rows(len(rows)),
                "color": {"field": "colour", **same},
                "shape": {"field": "shape", **same},
            },
        },
    ]
    return _listed(layers, [(row.name, row.says) for row in rows])


def _listed(layers: Sequence[Spec], texts: Sequence[tuple[str, str]]) -> Chart:
    """Layers with a row for each pair of texts, which are above it: beside each other, or below where it is narrow."""

    def chart(width: int) -> Spec:
        is_narrow = width <= _NARROW
        room = int(width * (0.84 if is_narrow else 0.5))
        values = [{"at": at, "name": shown(name), "says": says} for at, (name, says) in enumerate(texts)]
        named = {"type": "text", "align": "left", "limit": room, "yOffset": -16 if is_narrow else -5}
        said = {
            "type": "text",
            "color": "var(--quiet)",
            "limit": int(width * (0.84 if is_narrow else 0.4)),
            "yOffset": -2 if is_narrow else -5,
        }
        written = [
            {
                "data": {"values": values},
                "mark": named,
                "encoding": {"x": {"value": 0}, "y": _rows(len(texts)), "text": {"field": "name", "type": "nominal"}},
            },
            {
                "data": {"values": values},
                "mark": said | {"align": "left" if is_narrow else "right"},
                "encoding": {
                    "x": {"value": 0 if is_narrow else "width"},
                    "y": _rows(len(texts)),
                    "text": {"field": "says", "type": "nominal"},
                },
            },
        ]
        return _spec([*layers, *written], width, {"step": _ROW + 14 * is_narrow})

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


def _mark(x: Axis, y: Axis, mark: Mark) -> list[Spec]:
    point = {
        "x": _within(x, mark.x),
        "y": _within(y, mark.y),
        "low": _within(y, mark.low),
        "high": _within(y, mark.high),
    }
    leader = {"type": "rule", "color": "var(--chosen)", "strokeDash": [1, 4]}
    reach = {"type": "rule", "color": "var(--chosen)", "strokeWidth": 2}
    dot = {"type": "point", "filled": True, "fill": "var(--surface)", "stroke": "var(--chosen)", "strokeWidth": 3}
    return [
        {"data": {"values": [point]}, "mark": leader, "encoding": {"x": _x(x)}},
        {
            "data": {"values": [point]},
            "mark": reach,
            "encoding": {"x": _x(x), "y": {"field": "low", **y.channel}, "y2": {"field": "high"}},
        },
        _layer([point], dot | {"size": 110, "opacity": 1}, x, y),
    ]


def _layer(values: list[Spec], mark: Spec, x: Axis, y: Axis) -> Spec:
    return {"data": {"values": values}, "mark": mark, "encoding": {"x": _x(x), "y": _y(y)}}


def _x(axis: Axis) -> Spec:
    return {"field": "x", **axis.channel}


def _y(axis: Axis) -> Spec:
    return {"field": "y", **axis.channel}


def _rows(number: int) -> Spec:
    return {"field": "at", "type": "ordinal", "axis": None, "scale": {"domain": [*range(number)]}}


def _within(axis: Axis, value: float) -> float:
    return min(max(value, axis.low), axis.high)


def _colour(name: str) -> str:
    return f"var(--{name})"
