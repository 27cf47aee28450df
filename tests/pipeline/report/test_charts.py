"""Charts: everything is inside the plot, gaps in the data are gaps, and layers are stacked."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.report import charts, scales
from gateway.pipeline.report.charts import Band, Layer, Line, Mark, Rule

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
PART = st.floats(0, 1)
VALUES = st.lists(st.tuples(PART, PART | st.none()), max_size=40)


def numbers(path: str) -> list[float]:
    return [float(one) for one in NUMBER.findall(path)]


def drawn(markup: str) -> ET.Element:
    """A chart as a tree, which also checks that it is well-formed."""
    return ET.fromstring(markup)


def inside(chart: ET.Element) -> bool:
    """Whether all shapes in the stretched picture, and all text and lines over it, are within the plot."""
    plot = chart.find("svg")
    assert plot is not None
    for mark in plot:
        if mark.tag == "rect":
            x, y, width, height = (float(mark.attrib[key]) for key in ("x", "y", "width", "height"))
            ends = [x, y, x + width, y + height]
        else:
            ends = numbers(mark.get("d") or mark.get("points") or "")
        if not all(-0.1 <= end <= charts.UNIT + 0.1 for end in ends):
            return False
    places = [
        value
        for node in chart.iter()
        if node.tag in ("line", "text", "circle")
        for key in ("x", "y", "x1", "x2", "y1", "y2", "cx", "cy")
        if (value := node.get(key)) is not None
    ]
    return all(0 <= float(place.rstrip("%")) <= 100 for place in places)


@given(VALUES)
def test_a_line_has_every_value_and_is_interrupted_by_gaps(points: list[tuple[float, float | None]]) -> None:
    path = charts.line_path(points)
    known = [y for _, y in points if y is not None]
    runs = [y is not None and (at == 0 or points[at - 1][1] is None) for at, (_, y) in enumerate(points)]
    assert path.count("M") == sum(runs)
    assert path.count("M") + path.count("L") == len(known)
    assert all(0 <= number <= charts.UNIT for number in numbers(path))


@given(st.lists(st.tuples(PART, PART), min_size=1, max_size=40))
def test_steps_go_along_the_top_and_back_along_the_ground(pairs: list[tuple[float, float]]) -> None:
    ground, top = [min(pair) for pair in pairs], [max(pair) for pair in pairs]
    edges = [at / len(pairs) for at in range(len(pairs) + 1)]
    path = charts.step_path(edges, top, ground)
    heights = [float(one) for one in re.findall(r"V(-?[\d.]+)", path)]
    wanted = [(1 - value) * charts.UNIT for value in [*top, *reversed(ground)]]
    assert len(heights) == len(wanted)
    assert all(abs(one - other) <= 0.051 for one, other in zip(heights, wanted, strict=True))
    assert all(0 <= number <= charts.UNIT for number in numbers(path))
    assert path.endswith("Z")


@given(st.lists(st.tuples(st.floats(-5, 5) | st.none(), st.floats(0, 1e9)), max_size=30), st.floats(-9, 9))
def test_a_line_chart_draws_nothing_outside_its_plot(values: list[tuple[float | None, float]], chosen: float) -> None:
    x = scales.times(0, 3600)
    y = scales.shares([value for value, _ in values], least=-1.0)
    line = Line("one <", "tape", [(at, value) for value, at in values])
    band = Band("tape", [(at, (value or 0) - 0.1, (value or 0) + 0.1) for value, at in values])
    mark = Mark("plan & more", "chosen", 1e12 * chosen, chosen, chosen - 1, chosen + 1)
    made = charts.lines(x, y, [line], says='says "so"', bands=[band], marks=[mark], rules=[Rule("<rule>", chosen)])
    assert inside(drawn(made))


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=6, max_size=6), min_size=1, max_size=6), st.booleans())
def test_an_area_chart_draws_nothing_outside_and_layers_add_up(amounts: list[list[int]], stacked: bool) -> None:
    layers = [Layer(f"layer {at}", "tape", values) for at, values in enumerate(amounts)]
    whole = [sum(values) for values in zip(*amounts, strict=True)]
    most = whole if stacked else [value for values in amounts for value in values]
    y = scales.amounts(most)
    edges = [0, 60, 120, 180, 240, 300, 360]
    chart = drawn(charts.areas(scales.times(0, 360), y, edges, layers, says="x", stacked=stacked))
    assert inside(chart)
    areas = [node.attrib["d"] for node in chart.iter("path")]
    assert len(areas) == len(layers)
    if stacked:
        tops = [float(one) for one in re.findall(r"V(-?[\d.]+)", areas[-1])][:6]
        for top, value in zip(tops, whole, strict=True):
            assert abs(top - (1 - y.place(value)) * charts.UNIT) <= 0.051


@given(st.lists(st.tuples(PART, PART), min_size=1, max_size=40))
def test_columns_are_inside_and_beside_each_other(shares: list[tuple[float, float]]) -> None:
    groups = [
        Layer("live", "follow", [one for one, _ in shares]),
        Layer("other", "collapse", [one for _, one in shares]),
    ]
    y = scales.parts([value for pair in shares for value in pair])
    chart = drawn(charts.columns([str(2**at) for at in range(len(shares))], y, groups, says="x"))
    assert inside(chart)
    bars = sorted((float(node.attrib["x"]), float(node.attrib["width"])) for node in chart.iter("rect"))
    assert len(bars) == 2 * len(shares)
    for (left, width), (following, _) in itertools.pairwise(bars):
        assert left + width <= following + 0.11


def test_one_value_between_gaps_is_a_dot() -> None:
    assert charts.line_path([(0.0, None), (0.5, 0.25), (1.0, None)]) == "M500 750h0"
