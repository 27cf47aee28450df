"""Records in JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s2 import json_format
from gateway.s2.json_format import BadFormat, BadJson, Format, InvalidJson, parse_format
from gateway.s2.records import (
    MAX_BATCH_RECORDS,
    AppendAck,
    AppendInput,
    AppendRecord,
    Header,
    ReadBatch,
    Record,
    StreamPosition,
)
from tests.s2 import strategies

MOST_HEADERS = 20_000
"""A bound in place of the real one, which takes seconds to reach."""


class TestRoundTrips:
    @given(strategies.appends())
    def test_base64_keeps_every_append(self, append: AppendInput) -> None:
        encoded = json_format.encode_append_input(append, Format.BASE64)
        assert json_format.decode_append_input(encoded, Format.BASE64) == append

    @given(strategies.batches())
    def test_base64_keeps_every_batch(self, batch: ReadBatch) -> None:
        encoded = json_format.encode_read_batch(batch, Format.BASE64)
        assert json_format.decode_read_batch(encoded, Format.BASE64) == batch

    @given(strategies.appends(strategies.text))
    def test_raw_keeps_appends_of_text(self, append: AppendInput) -> None:
        encoded = json_format.encode_append_input(append, Format.RAW)
        assert json_format.decode_append_input(encoded, Format.RAW) == append

    @given(strategies.batches(strategies.text))
    def test_raw_keeps_batches_of_text(self, batch: ReadBatch) -> None:
        encoded = json_format.encode_read_batch(batch, Format.RAW)
        assert json_format.decode_read_batch(encoded, Format.RAW) == batch
        assert b"\n" not in encoded

    @given(strategies.acks, strategies.positions)
    def test_acks_and_tails(self, ack: AppendAck, tail: StreamPosition) -> None:
        assert json_format.decode_append_ack(json_format.encode_append_ack(ack)) == ack
        assert json_format.decode_tail(json_format.encode_tail(tail)) == tail


class TestWhatIsOnTheWire:
    def test_a_batch(self) -> None:
        batch = ReadBatch(
            (Record(1, 2, (Header(b"n", b"v"),), b"text"), Record(2, 3), Record(3, 3, (), b"\xff")),
            StreamPosition(4, 3),
        )
        assert json.loads(json_format.encode_read_batch(batch, Format.RAW)) == {
            "records": [
                {"seq_num": 1, "timestamp": 2, "headers": [["n", "v"]], "body": "text"},
                {"seq_num": 2, "timestamp": 3},
                {"seq_num": 3, "timestamp": 3, "body": "�"},
            ],
            "tail": {"seq_num": 4, "timestamp": 3},
        }
        assert json.loads(json_format.encode_read_batch(batch, Format.BASE64))["records"] == [
            {"seq_num": 1, "timestamp": 2, "headers": [["bg==", "dg=="]], "body": "dGV4dA=="},
            {"seq_num": 2, "timestamp": 3},
            {"seq_num": 3, "timestamp": 3, "body": "/w=="},
        ]
        assert json.loads(json_format.encode_read_batch(ReadBatch(()), Format.RAW)) == {"records": []}

    def test_an_append(self) -> None:
        append = AppendInput((AppendRecord(b"b", (), 7), AppendRecord(b"")), 5, "")
        fields = {"records": [{"timestamp": 7, "body": "b"}, {}], "match_seq_num": 5, "fencing_token": ""}
        assert json.loads(json_format.encode_append_input(append, Format.RAW)) == fields
        assert json_format.decode_append_input(json.dumps(fields).encode(), Format.RAW) == append

    def test_an_ack_and_a_tail(self) -> None:
        ack = AppendAck(StreamPosition(0, 9), StreamPosition(1, 9), StreamPosition(2, 10))
        assert json.loads(json_format.encode_append_ack(ack)) == {
            "start": {"seq_num": 0, "timestamp": 9},
            "end": {"seq_num": 1, "timestamp": 9},
            "tail": {"seq_num": 2, "timestamp": 10},
        }
        assert json.loads(json_format.encode_tail(ack.tail)) == {"tail": {"seq_num": 2, "timestamp": 10}}

    def test_nulls_and_unknown_members_are_as_if_absent(self) -> None:
        body = b'{"records":[{"timestamp":null,"body":"b","x":1}],"match_seq_num":null,"fencing_token":null,"y":[]}'
        assert json_format.decode_append_input(body, Format.RAW) == AppendInput((AppendRecord(b"b"),))


class TestFormat:
    @pytest.mark.parametrize(
        ("value", "format_"),
        [
            (None, Format.RAW),
            ("raw", Format.RAW),
            (" base64 ", Format.BASE64),
            ("json", Format.RAW),
            ("json-binsafe", Format.BASE64),
        ],
    )
    def test_the_header_names_it(self, value: str | None, format_: Format) -> None:
        assert parse_format(value) is format_

    @pytest.mark.parametrize("value", ["", "RAW", "base64url", "raw, base64"])
    def test_other_names_are_refused(self, value: str) -> None:
        with pytest.raises(BadFormat):
            parse_format(value)


class TestBadJson:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"{}",
            b"\xff",
            b'{"records":{}}',
            b'{"records":[1]}',
            b'{"records":[{"body":1}]}',
            b'{"records":[{"body":null}]}',
            b'{"records":[{"headers":null}]}',
            b'{"records":[{"headers":[["n"]]}]}',
            b'{"records":[{"headers":[["n",1]]}]}',
            b'{"records":[{"headers":["nv"]}]}',
            b'{"records":[{"timestamp":-1}]}',
            b'{"records":[{"timestamp":1.0}]}',
            b'{"records":[{"timestamp":true}]}',
            b'{"records":[{"timestamp":18446744073709551616}]}',
            b'{"records":[],"match_seq_num":"1"}',
            b'{"records":[],"fencing_token":1}',
            b'{"records":[{"body":"\\ud800"}]}',
            b"[" * 100_000,
        ],
    )
    def test_it_is_refused(self, body: bytes) -> None:
        with pytest.raises(BadJson) as raised:
            json_format.decode_append_input(body, Format.RAW)
        assert not isinstance(raised.value, InvalidJson)
        assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("body", ["YQ", "YQ=", "YQ==\n", "Y Q==", "Y-__", "YQ==YQ==", "ä"])
    def test_what_is_not_base64_is_told_apart(self, body: str) -> None:
        encoded = json.dumps({"records": [{"body": body}]}).encode()
        with pytest.raises(InvalidJson):
            json_format.decode_append_input(encoded, Format.BASE64)

    def test_a_batch_has_at_most_a_thousand_records(self) -> None:
        def body(count: int) -> bytes:
            return json.dumps({"records": [{"seq_num": 1, "timestamp": 1}] * count}).encode()

        for decode in (json_format.decode_append_input, json_format.decode_read_batch):
            decode(body(MAX_BATCH_RECORDS), Format.RAW)
            with pytest.raises(InvalidJson, match="at most 1000 records"):
                decode(body(MAX_BATCH_RECORDS + 1), Format.RAW)

    @pytest.mark.parametrize("in_each", [1, 1_000])
    def test_headers_are_counted_before_they_are_read(self, in_each: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(json_format, "MAX_BATCH_HEADERS", MOST_HEADERS)

        def body(headers: int) -> bytes:
            record = b'{"seq_num":1,"timestamp":1,"headers":[%s]}' % b",".join([b'["",""]'] * (headers // in_each))
            return b'{"records":[%s]}' % b",".join([record] * in_each)

        most = MOST_HEADERS - MOST_HEADERS % in_each
        for decode in (json_format.decode_append_input, json_format.decode_read_batch):
            decode(body(most), Format.RAW)
            with pytest.raises(InvalidJson, match=f"{MOST_HEADERS} headers"):
                decode(body(most + in_each), Format.RAW)

    @given(st.binary(max_size=200), st.sampled_from(Format))
    def test_nothing_else_is_raised(self, body: bytes, format_: Format) -> None:
        for decode in (json_format.decode_append_ack, json_format.decode_tail):
            with pytest.raises(BadJson):
                decode(body)
        for decode_records in (json_format.decode_append_input, json_format.decode_read_batch):
            with pytest.raises(BadJson):
                decode_records(body, format_)

    @given(
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(
                        ["records", "body", "headers", "timestamp", "seq_num", "tail", "start", "end", "fencing_token"]
                    ),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=20,
        ),
        st.sampled_from(Format),
    )
    def test_json_of_any_shape_is_read_or_refused(self, value: object, format_: Format) -> None:
        body = json.dumps(value).encode()
        for decode in (json_format.decode_append_ack, json_format.decode_tail):
            try:
                decode(body)
            except BadJson:
                pass
        for decode_records in (json_format.decode_append_input, json_format.decode_read_batch):
            try:
                decode_records(body, format_)
            except BadJson:
                pass
