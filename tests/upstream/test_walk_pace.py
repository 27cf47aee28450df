"""Walks over a stream that brings nothing, or next to nothing, and never ends."""

from __future__ import annotations

import pytest

from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.upstream.repeats_and_retries import LITTLE_BURST, LITTLE_BYTES, LITTLE_PER_S, LONGEST_PAUSE_S, WalkPace


def a_stream() -> Stream:
    return Stream(StreamKey(Group("http://o", "/s"), "", Partition("")), Tape())


def fetches(pace: WalkPace, stream: Stream, count: int, size: int) -> float:
    """The time that so many fetches in a row take, of an origin that answers at once."""
    now = 100.0
    for _ in range(count):
        now += pace.pause_s(stream, now)
        pace.ended(stream, size, now, is_up_to_date=False)
    return now + pace.pause_s(stream, now) - 100.0


def test_empty_answers_are_asked_for_once_a_second_after_the_first_few() -> None:
    pace, stream = WalkPace(), a_stream()
    assert fetches(pace, stream, 8, 0) == 0
    assert fetches(WalkPace(), stream, 60, 0) > 40 * LONGEST_PAUSE_S
    assert fetches(WalkPace(), stream, 13, 0) < 3 * LONGEST_PAUSE_S


def test_answers_with_little_in_them_are_bounded_by_their_rate() -> None:
    stream = a_stream()
    assert fetches(WalkPace(), stream, LITTLE_BURST, 1) == 0
    assert fetches(WalkPace(), stream, LITTLE_BURST + 1_000, 1) == pytest.approx(1_000 / LITTLE_PER_S)
    assert fetches(WalkPace(), stream, LITTLE_BURST + 1_000, LITTLE_BYTES) == 0


def test_answers_with_little_in_them_at_a_lawful_rate_are_not_paced() -> None:
    pace, stream = WalkPace(), a_stream()
    for number in range(2_000):
        pace.ended(stream, 1, number / LITTLE_PER_S, is_up_to_date=False)
        assert pace.pause_s(stream, (number + 1) / LITTLE_PER_S) == 0


def test_fetches_at_once_cannot_add_up_to_a_longer_pause_than_the_longest() -> None:
    pace, stream = WalkPace(), a_stream()
    for _ in range(10_000):
        pace.ended(stream, 1, 100.0, is_up_to_date=False)
    assert pace.pause_s(stream, 100.0) == LONGEST_PAUSE_S


@pytest.mark.parametrize(("size", "is_up_to_date"), [(LITTLE_BYTES, False), (0, True)])
def test_progress_ends_the_pause(size: int, is_up_to_date: bool) -> None:
    pace, stream = WalkPace(), a_stream()
    fetches(pace, stream, 20, 0)
    pace.ended(stream, size, 200.0, is_up_to_date=is_up_to_date)
    assert pace.pause_s(stream, 200.0) == 0
    assert fetches(pace, stream, 8, 0) == 0


def test_streams_are_paced_apart_and_forgotten_after_a_while() -> None:
    pace, stream = WalkPace(), a_stream()
    fetches(pace, stream, 20, 0)
    assert fetches(pace, a_stream(), 1, 0) == 0
    pace.ended(stream, 0, 1_000.0, is_up_to_date=False)
    assert pace.pause_s(stream, 1_000.0) == 0
