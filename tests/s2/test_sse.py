"""Reads as Server-Sent Events: encoded, and read again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.commands.s2_events import MAX_EVENT_BYTES, BadEvent, EventReader
from gateway.s2.json_format import Format
from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_U64, ReadBatch, Record, StreamPosition, total_metered_bytes
from gateway.s2.sse import BadEventId, BatchEvent, Done, Event, EventId, Failure, Ping, encode_event, parse_event_id
from tests.s2 import strategies

ids = st.builds(EventId, strategies.numbers, strategies.numbers, strategies.numbers)
pings = st.builds(Ping, strategies.numbers, st.none() | strategies.positions)


def events(parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[Event]:
    return st.builds(BatchEvent, ids, strategies.batches(parts)) | pings


ends = st.just(Done()) | st.builds(Failure, st.sampled_from([b"{}", b'{"code":"timeout","message":"a\\nb"}']))


def read(data: bytes, format_: Format, cuts: Sequence[int] = ()) -> list[Event]:
    reader = EventReader(format_)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [event for start, end in pairwise(edges) for event in reader.feed(data[start:end])]


class TestRoundTrips:
    @given(st.lists(events(strategies.data), max_size=4), ends, st.lists(st.integers(0, 900), max_size=6))
    def test_base64_keeps_every_event(self, sent: list[Event], end: Event, cuts: list[int]) -> None:
        encoded = b"".join(encode_event(event, Format.BASE64) for event in [*sent, end])
        assert read(encoded, Format.BASE64, cuts) == [*sent, end]

    @given(st.lists(events(strategies.text), max_size=4), st.lists(st.integers(0, 900), max_size=6))
    def test_raw_keeps_events_of_text(self, sent: list[Event], cuts: list[int]) -> None:
        encoded = b"".join(encode_event(event, Format.RAW) for event in sent)
        assert read(encoded, Format.RAW, cuts) == sent

    @given(ids)
    def test_ids(self, id_: EventId) -> None:
        assert parse_event_id(str(id_)) == id_


class TestWhatIsOnTheWire:
    def test_a_batch(self) -> None:
        batch = ReadBatch((Record(7, 5, (), b"x"),))
        assert encode_event(BatchEvent(EventId(7, 1, 9), batch), Format.RAW) == (
            b'event: batch\nid: 7,1,9\ndata: {"records":[{"seq_num":7,"timestamp":5,"body":"x"}]}\n\n'
        )

    def test_pings(self) -> None:
        assert encode_event(Ping(5), Format.RAW) == b'event: ping\ndata: {"timestamp":5}\n\n'
        with_tail = b'event: ping\ndata: {"timestamp":5,"tail":{"seq_num":1,"timestamp":2}}\n\n'
        assert encode_event(Ping(5, StreamPosition(1, 2)), Format.RAW) == with_tail

    def test_the_two_ends(self) -> None:
        assert encode_event(Done(), Format.RAW) == b"data: [DONE]\n\n"
        assert encode_event(Failure(b'{"code":"x"}'), Format.RAW) == b'event: error\ndata: {"code":"x"}\n\n'

    def test_a_foreign_error_of_several_lines_stays_one_event(self) -> None:
        encoded = encode_event(Failure(b"a\r\nb\rc\n\nevent: batch"), Format.RAW)
        assert read(encoded, Format.RAW) == [Failure(b"a\nb\nc\n\nevent: batch")]


class TestIds:
    def test_they_count_what_the_response_has_delivered(self) -> None:
        first = ReadBatch((Record(3, 0, (), b"ab"), Record(4, 0)))
        second = ReadBatch((Record(9, 0),))
        assert total_metered_bytes(first.records) == 18
        id_ = EventId.after(None, first)
        assert id_ == EventId(4, 2, 18)
        assert EventId.after(id_, second) == EventId(9, 3, 26)

    @pytest.mark.parametrize(
        "value", ["", "1", "1,2", "1,2,3,4", "1,2,", "1,2,-3", "1, 2,3", f"{MAX_U64 + 1},1,1", "x"]
    )
    def test_others_are_refused(self, value: str) -> None:
        with pytest.raises(BadEventId):
            parse_event_id(value)


class TestReader:
    def test_it_knows_the_end(self) -> None:
        reader = EventReader(Format.RAW)
        assert reader.feed(b'event: ping\ndata: {"timestamp":1}\n\n') == [Ping(1)]
        assert [reader.is_ended] == [False]
        assert reader.feed(b'data: [DONE]\n\nevent: ping\ndata: {"timestamp":1}\n\n') == [Done()]
        assert reader.is_ended
        assert reader.feed(b"event: batch\ndata: x\n\n") == []

    def test_an_error_is_an_end(self) -> None:
        reader = EventReader(Format.RAW)
        reader.feed(b"event: error\ndata: {}\n\n")
        assert reader.is_ended

    def test_other_events_and_comments_are_ignored(self) -> None:
        assert read(b": hello\n\nevent: new\ndata: 1\n\ndata: other\n\n", Format.RAW) == []

    @pytest.mark.parametrize(
        "data",
        [
            b'event: batch\ndata: {"records":[]}\n\n',
            b'event: batch\nid: 1,2\ndata: {"records":[]}\n\n',
            b"event: batch\nid: 1,2,3\ndata: {}\n\n",
            b"event: batch\nid: 1,2,3\ndata: x\n\n",
            b"event: ping\ndata: x\n\n",
            b"event: ping\ndata: []\n\n",
            b"event: ping\ndata: {}\n\n",
            b'event: ping\ndata: {"timestamp":1,"tail":1}\n\n',
        ],
    )
    def test_bad_events_raise_one_error(self, data: bytes) -> None:
        with pytest.raises(BadEvent):
            read(data, Format.RAW)

    def test_the_largest_batch_fits_an_event_and_more_does_not(self) -> None:
        batch = ReadBatch((Record(MAX_U64, MAX_U64, (), bytes(MAX_BATCH_METERED_BYTES - 8)),))
        largest = BatchEvent(EventId(MAX_U64, MAX_U64, MAX_U64), batch)
        for format_ in Format:
            assert read(encode_event(largest, format_), format_) == [largest]
        with pytest.raises(BadEvent):
            read(b"data: " + b"x" * MAX_EVENT_BYTES, Format.RAW)
