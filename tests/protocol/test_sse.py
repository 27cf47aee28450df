"""Parsing and encoding Server-Sent Events."""

from __future__ import annotations

import base64
import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.protocol.sse import (
    HEARTBEAT,
    Control,
    SseEvent,
    SseParser,
    SseTooLarge,
    encode_control,
    encode_data,
    parse_control,
)


def read(stream: bytes, *cuts: int) -> list[SseEvent]:
    """All events of a stream that arrives in pieces."""
    parser = SseParser()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    events: list[SseEvent] = []
    for start, end in pairwise(edges):
        events += parser.feed(stream[start:end])
    return events


def reference(stream: bytes) -> list[SseEvent]:
    """The standard's algorithm, one character at a time, in its plainest form."""
    stream = stream.removeprefix(b"\xef\xbb\xbf")
    lines: list[bytes] = []
    line = bytearray()
    i = 0
    while i < len(stream):
        byte = stream[i : i + 1]
        if byte in (b"\r", b"\n"):
            if byte == b"\r" and stream[i + 1 : i + 2] == b"\n":
                i += 1
            lines.append(bytes(line))
            line.clear()
        else:
            line += byte
        i += 1
    events: list[SseEvent] = []
    name, data, id_ = b"", None, b""
    for whole in lines:
        if not whole:
            if data is not None:
                shown = name.decode("utf-8", "replace") or "message"
                events.append(SseEvent(shown, data[:-1], id_.decode("utf-8", "replace")))
            name, data, id_ = b"", None, b""
            continue
        field, _, value = whole.partition(b":")
        if not field:
            continue
        value = value[1:] if value[:1] == b" " else value
        if field == b"event":
            name = value
        elif field == b"data":
            data = (data or b"") + value + b"\n"
        elif field == b"id":
            id_ = value
    return events


pieces = st.lists(
    st.sampled_from(
        [
            b"\r",
            b"\n",
            b"\r\n",
            b"\n\n",
            b"data",
            b"data:",
            b"data: ",
            b"event: control",
            b"id: 1",
            b":",
            b" ",
            b"x",
            b"\xef\xbb\xbf",
        ]
    ),
    max_size=30,
).map(b"".join)


class TestReading:
    @pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n"])
    def test_lines_end_in_any_of_the_three_ways(self, ending: bytes) -> None:
        stream = ending.join([b"event: data", b"data: a", b"data: b", b"", b""])
        assert read(stream) == [SseEvent("data", b"a\nb")]

    def test_a_crlf_split_between_two_pieces_is_one_line_ending(self) -> None:
        stream = b"event: data\r\ndata: a\r\ndata: b\r\n\r\n"
        for cut in range(len(stream) + 1):
            assert read(stream, cut) == [SseEvent("data", b"a\nb")], cut

    def test_an_event_whose_blank_line_is_a_cr_does_not_wait_for_a_possible_lf(self) -> None:
        parser = SseParser()
        assert parser.feed(b"data: a\r\r") == [SseEvent("message", b"a")]
        assert parser.feed(b"\ndata: b\r\r") == [SseEvent("message", b"b")]

    def test_an_empty_piece_between_cr_and_lf_changes_nothing(self) -> None:
        parser = SseParser()
        assert parser.feed(b"data: a\r") == []
        assert parser.feed(b"") == []
        assert parser.feed(b"\ndata: b\n\n") == [SseEvent("message", b"a\nb")]

    def test_an_lf_at_the_start_of_a_piece_ends_the_line_begun_in_the_one_before_although_that_had_a_cr(self) -> None:
        parser = SseParser()
        assert parser.feed(b"data: a\rdata: b") == []
        assert parser.feed(b"\n\n") == [SseEvent("message", b"a\nb")]

    def test_half_an_event_is_never_dispatched(self) -> None:
        whole = encode_data(b"abc", base64=False)
        for end in range(len(whole)):
            assert read(whole[:end]) == []
        assert len(read(whole)) == 1

    def test_a_byte_order_mark_at_the_start_is_ignored_however_it_arrives(self) -> None:
        stream = b"\xef\xbb\xbfdata: a\n\n"
        for cut in range(5):
            assert read(stream, cut, cut + 1) == [SseEvent("message", b"a")]

    def test_the_beginning_of_a_byte_order_mark_that_is_none_is_kept(self) -> None:
        assert read(b"\xef\xbbdata: a\n\ndata: b\n\n", 1) == [SseEvent("message", b"b")]

    def test_comments_are_counted_and_are_no_events(self) -> None:
        parser = SseParser()
        assert parser.feed(HEARTBEAT + b":\n" + HEARTBEAT) == []
        assert parser.comments == 3

    def test_one_space_after_the_colon_is_not_part_of_the_value(self) -> None:
        assert read(b"data:a\ndata: b\ndata:  c\n\n") == [SseEvent("message", b"a\nb\n c")]

    def test_a_field_without_a_colon_has_an_empty_value(self) -> None:
        assert read(b"data\ndata\n\n") == [SseEvent("message", b"\n")]

    def test_an_event_without_data_is_not_dispatched_and_its_name_is_forgotten(self) -> None:
        assert read(b"event: control\n\ndata: a\n\n") == [SseEvent("message", b"a")]

    def test_an_event_with_one_empty_data_line_is_dispatched(self) -> None:
        assert read(b"event: data\ndata:\n\n") == [SseEvent("data", b"")]

    def test_other_fields_are_ignored(self) -> None:
        assert read(b"retry: 5\ndatax: no\ndata: a\n\n") == [SseEvent("message", b"a")]

    def test_an_event_has_its_own_id_and_not_that_of_an_earlier_one(self) -> None:
        events = read(b"id: 7,1\ndata: a\n\ndata: b\n\nid: 8\n\ndata: c\n\n")
        assert [event.id for event in events] == ["7,1", "", ""]

    @given(pieces, st.lists(st.integers(0, 80), max_size=6))
    def test_any_stream_cut_anywhere_reads_as_the_standard_says(self, stream: bytes, cuts: list[int]) -> None:
        assert read(stream, *cuts) == reference(stream)

    @given(pieces)
    def test_byte_by_byte_is_the_same_as_all_at_once(self, stream: bytes) -> None:
        assert read(stream, *range(len(stream))) == read(stream)


class TestBound:
    def test_an_event_of_exactly_the_bound_passes_and_one_byte_more_does_not(self) -> None:
        line = b"data: " + b"x" * 94
        assert SseParser(max_event_bytes=100).feed(line + b"\n\n")[0].data == b"x" * 94
        with pytest.raises(SseTooLarge):
            SseParser(max_event_bytes=99).feed(line + b"\n\n")

    def test_an_endless_line_is_refused_without_buffering_it(self) -> None:
        parser = SseParser(max_event_bytes=1000)
        for _ in range(10):
            assert parser.feed(b"x" * 100) == []
        with pytest.raises(SseTooLarge):
            parser.feed(b"x")

    def test_many_lines_of_one_event_count_together(self) -> None:
        parser = SseParser(max_event_bytes=160)
        for _ in range(10):
            assert parser.feed(b"data: 0123456789\n") == []
        with pytest.raises(SseTooLarge):
            parser.feed(b"data: 0123456789\n")

    def test_events_are_bounded_one_by_one(self) -> None:
        parser = SseParser(max_event_bytes=50)
        assert len(parser.feed(encode_data(b"0123456789", base64=False) * 1000)) == 1000

    def test_hours_of_comments_without_a_blank_line_are_not_a_large_event(self) -> None:
        parser = SseParser(max_event_bytes=50)
        for _ in range(100):
            parser.feed(b": heartbeat\n")
        assert parser.comments == 100

    @given(pieces, st.integers(1, 40), st.lists(st.integers(0, 80), max_size=6))
    @example(b"\xef\xbb\xbf", 1, [2])
    def test_whether_the_bound_is_passed_does_not_depend_on_the_cuts(
        self, stream: bytes, bound: int, cuts: list[int]
    ) -> None:
        def passes(*at: int) -> bool:
            parser = SseParser(max_event_bytes=bound)
            edges = [0, *sorted(min(cut, len(stream)) for cut in at), len(stream)]
            try:
                for start, end in pairwise(edges):
                    parser.feed(stream[start:end])
            except SseTooLarge:
                return False
            return True

        assert passes(*cuts) == passes()

    def test_a_large_event_in_small_pieces_costs_a_constant_number_of_looks_per_byte(self) -> None:
        # Quadratic work would take minutes here; linear work takes well under a second.
        event = encode_data(b"x" * 4_000_000, base64=False)
        assert read(event, *range(0, len(event), 64))[0].data == b"x" * 4_000_000


class TestControl:
    def test_all_fields_of_a_closed_streams_last_control(self) -> None:
        assert parse_control(b'{"streamNextOffset":"3_4","streamClosed":true}') == Control("3_4", None, True, True)

    def test_an_open_stream(self) -> None:
        assert parse_control(b'{"streamNextOffset":"3_4","streamCursor":"17","upToDate":true,"more":1}') == Control(
            "3_4", "17", True, False
        )

    @pytest.mark.parametrize(
        ("data", "complaint"),
        [
            (b"", "not JSON"),
            (b"{", "not JSON"),
            (b"\xff", "not JSON"),
            (b"[]", "not a JSON object"),
            (b"{}", "no streamNextOffset"),
            (b'{"streamNextOffset":""}', "not an offset"),
            (b'{"streamNextOffset":3}', "no streamNextOffset string"),
            (b'{"streamNextOffset":null}', "no streamNextOffset string"),
            (b'{"streamNextOffset":"-1"}', "not an offset"),
            (b'{"streamNextOffset":"now"}', "not an offset"),
            (b'{"streamNextOffset":"a,b"}', "not an offset"),
            (b'{"streamNextOffset":"a\\nb"}', "not an offset"),
            (b'{"streamNextOffset":"1","streamCursor":5}', "streamCursor"),
            (b'{"streamNextOffset":"1","upToDate":"true"}', "upToDate"),
            (b'{"streamNextOffset":"1","streamClosed":1}', "streamClosed"),
        ],
    )
    def test_nonsense_is_refused_with_one_line(self, data: bytes, complaint: str) -> None:
        with pytest.raises(ValueError, match=complaint) as error:
            parse_control(data)
        assert "\n" not in str(error.value)

    def test_null_in_an_optional_field_counts_as_absent(self) -> None:
        assert parse_control(b'{"streamNextOffset":"1","streamCursor":null,"upToDate":null}') == Control(
            "1", None, False, False
        )

    def test_closed_says_up_to_date_and_names_no_cursor(self) -> None:
        (event,) = read(encode_control(Control("1", "7", False, True)))
        assert json.loads(event.data) == {"streamNextOffset": "1", "upToDate": True, "streamClosed": True}

    def test_up_to_date_is_not_mentioned_when_it_is_not_so(self) -> None:
        (event,) = read(encode_control(Control("1", "7", False, False)))
        assert json.loads(event.data) == {"streamNextOffset": "1", "streamCursor": "7"}

    def test_an_open_stream_without_a_cursor_cannot_be_encoded(self) -> None:
        with pytest.raises(ValueError, match="cursor"):
            encode_control(Control("1", None, True, False))

    @given(
        st.text("0123456789_abc!\"'\\", min_size=1).filter(lambda offset: offset != "-1"), st.booleans(), st.booleans()
    )
    def test_round_trip(self, offset: str, up_to_date: bool, is_closed: bool) -> None:
        control = Control(offset, None if is_closed else "9", up_to_date or is_closed, is_closed)
        (event,) = read(encode_control(control))
        assert event.name == "control"
        assert parse_control(event.data) == control


class TestData:
    def test_an_empty_payload_is_one_empty_line(self) -> None:
        assert encode_data(b"", base64=False) == b"event: data\ndata:\n\n"
        assert encode_data(b"", base64=True) == b"event: data\ndata:\n\n"

    def test_text_is_split_on_all_three_line_endings(self) -> None:
        assert encode_data(b"a\rb\nc\r\nd", base64=False) == b"event: data\ndata:a\ndata:b\ndata:c\ndata:d\n\n"

    def test_a_payload_cannot_inject_an_event(self) -> None:
        hostile = b"a\n\nevent: control\rdata: {}\r\n\r\n"
        (event,) = read(encode_data(hostile, base64=False))
        assert event.name == "data"

    def test_pieces_are_one_payload_also_where_a_crlf_lies_between_them(self) -> None:
        assert encode_data([b"a\r", b"\nb"], base64=False) == encode_data(b"a\r\nb", base64=False)
        assert encode_data([b"a", b"bc"], base64=True) == encode_data(b"abc", base64=True)

    @given(st.text())
    def test_a_client_rebuilds_text_with_every_line_ending_as_lf(self, text: str) -> None:
        (event,) = read(encode_data(text.encode(), base64=False))
        assert event == SseEvent("data", text.replace("\r\n", "\n").replace("\r", "\n").encode())

    @given(st.binary(), st.integers(0, 60))
    def test_a_client_rebuilds_bytes(self, payload: bytes, cut: int) -> None:
        (event,) = read(encode_data(payload, base64=True), cut)
        assert base64.b64decode(event.data, validate=True) == payload
        assert len(event.data) % 4 == 0
