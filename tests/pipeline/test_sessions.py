"""Sessions: reads of one reader joined over reconnects, and cut where it begins anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pipeline.sessions import GAP_S, READS, sessions
from gateway.pipeline.silver import typed
from tests.pipeline.access_lines import DAY_S, NOON, line

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@pytest.fixture
def few_rows_at_once(spark: SparkSession) -> Iterator[None]:
    """As few rows in a batch as a log of millions has, for its length."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "3")
    yield
    spark.conf.set(name, str(before))


def of(spark: SparkSession, *told: bytes) -> list[Row]:
    frame = spark.createDataFrame([(one.decode(),) for one in told], "line string")
    return sorted(sessions(typed(frame)).collect(), key=lambda row: (row.client, row.began))


def read(number: int, at: float, start: str | None, to: str | None, **more: Any) -> bytes:
    return line(number, at=NOON + at, start=start, next_offset=to, **more)


def test_long_polls_and_a_catch_up_that_go_on_from_each_other_are_one_session(spark: SparkSession) -> None:
    (session,) = of(
        spark,
        read(1, 0, "-1", "05", mode="catchup", duration_s=0.25),
        read(2, 20, "05", "05", close_reason="timed_out"),
        read(3, 30, "05", "07", close_reason="answered"),
        read(4, 31, "07", None, status=502, outcome="failed", close_reason="failed"),
        read(5, 35, "07", "09", close_reason="left"),
    )
    assert (session.reads, session.live_reads, session.reconnects) == (5, 4, 0)
    assert (session.first_offset, session.last_offset, session.close_reason) == ("-1", "09", "left")
    assert session.sent_bytes == 5 * 100 + 15
    assert (session.ended - session.began).total_seconds() == 35.25


def test_a_reader_is_route_stream_partition_client_and_user_agent(spark: SparkSession) -> None:
    others = [{"route": "b"}, {"stream": "/t"}, {"partition": "p"}, {"client": "a"}, {"user_agent": "b"}, {}]
    found = of(spark, *(read(number, number, "01", "01", **other) for number, other in enumerate(others)))
    assert [row.reads for row in found] == [1] * 6


def test_beginning_again_skipping_and_staying_away_begin_a_session(spark: SparkSession) -> None:
    found = of(
        spark,
        read(1, 0, None, "05"),
        read(2, 1, "-1", "05"),
        read(3, 2, "now", "08"),
        read(4, 3, "08", "09"),
        read(5, 4, "10", "11"),
        read(6, 4 + GAP_S + 0.5, "11", "12", duration_s=0.5),
        read(7, 4 + 2 * GAP_S + 1.5, "12", "13", duration_s=0.5),
    )
    assert [(row.reads, row.first_offset, row.last_offset) for row in found] == [
        (1, None, "05"),
        (1, "-1", "05"),
        (2, "now", "09"),
        (2, "10", "12"),
        (1, "12", "13"),
    ]


def test_connections_of_server_sent_events_are_counted_once_however_many_lines_they_have(spark: SparkSession) -> None:
    sse = {"mode": "sse"}
    (session,) = of(
        spark,
        read(1, 30, "-1", "05", is_final=False, duration_s=30, **sse),
        read(2, 60, "-1", "07", duration_s=60, close_reason="lifetime", **sse),
        # What was sent last did not arrive.
        read(3, 90, "06", "09", is_final=False, duration_s=29, **sse),
        read(4, 95, "06", "10", duration_s=34, close_reason="slow", **sse),
        read(5, 99, "10", "11", is_final=False, duration_s=3, **sse),
    )
    assert (session.reads, session.live_reads, session.reconnects) == (2, 2, 2)
    assert (session.first_offset, session.last_offset, session.close_reason) == ("-1", "11", "slow")


def test_a_session_is_cut_at_midnight_and_what_is_no_read_is_in_none(spark: SparkSession) -> None:
    found = of(
        spark,
        read(1, DAY_S / 2 - 1, "05", "06"),
        read(2, DAY_S / 2 + 1, "06", "07"),
        read(3, 1, "06", "07", mode="append"),
        read(4, 2, None, None, is_final=False, status=None, client=None),
    )
    assert [(str(row.day), row.reads) for row in found] == [("2026-09-24", 1), ("2026-09-25", 1)]


def test_sessions_do_not_end_where_a_batch_of_rows_does(spark: SparkSession, few_rows_at_once: None) -> None:
    went_on = [read(number, number, f"{number:02}", f"{number + 1:02}", mode="sse") for number in range(20)]
    (session,) = of(spark, *went_on)
    assert (session.reads, session.reconnects, session.first_offset, session.last_offset) == (20, 19, "00", "20")
    others = [read(number, number, "-1", "09", client=f"c{number % 3}") for number in range(20)]
    assert [row.reads for row in of(spark, *others)] == [1] * 20


@settings(max_examples=10)
@given(
    st.lists(
        st.builds(
            dict,
            at=st.integers(0, 2_000).map(lambda tenths: NOON + tenths / 10),
            client=st.sampled_from(["a", "b", None]),
            stream=st.sampled_from(["/s", "/t"]),
            mode=st.sampled_from(["catchup", "longpoll", "sse", "head"]),
            start=st.sampled_from([None, "-1", "now", "01", "02", "03"]),
            next_offset=st.sampled_from([None, "02", "03", "04"]),
            duration_s=st.sampled_from([0.0, 0.5, 60.0]),
            is_final=st.booleans(),
        ),
        max_size=60,
    )
)
def test_every_read_is_in_exactly_one_session(spark: SparkSession, made: list[dict[str, Any]]) -> None:
    told = [line(number, **one) for number, one in enumerate(made)]
    found = of(spark, *told)
    sums: Counter[tuple[str, str, str]] = Counter()
    for number, one in enumerate(made):
        if one["mode"] in READS:
            reader = (one["stream"], one["client"] or "-")
            sums[*reader, "reads"] += one["is_final"]
            sums[*reader, "bytes"] += 100 + number
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in found:
        counted[row.stream, row.client, "reads"] += row.reads
        counted[row.stream, row.client, "bytes"] += row.sent_bytes
        assert row.live_reads <= row.reads
        assert row.began <= row.ended
    assert +counted == +sums
    assert len({(row.stream, row.client, row.began, row.ended) for row in found}) <= len(found)
