"""The source in a real Spark, before a real origin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from gateway.origin.app import OriginSettings
from tests.pyspark_durable_streams.beside import JSON, Beside, beside
from tests.served import forked_dev_gateway, served

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@pytest.fixture(scope="module")
def origin() -> Iterator[Beside]:
    with beside(OriginSettings(max_chunk_bytes=1_000)) as running:
        yield running


def fill(origin: Beside, stream: str, *values: object) -> None:
    origin.ask("PUT", stream, {"Content-Type": JSON})
    for at in range(0, len(values), 50):
        body = json.dumps(values[at : at + 50]).encode()
        assert origin.ask("POST", stream, {"Content-Type": JSON}, body) == 204


def load(spark: SparkSession, origin: Beside, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("durable_streams").options(url=origin.url, **options)
    return (reader.schema(schema) if schema is not None else reader).load()


def run(spark: SparkSession, origin: Beside, folder: Path, **options: str) -> StreamingQuery:
    """A query into Parquet files that reads what there is; ended."""
    given = {"url": origin.url, "startingOffsets": "earliest", **options}
    query = (
        spark.readStream.format("durable_streams")
        .options(**given)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return query


def test_messages_of_a_batch(spark: SparkSession, origin: Beside) -> None:
    fill(origin, "m/1", *range(500))
    fill(origin, "m/2", {"a": "é"}, [1, {"b": 2}], "x", None)
    frame = load(spark, origin, streams="m/1,m/2", minPartitions="3")
    assert frame.schema.simpleString() == "struct<stream:string,pos:bigint,offset:string,value:string>"
    assert frame.rdd.getNumPartitions() <= 3
    rows = frame.orderBy("stream", "pos").collect()
    assert [json.loads(row["value"]) for row in rows[:500]] == list(range(500))
    assert [(row["stream"], row["pos"], json.loads(row["value"])) for row in rows[500:]] == [
        ("m/2", 0, {"a": "é"}),
        ("m/2", 1, [1, {"b": 2}]),
        ("m/2", 2, "x"),
        ("m/2", 3, None),
    ]
    # The offset of a row is one that it can be had again from.
    tokens = json.dumps({"m/1": rows[400]["offset"], "m/2": "earliest"})
    again = load(spark, origin, streams="m/1,m/2", startingOffsets=tokens)
    assert again.where("stream = 'm/1' and value = '400'").count() == 1


def test_filters_take_nothing_from_other_uses_of_a_relation(spark: SparkSession, origin: Beside) -> None:
    """Spark keeps the filters that a Python source took from one scan for the next scan of the same relation."""
    for name in ("p/a", "p/b"):
        fill(origin, name, 1, 2)
    frame = load(spark, origin, streams="p/a,p/b")
    one, other = frame.where("stream = 'p/a'"), frame.where("stream = 'p/b'")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert (one.count(), frame.count(), one.union(other).count()) == (2, 4, 4)
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_table_of_the_catalogue_needs_options_in_the_query(spark: SparkSession, origin: Beside) -> None:
    fill(origin, "table/1", 7)
    spark.sql(f"CREATE TABLE c USING durable_streams OPTIONS (url '{origin.url}', stream 'table/1')")
    try:
        # Spark does not give the table's options to a Python data source.
        with pytest.raises(PySparkException, match="CREATE TEMPORARY VIEW"):
            spark.sql("SELECT * FROM c").collect()
        rows = spark.sql(f"SELECT value FROM c WITH (url = '{origin.url}', stream = 'table/1')")
        assert [row["value"] for row in rows.collect()] == ["7"]
    finally:
        spark.sql("DROP TABLE c")


def test_an_ending_offset_within_a_reply(spark: SparkSession, origin: Beside) -> None:
    fill(origin, "e/1", *range(100))
    token = origin.do(lambda origin: origin.store.get("/e/1", 0.0).tail.token)
    fill(origin, "e/1", *range(100, 130))
    frame = load(spark, origin, stream="e/1", endingOffsets=json.dumps({"e/1": token}))
    assert sorted(int(row["value"]) for row in frame.collect()) == list(range(100))


def test_an_empty_stream_has_no_rows(spark: SparkSession, origin: Beside) -> None:
    fill(origin, "z/1")
    assert load(spark, origin, stream="z/1").collect() == []
    assert load(spark, origin, "a long", stream="z/1", format="typed").collect() == []


TYPES: Final = (
    "id bigint, name string, ok boolean, at timestamp, day date, price decimal(10,2), ratio double, "
    "tags array<string>, inner struct<a:int,d:date>, missing string, _stream string, _pos bigint, "
    "_corrupt_record string"
)


def test_typed_rows(spark: SparkSession, origin: Beside) -> None:
    good = {
        "id": 1, "name": 'a"b\\c', "ok": True, "at": "2026-01-02T03:04:05.5Z", "day": "2026-01-02", "price": 1.25,
        "ratio": 2, "tags": ["x", "y"], "inner": {"a": 1, "d": "2025-12-31"}, "unknown": [1],
    }  # fmt: skip
    bad = [{"id": "no number", "name": "kept"}, 5, None, [1]]
    fill(origin, "t/1", good, *bad, {**good, "id": 2})
    rows = load(spark, origin, TYPES, stream="t/1", format="typed").orderBy("_pos").collect()
    assert [row["_pos"] for row in rows] == list(range(6))
    first = rows[0].asDict(recursive=True)
    assert first["name"] == 'a"b\\c'
    assert first["day"] == date(2026, 1, 2)
    assert first["price"] == Decimal("1.25")
    assert first["tags"] == ["x", "y"]
    assert first["inner"] == {"a": 1, "d": date(2025, 12, 31)}
    assert first["missing"] is None
    assert first["_stream"] == "t/1"
    assert first["_corrupt_record"] is None
    assert [json.loads(row["_corrupt_record"]) for row in rows[1:5]] == bad
    assert [row["id"] for row in rows] == [1, None, None, None, None, 2]
    assert [row["name"] for row in rows[1:5]] == ["kept", None, None, None]

    dropped = load(spark, origin, "id bigint", stream="t/1", format="typed", mode="DROPMALFORMED")
    assert [row["id"] for row in dropped.collect()] == [1, 2]
    failing = load(spark, origin, "id bigint", stream="t/1", format="typed", mode="FAILFAST")
    with pytest.raises(PySparkException, match="stream t/1: the message at pos 1 does not fit the schema"):
        failing.collect()


def test_chunks_are_unpacked_by_spark_itself(spark: SparkSession, origin: Beside) -> None:
    fill(origin, "c/1", *[{"n": number} for number in range(300)])
    frame = load(spark, origin, stream="c/1", format="chunks", chunkBytes="500")
    assert frame.count() > 3
    rows = frame.selectExpr("explode(from_json(cast(value as string), 'array<struct<n:long>>')) row")
    assert sorted(row["row"]["n"] for row in rows.collect()) == list(range(300))


def test_a_query_goes_on_where_it_was(spark: SparkSession, origin: Beside, tmp_path: Path) -> None:
    fill(origin, "q/1", *range(100))
    fill(origin, "q/2", *range(50))
    query = run(spark, origin, tmp_path, streams="q/1,q/2", maxRowsPerTrigger="40")
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    assert sum(sizes) == 150
    assert max(sizes) <= 40
    latest = json.loads(json.dumps(query.recentProgress[-1]["sources"][0]["latestOffset"]))
    assert latest is not None
    fill(origin, "q/1", *range(100, 120))
    origin.close("q/2")
    query = run(spark, origin, tmp_path, streams="q/1,q/2", maxRowsPerTrigger="1000")
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 20
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("stream", "pos").collect()
    assert [int(row["value"]) for row in found] == [*range(120), *range(50)]


def test_a_query_ends_with_one_line_where_a_stream_was_made_anew(
    spark: SparkSession, origin: Beside, tmp_path: Path
) -> None:
    fill(origin, "n/1", *range(100))
    run(spark, origin, tmp_path, stream="n/1")
    assert origin.ask("DELETE", "n/1") == 204
    fill(origin, "n/1", *range(200)[::-1])
    with pytest.raises(StreamingQueryException, match=r"DataLost: stream n/1.*; failOnDataLoss=false continues"):
        run(spark, origin, tmp_path, stream="n/1")


def shown(error: Exception) -> list[str]:
    """The lines that Spark shows of an error, without those that follow it: an SQL state, and the query's state."""
    return [line for line in str(error).partition("=== Streaming Query ===")[0].splitlines() if "SQLSTATE" not in line]


def test_errors_are_one_line(spark: SparkSession, origin: Beside, tmp_path: Path) -> None:
    fill(origin, "b/1", {"id": 1}, {"id": "x"})
    for said, options in (
        ("option startingoffset is unknown; did you mean startingOffsets", {"startingOffset": "earliest"}),
        (r"format=typed needs your columns: give them with \.schema", {"format": "typed"}),
    ):
        with pytest.raises(PySparkException, match=rf"BadOption: {said}") as refused:
            load(spark, origin, stream="b/1", **options).collect()
        assert len(shown(refused.value)) == 1
    with pytest.raises(PySparkException, match=r"DataLost: stream b/0.*: 404 \(is http://\S+/b/0 its URL\?\)") as lost:
        load(spark, origin, stream="b/0").collect()
    assert len(shown(lost.value)) == 1
    with pytest.raises(PySparkException, match="BadReply: stream b/1: the message at pos 1 does not fit") as misfit:
        load(spark, origin, "id bigint", stream="b/1", format="typed", mode="FAILFAST").collect()
    assert len(shown(misfit.value)) == 2
    for name, said in (("startingOffset", "option startingoffset is unknown"), ("stream", r"stream b/0.*its URL")):
        with pytest.raises(StreamingQueryException, match=said) as ended:
            run(spark, origin, tmp_path / name, **{"stream": "b/0", name: "b/0"})
        assert len(shown(ended.value)) == 1
    frame = spark.createDataFrame([("x",)], "value string")
    with pytest.raises(PySparkException, match=r"BadRow: b/1: a value is not one JSON value") as bad:
        frame.write.format("durable_streams").options(url=origin.url, stream="b/1").mode("append").save()
    assert len(shown(bad.value)) == 1


def test_a_secret_is_in_no_plan(spark: SparkSession, origin: Beside, capfd: pytest.CaptureFixture[str]) -> None:
    fill(origin, "s/1", 1)
    frame = load(spark, origin, stream="s/1", **{"headers.Authorization": "Bearer s3cret"})
    frame.explain(extended=True)
    assert frame.count() == 1
    said = capfd.readouterr()
    assert "s3cret" not in said.out + said.err


@pytest.mark.parametrize("page", ["guides/spark.md", "start/spark.md"])
def test_the_programs_of_a_page_work_one_after_the_other(
    spark: SparkSession, page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    programs = [part.partition("```")[0] for part in text.split("```python\n")[1:]]
    names: dict[str, Any] = {}
    with beside() as origin:
        for number, program in enumerate(programs):
            # That of Spark Connect is for a client of a server, that of a Delta table follows a command.
            if not any(word in program for word in ("remote(", "DeltaTable(")):
                program = program.replace("http://127.0.0.1:4437", origin.url).replace("/tmp/", f"{tmp_path}/")
                exec(compile(program, f"{page}, {number}", "exec"), names)
        shown = capsys.readouterr().out
        orders = origin.messages("orders")
        for message in orders:
            assert f"|{json.dumps(message, separators=(',', ':'))}" in shown
        assert shown.count("|orders|") == len(orders) >= 2
        if page == "guides/spark.md":
            assert origin.messages("copies") == orders
            typed = [(row["id"], row["amount"], row["at"], row["_pos"]) for row in names["typed"].collect()]
            assert sorted(typed) == [(1, 9.5, None, 0), (2, 12.0, None, 1), (3, 7.25, None, 2)]
            assert names["laid_out"].columns[:4] == names["rows"].columns


def test_a_prefix_of_what_a_gateway_holds(spark: SparkSession) -> None:
    with served(forked_dev_gateway(), "gateway", "admin") as urls, beside() as hand:
        hand.url = urls["gateway"]
        for name in ("p/1", "p/2", "o/1"):
            fill(hand, name, name)
            hand.read(name)
        frame = load(spark, hand, streamsPrefix="p/", catalogue=urls["admin"])
        assert sorted(row["value"] for row in frame.collect()) == ['"p/1"', '"p/2"']
