"""A stream's record: lifetime, trust, and what contradicts it."""

import math
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.protocol.freshness import Lifetime
from gateway.protocol.stream_key import Group, Partition, StreamKey
from gateway.tape.stream import MAX_BEYOND, End, Sighting, Stream
from gateway.tape.tape import Tape


def new_stream(lifetime: Lifetime | None = None) -> Stream:
    return Stream(
        StreamKey(Group("default", "/a"), "", Partition("")), Tape("i"), lifetime=lifetime, contacted_at=100.0
    )


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


# -- what is known of the tail


def at_tail(tail: str = "5", seen_at: float = 100.0, fresh_s: float = 10.0) -> Stream:
    stream = new_stream(Lifetime(None, None))
    stream.tape.reached(tail)
    stream.saw_tail(Sighting(tail, seen_at, seen_at + fresh_s))
    return stream


def test_a_tail_that_was_seen_may_be_named_until_its_time_is_over() -> None:
    stream = at_tail("5", 100.0, 10.0)
    assert stream.tail_until("5") == 110.0
    assert [stream.tail_until(token) for token in ("4", "6", "-1")] == [-math.inf] * 3


@pytest.mark.parametrize(
    ("event", "until"),
    [
        (lambda stream: stream.acknowledged("5", is_closed=False, query=""), 110.0),
        (lambda stream: stream.acknowledged("6", is_closed=False, query=""), -math.inf),
        (lambda stream: stream.acknowledged("5", is_closed=True, query=""), -math.inf),
        (lambda stream: stream.lost_tail(), -math.inf),
        (lambda stream: stream.mark_stale(), -math.inf),
        (lambda stream: stream.saw_tail(Sighting("6", 101.0, 120.0)), -math.inf),
        (lambda stream: stream.saw_tail(Sighting("5", 105.0, 115.0)), 115.0),
        # What is heard late of an earlier time, or of a place before, takes nothing back.
        (lambda stream: stream.saw_tail(Sighting("5", 99.0, 200.0)), 110.0),
        (lambda stream: stream.saw_tail(Sighting("4", 105.0, 115.0)), 110.0),
    ],
)
def test_what_may_be_said_of_the_tail_ends_with_whatever_may_have_moved_it(
    event: Callable[[Stream], None], until: float
) -> None:
    stream = at_tail("5", 100.0, 10.0)
    event(stream)
    assert stream.tail_until("5") == until


@pytest.mark.parametrize(
    ("event", "is_turned"),
    [
        (lambda stream: stream.saw_tail(Sighting("5", 105.0, 115.0)), False),
        (lambda stream: stream.saw_tail(Sighting("6", 105.0, 115.0)), True),
        (lambda stream: stream.acknowledged("6", is_closed=False, query=""), True),
        (lambda stream: stream.acknowledged("5", is_closed=True, query=""), True),
        (lambda stream: stream.lost_tail(), True),
    ],
)
def test_an_answer_that_names_the_tail_is_good_for_one_turn(event: Callable[[Stream], None], is_turned: bool) -> None:
    stream = at_tail()
    turns = stream.tail_version
    event(stream)
    assert (stream.tail_version != turns) is is_turned


class TailAgainstModel(RuleBasedStateMachine):
    """`tail_until` beside what happened in order: whatever was acknowledged is never denied, and nothing lasts."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = new_stream(Lifetime(None, None))
        self.now = 0.0
        self.seen: tuple[int, float, float] | None = None
        self.acked = 0
        self.reached = 0

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(tail=st.integers(1, 9), ago=st.sampled_from([0.0, 0.5, 3.0]), fresh_s=st.sampled_from([1.0, 10.0]))
    def see(self, tail: int, ago: float, fresh_s: float) -> None:
        seen_at = self.now - ago
        self.stream.tape.reached(str(tail))
        self.reached = max(self.reached, tail)
        self.stream.saw_tail(Sighting(str(tail), seen_at, seen_at + fresh_s))
        if self.seen is None or (tail >= self.seen[0] and seen_at >= self.seen[1]):
            self.seen = (tail, seen_at, seen_at + fresh_s)

    @rule(tail=st.integers(1, 9))
    def acknowledge(self, tail: int) -> None:
        self.stream.acknowledged(str(tail), is_closed=False, query="")
        self.acked = max(self.acked, tail)

    @rule()
    def lose(self) -> None:
        self.stream.lost_tail()
        self.seen = None

    @rule()
    def forget_facts(self) -> None:
        self.stream.mark_stale()

    @rule()
    def settle(self) -> None:
        self.stream.cleared_marks = self.stream.stale_marks

    @invariant()
    def only_what_holds_is_said(self) -> None:
        for place in range(10):
            may_say = self.stream.tail_until(str(place)) > self.now
            holds = (
                self.seen is not None
                and self.seen[0] == place
                and self.now < self.seen[2]
                and place >= max(self.acked, self.reached)
                and not self.stream.needs_revalidation
            )
            assert may_say == holds


TestTailAgainstModel = TailAgainstModel.TestCase
TestTailAgainstModel.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_tail_is_asked_for_often_above_a_rate_and_not_by_a_few_reads_in_a_row() -> None:
    stream = new_stream()
    assert [stream.count_tail_read(100.0, 1.0) for _ in range(5)] == [False, False, False, True, True]
    assert [stream.count_tail_read(200.0 + 1.1 * number, 1.0) for number in range(50)] == [False] * 50
    assert any(stream.count_tail_read(400.0 + 0.5 * number, 1.0) for number in range(50))


def test_offsets_behind_the_tail_are_remembered_until_the_tail_has_passed_them() -> None:
    stream = at_tail("5")
    for offset in ("7", "9"):
        stream.record_beyond(offset)
    assert [stream.lies_beyond(offset) for offset in ("5", "6", "7", "9")] == [False, False, True, True]
    stream.tape.reached("8")
    stream.saw_tail(Sighting("8", 101.0, 120.0))
    assert [stream.lies_beyond(offset) for offset in ("7", "9")] == [False, True]
    for number in range(100):
        stream.record_beyond(f"9{number:03d}")
    assert len(stream.beyond) == MAX_BEYOND


def test_a_query_whose_writes_end_behind_the_tail_names_another_stream() -> None:
    """As the awareness of a Yjs document does, which has the document's path."""
    stream = at_tail("5")
    stream.acknowledged("9", is_closed=False, query="awareness=default")
    stream.read_up_to_tail(stream.acks, "5")
    assert stream.holds_acknowledged("5")
    stream.acknowledged("9", is_closed=False, query="awareness=default")
    assert stream.holds_acknowledged("5")
    # Never the stream's own, however far an origin's answer lags behind it.
    stream.acknowledged("9", is_closed=False, query="")
    stream.read_up_to_tail(stream.acks, "5")
    stream.acknowledged("9", is_closed=False, query="")
    assert not stream.holds_acknowledged("5")


def test_what_was_acknowledged_after_a_request_was_sent_is_not_settled_by_it() -> None:
    stream = at_tail("5")
    sent_after = stream.acks
    stream.acknowledged("9", is_closed=False, query="")
    stream.read_up_to_tail(sent_after, "5")
    assert not stream.holds_acknowledged("5")
