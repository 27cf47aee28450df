"""What a history makes of calls, of lost answers and of reads that began in the middle."""

from __future__ import annotations

from tests.s2.linear.history import History, Seen
from tests.s2.linear.model import Acknowledged, Append, TailIs


def appended(history: History, record: bytes, start: int) -> None:
    call = history.call("a", "append", Append((record,)))
    history.returned(call, Acknowledged(start, start + 1))


def test_a_read_from_the_middle_is_held_to_the_records() -> None:
    history = History()
    for number in range(3):
        appended(history, b"%d" % number, number)
    history.returned(history.call("r", "read"), Seen(1, (b"1", b"2"), is_all=True))
    history.returned(history.call("r", "read"), Seen(1, (b"1",), is_all=False))
    assert history.judge([b"0", b"1", b"2"]).wrong == []
    history.returned(history.call("r", "read"), Seen(1, (b"other",), is_all=False))
    assert len(history.judge([b"0", b"1", b"2"]).wrong) == 1


def test_a_read_that_stops_at_a_tail_of_the_past_is_stale() -> None:
    history = History()
    appended(history, b"0", 0)
    appended(history, b"1", 1)
    history.returned(history.call("r", "read"), Seen(0, (b"0",), is_all=True))
    assert len(history.judge([b"0", b"1"]).wrong) == 1


def test_the_last_read_tells_which_lost_appends_have_happened() -> None:
    history = History()
    lost = history.call("a", "append", Append((b"lost",)))
    never = history.call("a", "append", Append((b"never",)))
    assert lost.returned is never.returned is None
    history.returned(history.call("r", "tail"), TailIs(0))
    history.returned(history.call("r", "tail"), TailIs(1))
    assert history.judge([b"lost"]).wrong == []
    history.returned(history.call("r", "tail"), TailIs(0))
    assert len(history.judge([b"lost"]).wrong) == 1


def test_a_record_that_is_there_twice_is_wrong() -> None:
    history = History()
    history.call("a", "append", Append((b"0",)))
    assert "a record was appended twice" in history.judge([b"0", b"0"]).wrong


def test_an_append_that_had_no_effect_is_not_part_of_the_history() -> None:
    history = History()
    call = history.call("a", "append", Append((b"0",)))
    history.had_no_effect(call)
    assert len(history) == 0
    assert history.judge([]).wrong == []
    assert history.judge([b"0"]).wrong
