"""Axes: every value has a place inside, and marks are few, ordered and distinct."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.pipeline.report import scales
from gateway.pipeline.report.scales import Axis, Scale

MOST = 1e15
AMOUNTS = st.floats(0, MOST) | st.integers(0, 10**15).map(float)
MAYBE = st.lists(AMOUNTS | st.none(), max_size=20)
TIMES = st.integers(0, 4_000_000_000)
ANYTHING = st.floats(allow_nan=False)


def judge(axis: Axis, most_ticks: int = 11) -> None:
    """Assert the properties of every axis."""
    places = [tick.place for tick in axis.ticks]
    assert 1 <= len(places) <= most_ticks
    assert places == sorted(set(places))
    assert all(0 <= place <= 1 for place in places)
    labels = [tick.label for tick in axis.ticks]
    assert len(set(labels)) == len(labels), labels
    assert not axis.ticks[0].is_roomy
    assert len([tick for tick in axis.ticks if not tick.is_roomy]) >= min(len(places), 2)


@given(ANYTHING, st.floats(-1e12, 1e12), st.floats(1e-6, 1e12))
def test_every_value_has_a_place_on_a_linear_axis(value: float, low: float, reach: float) -> None:
    assume(low + reach > low)
    place = Scale(low, low + reach).place(value)
    assert 0 <= place <= 1
    if low < value < low + reach:
        assert math.isclose(low + place * reach, value, rel_tol=1e-6, abs_tol=1e-6 * max(abs(low), reach))


@given(ANYTHING, st.floats(1e-9, 1e6), st.floats(1.01, 1e9))
def test_every_value_has_a_place_on_a_logarithmic_axis(value: float, low: float, factor: float) -> None:
    scale = Scale(low, low * factor, is_log=True)
    assert 0 <= scale.place(value) <= 1
    assert scale.place(low) == 0
    assert scale.place(low * factor) == 1
    assert math.isclose(scale.place(low * math.sqrt(factor)), 0.5, abs_tol=1e-6)


@given(MAYBE, st.booleans())
def test_amounts_begin_at_zero_and_end_above_the_largest(values: list[float | None], is_bytes: bool) -> None:
    axis = scales.amounts(values, is_bytes=is_bytes)
    judge(axis)
    assert axis.scale.low == 0
    assert axis.scale.high >= max((value for value in values if value is not None), default=0)
    assert axis.ticks[0].label in ("0", "0 B")
    assert axis.ticks[-1].place == pytest.approx(1)


@given(st.lists(st.floats(-50, 1) | st.none(), max_size=20))
def test_shares_end_at_one_and_have_a_mark_at_zero(values: list[float | None]) -> None:
    axis = scales.shares(values, least=-1.0)
    judge(axis)
    assert axis.scale.high == 1
    assert -1 <= axis.scale.low <= 0
    assert {"0 %", "100 %"} <= {tick.label for tick in axis.ticks}


@given(st.lists(st.floats(0, 1) | st.none(), max_size=20))
def test_parts_include_the_largest(values: list[float | None]) -> None:
    axis = scales.parts(values)
    judge(axis)
    assert axis.scale.low == 0
    assert axis.scale.high >= max((value for value in values if value is not None), default=0) - 1e-9


@given(st.lists(st.floats(0, 1e7) | st.none(), max_size=20))
def test_spans_include_every_span_above_zero(values: list[float | None]) -> None:
    assume(all(value is None or value == 0 or value > 1e-8 for value in values))
    axis = scales.spans(values)
    judge(axis)
    for value in values:
        if value:
            assert axis.scale.low * (1 - 1e-6) <= value <= axis.scale.high * (1 + 1e-6)


@given(st.lists(st.integers(0, 2**50).map(float), max_size=20))
def test_sizes_are_marked_at_powers_of_two(values: list[float]) -> None:
    axis = scales.sizes(values)
    judge(axis)
    for tick in axis.ticks:
        power = math.log2(axis.scale.low) + tick.place * math.log2(axis.scale.high / axis.scale.low)
        assert power == pytest.approx(round(power), abs=1e-6)


@given(TIMES, st.integers(0, 400_000_000))
def test_times_are_marked_at_round_times(first: int, reach: int) -> None:
    axis = scales.times(first, first + reach)
    assert 0 <= len(axis.ticks) <= 10
    places = [tick.place for tick in axis.ticks]
    assert places == sorted(set(places))
    for tick in axis.ticks:
        at = axis.scale.low + tick.place * (axis.scale.high - axis.scale.low)
        assert at % 60 == pytest.approx(0, abs=1) or at % 60 == pytest.approx(60, abs=1)


@given(TIMES, st.integers(0, 400_000_000), st.integers(2, 400))
def test_a_step_divides_time_into_at_most_the_given_pieces(first: int, reach: int, most: int) -> None:
    last = first + reach
    step = scales.step_for(first, last, most)
    assert step % 60 == 0
    assert len(range(first // step * step, last + 1, step)) <= most


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (lambda: scales.amounts([1_302]), ["0", "500", "1,000", "1,500"]),
        (lambda: scales.amounts([0]), ["0", "1"]),
        (lambda: scales.amounts([44.0 * 2**20], is_bytes=True), ["0 B", "16 MiB", "32 MiB", "48 MiB"]),
        (lambda: scales.shares([0.9, 0.4]), ["0 %", "25 %", "50 %", "75 %", "100 %"]),
        (lambda: scales.shares([0.9, -0.1], least=-1), ["-25 %", "0 %", "25 %", "50 %", "75 %", "100 %"]),
        (lambda: scales.shares([0.9, -7], least=-1), ["-100 %", "-50 %", "0 %", "50 %", "100 %"]),
        (lambda: scales.spans([0.0011, 0.093]), ["1 ms", "10 ms", "100 ms"]),
        (lambda: scales.spans([]), ["1 ms", "10 ms", "100 ms"]),
    ],
)
def test_marks_are_round(make: Callable[[], Axis], labels: list[str]) -> None:
    assert [tick.label for tick in make().ticks] == labels


def test_the_beginning_of_a_day_is_named() -> None:
    first = int(datetime(2026, 11, 20, 22, 30, tzinfo=UTC).timestamp())
    labels = [tick.label for tick in scales.times(first, first + 7 * 3600).ticks]
    assert labels == ["23:00", "Nov 21", "01:00", "02:00", "03:00", "04:00", "05:00"]
