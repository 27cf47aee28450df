"""Requests that may not be shared are remembered by shape, for a time, within bounds."""

from __future__ import annotations

from gateway.aio.clock import ManualClock
from gateway.engine.hit_for_miss import MOST_SHAPES, Shape, Unshared
from gateway.protocol.sharing import Group, Partition, StreamKey

KEY = StreamKey(Group("http://origin", "/s"), "", Partition("route"))
OTHER = StreamKey(Group("http://origin", "/t"), "", Partition("route"))


def shape(start: str, *, is_live: bool = False) -> Shape:
    return Shape(is_live, start)


def test_one_unshareable_reply_stops_one_shape_of_one_stream() -> None:
    unshared = Unshared(120, ManualClock().now)
    unshared.remember(KEY, shape("snapshot"), "status 307")
    assert unshared.reason(KEY, shape("snapshot")) == "status 307"
    assert unshared.reason(KEY, shape("-1")) is None
    assert unshared.reason(KEY, shape("snapshot", is_live=True)) is None
    assert unshared.reason(OTHER, shape("snapshot")) is None


def test_several_shapes_stop_all_reads_of_that_kind_and_no_others() -> None:
    unshared = Unshared(120, ManualClock().now)
    for number in range(MOST_SHAPES):
        assert unshared.reason(KEY, shape("-1")) is None
        # Repeated proofs of one shape count once.
        for _ in range(3):
            unshared.remember(KEY, shape(str(number)), "Vary")
    assert unshared.reason(KEY, shape("-1")) == "Vary"
    assert unshared.reason(KEY, shape("-1", is_live=True)) is None
    assert unshared.reason(OTHER, shape("-1")) is None


def test_a_shape_is_forgotten_after_its_time() -> None:
    clock = ManualClock()
    unshared = Unshared(120, clock.now)
    for number in range(MOST_SHAPES):
        unshared.remember(KEY, shape(str(number)), "cookie")
    clock.advance(119.9)
    assert unshared.reason(KEY, shape("0")) == "cookie"
    clock.advance(0.2)
    assert unshared.reason(KEY, shape("0")) is unshared.reason(KEY, shape("-1")) is None
    assert len(unshared) == 0


def test_memory_is_bounded_for_ever_new_streams() -> None:
    unshared = Unshared(120, ManualClock().now)
    for number in range(12_000):
        unshared.remember(KEY._replace(query=f"q={number}"), shape("-1"), "cookie")
    assert 5_000 < len(unshared) < 10_000
    for number in range(3_000):
        unshared.remember(KEY._replace(query=f"q={number}{'x' * 8_000}"), shape("-1"), "cookie")
    assert len(unshared) < (8 << 20) / 8_000
