"""Cursors: intervals and monotonicity."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.cursor import EPOCH_S, Cursors, interval, next_cursor, parse_cursor


class Highest(random.Random):
    """Always draws the most jitter."""

    def randint(self, a: int, b: int) -> int:
        return b


class Lowest(random.Random):
    """Always draws the least jitter."""

    def randint(self, a: int, b: int) -> int:
        return a


@pytest.mark.parametrize(
    ("wall_s", "number"),
    [(EPOCH_S, 0), (EPOCH_S + 19.999, 0), (EPOCH_S + 20, 1), (EPOCH_S - 1, 0), (0.0, 0), (EPOCH_S + 86_400, 4320)],
)
def test_intervals_are_twenty_seconds_counted_from_the_epoch(wall_s: float, number: int) -> None:
    assert interval(wall_s) == number


@pytest.mark.parametrize(
    "text",
    [None, "", "abc", "-5", "+5", "5.0", " 5", "5 ", "٣", "²", "9" * 17, "9" * 5000, str(2**53 + 1), "1e3", "0x1"],
)
def test_an_invalid_cursor_counts_as_absent(text: str | None) -> None:
    assert parse_cursor(text) is None
    assert next_cursor(EPOCH_S + 2000, text, random.Random(0)) == "100"


def test_the_largest_cursor_is_accepted() -> None:
    assert parse_cursor(str(2**53)) == 2**53


def test_a_client_behind_the_clock_gets_the_current_interval() -> None:
    assert next_cursor(EPOCH_S + 2000, "99", random.Random(0)) == "100"


@pytest.mark.parametrize("theirs", [100, 101, 5000])
def test_a_client_at_or_ahead_of_the_clock_moves_on_by_one_to_one_hundred_eighty(theirs: int) -> None:
    assert next_cursor(EPOCH_S + 2000, str(theirs), Lowest()) == str(theirs + 1)
    assert next_cursor(EPOCH_S + 2000, str(theirs), Highest()) == str(theirs + 180)


@given(st.floats(EPOCH_S, EPOCH_S + 1e10), st.integers(0, 2**53), st.integers())
def test_the_answer_is_above_the_clients_and_not_behind_the_clock(wall_s: float, theirs: int, seed: int) -> None:
    answer = int(next_cursor(wall_s, str(theirs), random.Random(seed)))
    assert answer > theirs
    assert answer >= interval(wall_s)


@given(st.one_of(st.none(), st.text()))
def test_no_text_is_an_error(text: str | None) -> None:
    assert int(next_cursor(EPOCH_S + 40, text, random.Random(1))) >= 2


@given(st.floats(EPOCH_S + 20_000, EPOCH_S + 1e10), st.lists(st.integers(-500, 2**51), min_size=1))
def test_a_shared_cursor_is_above_every_receivers(wall_s: float, ahead: list[int]) -> None:
    cursors, theirs = Cursors(lambda: wall_s), [max(0, interval(wall_s) + each) for each in ahead]
    for each in theirs:
        cursors.note(str(each))
    cursors.rise()
    assert all(cursors.shared() > each for each in theirs)
    assert cursors.shared() >= interval(wall_s)
