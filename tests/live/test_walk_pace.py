"""Walks over a stream that brings nothing, or next to nothing, and never ends."""

from __future__ import annotations

import pytest

from gateway.live.walk_pace import LITTLE_BYTES, LONGEST_PAUSE_S, WalkPace
from gateway.protocol.stream_key import Group, Partition, StreamKey
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape


def a_stream() -> Stream:
    return Stream(StreamKey(Group("http://o", "/s"), "", Partition("")), Tape("i"))


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


def test_answers_with_little_in_them_are_paced_later_and_less() -> None:
    stream = a_stream()
    assert fetches(WalkPace(), stream, 64, 1) == 0
    assert 5 < fetches(WalkPace(), stream, 164, 1) < 20
    assert fetches(WalkPace(), stream, 164, LITTLE_BYTES) == 0


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
