"""Sessions: reads of one reader joined over reconnects, and cut where it begins anew."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.pipeline.sessions import GAP_S, sessions
from gateway.pipeline.silver import typed
from gateway.pipeline.tables import READS
from tests.effort import examples
from tests.pipeline.access_lines import DAY_S, NOON, line

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession


@contextmanager
def batches_of(spark: SparkSession, rows: int) -> Iterator[None]:
    """At most so many rows in a batch; of a log of millions they are few as well, for its length."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, str(rows))
    try:
        yield
    finally:
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


def test_a_connection_that_goes_on_is_not_another_readers(spark: SparkSession) -> None:
    # Whichever of them comes first ends with a connection that goes on, and the other begins with one of its own.
    both = [(n, f"c{client}") for client in range(2) for n in range(2)]
    found = of(spark, *(read(n, n, "01", "01", mode="sse", is_final=n == 0, client=client) for n, client in both))
    assert [(row.client, row.reads, row.reconnects) for row in found] == [("c0", 1, 1), ("c1", 1, 1)]
    # Three connections of two lines each; the first of a session is no reconnect.
    (session,) = of(spark, *(read(n, n, "01", "01", mode="sse", is_final=n % 2 == 1) for n in range(6)))
    assert (session.reads, session.reconnects) == (3, 2)


@settings(max_examples=examples(6, 60))
@given(
    made=st.lists(
        st.builds(
            dict,
            at=st.integers(0, 6_000).map(lambda tenths: NOON + tenths / 10),
            client=st.sampled_from(["a", "b", None]),
            stream=st.sampled_from(["/s", "/t"]),
            mode=st.sampled_from(["catchup", "longpoll", "sse", "sse", "head"]),
            start=st.sampled_from([None, "-1", "now", "01", "02", "03"]),
            next_offset=st.sampled_from([None, "02", "03", "04"]),
            duration_s=st.sampled_from([0.0, 0.5, 60.0]),
            is_final=st.booleans(),
            close_reason=st.sampled_from([None, "left", "lifetime"]),
        ),
        max_size=60,
    ),
    rows_at_once=st.sampled_from([1, 3, 10_000]),
)
def test_sessions_are_those_that_one_finds_by_hand(
    spark: SparkSession, made: list[dict[str, Any]], rows_at_once: int
) -> None:
    told = [line(number, **one) for number, one in enumerate(made)]
    with batches_of(spark, rows_at_once):
        found = of(spark, *told)
    assert in_order(map(plain, found)) == in_order(by_hand(told))


def in_order(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=itemgetter("stream", "client", "ended", "began", "sent_bytes"))


def plain(row: Row) -> dict[str, Any]:
    """A session, but for the parts of its reader that all have; times in microseconds."""
    told = row.asDict()
    times = {name: round(told[name].timestamp() * 1e6) for name in ("began", "ended")}
    return {
        name: value
        for name, value in told.items()
        if name not in ("day", "route", "protocol", "partition", "user_agent")
    } | times


def by_hand(told: list[bytes]) -> list[dict[str, Any]]:
    """The same of lines, one after the other."""
    found: list[dict[str, Any]] = []
    readers: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
    for read in sorted(map(orjson.loads, told), key=lambda read: (read["time"], read["id"])):
        if read["mode"] not in READS:
            continue
        reader = (read["stream"], read.get("client", "-"))
        session, before = readers.get(reader, (None, None))
        is_same_connection = before is not None and not before["is_final"] and before["mode"] == read["mode"]
        if session is None or before is None or not follows(read, before):
            session = {
                **dict.fromkeys(("reads", "live_reads", "sent_bytes"), 0),
                **dict.fromkeys(("last_offset", "close_reason")),
                "stream": reader[0],
                "client": reader[1],
                "first_offset": read.get("start"),
                "reconnects": -1,
                "began": math.inf,
            }
            found.append(session)
        is_live = read["mode"] != "catchup"
        session["began"] = min(session["began"], round(read["time"] * 1e6) - round(read["duration_s"] * 1e6))
        session["ended"] = round(read["time"] * 1e6)
        session["reads"] += read["is_final"]
        session["live_reads"] += read["is_final"] and is_live
        session["reconnects"] += read["mode"] == "sse" and not is_same_connection
        session["sent_bytes"] += read["sent_bytes"]
        session["last_offset"] = max(session["last_offset"] or "", read.get("next_offset", "")) or None
        if is_live and "close_reason" in read:
            session["close_reason"] = read["close_reason"]
        readers[reader] = (session, read)
    return [{**session, "reconnects": max(session["reconnects"], 0)} for session in found]


def follows(read: dict[str, Any], before: dict[str, Any]) -> bool:
    start, earlier = read.get("start", "-1"), before.get("start", "-1")
    reached = before.get("next_offset", earlier)
    if read["time"] - read["duration_s"] > before["time"] + GAP_S:
        return False
    if start == reached or (not before["is_final"] and start == earlier):
        return True
    if start in ("-1", "now"):
        return False
    return bool(start <= reached) and (earlier == "-1" or (earlier != "now" and earlier <= start))
