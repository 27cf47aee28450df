"""Charts as SVG that fits any width by itself, on a screen as on paper, without a script.

Shapes are drawn in an inner picture of 1000 x 1000 units, which is stretched to the plot; strokes keep their width.
Text is outside the inner picture, at positions in per cent, so it is never stretched.  In a narrow chart the style
sheet hides marks of class `roomy`.  Colours are classes; the style sheet defines them for light, dark and print.

A chart knows values and axes, not their meaning.  Every value goes through its axis, so nothing is drawn outside the
plot.  A gap in the data is a gap in the line, and a value between two gaps is a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.markup import Html, element, joined
from gateway.pipeline.report.scales import Axis, Scale, Tick

UNIT: Final = 1000
"""Width and height of the inner picture."""
_MOST_BAR: Final = 0.76
"""Share of a column's width that its bars take."""
_MOST_LABELS: Final = 12
_MOST_NARROW: Final = 5


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
    """One of several stacked amounts; all have the same steps."""

    label: str
    colour: str
    values: Sequence[float]
    whole: str = ""
    """The total, for the legend."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One labelled point; `low` and `high` bound its error."""

    label: str
    colour: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Rule:
    """A value of y to compare with."""

    label: str
    y: float


def lines(
    x: Axis,
    y: Axis,
    series: Sequence[Line],
    *,
    says: str,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    rules: Sequence[Rule] = (),
) -> Html:
    """Lines, with bands behind them and marks in front; `says` describes the chart to a screen reader."""
    inner: list[Html] = []
    for band in bands:
        there = [f"{_at(x.place(at))},{_at(1 - y.place(high))}" for at, _, high in band.points]
        back = [f"{_at(x.place(at))},{_at(1 - y.place(low))}" for at, low, _ in reversed(band.points)]
        inner.append(element("polygon", class_=f"band {band.colour}", points=" ".join(there + back)))
    for line in series:
        path = line_path([(x.place(at), None if value is None else y.place(value)) for at, value in line.points])
        inner.append(element("path", class_=f"line {line.colour} {line.dash}".rstrip(), d=path))
    over: list[Html] = []
    for rule in rules:
        place = _percent(1 - y.place(rule.y))
        over.append(element("line", class_="rule", x1="0", x2="100%", y1=place, y2=place))
        over.append(element("text", rule.label, class_="rule-label", x="100%", y=place, dx="-4", dy="-6"))
    over.extend(_mark(x, y, mark) for mark in marks)
    return _chart(x, y, inner, over, says)


def areas(x: Axis, y: Axis, edges: Sequence[float], layers: Sequence[Layer], *, says: str, stacked: bool) -> Html:
    """Amounts by step, stacked or each from zero; `edges` are the beginnings of the steps and the end of the last."""
    ground = [0.0] * (len(edges) - 1)
    inner = []
    for layer in layers:
        top = [low + value for low, value in zip(ground, layer.values, strict=True)]
        path = step_path([x.place(edge) for edge in edges], [y.place(v) for v in top], [y.place(v) for v in ground])
        inner.append(element("path", class_=f"area {layer.colour}", d=path))
        if stacked:
            ground = top
    return _chart(x, y, inner, [], says)


def columns(labels: Sequence[str], y: Axis, groups: Sequence[Layer], *, says: str) -> Html:
    """A group of bars for each label."""
    number = max(len(labels), 1)
    every = max(-(-number // _MOST_LABELS), 1)
    stride = every * max(-(-number // (_MOST_NARROW * every)), 1)
    ticks = tuple(
        Tick((at + 0.5) / number, labels[at], is_roomy=at % stride != 0) for at in range(0, len(labels), every)
    )
    inner = []
    width = _MOST_BAR / number / max(len(groups), 1)
    for nth, group in enumerate(groups):
        for at, value in enumerate(group.values):
            left = (at + (1 - _MOST_BAR) / 2) / number + nth * width
            height = y.place(value)
            inner.append(
                element(
                    "rect",
                    class_=f"column {group.colour}",
                    x=_at(left),
                    y=_at(1 - height),
                    width=_at(width * 0.94),
                    height=_at(height),
                )
            )
    return _chart(Axis(Scale(0, number), ticks), y, inner, [], says)


def bar(parts: Iterable[tuple[str, float]]) -> Html:
    """A horizontal bar for a row of a list: shares of its width by colour, the larger first.  It is hidden from screen
    readers."""
    drawn = [
        element("rect", class_=f"column {colour}", x="0", y="0", width=_percent(min(max(part, 0), 1)), height="100%")
        for colour, part in parts
    ]
    return element("svg", drawn, class_="bar", aria_hidden="true")


def legend(series: Iterable[Line | Layer]) -> Html:
    """The meaning of colours and dashes."""
    keys = []
    for one in series:
        if isinstance(one, Line):
            sample = element("line", class_=f"line {one.colour} {one.dash}".rstrip(), x1="1", x2="23", y1="6", y2="6")
        else:
            sample = element("rect", class_=f"column {one.colour}", x="6", y="0", width="12", height="12", rx="3")
        whole = element("b", one.whole) if isinstance(one, Layer) and one.whole else None
        keys.append(element("li", element("svg", sample, class_="swatch", aria_hidden="true"), one.label, whole))
    return element("ul", keys, class_="legend")


def line_path(points: Sequence[tuple[float, float | None]]) -> str:
    """A path through points of 0..1, interrupted by gaps; a single point is a dot."""
    path: list[str] = []
    for at, (x, y) in enumerate(points):
        if y is None:
            continue
        begins = at == 0 or points[at - 1][1] is None
        path.append(f"{'M' if begins else 'L'}{_at(x)} {_at(1 - y)}")
        if begins and (at + 1 == len(points) or points[at + 1][1] is None):
            path.append("h0")
    return "".join(path)


def step_path(edges: Sequence[float], top: Sequence[float], ground: Sequence[float]) -> str:
    """The outline of steps between `ground` and `top`, all of 0..1: forth along the top, back along the ground."""
    if not top:
        return ""
    path = [f"M{_at(edges[0])} {_at(1 - top[0])}"]
    for at, height in enumerate(top):
        path.append(f"V{_at(1 - height)}H{_at(edges[at + 1])}")
    path.extend(f"V{_at(1 - ground[at])}H{_at(edges[at])}" for at in range(len(ground) - 1, -1, -1))
    return "".join(path) + "Z"


def _mark(x: Axis, y: Axis, mark: Mark) -> Html:
    place = x.place(mark.x)
    left = _percent(place)
    across = [_percent(1 - y.place(value)) for value in (mark.low, mark.high)]
    # The label is at the top, where a falling curve leaves room, and on the side with more room.
    anchor, shift = ("end", "-8") if place > 0.45 else ("start", "8")
    return element(
        "g",
        element("line", class_="leader", x1=left, x2=left, y1="0", y2="100%"),
        element("line", class_=f"reach {mark.colour}", x1=left, x2=left, y1=across[0], y2=across[1]),
        element("circle", class_=f"point {mark.colour}", cx=left, cy=_percent(1 - y.place(mark.y)), r="6"),
        element(
            "text",
            mark.label,
            class_="point-label",
            x=left,
            y="0",
            dx=shift,
            dy="10",
            text_anchor=anchor,
        ),
    )


def _chart(x: Axis, y: Axis, inner: Sequence[Html], over: Sequence[Html], says: str) -> Html:
    under: list[Html] = []
    for tick in y.ticks:
        place = _percent(1 - tick.place)
        under.append(element("line", class_="grid", x1="0", x2="100%", y1=place, y2=place))
        under.append(element("text", tick.label, class_="y-label", x="0", y=place, dx="-8", dy="4"))
    for tick in x.ticks:
        place = _percent(tick.place)
        roomy = " roomy" if tick.is_roomy else ""
        under.append(element("line", class_=f"tick{roomy}", x1=place, x2=place, y1="100%", y2="100%"))
        under.append(element("text", tick.label, class_=f"x-label{roomy}", x=place, y="100%", dy="20"))
    plot = element(
        "svg",
        joined(list(inner)),
        class_="plot",
        x="0",
        y="0",
        width="100%",
        height="100%",
        viewBox=f"0 0 {UNIT} {UNIT}",
        preserveAspectRatio="none",
    )
    cross = element("line", class_="cross", x1="0", x2="0", y1="0", y2="100%", visibility="hidden")
    return element("svg", under, plot, cross, list(over), class_="chart", role="img", aria_label=says)


def _at(part: float) -> str:
    """A share of the inner picture in its units."""
    return f"{part * UNIT:.1f}".removesuffix(".0")


def _percent(part: float) -> str:
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"
