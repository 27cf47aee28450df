"""The judge, on histories that are made up: what it lets pass, and what it does not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from multidict import CIMultiDict

from gateway.origin.store import AppendParams, CreateParams, Store
from gateway.origin.streams import Lifetime
from tests.answers import BROKEN, Answer
from tests.chaos import judge
from tests.chaos.history import History, Life, watch
from tests.chaos.judge import Asked, Following, Shown, Wrong

BINARY = "application/octet-stream"


class Course:
    """A stream at an origin, and its history."""

    def __init__(self) -> None:
        self.now = self.wall = 0.0
        self.store = Store()
        self.history = History("/s", lambda: self.now, lambda: self.wall)
        watch(self.store, {"/s": self.history})

    def create(self, body: bytes = b"", lifetime: Lifetime | None = None, *, is_acked: bool = True) -> Life:
        since = self.history.moment()
        self.history.sent.add(body)
        self.store.create("/s", CreateParams(BINARY, lifetime or Lifetime(), body=body), self.wall)
        if is_acked:
            self.history.created(since)
        return self.history.lives[-1]

    def append(self, body: bytes, *, is_acked: bool = True, close: bool = False) -> str:
        self.history.sent.add(body)
        accepted = self.store.append("/s", AppendParams(body, BINARY, close), self.wall)
        if is_acked:
            self.history.acknowledged(self.history.lives[-1], accepted.tail, is_closed=close)
        return accepted.tail.token

    def delete(self, *, is_acked: bool = True) -> None:
        since = self.history.moment()
        self.store.delete("/s", self.wall)
        if is_acked:
            self.history.deleted(since, 204)

    def asked(self, **how: Any) -> Asked:
        return Asked(how.pop("method", "GET"), "/s", how.pop("party", "bob"), self.history.moment(), **how)

    def read(self, asked: Asked, answer: Answer, *, is_calm: bool = False) -> list[int]:
        """The numbers of the lives that the answer may show."""
        return [life.number for life in judge.read(self.history, asked, answer, is_json=False, is_calm=is_calm)]


@pytest.fixture
def course() -> Course:
    return Course()


def found(body: bytes, end: str, *said: str, status: int = 200, more: dict[str, str] | None = None) -> Answer:
    """An answer that says these of `up_to_date` and `closed`."""
    names = {"up_to_date": "Stream-Up-To-Date", "closed": "Stream-Closed"}
    flags = {names[one]: "true" for one in said}
    return Answer(status, CIMultiDict({"Stream-Next-Offset": end, **flags, **(more or {})}), body)


def refused(status: int) -> Answer:
    return Answer(status, CIMultiDict())


def test_a_read_shows_the_bytes_between_two_offsets_and_nothing_else(course: Course) -> None:
    course.create()
    first = course.append(b"one")
    second = course.append(b"two")
    asked = course.asked(offset=first)
    assert course.read(asked, found(b"two", second, "up_to_date")) == [1]
    for body in (b"one", b"tw", b"twotwo"):
        with pytest.raises(Wrong, match=r"no life has these bytes|short of its tail"):
            course.read(asked, found(body, second, "up_to_date"))


def test_what_was_acknowledged_is_there_for_those_who_ask_later(course: Course) -> None:
    course.create()
    first = course.append(b"one")
    early = course.asked()
    second = course.append(b"two")
    stale = found(b"one", first, "up_to_date")
    assert course.read(early, stale) == [1]
    with pytest.raises(Wrong, match="had been acknowledged"):
        course.read(course.asked(), stale)
    assert course.read(course.asked(), found(b"one", first)) == [1], "it says nothing of the tail"
    assert course.read(course.asked(), found(b"onetwo", second, "up_to_date")) == [1]


def test_a_write_of_unknown_outcome_may_be_seen_and_not(course: Course) -> None:
    course.create()
    first = course.append(b"one")
    second = course.append(b"two", is_acked=False)
    for answer in (found(b"one", first, "up_to_date"), found(b"onetwo", second, "up_to_date")):
        assert course.read(course.asked(), answer) == [1]


def test_no_byte_of_a_life_is_shown_after_its_deletion_was_acknowledged(course: Course) -> None:
    life = course.create(b"old")
    end = life.tail.token
    early = course.asked()
    course.delete(is_acked=False)
    answer = found(b"old", end, "up_to_date")
    assert course.read(course.asked(), answer) == [1], "the answer to the DELETE was lost"
    course.history.deleted(course.history.moment(), 404)
    assert course.read(early, answer) == [1]
    with pytest.raises(Wrong, match="may not be shown any more"):
        course.read(course.asked(), answer)


def test_a_stream_made_anew_is_not_mixed_with_what_it_was(course: Course) -> None:
    end = course.create(b"old").tail.token
    course.delete(is_acked=False)
    course.create(b"new")
    assert course.read(course.asked(), found(b"new", end, "up_to_date")) == [2]
    with pytest.raises(Wrong, match="may not be shown any more"):
        course.read(course.asked(), found(b"old", end, "up_to_date"))


def test_a_party_is_not_led_back_to_an_earlier_life(course: Course) -> None:
    end = course.create(b"old").tail.token
    course.delete(is_acked=False)
    course.create(b"new", is_acked=False)
    old = found(b"old", end, "up_to_date")
    assert course.read(course.asked(), old) == [1]
    course.history.was_shown("bob", [course.history.lives[1]])
    with pytest.raises(Wrong):
        course.read(course.asked(), old)
    assert course.read(course.asked(party="alice"), old) == [1]


def test_a_404_is_wrong_for_a_stream_that_was_there_all_the_time(course: Course) -> None:
    early = course.asked()
    course.create(b"x", is_acked=False)
    assert course.read(course.asked(), refused(404)) == [], "of its PUT nobody has heard"
    course.append(b"y")
    with pytest.raises(Wrong, match="there all the time"):
        course.read(course.asked(), refused(404))
    assert course.read(early, refused(404)) == []
    asked = course.asked()
    course.delete()
    assert course.read(asked, refused(404)) == []


def test_what_has_expired_is_not_shown(course: Course) -> None:
    end = course.create(b"x", Lifetime(expires_at=10.0, expires_at_text="then")).tail.token
    answer = found(b"x", end, "up_to_date")
    assert course.read(course.asked(), answer) == [1]
    course.wall = 21.0
    assert course.read(course.asked(), refused(404)) == []
    with pytest.raises(Wrong, match="may not be shown any more"):
        course.read(course.asked(), answer)


def test_what_has_expired_is_shown_while_the_origin_fails_until_a_write_has_ended_it(course: Course) -> None:
    end = course.create(b"x", Lifetime(expires_at=10.0, expires_at_text="then")).tail.token
    stale = found(b"x", end, more={"Cache-Status": "edge; fwd=stale; detail=stale_if_error"})
    course.wall = 100.0
    assert course.read(course.asked(), stale) == [1]
    course.history.was_told_lifetime("alice", course.history.lives)
    assert course.read(course.asked(), stale) == [1]
    with pytest.raises(Wrong):
        course.read(course.asked(party="alice"), stale)
    course.create(b"y")
    with pytest.raises(Wrong):
        course.read(course.asked(), stale)


def test_closure_is_said_when_it_is_true_and_not_before(course: Course) -> None:
    course.create()
    end = course.append(b"x")
    closed = found(b"x", end, "up_to_date", "closed")
    with pytest.raises(Wrong, match="not closed"):
        course.read(course.asked(), closed)
    course.append(b"", close=True)
    assert course.read(course.asked(), closed) == [1]
    with pytest.raises(Wrong, match="closure had been acknowledged"):
        course.read(course.asked(), found(b"x", end, "up_to_date"))


def test_failures_are_excused_by_trouble_alone(course: Course) -> None:
    course.create(b"x")
    for answer in (BROKEN, refused(503)):
        assert course.read(course.asked(), answer) == []
        with pytest.raises(Wrong, match="nothing was wrong"):
            course.read(course.asked(), answer, is_calm=True)


def test_a_304_is_judged_as_what_it_stands_for(course: Course) -> None:
    course.create()
    end = course.append(b"one")
    held = Shown('"a"', b"one", "identity", end, False)
    unchanged = Answer(304, CIMultiDict({"ETag": '"a"', "Stream-Next-Offset": end, "Stream-Up-To-Date": "true"}))
    assert course.read(course.asked(held=(held,)), unchanged) == [1]
    course.append(b"two")
    with pytest.raises(Wrong, match="had been acknowledged"):
        course.read(course.asked(held=(held,)), unchanged)
    with pytest.raises(Wrong, match="did not name"):
        course.read(course.asked(), unchanged)
    coded = Shown('"a"', b"one", "gzip", end, False)
    with pytest.raises(Wrong, match="does not take"):
        course.read(course.asked(held=(coded,)), unchanged)


def test_an_offset_behind_the_tail_is_answered_with_the_tail(course: Course) -> None:
    course.create()
    course.append(b"one")
    beyond = course.append(b"two")
    course.delete()
    course.create()
    end = course.append(b"one again")
    assert course.read(course.asked(offset=beyond), found(b"", end, "up_to_date")) == [2]
    with pytest.raises(Wrong):
        course.read(course.asked(offset=end), found(b"", "0" * 16 + "_" + "0" * 16, "up_to_date"))


@pytest.mark.parametrize(("mine", "given", "is_right"), [("5", "6", True), ("5", "5", False), ("5", "4", False)])
def test_the_cursor_of_a_long_poll_goes_on(course: Course, mine: str, given: str, is_right: bool) -> None:
    course.create()
    end = course.append(b"one")
    asked = course.asked(offset=end, live="long-poll", cursor=mine)
    answer = found(b"", end, "up_to_date", status=204, more={"Stream-Cursor": given})
    if is_right:
        assert course.read(asked, answer) == [1]
    else:
        with pytest.raises(Wrong, match="cursor"):
            course.read(asked, answer)


def test_a_head_names_a_life_by_its_lifetime(course: Course) -> None:
    course.create(b"old", Lifetime(ttl_s=100))
    course.delete(is_acked=False)
    end = course.create(b"new", Lifetime(ttl_s=101)).tail.token
    asked = course.asked(method="HEAD")
    named = found(b"", end, more={"Stream-TTL": "101"})
    assert [life.number for life in judge.head(course.history, asked, named, is_calm=False)] == [2]
    with pytest.raises(Wrong, match="no life"):
        judge.head(course.history, asked, found(b"", end, more={"Stream-TTL": "100"}), is_calm=False)


def test_one_connection_tells_of_one_life(course: Course) -> None:
    end = course.create(b"old").tail.token
    following = Following(course.asked(offset="-1", live="sse"), list(course.history.lives), "-1", None, BINARY)
    following.data("b2xk")
    with pytest.raises(Wrong, match="without a control event"):
        following.data("b2xk")
    following.control(json.dumps({"streamNextOffset": end, "streamCursor": "7"}))
    with pytest.raises(Wrong, match="cursor"):
        following.control(json.dumps({"streamNextOffset": end, "streamCursor": "6"}))
    course.delete()
    course.create(b"new")
    new = course.append(b"more")
    following.data("bW9yZQ==")
    with pytest.raises(Wrong, match="of none of"):
        following.control(json.dumps({"streamNextOffset": new, "streamCursor": "8"}))


@pytest.mark.parametrize("is_calm", [False, True])
@pytest.mark.parametrize("says", [{}, {"upToDate": True}])
def test_events_show_trimmed_bytes_only_if_their_answer_says_that_the_origin_has_failed(
    course: Course, is_calm: bool, says: dict[str, bool]
) -> None:
    life = course.create(b"old")
    end = course.append(b"new")
    course.history.trim(life.tail, hides_start=False)
    course.now += judge.TRIMMED_WITHIN_S + 1

    def send(cache_status: str) -> None:
        is_stale = judge.is_stale(CIMultiDict({"Cache-Status": cache_status}))
        asked = course.asked(offset="-1", live="sse", is_calm=is_calm, is_stale=is_stale)
        following = Following(asked, [life], "-1", None, BINARY)
        following.data("b2xkbmV3")
        following.control(json.dumps({"streamNextOffset": end, "streamCursor": "7", **says}))

    send("gateway; fwd=stale; detail=stale_if_error")
    with pytest.raises(Wrong, match="of none of"):
        send("gateway; fwd=stale; collapsed; detail=followed")


def test_a_reader_of_what_is_over_is_sent_off_in_time(course: Course) -> None:
    life = course.create(b"x")
    judge.late(course.history, [life], 100.0)
    course.delete()
    judge.late(course.history, [life], judge.ENDED_WITHIN_S)
    with pytest.raises(Wrong, match="after it was known to be over"):
        judge.late(course.history, [life], judge.ENDED_WITHIN_S + 0.1)


def test_the_origin_is_given_each_body_once_and_as_it_was_sent(course: Course) -> None:
    course.create()
    course.append(b"one")
    assert not course.history.wrong
    course.append(b"one")
    course.store.append("/s", AppendParams(b"on", BINARY), 0.0)
    assert ["twice" in course.history.wrong[0], "no writer has sent" in course.history.wrong[1]] == [True, True]


def test_an_answer_for_one_client_alone_is_wrong_for_another() -> None:
    alone = found(b"x", "1", more={"X-Shown-To": "nobody", "Access-Control-Allow-Origin": "*"})
    with pytest.raises(Wrong, match="for nobody alone"):
        judge.own(alone, name="reader-1", web_origin=None)
    judge.own(alone, name="nobody", web_origin="https://a.example")


@pytest.mark.parametrize(
    ("allowed", "web_origin", "is_right"),
    [
        ("*", "https://a.example", True),
        ("https://a.example", "https://a.example", True),
        (None, None, True),
        (None, "https://a.example", False),
        ("https://b.example", "https://a.example", False),
        ("https://b.example", None, False),
    ],
)
def test_an_answer_allows_the_web_origin_of_its_client(
    allowed: str | None, web_origin: str | None, is_right: bool
) -> None:
    answer = found(b"x", "1", more={"Access-Control-Allow-Origin": allowed} if allowed else {})
    if is_right:
        judge.own(answer, name="", web_origin=web_origin)
        return
    with pytest.raises(Wrong, match="web origin"):
        judge.own(answer, name="", web_origin=web_origin)
    judge.own(refused(503), name="", web_origin=web_origin)


def test_an_empty_long_poll_has_waited_unless_there_was_trouble(course: Course) -> None:
    end = course.create(b"x").tail.token
    asked = course.asked(offset=end, live="long-poll")
    empty = found(b"", end, "up_to_date", status=204, more={"Stream-Cursor": "7"})
    with pytest.raises(Wrong, match="has not waited"):
        course.read(asked, empty, is_calm=True)
    assert course.read(asked, empty) == [1]
    course.now += judge.LEAST_WAIT_S
    assert course.read(asked, empty, is_calm=True) == [1]


def test_a_304_of_the_origin_for_no_bytes_says_that_none_came_since(course: Course) -> None:
    end = course.create(b"x").tail.token
    held = (Shown('"a"', b"", "identity", end, False),)
    asked = course.asked(offset=end, held=held)
    relayed = {"ETag": '"a"', "Cache-Status": "gateway; fwd=bypass"}
    assert course.read(asked, Answer(304, CIMultiDict(relayed))) == [1]
    with pytest.raises(Wrong, match="leads nowhere"):
        course.read(asked, Answer(304, CIMultiDict({"ETag": '"a"'})))
