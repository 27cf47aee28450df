"""A stream's record: lifetime, trust, the tail, and contradictions."""

import math
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.tape.origin_statements import FirstTail, Sighting
from gateway.tape.stream import End, Stream
from gateway.tape.tape import Tape
from tests.effort import examples


def new_stream(lifetime: Lifetime | None = None) -> Stream:
    stream = Stream(StreamKey(Group("default", "/a"), "", Partition("")), Tape(), contacted_at=100.0)
    if lifetime is not None:
        stream.expiry.know(lifetime)
    return stream


def test_no_hit_before_the_lifetime_is_known() -> None:
    stream = new_stream()
    stream.is_followed = True
    assert not stream.may_answer_alone(100.0, 60.0)
    assert not stream.has_expired(1e9, 1e12)


def test_a_stream_without_expiry_is_trusted_for_trust_s() -> None:
    stream = new_stream(Lifetime(None, None))
    assert stream.may_answer_alone(159.9, 60.0)
    assert not stream.may_answer_alone(160.0, 60.0)
    assert not stream.may_answer_alone(100.0, 0.0)
    assert not stream.has_expired(1e9, 1e12)


def test_a_sliding_ttl_is_trusted_for_half_its_length() -> None:
    stream = new_stream(Lifetime(10, None))
    assert stream.may_answer_alone(104.9, 60.0)
    assert not stream.may_answer_alone(105.0, 60.0)


def test_a_sliding_ttl_expires_a_stream_without_contact_to_the_origin() -> None:
    stream = new_stream(Lifetime(10, None))
    assert not stream.has_expired(109.9, 0.0)
    assert stream.has_expired(110.0, 0.0)


def test_an_open_live_read_keeps_a_sliding_ttl_from_running() -> None:
    stream = new_stream(Lifetime(10, None))
    stream.is_followed = True
    assert not stream.has_expired(1e6, 0.0)
    assert stream.may_answer_alone(1e6, 0.0)


def test_an_absolute_expiry_applies_to_a_followed_stream_too() -> None:
    stream = new_stream(Lifetime(None, 5_000.0))
    stream.is_followed = True
    assert not stream.has_expired(100.0, 4_999.9)
    assert stream.has_expired(100.0, 5_000.0)


def test_the_acknowledged_tail_only_advances() -> None:
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
def test_a_content_type_with_another_framing_means_another_stream(first: str, second: str, agrees: bool) -> None:
    stream = new_stream()
    assert stream.learn_type(first)
    assert stream.learn_type(second) is agrees
    assert stream.content_type == first


def test_another_identity_means_another_stream() -> None:
    stream = new_stream()
    assert stream.learn_identity(None)
    assert stream.learn_identity("a")
    assert stream.learn_identity(None)
    assert stream.learn_identity("a")
    assert not stream.learn_identity("b")


def test_a_gone_stream_answers_410_and_any_other_ended_one_404() -> None:
    assert {end: end.status for end in End if end is not End.GONE} == dict.fromkeys(set(End) - {End.GONE}, 404)
    assert End.GONE.status == 410


# -- the tail


def at_tail(tail: str = "5", seen_at: float = 100.0, fresh_s: float = 10.0) -> Stream:
    stream = new_stream(Lifetime(None, None))
    stream.tape.reached(tail)
    stream.saw_tail(Sighting(tail, seen_at, seen_at + fresh_s))
    return stream


def test_a_sighted_tail_may_be_stated_while_it_is_fresh() -> None:
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
        # A sighting of an earlier time, or of an earlier offset, changes nothing.
        (lambda stream: stream.saw_tail(Sighting("5", 99.0, 200.0)), 110.0),
        (lambda stream: stream.saw_tail(Sighting("4", 105.0, 115.0)), 110.0),
    ],
)
def test_a_sighting_ends_with_any_event_that_may_have_moved_the_tail(
    event: Callable[[Stream], None], until: float
) -> None:
    stream = at_tail("5", 100.0, 10.0)
    event(stream)
    assert stream.tail_until("5") == until


@pytest.mark.parametrize(
    ("event", "is_changed"),
    [
        (lambda stream: stream.saw_tail(Sighting("5", 105.0, 115.0)), False),
        (lambda stream: stream.saw_tail(Sighting("6", 105.0, 115.0)), True),
        (lambda stream: stream.acknowledged("6", is_closed=False, query=""), True),
        (lambda stream: stream.acknowledged("5", is_closed=True, query=""), True),
        (lambda stream: stream.lost_tail(), True),
    ],
)
def test_the_tail_version_changes_with_what_may_be_said_of_the_tail(
    event: Callable[[Stream], None], is_changed: bool
) -> None:
    stream = at_tail()
    version = stream.version
    event(stream)
    assert stream.version.same_tail_as(version) is not is_changed


class TailAgainstModel(RuleBasedStateMachine):
    """`tail_until` against a model: acknowledged writes are never denied, and no sighting outlasts its time."""

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
    def revalidate(self) -> None:
        self.stream.revalidated(self.stream.version)

    @invariant()
    def the_tail_is_stated_only_while_it_is_known(self) -> None:
        for offset in range(10):
            may_say = self.stream.tail_until(str(offset)) > self.now
            holds = (
                self.seen is not None
                and self.seen[0] == offset
                and self.now < self.seen[2]
                and offset >= max(self.acked, self.reached)
                and not self.stream.needs_revalidation
            )
            assert may_say == holds


TestTailAgainstModel = TailAgainstModel.TestCase
TestTailAgainstModel.settings = settings(max_examples=examples(30, 120), stateful_step_count=30)


def test_only_a_sustained_rate_of_tail_reads_counts_as_often() -> None:
    stream = new_stream()
    assert [stream.count_tail_read(100.0, 1.0) for _ in range(5)] == [False, False, False, True, True]
    assert [stream.count_tail_read(200.0 + 1.1 * number, 1.0) for number in range(50)] == [False] * 50
    assert any(stream.count_tail_read(400.0 + 0.5 * number, 1.0) for number in range(50))


def test_without_a_burst_the_second_tail_read_in_a_second_counts_as_often() -> None:
    stream = new_stream()
    times = 100.0, 101.1, 102.2, 103.1
    assert [stream.count_tail_read(at, 1.0, allows_burst=False) for at in times] == [False, False, False, True]


def test_a_query_whose_writes_end_beyond_the_tail_names_another_stream() -> None:
    """The awareness stream of a Yjs document is one: it has the document's path."""
    stream = at_tail("5")
    stream.acknowledged("9", is_closed=False, query="awareness=default")
    stream.read_up_to_tail(stream.version, "5")
    assert stream.holds_acknowledged("5")
    stream.acknowledged("9", is_closed=False, query="awareness=default")
    assert stream.holds_acknowledged("5")
    # A stream's own query is never recorded, however far an origin's answer lags behind.
    stream.acknowledged("9", is_closed=False, query="")
    stream.read_up_to_tail(stream.version, "5")
    stream.acknowledged("9", is_closed=False, query="")
    assert not stream.holds_acknowledged("5")


def test_a_request_does_not_confirm_writes_acknowledged_after_it_was_sent() -> None:
    stream = at_tail("5")
    sent_at = stream.version
    stream.acknowledged("9", is_closed=False, query="")
    stream.read_up_to_tail(sent_at, "5")
    assert not stream.holds_acknowledged("5")


def tail_named(stream: Stream) -> FirstTail:
    stream.tape.store("-1", "4", [b"abcd"], 100.0)
    stream.tape.reached("4")
    return FirstTail("4", stream.version)


@pytest.mark.parametrize(
    ("event", "is_still"),
    [
        (lambda stream: None, True),
        (lambda stream: stream.followed(), True),
        (lambda stream: stream.acknowledged("6", is_closed=False, query=""), False),
        (lambda stream: stream.acknowledged("4", is_closed=True, query=""), False),
        (lambda stream: stream.acknowledged_without_offset(), False),
        (lambda stream: stream.mark_stale(may_have_ended=False), False),
        (lambda stream: stream.tape.reached("6"), False),
    ],
)
def test_a_tail_that_a_read_was_named_is_repeated_to_it_until_a_write(
    event: Callable[[Stream], None], is_still: bool
) -> None:
    stream = new_stream()
    first = tail_named(stream)
    event(stream)
    assert stream.is_still(first, "4") is is_still
    assert not stream.is_still(first, "2")
