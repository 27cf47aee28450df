"""Charts as Vega-Lite draws them: no value is outside its axes, and what an axis does not reach is marked."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import accumulate, groupby
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
import vl_convert
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.axes import Axis
from gateway.pipeline.report.charts import Chart, Series
from gateway.pipeline.report.figures import Row
from tests.effort import examples

MAYBE = st.lists(st.floats(-50, 2) | st.none(), min_size=1, max_size=20)
SPANS = st.lists(st.floats(0, 1e7) | st.none(), min_size=1, max_size=20)
TIMES = axes.times(0, 3600)
ONE = Series("one", "One", "tape")
SLACK_PX = 0.51


class Drawn(NamedTuple):
    """A drawing: its plot's size, and the paths and positions of its marks by kind (`line`, `area`, `symbol`, …)."""

    width: float
    height: float
    paths: dict[str, list[str]]
    places: dict[str, list[tuple[float, float]]]


def drawn(chart: Chart) -> Drawn:
    root = ElementTree.fromstring(vl_convert.vegalite_to_svg(chart(620)))
    (ground,) = [node for node in root.iter() if node.get("class") == "background" and node.tag.endswith("path")][:1]
    width, height = re.findall(r"[hv]([\d.]+)", ground.get("d", ""))[:2]
    paths: dict[str, list[str]] = {}
    places: dict[str, list[tuple[float, float]]] = {}
    for group in root.iter():
        kind, *role = group.get("class", "").split()[:2] or [""]
        if role != ["role-mark"]:
            continue
        for node in group:
            path = node.get("d", "")
            x, y = map(float, node.get("transform", "translate(0,0)")[10:-1].split(","))
            # A symbol's path is about its position.
            steps = [] if kind == "mark-symbol" else re.findall(r"[ML](-?[\d.e-]+),(-?[\d.e-]+)", path)
            ends = [(float(node.get("x2", 0)), float(node.get("y2", 0)))] if node.tag.endswith("line") else []
            found = [(float(right), float(down)) for right, down in steps] + ends
            paths.setdefault(kind, []).append(path)
            places.setdefault(kind, []).extend((x + right, y + down) for right, down in found or [(0.0, 0.0)])
    return Drawn(float(width), float(height), paths, places)


def check_inside(found: Drawn) -> None:
    for kind, places in found.places.items():
        for x, y in places:
            assert -SLACK_PX <= x <= found.width + SLACK_PX, kind
            assert -SLACK_PX <= y <= found.height + SLACK_PX, kind


@settings(max_examples=examples(8, 50))
@given(MAYBE, st.floats(-9, 9))
def test_every_value_beyond_an_axis_is_drawn_at_its_end_with_a_triangle(values_: list[float | None], at: float) -> None:
    y = axes.shares(values_, least=-1.0)
    assert -1 <= y.low <= 0
    assert y.high == 1
    bands = [{"low": (value or 0) - 0.1, "high": (value or 0) + 0.1} for value in values_]
    points = [
        {"x": 1000.0 * nth, "y": value, "key": "one", **band}
        for nth, (value, band) in enumerate(zip(values_, bands, strict=True))
    ]
    plain = drawn(charts.lines(TIMES, y, points, [ONE]))
    check_inside(plain)
    out = y.beyond(values_)
    symbols = zip(plain.paths.get("mark-symbol", []), plain.places.get("mark-symbol", []), strict=True)
    # A circle is made of arcs.
    triangles = [down for path, (_, down) in symbols if "A" not in path]
    assert [round(down) for down in triangles] == [0 if value > 1 else round(plain.height) for value in out]
    # A gap stays a gap, and a value between two gaps is a dot.
    runs = [list(run) for is_known, run in groupby(values_, lambda value: value is not None) if is_known]
    assert "".join(plain.paths.get("mark-line", [])).count("M") == len(runs)
    dots = [run[0] for run in runs if len(run) == 1 and not y.beyond(run)]
    assert len(plain.paths.get("mark-symbol", [])) - len(triangles) == len(dots)
    above = [*charts.rules(y, [at]), *charts.mark(TIMES, y, at, at, 1.0)]
    check_inside(drawn(charts.lines(TIMES, y, points, [ONE], above)))


@settings(max_examples=examples(8, 50))
@given(SPANS)
def test_a_span_of_zero_is_marked_on_a_logarithmic_axis_and_all_others_fit(spans: list[float | None]) -> None:
    known = [value for value in spans if value is None or value == 0 or value > 1e-8]
    axis = axes.spans(known)
    assert axis.low > 0
    assert axis.high >= 100 * axis.low * (1 - 1e-9)
    out = axis.beyond(known)
    assert all(value == 0 or value == pytest.approx(axis.low) or value == pytest.approx(axis.high) for value in out)
    rows = [{"name": "name", "says": "says", "one": value} for value in known if value is not None]
    if rows:
        found = drawn(charts.dots(axis, rows, [ONE]))
        check_inside(found)
        assert len(found.places["mark-symbol"]) == len(rows)
        # A circle is made of arcs.
        assert sum("A" not in path for path in found.paths["mark-symbol"]) == len(out)


@settings(max_examples=examples(8, 50))
@given(st.lists(st.lists(st.integers(0, 10**12), min_size=6, max_size=6), min_size=1, max_size=6), st.booleans())
def test_layers_add_up_and_fit(amounts: list[list[int]], stacked: bool) -> None:
    series = [Series(f"layer{at}", f"layer {at}", "tape") for at in range(len(amounts))]
    rows: list[Row] = [
        {one.field: of[at] for one, of in zip(series, amounts, strict=True)} | {"at": 60 * at} for at in range(6)
    ]
    sums = [list(accumulate(column)) if stacked else list(column) for column in zip(*amounts, strict=True)]
    # An axis of bytes ends at a known amount.
    y = axes.amounts((max(column) for column in sums), is_bytes=True)
    ends = [*rows, {**rows[-1], "at": 360}]
    points = charts.points(ends, series, lambda row: 1000 * row["at"])
    found = drawn(charts.areas(axes.times(0, 360), y, points, series, stacked=stacked))
    check_inside(found)
    for path, tops in zip(found.paths["mark-area"], zip(*sums, strict=True), strict=True):
        # Forth in steps, of which each has two corners, and back.
        corners = [float(down) for down in re.findall(r"[ML]-?[\d.e-]+,(-?[\d.e-]+)", path)]
        shown = [(1 - down / found.height) * y.high for down in corners[:13:2]]
        assert shown == pytest.approx([*tops, tops[-1]], abs=y.high / 10_000)


@pytest.mark.parametrize(
    ("make", "ticks"),
    [
        (lambda: axes.amounts([44.0 * 2**20], is_bytes=True), [0, 16 * 2**20, 32 * 2**20, 48 * 2**20]),
        (lambda: axes.spans([0.0011, 0.093]), [1e-3, 1e-2, 1e-1]),
        (lambda: axes.spans([]), [1e-3, 1e-2, 1e-1]),
        (lambda: axes.sizes([1024, 4096]), [1024, 2048, 4096]),
        (lambda: axes.sizes([2.0**20, 2.0**40]), [2.0**power for power in (21, 24, 27, 30, 33, 36, 39)]),
    ],
)
def test_marks_are_round(make: Callable[[], Axis], ticks: list[float]) -> None:
    assert make().channel["axis"]["values"] == pytest.approx(ticks)


@pytest.mark.parametrize("axis", [axes.spans([0.1]), axes.sizes([1024]), axes.amounts([5]), axes.parts([0.2])])
def test_every_axis_of_values_is_drawn(axis: Axis) -> None:
    assert axis.channel["axis"]["labelExpr"]
    assert axis.channel["axis"]["grid"]
