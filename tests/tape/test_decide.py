"""What decides a read, by plain values: the rows of the table of `decide`, and the rules that it applies."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest

from gateway.protocol.freshness_headers import Lifetime
from gateway.protocol.names import NOW, START
from gateway.tape.decide import (
    GONE,
    Ask,
    Awaited,
    Decision,
    Progress,
    Question,
    Send,
    Wait,
    decide,
    is_another,
    is_named_tail,
    known_tail,
)
from gateway.tape.origin_statements import Sighting
from gateway.tape.stream import End, Stream
from tests.tape.test_stream import new_stream

TRUST_S = 60.0
NOW_S, WALL_S = 110.0, 1_000.0


@dataclass
class Topic:
    """A follower that is at `position`, and confirms that this is the tail."""

    position: str | None = None

    def is_current(self, at: str) -> bool:
        return at == self.position

    def is_missing(self, at: str) -> bool:
        return at < "4"


ENDLESS = Lifetime(None, None)


def held(*, tail: str = "4", lifetime: Lifetime | None = ENDLESS) -> Stream:
    """A stream that is trusted until 160, with bytes up to "4" that the origin has shown at 105."""
    stream = new_stream(lifetime)
    stream.learn_type("application/octet-stream")
    stream.tape.store(START, "2", [b"ab"], 100.0)
    stream.tape.store("2", "4", [b"cd"], 100.0)
    stream.tape.reached(tail)
    stream.confirm(START, 105.0)
    return stream


def seen(stream: Stream, *, tail: str = "4", fresh_s: float = 10.0, stale_s: float = 0.0) -> Stream:
    """The same after a reply at 105 has named the tail."""
    stream.saw_tail(Sighting(tail, 105.0, 105.0 + fresh_s, 105.0 + fresh_s + stale_s))
    return stream


def catching_up(stream: Stream, start: str = START, at: str = "4", **more: object) -> Progress:
    """A catch-up read that has taken what memory holds up to `at`."""
    read = Progress(start, at, stream.version, TRUST_S, has_bytes=at != start, has_held=at != start)
    for name, value in more.items():
        setattr(read, name, value)
    return read


def live(stream: Stream, start: str, at: str | None = None, **more: object) -> Progress:
    """A live read; it has joined the topic if it has come anywhere."""
    read = Progress(start, at or start, stream.version, TRUST_S, is_live=True, is_lifetime_asked=True)
    read.has_joined, read.has_bytes = at is not None, at not in (None, start)
    for name, value in more.items():
        setattr(read, name, value)
    return read


def step(stream: Stream, read: Progress, now: float = NOW_S) -> Decision:
    """The next step; the stream is as before."""
    before = replace(stream)
    found = decide(stream, read, now)
    assert all(getattr(stream, name) == getattr(before, name) for name in ("version", "sighting", "ended"))
    return found


# -- a catch-up read


def test_bytes_up_to_a_known_tail_are_up_to_date() -> None:
    stream = seen(held())
    assert step(stream, catching_up(stream)) == Send("4", up_to_date=True)


def test_bytes_that_more_are_known_to_follow_say_nothing_of_the_tail() -> None:
    stream = seen(held())
    assert step(stream, catching_up(stream, at="2")) == Send("2")
    stream.tape.reached("6", is_short=True)
    assert step(stream, catching_up(stream)) == Send("4")


@pytest.mark.parametrize("start", [START, "2", "4", NOW])
def test_the_end_of_a_closed_stream_is_sent_as_such(start: str) -> None:
    stream = held()
    stream.tape.reached("4", is_closed=True)
    assert step(stream, catching_up(stream, start, NOW if start == NOW else "4")) == Send("4", True, True)


@pytest.mark.parametrize("start", ["4", NOW])
def test_a_tail_that_only_writes_have_named_is_not_sent_before_the_type_is_known(start: str) -> None:
    stream = new_stream(ENDLESS)
    stream.tape.reached("4", is_closed=True)
    assert step(stream, catching_up(stream, start, start)) == Ask(Question.TAIL, start)
    stream.learn_type("application/json")
    assert step(stream, catching_up(stream, start, start)) == Send("4", True, True)


def test_an_open_stream_is_not_closed_at_its_tail() -> None:
    stream = seen(held())
    for read in (catching_up(stream), catching_up(stream, NOW, NOW), live(stream, START, "4", follower=Topic("4"))):
        assert step(stream, read) == Send("4", up_to_date=True, is_closed=False)


@pytest.mark.parametrize("start", ["4", NOW])
def test_the_tail_is_asked_for_once_no_statement_of_it_is_valid(start: str) -> None:
    stream = seen(held())
    read = catching_up(stream, start, start)
    assert step(stream, read, 114.9) == Send("4", up_to_date=True)
    assert step(stream, read, 115.0) == Ask(Question.TAIL, start)


def test_a_client_may_ask_for_a_more_recent_statement_of_the_tail() -> None:
    stream = seen(held())
    assert step(stream, catching_up(stream, "4", max_age_s=5.0), NOW_S) == Send("4", up_to_date=True)
    assert step(stream, catching_up(stream, "4", max_age_s=4.0), NOW_S) == Ask(Question.TAIL, "4")
    assert known_tail(stream, 0.0, 106.0) == "4"


def test_what_is_missing_is_asked_for_where_it_begins() -> None:
    stream = new_stream()
    assert step(stream, catching_up(stream, START, START)) == Ask(Question.BYTES, START)
    stream = held(tail="8")
    assert step(stream, catching_up(stream)) == Ask(Question.BYTES, "4")


@pytest.mark.parametrize("at", ["2", "4"])
def test_nothing_is_sent_before_the_lifetime_is_known(at: str) -> None:
    stream = seen(held(lifetime=None))
    read = catching_up(stream, at=at)
    assert step(stream, read) == Ask(Question.LIFETIME, at)
    # An origin that does not tell it is asked whether the stream is there, and then for what follows.
    read.is_lifetime_asked = True
    assert step(stream, read) == Ask(Question.EXISTENCE, "4")
    read.is_there = True
    assert step(stream, read) == Ask(Question.TAIL if at == "4" else Question.BYTES, at)


def test_a_lost_lifetime_is_asked_for_before_anything_else_and_once_for_each_read() -> None:
    stream = seen(held())
    stream.may_be_another()
    read = catching_up(stream)
    read.version = stream.version
    assert step(stream, read) == Ask(Question.LIFETIME, "4")
    read.is_lifetime_asked = True
    assert step(stream, read) == Ask(Question.TAIL, "4")


@pytest.mark.parametrize(
    ("lifetime", "until"), [(ENDLESS, 160.0), (Lifetime(40, None), 120.0), (Lifetime(400, None), 160.0)]
)
def test_a_stream_is_asked_for_once_it_is_trusted_no_more(lifetime: Lifetime, until: float) -> None:
    stream = held(lifetime=lifetime)
    stream.confirm(START, 150.0)
    read = catching_up(stream, at="2")
    assert step(stream, read, until - 0.1) == Send("2")
    assert step(stream, read, until) == Ask(Question.EXISTENCE, "4")
    read.is_there = True
    assert step(stream, read, until) == Send("2")
    read.is_there = False
    assert step(stream, read, until) == Ask(Question.BYTES, "2")


def test_a_followed_stream_is_trusted_for_as_long_as_it_is_followed() -> None:
    stream = held()
    stream.followed()
    stream.confirm(START, 1e6)
    assert step(stream, catching_up(stream, at="2"), 1e6) == Send("2")
    stream.unfollowed(200.0)
    assert step(stream, catching_up(stream, at="2"), 260.0) == Ask(Question.EXISTENCE, "4")


@pytest.mark.parametrize("may_have_ended", [False, True])
def test_after_a_write_that_may_have_been_done_the_origin_is_asked(may_have_ended: bool) -> None:
    stream = seen(held())
    version = stream.version
    stream.mark_stale(may_have_ended=may_have_ended)
    assert step(stream, catching_up(stream, at="2")) == Ask(Question.EXISTENCE, "4")
    assert step(stream, catching_up(stream)) == Ask(Question.TAIL, "4")
    # A request sent before the write does not show what became of it.
    stream.revalidated(version)
    assert step(stream, catching_up(stream, at="2")) == Ask(Question.EXISTENCE, "4")
    stream.revalidated(stream.version)
    assert step(stream, catching_up(stream)) == Send("4", up_to_date=True)


def test_an_acknowledged_write_is_in_every_read_that_starts_after_it() -> None:
    stream = seen(held())
    stream.acknowledged("6", is_closed=False, query="")
    assert step(stream, catching_up(stream)) == Ask(Question.TAIL, "4")
    stream.tape.store("4", "6", [b"ef"], 111.0)
    stream.tape.reached("6")
    assert step(seen(stream, tail="6"), catching_up(stream, at="6")) == Send("6", up_to_date=True)


def test_an_acknowledged_append_without_an_offset_ends_what_is_known_of_the_tail() -> None:
    stream = seen(held())
    stream.acknowledged_without_offset()
    assert step(stream, catching_up(stream)) == Ask(Question.TAIL, "4")


def test_a_tail_that_an_append_named_is_no_statement_of_the_tail_now() -> None:
    stream = seen(held())
    stream.acknowledged("6", is_closed=False, query="")
    stream.tape.reached("6")
    assert step(stream, catching_up(stream, "6", "6")) == Ask(Question.TAIL, "6")


def test_an_offset_that_an_append_named_is_the_tail_only_if_it_is_the_furthest_known() -> None:
    stream = held()
    stream.acknowledged("4", is_closed=False, query="")
    assert is_named_tail(stream, "4", "4", is_asked=False)
    stream.tape.reached("6")
    assert not is_named_tail(stream, "4", "4", is_asked=False)
    assert is_named_tail(stream, "4", "4", is_asked=True)
    assert not is_named_tail(stream, "4", "2", is_asked=True)


def test_a_lost_follower_confirms_no_tail() -> None:
    stream = seen(held(), fresh_s=math.inf)
    assert step(stream, catching_up(stream)) == Send("4", up_to_date=True)
    stream.lost_tail()
    assert step(stream, catching_up(stream)) == Ask(Question.TAIL, "4")


def test_an_offset_beyond_the_tail_is_asked_for() -> None:
    """The client may have it from a reader of another gateway."""
    stream = seen(held())
    assert step(stream, catching_up(stream, "9", "9")) == Ask(Question.BYTES, "9")
    assert step(stream, live(stream, "9")) == Ask(Question.BYTES, "9")


def test_bytes_are_confirmed_before_they_are_older_than_the_stream_is_trusted() -> None:
    stream = seen(held(), fresh_s=100.0)
    stream.contacted(150.0)
    read = catching_up(stream)
    assert step(stream, read, 164.9) == Send("4", up_to_date=True)
    assert step(stream, read, 165.0) == Ask(Question.CONFIRMATION, START)
    assert step(stream, live(stream, START), 165.0) == Ask(Question.CONFIRMATION, START)
    read.is_confirmed = True
    assert step(stream, read, 165.0) == Send("4", up_to_date=True)
    # A read that takes nothing from memory depends on no bytes there.
    assert step(stream, catching_up(stream, "4"), 165.0) == Send("4", up_to_date=True)


def test_a_client_may_ask_for_a_more_recent_confirmation_of_its_bytes() -> None:
    stream = seen(held())
    assert step(stream, catching_up(stream, max_age_s=6.0)) == Send("4", up_to_date=True)
    assert step(stream, catching_up(stream, max_age_s=5.0)) == Ask(Question.CONFIRMATION, START)


def test_a_read_waits_for_a_follower_once_for_each_reason() -> None:
    stream = held()
    stream.has_topic = True
    read = catching_up(stream, may_connect=True)
    assert step(stream, read) == Wait(Awaited.CONNECTION, "4")
    read.may_connect = False
    assert step(stream, read) == Wait(Awaited.FOLLOWER, "4")
    read.has_waited = True
    assert step(stream, read) == Ask(Question.TAIL, "4")
    read.has_waited = False
    stream.mark_stale()
    assert step(stream, read) == Ask(Question.TAIL, "4")


def test_a_tail_out_of_date_is_repeated_only_where_it_may_be() -> None:
    stream = seen(held(), fresh_s=1.0, stale_s=10.0)
    assert step(stream, catching_up(stream)) == Send("4", stale_s=4.0)
    assert step(stream, catching_up(stream, max_age_s=100.0)) == Ask(Question.TAIL, "4")
    assert step(stream, catching_up(stream, "4")) == Ask(Question.TAIL, "4")
    assert step(stream, catching_up(stream), 116.0) == Ask(Question.TAIL, "4")
    stream.acknowledged("6", is_closed=False, query="")
    assert step(stream, catching_up(stream)) == Ask(Question.TAIL, "4")


# -- the end of a stream, and of its origin


@pytest.mark.parametrize("end", End)
def test_nothing_is_sent_of_a_stream_that_has_ended(end: End) -> None:
    stream = seen(held())
    stream.ended = end
    reads = [catching_up(stream), catching_up(stream, START, START), live(stream, "4"), live(stream, START, "4")]
    assert {step(stream, read) for read in reads} == {GONE}


def test_bytes_of_two_streams_are_not_joined() -> None:
    stream = held()
    stream.begin_incarnation("first")
    begun, halfway = catching_up(stream, START, START), catching_up(stream, at="2")
    stream.begin_incarnation("second")
    # A purge alone does not disturb a read that has taken nothing.
    assert not is_another(stream, begun)
    assert step(stream, halfway) == GONE
    stream.may_be_another()
    assert step(stream, begun) == GONE


def failed(read: Progress) -> Progress:
    read.failed_at = WALL_S
    return read


def test_bytes_in_memory_are_sent_without_the_tail_if_the_origin_fails() -> None:
    stream = seen(held())
    for read in (catching_up(stream), live(stream, START, "4")):
        assert step(stream, failed(read)) == Send("4")


def test_an_origin_that_fails_is_no_reason_to_send_what_may_be_deleted() -> None:
    stream = held()
    stream.mark_stale(may_have_ended=False)
    assert step(stream, failed(catching_up(stream))) == Send("4")
    stream.mark_stale()
    assert step(stream, failed(catching_up(stream))) == GONE


def test_an_origin_that_fails_is_no_reason_to_send_what_is_of_another_lifetime_or_over() -> None:
    stream = held(lifetime=Lifetime(10, None))
    assert step(stream, failed(catching_up(stream)), 109.9) == Send("4")
    assert step(stream, failed(catching_up(stream)), 110.0) == GONE
    stream = held(lifetime=Lifetime(None, WALL_S))
    assert step(stream, failed(catching_up(stream))) == GONE
    stream = held()
    stream.may_be_another()
    stream.revalidated(stream.version)
    assert step(stream, failed(catching_up(stream))) == GONE


@pytest.mark.parametrize("is_closed", [False, True])
def test_bytes_that_lack_an_acknowledged_write_are_not_sent_if_the_origin_fails(is_closed: bool) -> None:
    stream = held()
    stream.acknowledged("4" if is_closed else "6", is_closed=is_closed, query="")
    assert step(stream, failed(catching_up(stream))) == GONE


def test_bytes_before_the_tail_lack_an_acknowledged_write_although_a_request_has_named_the_tail() -> None:
    """A HEAD has named the tail, and brought no bytes."""
    stream = held()
    stream.acknowledged("6", is_closed=False, query="")
    stream.read_up_to_tail(stream.version, "6")
    assert step(stream, failed(catching_up(stream))) == GONE
    assert step(stream, failed(catching_up(stream, at="6"))) == Send("6")


def test_a_part_of_the_bytes_that_hold_an_acknowledged_write_is_sent_if_the_origin_fails() -> None:
    stream = held()
    stream.acknowledged("4", is_closed=False, query="")
    for _ in range(2):
        assert step(stream, failed(catching_up(stream, at="2"))) == Send("2")
        assert step(stream, failed(catching_up(stream))) == Send("4")
        stream.read_up_to_tail(stream.version, "4")


def test_bytes_that_may_lack_a_write_of_unknown_end_are_not_sent_if_the_origin_fails() -> None:
    stream, sent_before = held(), held().version
    stream.acknowledged_without_offset()
    stream.read_up_to_tail(sent_before, "4")
    assert step(stream, failed(catching_up(stream))) == GONE
    stream.read_up_to_tail(stream.version, "4")
    assert step(stream, failed(catching_up(stream))) == Send("4")


def test_bytes_before_the_tail_after_a_write_of_unknown_end_are_not_sent_if_the_origin_fails() -> None:
    """A HEAD has named the tail, and brought no bytes."""
    stream = held()
    stream.acknowledged_without_offset()
    stream.read_up_to_tail(stream.version, "6")
    assert step(stream, failed(catching_up(stream))) == GONE
    assert step(stream, failed(catching_up(stream, at="6"))) == Send("6")


@pytest.mark.parametrize("read_at", [9.0, 10.0])
def test_a_write_elsewhere_before_a_request_that_has_shown_the_tail_ends_there(read_at: float) -> None:
    stream = held()
    stream.origin_stated_tail("4", read_at)
    # A reply may be overtaken by that to a later request.
    stream.origin_stated_tail("2", read_at - 1)
    stream.acknowledged_elsewhere(9.0)
    assert step(stream, failed(catching_up(stream))) == (Send("4") if read_at > 9 else GONE)
    # Bytes before the end of an earlier write are not sent.
    stream.acknowledged("6", is_closed=False, query="")
    stream.acknowledged_elsewhere(9.0)
    assert step(stream, failed(catching_up(stream))) == GONE


def test_bytes_before_the_tail_lack_a_write_elsewhere_although_a_request_has_named_the_tail() -> None:
    """A HEAD has named the tail, and brought no bytes."""
    stream = held()
    stream.origin_stated_tail("6", 10.0)
    stream.acknowledged_elsewhere(9.0)
    assert step(stream, failed(catching_up(stream))) == GONE
    assert step(stream, failed(catching_up(stream, at="6"))) == Send("6")


def test_a_tail_of_an_earlier_stream_does_not_place_a_write() -> None:
    stream = held()
    stream.origin_stated_tail("4", 10.0)
    stream.forget_acknowledged()
    stream.acknowledged_elsewhere(9.0)
    assert step(stream, failed(catching_up(stream))) == GONE


def test_a_write_that_may_not_have_been_acknowledged_is_no_reason_to_send_nothing_if_the_origin_fails() -> None:
    stream = held()
    stream.acknowledged_without_offset(is_certain=False)
    assert step(stream, failed(catching_up(stream))) == Send("4")


def test_bytes_that_must_be_revalidated_are_not_sent_if_the_origin_fails() -> None:
    stream = held()
    stream.caching = stream.caching._replace(must_revalidate=True)
    assert step(stream, failed(catching_up(stream)), 164.9) == Send("4")
    assert step(stream, failed(catching_up(stream)), 165.0) == GONE


# -- a live read


def test_a_live_read_of_an_unknown_stream_learns_its_facts_first() -> None:
    stream = new_stream()
    assert step(stream, live(stream, "2")) == Ask(Question.FACTS, "2")


def test_a_live_read_joins_no_stream_that_is_not_trusted() -> None:
    stream = held()
    assert step(stream, live(stream, "4"), 159.9) == Wait(Awaited.CHANGE, "4")
    assert step(stream, live(stream, "4"), 160.0) == Ask(Question.EXISTENCE, "4")
    assert step(stream, live(stream, "4", is_there=True), 160.0) == Wait(Awaited.CHANGE, "4")


def test_a_long_poll_that_is_sent_bytes_waits_for_the_lifetime() -> None:
    stream = held(lifetime=None)
    assert step(stream, live(stream, "2", is_lifetime_asked=False)) == Ask(Question.LIFETIME, "2")
    assert step(stream, live(stream, "4", is_lifetime_asked=False)) == Wait(Awaited.CHANGE, "4")


def test_a_live_read_from_now_begins_where_the_follower_confirms_the_tail() -> None:
    stream = held()
    assert step(stream, live(stream, NOW, follower=Topic("4"))) == Wait(Awaited.CHANGE, "4")
    assert step(stream, live(stream, NOW, follower=Topic())) == Ask(Question.TAIL, NOW)
    assert step(stream, live(stream, NOW)) == Ask(Question.TAIL, NOW)


def test_an_offset_that_the_origin_has_not_named_is_checked_with_it() -> None:
    stream = seen(held())
    assert step(stream, live(stream, "3")) == Ask(Question.BYTES, "3")
    assert step(stream, live(stream, START)) == Wait(Awaited.CHANGE, START)


def test_a_long_poll_is_answered_once_it_is_known_what_follows_its_bytes() -> None:
    stream = held()
    assert step(stream, live(stream, START, "4", follower=Topic("4"))) == Send("4", up_to_date=True)
    assert step(stream, live(stream, START, "4", follower=Topic("2"))) == Ask(Question.TAIL, "4")
    assert step(stream, live(stream, START, "2", follower=Topic("4"))) == Send("2")
    assert step(seen(stream), live(stream, START, "4", follower=Topic())) == Send("4", up_to_date=True)


def test_a_long_poll_at_the_tail_waits_and_before_it_has_the_bytes_fetched() -> None:
    stream = held()
    assert step(stream, live(stream, "4", "4", follower=Topic("4"))) == Wait(Awaited.CHANGE, "4")
    assert step(stream, live(stream, "3", "3", follower=Topic("4"))) == Ask(Question.BYTES, "3")
    stream.tape.reached("4", is_closed=True)
    assert step(stream, live(stream, "4", "4", follower=Topic("4"))) == Send("4", True, True)
    assert step(stream, live(stream, START, "4", follower=Topic("4"))) == Send("4", True, True)
