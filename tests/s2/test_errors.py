"""Error bodies: written, read, and as S2's SDK understands them."""

from __future__ import annotations

import pytest
import s2_sdk
from hypothesis import given
from hypothesis import strategies as st
from s2_sdk._s2s._protocol import parse_error_info

from gateway.s2 import errors
from gateway.s2.errors import (
    FencingTokenMismatch,
    Other,
    Refusal,
    S2ErrorCode,
    SeqNumMismatch,
    Unwritten,
    code_of,
    parse_error,
)
from gateway.s2.json_format import BadFormat, BadJson, InvalidJson
from gateway.s2.protobuf import BadProtobuf, InvalidProtobuf
from gateway.s2.read_query import BadQuery, InvalidQuery
from gateway.s2.records import InvalidAppend, StreamPosition
from gateway.s2.session import BadFrame
from gateway.s2.sse import BadEventId
from tests.s2 import strategies


class TestBodies:
    @given(st.text(max_size=10), strategies.numbers, strategies.positions)
    def test_they_survive(self, token: str, number: int, tail: StreamPosition) -> None:
        assert parse_error(412, errors.fencing_token_mismatch_body(token)) == FencingTokenMismatch(token)
        assert parse_error(412, errors.seq_num_mismatch_body(number)) == SeqNumMismatch(number)
        assert parse_error(416, errors.unwritten_body(tail)) == Unwritten(tail)

    @pytest.mark.parametrize("code", S2ErrorCode)
    def test_codes_survive(self, code: S2ErrorCode) -> None:
        assert parse_error(code.status, errors.error_body(code, "why")) == Other(code.code, "why")

    def test_what_is_on_the_wire(self) -> None:
        assert errors.error_body(S2ErrorCode.STREAM_NOT_FOUND, "no") == b'{"code":"stream_not_found","message":"no"}'
        assert errors.fencing_token_mismatch_body("t") == b'{"fencing_token_mismatch":"t"}'
        assert errors.seq_num_mismatch_body(7) == b'{"seq_num_mismatch":7}'
        assert errors.unwritten_body(StreamPosition(1, 2)) == b'{"tail":{"seq_num":1,"timestamp":2}}'

    @given(st.sampled_from([404, 412, 416, 500]), st.binary(max_size=60))
    def test_any_body_is_read(self, status: int, body: bytes) -> None:
        assert parse_error(status, body) == Other("", body.decode("utf-8", "replace"))

    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (412, b'{"seq_num_mismatch":-1}'),
            (412, b'{"seq_num_mismatch":true}'),
            (412, b'{"seq_num_mismatch":18446744073709551616}'),
            (412, b'{"fencing_token_mismatch":1}'),
            (416, b'{"tail":{}}'),
            (404, b'{"code":"x"}'),
            (404, b'{"tail":{"seq_num":1,"timestamp":2}}'),
            (502, b"<html>"),
            (500, b"[]"),
            (500, b""),
        ],
    )
    def test_a_body_of_another_shape_is_a_message(self, status: int, body: bytes) -> None:
        assert parse_error(status, body) == Other("", body.decode())


class TestCodes:
    @pytest.mark.parametrize(
        ("refusal", "code"),
        [
            (InvalidAppend(""), S2ErrorCode.INVALID),
            (InvalidJson(""), S2ErrorCode.INVALID),
            (InvalidProtobuf(""), S2ErrorCode.INVALID),
            (InvalidQuery(""), S2ErrorCode.INVALID),
            (BadEventId(""), S2ErrorCode.BAD_HEADER),
            (BadFormat(""), S2ErrorCode.BAD_HEADER),
            (BadFrame(""), S2ErrorCode.BAD_FRAME),
            (BadJson(""), S2ErrorCode.BAD_JSON),
            (BadProtobuf(""), S2ErrorCode.BAD_PROTO),
            (BadQuery(""), S2ErrorCode.BAD_QUERY),
        ],
    )
    def test_each_bad_request_has_its_code(self, refusal: Refusal, code: S2ErrorCode) -> None:
        assert code_of(refusal) is code
        assert code.status == (422 if code is S2ErrorCode.INVALID else 400)


class TestBesideTheSdk:
    """The SDK raises what a body says."""

    def test_a_fencing_token_mismatch(self) -> None:
        with pytest.raises(s2_sdk.FencingTokenMismatchError) as raised:
            parse_error_info(errors.fencing_token_mismatch_body("t"), 412)
        assert raised.value.expected_fencing_token == "t"

    def test_a_sequence_number_mismatch(self) -> None:
        with pytest.raises(s2_sdk.SeqNumMismatchError) as raised:
            parse_error_info(errors.seq_num_mismatch_body(7), 412)
        assert raised.value.expected_seq_num == 7

    def test_a_read_of_what_is_not_written(self) -> None:
        with pytest.raises(s2_sdk.ReadUnwrittenError) as raised:
            parse_error_info(errors.unwritten_body(StreamPosition(3, 4)), 416)
        assert (raised.value.tail.seq_num, raised.value.tail.timestamp) == (3, 4)

    @pytest.mark.parametrize("code", [code for code in S2ErrorCode if code.status != 503])
    def test_a_code_and_a_message(self, code: S2ErrorCode) -> None:
        error = parse_error_info(errors.error_body(code, "why"), code.status)
        assert (error.code, error.message, error.status_code) == (code.code, "why", code.status)
