"""Charts: no value is outside its axes, and what an axis does not reach is marked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.axes import Axis
from gateway.pipeline.report.charts import Band, Chart, Dots, Layer, Line, Mark

MAYBE = st.lists(st.floats(-50, 2) | st.none(), min_size=1, max_size=20)
SPANS = st.lists(st.floats(0, 1e7) | st.none(), min_size=1, max_size=20)
TIMES = axes.times(0, 3600)


def drawn(chart: Chart, width: int = 620) -> list[dict[str, Any]]:
    """The layers of a chart."""
    layers: list[dict[str, Any]] = chart(width)["layer"]
    return layers


def values(layers: list[dict[str, Any]], *fields: str) -> list[float]:
    found = [row.get(field) for layer in layers for row in layer["data"]["values"] for field in fields]
    return [value for value in found if value is not None]


def triangles(layers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [layer for layer in layers if str(layer["mark"].get("shape", "")).startswith("triangle")]


@given(MAYBE, st.floats(-9, 9))
def test_every_value_beyond_an_axis_is_drawn_at_its_end_with_a_triangle(values_: list[float | None], at: float) -> None:
    y = axes.shares(values_, least=-1.0)
    assert -1 <= y.low <= 0
    assert y.high == 1
    points = [(1000.0 * nth, value) for nth, value in enumerate(values_)]
    band = Band("tape", [(at, (value or 0) - 0.1, (value or 0) + 0.1) for at, value in points])
    layers = drawn(
        charts.lines(TIMES, y, [Line("one", "tape", points)], bands=[band], mark=Mark(at, at, at - 1, at + 1), rule=at)
    )
    assert all(y.low <= value <= y.high for value in values(layers, "y", "y2"))
    assert len(values(triangles(layers), "y")) == len(charts.beyond(y, values_))
    (line,) = [layer for layer in layers if layer["mark"]["type"] == "line"]
    # A gap stays a gap.
    assert [row["y"] is None for row in line["data"]["values"]] == [value is None for value in values_]


@given(SPANS)
def test_a_span_of_zero_is_marked_on_a_logarithmic_axis_and_all_others_fit(spans: list[float | None]) -> None:
    known = [value for value in spans if value is None or value == 0 or value > 1e-8]
    axis = axes.spans(known)
    assert axis.low > 0
    assert axis.high >= 100 * axis.low * (1 - 1e-9)
    out = charts.beyond(axis, known)
    assert all(value == 0 or value == pytest.approx(axis.low) or value == pytest.approx(axis.high) for value in out)
    rows = [Dots("name", "says", [("quick", value)]) for value in known if value is not None]
    if rows:
        layers = drawn(charts.dots(rows, axis))
        shapes = [row.get("shape") for layer in layers for row in layer["data"]["values"] if "shape" in row]
        assert shapes.count("triangle-left") + shapes.count("triangle-right") == len(out)
        assert all(axis.low <= value <= axis.high for value in values(layers, "x", "x2"))


@given(st.lists(st.lists(st.integers(0, 10**12), min_size=6, max_size=6), min_size=1, max_size=6), st.booleans())
def test_layers_add_up_and_fit(amounts: list[list[int]], stacked: bool) -> None:
    layers = [Layer(f"layer {at}", "tape", of) for at, of in enumerate(amounts)]
    whole = [sum(column) for column in zip(*amounts, strict=True)]
    y = axes.amounts(whole if stacked else [value for of in amounts for value in of])
    found = drawn(charts.areas(TIMES, y, [0, 60, 120, 180, 240, 300, 360], layers, stacked=stacked))
    assert all(0 <= value <= y.high for value in values(found, "y", "y2"))
    tops = values(found[-1:], "y2")
    assert tops[:-1] == (whole if stacked else amounts[-1])
    assert tops[-1] == tops[-2]


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
