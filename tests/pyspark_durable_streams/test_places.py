"""Offsets, plans and rounds: what is decided without a stream."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.framing import Unit
from pyspark_durable_streams.places import Evidence, Offset, Place, Position, Stretch
from pyspark_durable_streams.plan import Share, shares, split_evenly
from pyspark_durable_streams.rounds import Budget, allocate, rotated

_NAMES = st.text("abc/é?", min_size=1, max_size=4)
_COUNTS = st.integers(0, 1 << 40)
_PLACES = st.builds(Place, st.text("0123_", min_size=1), _COUNTS, _COUNTS)
_EVIDENCE = st.none() | st.builds(Evidence, st.text("0123_"), st.integers(1, 256), st.text("0af"))
_POSITIONS = st.builds(Position, _PLACES, st.sampled_from(Unit), st.booleans(), _EVIDENCE)
_STRETCHES = st.builds(
    Stretch, _PLACES, st.integers(1, 1 << 30), st.integers(1, 1 << 30), st.integers(0, (1 << 32) - 1)
)


@st.composite
def offsets(draw: st.DrawFn) -> Offset:
    positions = draw(st.dictionaries(_NAMES, _POSITIONS, max_size=4))
    stretches = {name: tuple(draw(st.lists(_STRETCHES, max_size=3))) for name in positions if draw(st.booleans())}
    return Offset(positions, stretches, draw(st.integers(1, 9)), draw(_NAMES), draw(st.booleans()), draw(st.booleans()))


@given(offsets())
def test_an_offset_comes_back_from_the_checkpoint_as_it_was(offset: Offset) -> None:
    text = json.dumps(offset.to_json())
    assert Offset.from_json(json.loads(text)) == offset
    assert json.dumps(Offset.from_json(json.loads(text)).to_json()) == text


@pytest.mark.parametrize(
    "value", [{}, {"version": 2}, {"version": 1, "streams": {"a": []}, "batch": {}}, {"version": 1, "streams": 3}]
)
def test_a_checkpoint_of_something_else_is_told(value: dict[str, object]) -> None:
    with pytest.raises(BadOption, match="checkpoint"):
        Offset.from_json(value)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 100)), max_size=40), st.integers(1, 8))
def test_tasks_share_a_batch_in_order_and_evenly(sizes: list[tuple[str, int]], partitions: int) -> None:
    found = [
        Share(name, Unit.ELEMENT, Stretch(Place("x", 0, number), 1, size, 0))
        for number, (name, size) in enumerate(sorted(sizes))
    ]
    tasks = split_evenly(found, partitions)
    assert [share for task in tasks for share in task] == found
    assert all(tasks)
    assert len(tasks) <= partitions
    total, largest = sum(size for _, size in sizes), max((size for _, size in sizes), default=0)
    for task in tasks:
        assert sum(share.stretch.size for share in task) <= total / partitions + largest + 1


def at(count: int) -> Position:
    return Position(Place("7", 0, count), Unit.ELEMENT)


def test_the_plan_is_that_of_the_end_offset() -> None:
    batch = {"a": (Stretch(Place("5", 2, 10), 4, 100, 0), Stretch(Place("6", 0, 14), 1, 20, 0))}
    end = Offset({"a": at(15), "b": at(3)}, batch, partitions=2)
    tasks = shares(Offset({"a": at(10), "b": at(3)}), end)
    assert [[share.stretch for share in task] for task in tasks] == [[batch["a"][0]], [batch["a"][1]]]


def test_no_batch_is_no_tasks() -> None:
    end = Offset({"a": at(15)}, {"a": (Stretch(Place("5", 2, 10), 5, 100, 0),)})
    assert shares(end, end) == []


def test_a_batch_that_does_not_follow_is_refused() -> None:
    end = Offset({"a": at(15)}, {"a": (Stretch(Place("5", 2, 10), 5, 100, 0),)})
    with pytest.raises(BadOption, match="do not follow"):
        shares(Offset({"a": at(9)}), end)


def test_a_turn_begins_behind_the_last() -> None:
    assert rotated(["c", "a", "b"], "a") == ["b", "c", "a"]
    assert rotated(["c", "a", "b"], "") == ["a", "b", "c"]
    assert rotated(["c", "a", "b"], "bb") == ["c", "a", "b"]


@given(st.lists(st.text("abc", min_size=1), min_size=1, unique=True), st.integers(1, 20), st.integers(1, 9))
def test_parts_never_exceed_the_bound(pending: list[str], units: int, width: int) -> None:
    wave, allowance = allocate(pending, Budget(units), width)
    assert wave
    assert allowance.units is not None
    assert allowance.units >= 1
    assert len(wave) * allowance.units <= units


def test_only_the_first_of_a_batch_may_be_larger_than_its_bound() -> None:
    _, allowance = allocate(["a"], Budget(size=10), 1)
    assert allowance.is_forced
    _, allowance = allocate(["a"], Budget(size=100).less(1, 90), 1)
    assert not allowance.is_forced
