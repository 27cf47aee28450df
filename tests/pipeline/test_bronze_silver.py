"""From lines to rows: which lines are events, why others are none, and that silver says what the gateway wrote."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as f

from gateway.ops.access_log.lines import Lines
from gateway.ops.access_log.schema import FIELDS
from gateway.ops.partition_ids import PartitionIds
from gateway.pipeline.bronze import KEPT_OF_REJECT, LONGEST_LINE, classified
from gateway.pipeline.silver import typed
from gateway.pipeline.tables import REQUESTS
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import CloseReason, Record
from tests.effort import examples
from tests.pipeline.access_lines import DAY_S, NOON, line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TAKEN = NOON + DAY_S


def came(spark: SparkSession, texts: list[str]) -> DataFrame:
    frame = spark.createDataFrame([(text,) for text in texts], "line string")
    return frame.select("line", f.lit("access.log").alias("source"), f.timestamp_seconds(f.lit(TAKEN)).alias("taken"))


def text(number: int = 1, **more: Any) -> str:
    return line(number, **more).decode().rstrip("\n")


BAD = {
    "not JSON": [
        "hello",
        "{",
        "}",
        text()[:60],
        text()[:-1],
        text()[10:],
        text() + text(2),
        text() + " " + text(2),
        text() + "," + text(2),
        text() + ',"z":3',
        text() + "]",
        text() + "}",
        text() + " x",
        text().replace('"', "'"),
        text(duration_s="@").replace('"@"', "NaN"),
        "\x00\x01",
    ],
    "not an object": ["[]", f"[{text()}]", "5", '"text"', "null", "true"],
    "too long": [text(stream="/" + "x" * LONGEST_LINE)],
    "unknown version: 2": [text(v=2), text(v=2, node=None, status="?")],
    "missing: v": [text(v=None)],
    "missing: node": [text(node=None), text(node="@").replace('"@"', "null")],
    "missing: time": ["{}", text(time=None)],
    "missing: is_final": [text(is_final=None)],
    "wrong type: status": [
        text(status="200"),
        text(status=200.5),
        text(status="@").replace('"@"', "9" * 30),
        text(status=[200]),
    ],
    "wrong type: is_final": [text(is_final="true"), text(is_final=1)],
    "wrong type: time": [text(time="now"), text(time=True)],
    "wrong type: duration_s": [text(duration_s="@").replace('"@"', "1e999")],
    "out of range: sent_bytes": [text(sent_bytes=2**40 + 1), text(sent_bytes=2**63 - 1), text(sent_bytes=-1)],
    "out of range: subscribers": [text(subscribers=2**62)],
    "out of range: duration_s": [text(duration_s=1e300), text(duration_s=-0.5)],
    "out of range: first_byte_s": [text(first_byte_s=1e10)],
    "time out of range: 0.0": [text(at=0)],
    "time out of range: -1.0": [text(at=-1)],
    "time out of range: 1.0E300": [text(at=1e300)],
    "time out of range: 1.577836799E9": [text(at=1_577_836_799)],
    f"time out of range: {(TAKEN + DAY_S + 1) / 1e9}E9": [text(at=TAKEN + DAY_S + 1)],
}
GOOD = [
    text(),
    text(id=None),
    text(at=TAKEN + DAY_S),
    text(at=1_577_836_800),
    text(user_agent="a } b {", stream="/\\\"'}{"),
    text(new_field={"any": ["thing", {"is": None}]}),
    text(user_agent="ünï→🙂\u0000"),
    " " + text() + " \r",
    text(status=None, route=None),
    text(sent_bytes=2**40),
    text(duration_s=1e9),
    text(duration_s=0),
    text(status=2**40),
]


def test_what_is_no_event_lies_apart_with_the_reason(spark: SparkSession) -> None:
    texts = [one for many in BAD.values() for one in many] + GOOD + [""]
    found = classified(came(spark, texts)).collect()
    assert len(found) == len(texts) - 1
    reasons = {row.line: row.reason for row in found if row.kind == "rejects"}
    wanted = {one[:KEPT_OF_REJECT]: reason for reason, many in BAD.items() for one in many}
    assert reasons == wanted
    assert sorted(row.line for row in found if row.kind == "lines") == sorted(GOOD)
    assert {str(row.day) for row in found if row.kind == "rejects"} == {"2026-09-25"}


def test_days_that_are_done_take_no_more(spark: SparkSession) -> None:
    texts = [text(at=NOON - DAY_S), text(at=NOON)]
    oldest = datetime.fromtimestamp(NOON, UTC).date()
    found = classified(came(spark, texts), oldest=oldest).collect()
    assert [(row.kind, row.reason) for row in found] == [("rejects", "too late"), ("lines", None)]


def test_every_field_of_the_log_has_its_column_in_silver() -> None:
    assert {field.name for field in FIELDS} - {"v"} == {column.name for column in REQUESTS.columns} - {"day"}


def test_a_number_that_is_too_large_for_its_column_is_unknown_and_spoils_nothing(spark: SparkSession) -> None:
    (row,) = typed(spark.createDataFrame([(text(status=2**40),)], "line string")).collect()
    assert (row.status, row.sent_bytes) == (0, 101)


printable = st.text(max_size=40)
seconds = st.floats(min_value=0, max_value=1e6)
sizes = st.integers(min_value=0, max_value=2**40)
records = st.builds(
    Record,
    mode=st.sampled_from(Mode),
    outcome=st.sampled_from(Outcome),
    method=st.sampled_from(["GET", "POST"]) | printable,
    route=st.none() | printable,
    is_s2=st.booleans(),
    stream=printable,
    partition=st.none() | printable,
    status=st.sampled_from([0, 200, 204, 304, 404, 502]),
    ended_at=st.floats(min_value=1_577_836_800, max_value=4_102_444_800),
    duration_s=seconds,
    first_byte_s=st.none() | seconds,
    start=st.none() | printable,
    next_offset=st.none() | printable,
    sent_bytes=sizes,
    saved_bytes=sizes,
    fetched_bytes=sizes,
    origin_requests=st.integers(min_value=0, max_value=9),
    collapsed=st.integers(min_value=0, max_value=10_000),
    subscribers=st.none() | st.integers(min_value=1, max_value=10**9),
    coding=st.none() | st.sampled_from(Coding),
    client=st.none() | st.just("192.0.2.1") | printable,
    user_agent=st.none() | st.binary(max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
    trace_id=st.none() | st.just("0af7651916cd43dd8448eb211c80319c"),
    close_reason=st.none() | st.sampled_from(CloseReason),
    is_final=st.booleans(),
)


def expected(written: bytes) -> dict[str, Any]:
    """A line as silver must have it, by the schema's own words on fields that are left out."""
    told = orjson.loads(written)
    left_out = {"route": "-", "protocol": "durable-streams", "partition": "", "status": 0}
    left_out |= {"saved_bytes": 0, "origin_requests": 0}
    row = {column.name: told.get(column.name, left_out.get(column.name)) for column in REQUESTS.columns}
    micros = round(told["time"] * 1e6)
    row["time"] = micros
    row["day"] = str(datetime.fromtimestamp(micros // 1_000_000, UTC).date())
    return row


@settings(max_examples=examples(5, 50))
@given(st.lists(records, min_size=1, max_size=60))
def test_silver_says_field_by_field_what_the_gateway_wrote(spark: SparkSession, made: list[Record]) -> None:
    written = Lines("edge", "full", PartitionIds("sixteen letters or more")).written(made, 0.0).splitlines()
    frame = came(spark, [one.decode() for one in written])
    assert {
        row.kind for row in classified(frame.withColumn("taken", f.lit("2100-01-02").cast("timestamp"))).collect()
    } == {"lines"}
    found = typed(frame).withColumns({"time": f.unix_micros("time"), "day": f.col("day").cast("string")}).collect()
    assert sorted((row.asDict() for row in found), key=lambda row: str(row["id"])) == sorted(
        map(expected, written), key=lambda row: str(row["id"])
    )
