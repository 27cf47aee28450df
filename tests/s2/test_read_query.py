"""The query of a read: parsed, written, and cut to what a unary read may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from s2_sdk import _types as sdk
from s2_sdk._s2s import _read_session as sdk_read

from gateway.s2.read_query import (
    BadQuery,
    FromSeqNum,
    FromTailOffset,
    FromTimestamp,
    InvalidQuery,
    ReadQuery,
    encode_read_query,
    parse_read_query,
)
from gateway.s2.records import MAX_BATCH_METERED_BYTES, MAX_BATCH_RECORDS, MAX_U64
from gateway.s2.sse import EventId
from tests.s2.strategies import numbers

starts = (
    st.builds(FromSeqNum, numbers) | st.builds(FromTailOffset, numbers) | st.builds(FromTimestamp, st.integers(0, 50))
)
queries = st.builds(
    ReadQuery,
    start=starts,
    count=st.none() | numbers,
    bytes=st.none() | numbers,
    until=st.none() | st.integers(51, MAX_U64),
    wait_s=st.none() | st.integers(0, 2**32 - 1),
    is_clamped=st.booleans(),
)


class TestParsing:
    @given(queries)
    def test_a_query_survives(self, query: ReadQuery) -> None:
        assert parse_read_query(encode_read_query(query)) == query

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("", ReadQuery()),
            ("tail_offset=0", ReadQuery()),
            ("seq_num=5&count=2", ReadQuery(FromSeqNum(5), count=2)),
            ("timestamp=9&until=10&clamp=true", ReadQuery(FromTimestamp(9), until=10, is_clamped=True)),
            ("tail_offset=3&bytes=0&wait=60", ReadQuery(FromTailOffset(3), bytes=0, wait_s=60)),
            ("seq_num=5&until=1", ReadQuery(FromSeqNum(5), until=1)),
            (f"seq_num={MAX_U64}", ReadQuery(FromSeqNum(MAX_U64))),
            ("seq%5Fnum=%35&clamp=false", ReadQuery(FromSeqNum(5))),
            ("seq_num=007&other=x&other=y&flag", ReadQuery(FromSeqNum(7))),
        ],
    )
    def test_what_a_query_says(self, query: str, found: ReadQuery) -> None:
        assert parse_read_query(query) == found

    @pytest.mark.parametrize(
        "query",
        [
            "seq_num=",
            "seq_num",
            "seq_num=-1",
            "seq_num=+1",
            "seq_num=1.0",
            "seq_num=1_0",
            "seq_num=٣",
            f"seq_num={MAX_U64 + 1}",
            f"seq_num={'0' * 5000}1",
            "seq_num=1&seq_num=1",
            "count=x",
            "bytes= 1",
            "until=never",
            "wait=4294967296",
            "clamp=1",
            "clamp=",
            "clamp=true&clamp=true",
            "seq_num=1&timestamp=x",
        ],
    )
    def test_what_is_no_number_is_refused(self, query: str) -> None:
        with pytest.raises(BadQuery) as raised:
            parse_read_query(query)
        assert not isinstance(raised.value, InvalidQuery)

    @pytest.mark.parametrize(
        "query",
        ["seq_num=1&timestamp=1", "seq_num=1&tail_offset=0", "timestamp=10&until=10", "timestamp=11&until=10"],
    )
    def test_contradictions_are_told_apart(self, query: str) -> None:
        with pytest.raises(InvalidQuery):
            parse_read_query(query)

    @given(st.text(max_size=60) | st.lists(st.sampled_from([*"=&%5+", "seq_num", "count", "clamp", "1"])).map("".join))
    def test_any_text_is_read_or_refused(self, query: str) -> None:
        try:
            parse_read_query(query)
        except BadQuery:
            pass

    @given(st.integers(0, 99), st.none() | st.integers(0, 9), st.none() | st.integers(0, 9), st.booleans())
    def test_the_sdk_writes_queries_that_are_read(
        self, start: int, count: int | None, wait: int | None, is_clamped: bool
    ) -> None:
        for theirs, ours in (
            (sdk.SeqNum(start), FromSeqNum(start)),
            (sdk.Timestamp(start), FromTimestamp(start)),
            (sdk.TailOffset(start), FromTailOffset(start)),
        ):
            parameters = sdk_read._build_read_params(theirs, sdk.ReadLimit(count, None), 100, is_clamped, wait)
            query = "&".join(f"{name}={value}" for name, value in parameters.items())
            assert parse_read_query(query) == ReadQuery(ours, count, None, 100, wait, is_clamped)


class TestLimits:
    def test_a_unary_read_is_bounded(self) -> None:
        assert ReadQuery(wait_s=61).unary() == ReadQuery(
            count=MAX_BATCH_RECORDS, bytes=MAX_BATCH_METERED_BYTES, wait_s=60
        )
        over = ReadQuery(count=MAX_BATCH_RECORDS + 1, bytes=MAX_BATCH_METERED_BYTES + 1, wait_s=60).unary()
        assert over == ReadQuery(count=MAX_BATCH_RECORDS, bytes=MAX_BATCH_METERED_BYTES, wait_s=60)
        less = ReadQuery(FromSeqNum(3), count=0, bytes=1, until=7, wait_s=0, is_clamped=True)
        assert less.unary() == less

    def test_only_a_read_without_limits_waits_for_ever(self) -> None:
        assert ReadQuery().longest_wait_s is None
        assert ReadQuery(wait_s=5).longest_wait_s == 5
        assert ReadQuery(count=1, wait_s=5).longest_wait_s == 5
        for bounded in (ReadQuery(count=1), ReadQuery(bytes=1), ReadQuery(until=1), ReadQuery().unary()):
            assert bounded.longest_wait_s == 0

    def test_a_resumed_read_has_what_is_left(self) -> None:
        query = ReadQuery(FromTimestamp(5), count=10, bytes=100, until=9, wait_s=3)
        assert query.resumed(EventId(7, 4, 90)) == ReadQuery(FromSeqNum(8), 6, 10, 9, 3)
        assert query.resumed(EventId(7, 11, 101)) == ReadQuery(FromSeqNum(8), 0, 0, 9, 3)
        assert ReadQuery().resumed(EventId(MAX_U64, 1, 8)) == ReadQuery(FromSeqNum(MAX_U64))
