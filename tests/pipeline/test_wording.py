"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.pipeline import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (0, "0"),
        (0.4, "0.4"),
        (1204, "1,204"),
        (999_999, "999,999"),
        (3_421_000, "3.42 M"),
        (2_000_000, "2 M"),
        (5e9, "5 G"),
    ],
)
def test_counts(value: float | None, text: str) -> None:
    assert wording.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (2**30 * 12.4, "12.4 GiB")],
)
def test_sizes(value: float | None, text: str) -> None:
    assert wording.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 %"),
        (1, "100 %"),
        (0.9996, ">99.9 %"),
        (1 - 1e-16, ">99.9 %"),
        (1e-12, "<0.1 %"),
        (0.0001, "<0.1 %"),
        (0.931, "93.1 %"),
        (1 - 0.9, "10 %"),
        (-0.5, "−50 %"),
        (-0.0003, ">−0.1 %"),
    ],
)
def test_shares_are_never_rounded_to_all_or_nothing(value: float | None, text: str) -> None:
    assert wording.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0 s"),
        (0.0000123, "12.3 µs"),
        (0.00128, "1.28 ms"),
        (0.25, "250 ms"),
        (0.9999, "1 s"),
        (12.3, "12.3 s"),
        (600, "10 min"),
        (86_400, "24 h"),
        (864_000, "10 d"),
        (-0.002, "−2 ms"),
    ],
)
def test_spans(value: float | None, text: str) -> None:
    assert wording.span(value) == text


@given(st.floats(allow_nan=True, allow_infinity=True) | st.none())
def test_everything_has_words(value: float | None) -> None:
    for write in (wording.count, wording.size, wording.share, wording.span, wording.times):
        assert write(value)


def test_one_and_many() -> None:
    assert wording.many(1, "stream") == "1 stream"
    assert wording.many(0, "stream") == "0 streams"
    assert wording.many(2, "wish", "wishes") == "2 wishes"


def test_a_moment_is_of_utc() -> None:
    assert wording.moment(1_795_000_000) == "2026-11-18 11:06"
