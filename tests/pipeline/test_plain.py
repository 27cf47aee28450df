"""Plain lines: which lines are plain, and rows of them that are equal to those that Spark makes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as f

from gateway.pipeline.bronze import classified
from gateway.pipeline.intake import write_rows
from gateway.pipeline.lake import Lake
from gateway.pipeline.plain import Recent, sort_lines
from gateway.pipeline.silver import typed
from gateway.pipeline.tables import BRONZE, REQUESTS
from tests.effort import examples
from tests.pipeline.test_bronze_silver import BAD, GOOD, TAKEN, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ODD: Final = {
    "a rejected line": [one for many in BAD.values() for one in many],
    "a brace in a text": [text(user_agent="a } b {")],
    "a value that is not flat": [text(new_field={"any": "thing"})],
    "space around the object": [" " + text(), text() + " ", text() + "\r"],
    "another value in a text field": [text(client=5), text(method=True), text(start=["x"])],
    "the same field twice": [text().replace("{", '{"status":404,', 1)],
    "a lone surrogate": [text().replace("{", '{"client":"\\ud800",', 1)],
    "more bytes than plain lines have": [text(user_agent="x" * 1_000)],
    "a status that is no number of 32 bits": [text(status=2**31)],
}
"""Lines that Spark has to judge, by the reason."""
PLAIN: Final = [
    text(),
    text(id=None),
    text(status=None, route=None),
    text(user_agent="ünï→🙂\u0000\t\\\"'{"),
    text(new_field=[1, "x", None]),
    text(duration_s=0, first_byte_s=1e9, sent_bytes=2**40),
    text(at=TAKEN + 86_400),
    text(at=1_577_836_800),
    '{\n"a":1,\n' + text()[1:],
]


def plain(texts: list[str]) -> list[str]:
    found = sort_lines(pa.array(texts), pa.array(["access.log"] * len(texts)), int(TAKEN), None)
    lines: list[str] = found.bronze["line"].to_pylist()
    assert sorted([*lines, *found.odd["line"].to_pylist()]) == sorted(one for one in texts if one not in ("", "\r"))
    return lines


@pytest.mark.parametrize("why", ODD)
def test_lines_that_two_readers_could_read_differently_are_odd(why: str) -> None:
    for odd in ODD[why]:
        # Lines next to one that cannot be read may be odd too.
        assert plain([PLAIN[0], odd, PLAIN[1]]) in (PLAIN[:2], [])


def test_lines_of_a_gateway_are_plain_but_for_a_few_next_to_one_that_cannot_be_read() -> None:
    assert plain(PLAIN) == PLAIN
    assert plain(["", PLAIN[0], "torn", "\r", PLAIN[1]]) == PLAIN[:2]
    texts = [text(number) for number in range(2_000)]
    texts[700] = text(status="?")
    assert len(plain(texts)) >= 1_960


def test_lines_of_days_that_are_complete_are_odd() -> None:
    oldest = datetime.fromtimestamp(TAKEN, UTC).date()
    texts = pa.array([text(at=TAKEN - 86_400), text(at=TAKEN)])
    found = sort_lines(texts, pa.array(["a", "b"]), int(TAKEN), oldest)
    assert (found.odd["source"].to_pylist(), found.bronze["source"].to_pylist()) == (["a"], ["b"])


seconds = st.floats(min_value=1_577_836_800, max_value=TAKEN + 86_400) | st.integers(1_577_836_800, int(TAKEN))
values = st.none() | st.text(max_size=12) | st.floats(allow_nan=False) | st.integers(-1, 2**63) | st.booleans()
events = st.builds(
    lambda at, more: text(**{"at": at, **more}),
    seconds,
    st.dictionaries(st.sampled_from(["status", "client", "stream", "duration_s", "first_byte_s", "coding"]), values),
)


@settings(max_examples=examples(3, 50))
@given(st.lists(events | st.sampled_from([*PLAIN, *GOOD, *ODD["a rejected line"]]), min_size=1, max_size=60))
def test_a_batch_is_the_rows_that_spark_alone_makes_of_its_lines(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    lake = Lake(str(tmp_path_factory.mktemp("lake")))
    frame = spark.createDataFrame([(one,) for one in texts], "line string").withColumn("source", f.lit("access.log"))
    batch = write_rows(spark, lake, frame, taken_us=int(TAKEN) * 1_000_000, oldest=None)
    whole = classified(frame.withColumn("taken", f.timestamp_seconds(f.lit(TAKEN))))
    assert rows(lake.read_files(spark, BRONZE, [file.path for file in batch.bronze])) == rows(whole)
    lines = [row.line for row in lake.read_files(spark, BRONZE, sorted(batch.prepared.of)).select("line").collect()]
    # Copies of a line follow soon, so each line has one row, unless it has no id.
    once = [*dict.fromkeys(one for one in lines if has_id(one)), *(one for one in lines if not has_id(one))]
    made = lake.read_files(spark, REQUESTS, [file.path for file in batch.prepared.files])
    assert rows(made) == rows(typed(spark.createDataFrame([(one,) for one in once], "line string")))
    assert not lake.store.listed("spool")


def has_id(line: str) -> bool:
    return json.loads(line).get("id") is not None


def test_a_copy_of_a_recent_line_is_not_new_unless_it_differs_or_has_no_id() -> None:
    def is_new(*lines: tuple[str | None, str]) -> list[bool]:
        schema = pa.schema([("id", pa.string()), ("line", pa.string())])
        found = recent.is_new(pa.Table.from_pylist([{"id": one, "line": text} for one, text in lines], schema))
        return [bool(one) for one in found]

    recent = Recent()
    assert is_new(("1", "a"), ("2", "b"), ("1", "a"), ("2", "c"), (None, "d"), (None, "d")) == [
        True, True, False, True, True, True,
    ]  # fmt: skip
    assert is_new() == []
    assert is_new(("2", "b"), ("2", "c"), ("3", "e")) == [False, True, True]
    assert is_new(("3", "e"), ("1", "a")) == [False, True]  # the first is held no longer


def rows(frame: DataFrame) -> list[str]:
    names = sorted(frame.columns)
    return sorted(json.dumps(row.asDict(), default=str, sort_keys=True) for row in frame.select(names).collect())
