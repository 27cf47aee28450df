"""A stream's record: lifetime, trust, and what contradicts it."""

import pytest

from gateway.protocol.freshness import Lifetime
from gateway.tape.stream import End, Group, Stream, StreamKey
from gateway.tape.tape import Tape


def new_stream(lifetime: Lifetime | None = None) -> Stream:
    return Stream(StreamKey(Group("default", "/a"), "", ""), Tape("i"), lifetime=lifetime, contacted_at=100.0)


def test_nothing_is_answered_alone_before_the_lifetime_is_known() -> None:
    stream = new_stream()
    stream.is_followed = True
    assert not stream.may_answer_alone(100.0, 60.0)
    assert not stream.has_expired(1e9, 1e12)


def test_a_stream_without_an_end_is_trusted_for_as_long_as_the_route_says() -> None:
    stream = new_stream(Lifetime(None, None))
    assert stream.may_answer_alone(159.9, 60.0)
    assert not stream.may_answer_alone(160.0, 60.0)
    assert not stream.may_answer_alone(100.0, 0.0)
    assert not stream.has_expired(1e9, 1e12)


def test_a_sliding_ttl_is_trusted_for_half_its_length() -> None:
    stream = new_stream(Lifetime(10, None))
    assert stream.may_answer_alone(104.9, 60.0)
    assert not stream.may_answer_alone(105.0, 60.0)


def test_a_sliding_ttl_ends_a_stream_that_the_origin_has_not_been_asked_for() -> None:
    stream = new_stream(Lifetime(10, None))
    assert not stream.has_expired(109.9, 0.0)
    assert stream.has_expired(110.0, 0.0)


def test_an_open_live_read_keeps_a_sliding_ttl_from_running() -> None:
    stream = new_stream(Lifetime(10, None))
    stream.is_followed = True
    assert not stream.has_expired(1e6, 0.0)
    assert stream.may_answer_alone(1e6, 0.0)


def test_an_absolute_end_comes_also_while_a_stream_is_followed() -> None:
    stream = new_stream(Lifetime(None, 5_000.0))
    stream.is_followed = True
    assert not stream.has_expired(100.0, 4_999.9)
    assert stream.has_expired(100.0, 5_000.0)


def test_the_acknowledged_tail_only_moves_on() -> None:
    stream = new_stream()
    assert stream.holds_acknowledged("-1")
    stream.acknowledged("5", is_closed=False, query="")
    stream.acknowledged("3", is_closed=False, query="")
    assert [stream.holds_acknowledged(token) for token in ("-1", "4", "5", "6")] == [False, False, True, True]


@pytest.mark.parametrize(
    ("first", "second", "agrees"),
    [
        ("application/json", "application/json; charset=utf-8", True),
        ("text/plain", "text/html", True),
        ("application/json", "text/plain", False),
        ("text/plain", "image/png", False),
        ("image/png", "application/json", False),
    ],
)
def test_a_type_that_would_be_sent_in_another_way_is_another_streams(first: str, second: str, agrees: bool) -> None:
    stream = new_stream()
    assert stream.learn_type(first)
    assert stream.learn_type(second) is agrees
    assert stream.content_type == first


def test_another_name_for_the_incarnation_is_another_stream() -> None:
    stream = new_stream()
    assert stream.learn_identity(None)
    assert stream.learn_identity("a")
    assert stream.learn_identity(None)
    assert stream.learn_identity("a")
    assert not stream.learn_identity("b")


def test_a_stream_that_is_gone_for_good_says_410_and_any_other_404() -> None:
    assert {end: end.status for end in End if end is not End.GONE} == dict.fromkeys(set(End) - {End.GONE}, 404)
    assert End.GONE.status == 410
