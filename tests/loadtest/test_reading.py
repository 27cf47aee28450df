"""The readers of the load test: every fault is seen, and nothing that is right is called one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.reading import NOW, EventReader, Kind, Message, Reader, decode


def messages(*numbers: int) -> list[Message]:
    return [Message(number, 0.0) for number in numbers]


def kinds(reader: Reader, *numbers: int) -> list[Kind]:
    return [fault.kind for fault in reader.take(messages(*numbers))]


def body(*numbers: int) -> bytes:
    return b"[" + b",".join(message.encode(60) for message in messages(*numbers)) + b"]"


def data(*numbers: int) -> bytes:
    return b"event: data\ndata:" + body(*numbers) + b"\n\n"


def control(offset: str, **fields: object) -> bytes:
    return b"event: control\ndata:" + json.dumps({"streamNextOffset": offset, **fields}).encode() + b"\n\n"


@given(st.integers(0, 1 << 40), st.floats(0, 1e10), st.integers(0, 500))
def test_a_message_survives_being_written_and_is_as_long_as_asked(number: int, sent_at: float, size: int) -> None:
    text = Message(number, sent_at).encode(size)
    assert decode(b"[" + text + b"]") == [Message(number, sent_at)]
    assert len(text) == max(size, len(Message(number, sent_at).encode(0)))


@pytest.mark.parametrize("text", ["", "{", "1", "{}x", "[1]", '[{"n":1}]', "null"])
def test_what_is_no_array_of_messages_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        decode(text)


def test_a_stream_read_from_its_start_begins_with_the_first_message() -> None:
    assert kinds(Reader(), 0, 1, 2) == []
    assert kinds(Reader(), 1) == [Kind.GAP]


def test_a_reader_at_the_tail_begins_anywhere() -> None:
    reader = Reader(NOW)
    assert kinds(reader, 17, 18) == []
    assert kinds(reader, 20) == [Kind.GAP]


def test_a_reader_may_begin_where_another_stood() -> None:
    assert kinds(Reader("00_07", last=6), 7) == []
    assert kinds(Reader("00_07", last=6), 8) == [Kind.GAP]


@pytest.mark.parametrize(
    ("came", "wrong"),
    [
        ((0, 2), [Kind.GAP]),
        ((0, 0), [Kind.REPEAT]),
        ((0, 1, 0, 1, 2), [Kind.REPEAT]),
        ((0, 5, 6, 9), [Kind.GAP, Kind.GAP]),
        ((2, 1, 0), [Kind.GAP, Kind.REPEAT, Kind.REPEAT]),
    ],
)
def test_a_fault_is_counted_once_and_the_reader_goes_on(came: Sequence[int], wrong: list[Kind]) -> None:
    assert kinds(Reader(), *came) == wrong


@given(st.lists(st.integers(0, 8), max_size=12))
def test_only_the_numbers_in_their_order_are_without_fault(numbers: list[int]) -> None:
    assert (kinds(Reader(), *numbers) == []) == (numbers == list(range(len(numbers))))


def test_a_reader_asks_from_where_it_stands() -> None:
    reader = Reader()
    assert reader.query() == "offset=-1"
    assert reader.query("long-poll") == "offset=-1&live=long-poll"
    reader.confirm("00_07", "123")
    assert reader.query() == "offset=00_07"
    assert reader.query("sse") == "offset=00_07&live=sse&cursor=123"
    reader.confirm("00_08")
    assert reader.query("sse") == "offset=00_08&live=sse&cursor=123"


def test_a_reply_moves_the_reader() -> None:
    reader = Reader()
    came, faults = reader.reply(body(0, 1), {"Stream-Next-Offset": "2", "Stream-Cursor": "9"}, acknowledged=5)
    assert ([message.number for message in came], faults) == ([0, 1], [])
    assert (reader.offset, reader.cursor, reader.seen) == ("2", "9", 1)


def test_a_reply_that_says_it_is_up_to_date_holds_all_that_was_acknowledged() -> None:
    headers = {"Stream-Next-Offset": "2", "Stream-Up-To-Date": "true"}
    assert Reader().reply(body(0, 1), headers, acknowledged=1)[1] == []
    assert [fault.kind for fault in Reader().reply(body(0, 1), headers, acknowledged=2)[1]] == [Kind.STALE]


def test_a_poll_that_timed_out_says_that_nothing_was_missed() -> None:
    reader = Reader()
    reader.reply(body(0, 1), {"Stream-Next-Offset": "2"}, acknowledged=1)
    headers = {"Stream-Next-Offset": "2", "Stream-Up-To-Date": "true"}
    assert reader.reply(b"", headers, acknowledged=1)[1] == []
    assert [fault.kind for fault in reader.reply(b"", headers, acknowledged=2)[1]] == [Kind.STALE]


@pytest.mark.parametrize(("text", "headers"), [(b"<html>", {"Stream-Next-Offset": "1"}), (b"[]", {})])
def test_a_reply_that_is_none_is_a_fault(text: bytes, headers: dict[str, str]) -> None:
    assert [fault.kind for fault in Reader().reply(text, headers, acknowledged=-1)[1]] == [Kind.UNREADABLE]


@given(st.lists(st.integers(0, 400), max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_read_however_they_are_cut_and_whatever_ends_their_lines(cuts: list[int], newline: bytes) -> None:
    text = (b": a comment\n\n" + data(0, 1) + control("2", streamCursor="7") + data(2) + control("3", upToDate=True)
    ).replace(b"\n", newline)  # fmt: skip
    reader = Reader()
    events = EventReader(reader, acknowledged=2)
    came: list[Message] = []
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    for begin, end in pairwise(places):
        some, faults = events.feed(text[begin:end])
        came += some
        assert faults == []
    # The last blank line is complete with what follows a CR.
    events.feed(b":\n")
    assert [message.number for message in came] == [0, 1, 2]
    assert (reader.offset, reader.cursor, reader.confirmed) == ("3", "7", 2)


def test_what_no_control_event_confirmed_comes_again_and_is_no_repeat() -> None:
    reader = Reader()
    EventReader(reader, -1).feed(data(0) + control("1") + data(1) + data(2)[:-5])
    assert (reader.seen, reader.confirmed, reader.offset) == (1, 0, "1")
    reader.rewind()
    assert EventReader(reader, -1).feed(data(1, 2) + control("3"))[1] == []
    assert EventReader(reader, -1).feed(data(2))[1][0].kind is Kind.REPEAT


def test_half_an_event_is_nothing() -> None:
    reader = Reader()
    assert EventReader(reader, -1).feed(data(0)[:-1]) == ([], [])
    assert reader.seen == -1


@pytest.mark.parametrize("text", [b"event: data\ndata:{\n\n", b"event: control\ndata:{}\n\n", b"event: data\n\n"])
def test_an_event_that_cannot_be_read_is_a_fault(text: bytes) -> None:
    assert [fault.kind for fault in EventReader(Reader(), -1).feed(text)[1]] == [Kind.UNREADABLE]


def test_events_that_stop_short_of_what_was_acknowledged_are_stale() -> None:
    events = EventReader(Reader(), acknowledged=3)
    assert events.feed(data(0, 1) + control("2"))[1] == []
    assert [fault.kind for fault in events.feed(control("2", upToDate=True))[1]] == [Kind.STALE]
