"""The sink in a real Spark, before a real origin."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import functions as sf

from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.layout import STREAM_TASK, by_stream
from tests.pyspark_durable_streams.beside import BOUND_S, JSON, Beside, beside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def origin() -> Iterator[Beside]:
    with beside() as running:
        yield running


def numbers(spark: SparkSession, count: int, streams: int = 5, partitions: int = 3) -> DataFrame:
    """n from 0 on, dealt out to `streams` streams."""
    split_evenly = spark.range(0, count, 1, partitions).withColumnRenamed("id", "n")
    return split_evenly.withColumn("stream", sf.concat(sf.lit("s/"), sf.col("n") % streams))


def split_evenly(count: int, stream: int, streams: int = 5) -> list[dict[str, int]]:
    return [{"n": n} for n in range(stream, count, streams)]


def save(df: DataFrame, origin: Beside, **options: str) -> None:
    df.write.format("durable_streams").mode("append").options(**{"url": origin.url, "create": JSON, **options}).save()


def run(df: DataFrame, origin: Beside, checkpoint: Path, **options: str) -> None:
    """A streaming query until it has written all there is."""
    query = (
        df.writeStream.format("durable_streams")
        .options(**{"url": origin.url, "create": JSON, **options})
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(int(BOUND_S))
    finally:
        query.stop()


def files(spark: SparkSession, folder: Path, *, batches: int, count: int) -> DataFrame:
    """A streaming frame of `count` numbers in as many batches."""
    size = count // batches
    for batch in range(batches):
        part = folder / f"{batch:03}.json"
        part.parent.mkdir(exist_ok=True)
        lines = [json.dumps({"n": n, "stream": f"s/{n % 5}"}) for n in range(batch * size, (batch + 1) * size)]
        part.write_text("\n".join(lines))
        os.utime(part, (batch, batch))  # Spark takes the oldest first
    return spark.readStream.schema("n long, stream string").option("maxFilesPerTrigger", "1").json(str(folder))


@pytest.mark.parametrize("is_laid_out", [False, True])
def test_a_frame_goes_out_to_its_streams_in_order(spark: SparkSession, origin: Beside, is_laid_out: bool) -> None:
    df = numbers(spark, 1000).orderBy(sf.rand(7))

    save(by_stream(df, partitions=3) if is_laid_out else df, origin, orderBy="n", maxBatchBytes="300")

    for stream in range(5):
        assert origin.messages(f"s/{stream}") == split_evenly(1000, stream)


def test_without_an_order_rows_go_out_in_the_order_of_collect(spark: SparkSession, origin: Beside) -> None:
    df = spark.range(0, 500, 1, 4).select((499 - sf.col("id")).cast("string").alias("value"))

    save(df, origin, stream="one", maxBatchBytes="100")

    assert origin.messages("one") == list(range(499, -1, -1))


def test_one_stream_by_one_task(spark: SparkSession, origin: Beside) -> None:
    df = spark.range(0, 500, 1, 4).select("id", sf.col("id").cast("string").alias("value"))

    save(by_stream(df, None), origin, stream="one", orderBy="id", maxBatchBytes="100")

    assert origin.messages("one") == list(range(500))


def test_bytes_and_text_go_out_as_they_are(spark: SparkSession, origin: Beside) -> None:
    df = spark.createDataFrame(
        [("a", bytearray(b"\x00\xff")), ("a", bytearray(b"\x01"))], "stream string, value binary"
    )

    save(df.coalesce(1), origin, create="application/octet-stream")

    assert origin.read("a") == b"\x00\xff\x01"


def test_the_time_zone_of_the_session_does_not_change_a_byte(spark: SparkSession, origin: Beside) -> None:
    zone = "spark.sql.session.timeZone"
    at = "timestamp_seconds(1732000000 + id)"
    df = spark.range(0, 20, 1, 2).selectExpr(
        "id", f"named_struct('at', {at}) as s", f"array({at}) as a", f"map({at}, {at}) as m"
    )
    sent = {}
    kept = spark.conf.get(zone, "UTC")
    assert kept is not None
    try:
        for name in ("America/Los_Angeles", "UTC"):
            spark.conf.set(zone, name)
            save(df, origin, stream=name, orderBy="id", maxBatchBytes="500")
            sent[name] = origin.read(name)
    finally:
        spark.conf.set(zone, kept)

    assert b'"m":{"2024-11-19T07:06:40Z":"2024-11-19T07:06:40Z"}' in sent["UTC"]
    assert sent["America/Los_Angeles"] == sent["UTC"]


def test_a_save_with_an_id_is_written_once_however_often_it_is_run(spark: SparkSession, origin: Beside) -> None:
    for partitions in (3, 5, 2):
        df = numbers(spark, 100, partitions=partitions)
        save(df, origin, orderBy="n", writeId="load of 21 November", maxBatchBytes="100")
        save(
            by_stream(df, partitions=partitions),
            origin,
            orderBy="n",
            writeId="load of 21 November",
            maxBatchBytes="100",
        )

    assert origin.messages("s/1") == split_evenly(100, 1)


def test_a_save_without_one_is_written_each_time(spark: SparkSession, origin: Beside) -> None:
    save(numbers(spark, 10), origin)
    save(numbers(spark, 10), origin)

    assert origin.messages("s/1") == [*split_evenly(10, 1), *split_evenly(10, 1)]


def test_streams_are_closed_behind_the_last_row_and_a_rerun_knows_its_own_end(
    spark: SparkSession, origin: Beside
) -> None:
    for _ in range(2):
        save(by_stream(numbers(spark, 100)), origin, orderBy="n", close="true", writeId="once", maxBatchBytes="100")

    assert [origin.is_closed(f"s/{stream}") for stream in range(5)] == [True] * 5
    assert origin.messages("s/4") == split_evenly(100, 4)
    with pytest.raises(PySparkException, match="s/0: the stream is closed, and not by this write"):
        save(numbers(spark, 1), origin, close="true", writeId="another")


def test_a_stream_of_nothing_can_be_made_and_closed(spark: SparkSession, origin: Beside) -> None:
    save(spark.range(0).selectExpr("'' as value"), origin, stream="empty", close="true")

    assert origin.is_closed("empty")
    assert origin.messages("empty") == []


def test_an_empty_frame_writes_nothing(spark: SparkSession, origin: Beside) -> None:
    save(numbers(spark, 0), origin)
    save(by_stream(numbers(spark, 0)), origin, orderBy="n")

    assert origin.appends() == 0


def test_rows_moved_behind_by_stream_are_not_written(spark: SparkSession, origin: Beside) -> None:
    with pytest.raises(PySparkException, match="rows have moved since by_stream"):
        save(by_stream(numbers(spark, 100), partitions=4).coalesce(1), origin, orderBy="n")

    assert origin.appends() == 0


def test_streams_renamed_behind_by_stream_are_not_written(spark: SparkSession, origin: Beside) -> None:
    # Rows of one stream would be in several tasks, which would take the same numbers for different rows.
    renamed = by_stream(numbers(spark, 100), partitions=4).withColumn("stream", sf.lit("one"))
    with pytest.raises(PySparkException, match="rows have moved since by_stream"):
        save(renamed, origin, orderBy="n")
    with pytest.raises(PySparkException, match="rows have moved since by_stream"):
        save(by_stream(renamed.withColumn("other", sf.col("n").cast("string")), "other"), origin, orderBy="n")

    assert origin.appends() == 0


def test_the_mark_of_by_stream_is_the_task_spark_brings_the_row_to(spark: SparkSession) -> None:
    df = by_stream(numbers(spark, 200, streams=50), partitions=7)

    said = sf.split_part(sf.col(STREAM_TASK), sf.lit("/"), sf.lit(1))
    assert df.where(sf.spark_partition_id().cast("string") != said).count() == 0


def test_more_than_the_driver_takes_on_is_not_written_at_all(spark: SparkSession, origin: Beside) -> None:
    with pytest.raises(PySparkException, match=r"maxDriverBytes: .*by_stream"):
        save(numbers(spark, 1000), origin, maxDriverBytes="1000")

    assert origin.appends() == 0


def test_a_task_gathers_no_more_than_the_driver_takes_on(spark: SparkSession, origin: Beside, tmp_path: Path) -> None:
    made = tmp_path / "made"

    def endless(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _number in range(1_000):
            with made.open("ab") as file:
                file.write(b".")
            yield pa.RecordBatch.from_pydict({"value": ['"' + "x" * 1_000 + '"'] * 200})

    rows = spark.range(0, 1, 1, 1).mapInArrow(endless, "value string")
    with pytest.raises(PySparkException, match="maxDriverBytes"):
        save(rows, origin, stream="one", maxDriverBytes="100k")

    assert made.stat().st_size < 1_000


def test_a_number_of_tasks_below_one_is_none(spark: SparkSession) -> None:
    with pytest.raises(BadOption, match="partitions"):
        by_stream(numbers(spark, 1), partitions=0)


@pytest.mark.parametrize(
    ("mode", "options", "text"),
    [
        ("append", {"maxBatchByte": "7"}, "option maxbatchbyte is unknown"),
        ("overwrite", {}, "a stream only grows"),
        ("append", {"orderBy": "pos"}, "orderBy: there is no column pos"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_written(
    spark: SparkSession, origin: Beside, mode: str, options: dict[str, str], text: str
) -> None:
    with pytest.raises(PySparkException, match=text):
        numbers(spark, 10).write.format("durable_streams").mode(mode).options(url=origin.url, **options).save()

    assert origin.appends() == 0


@pytest.mark.parametrize("is_laid_out", [False, True])
def test_a_query_writes_each_batch_once_and_in_order(
    spark: SparkSession, origin: Beside, tmp_path: Path, is_laid_out: bool
) -> None:
    df = files(spark, tmp_path / "in", batches=3, count=300)

    run(by_stream(df, partitions=3) if is_laid_out else df, origin, tmp_path / "ck", orderBy="n", maxBatchBytes="200")

    for stream in range(5):
        assert origin.messages(f"s/{stream}") == split_evenly(300, stream)


def test_a_query_that_failed_goes_on_where_it_stopped_in_the_other_way_and_with_other_tasks(
    spark: SparkSession, origin: Beside, tmp_path: Path
) -> None:
    df = files(spark, tmp_path / "in", batches=3, count=600)
    options = {"orderBy": "n", "maxBatchBytes": "200"}
    for path in ("s/0", "s/1", "s/2", "s/3", "s/4"):
        origin.create(path)
    # The origin takes what is for some streams and not what is for one.
    origin.do(lambda found: found.faults.status(400, path="/s/3", times=1, kind="append"))

    with pytest.raises(StreamingQueryException, match="s/3: 400"):
        run(by_stream(df, partitions=3), origin, tmp_path / "ck", **options)
    origin.do(lambda found: found.faults.status(400, path="/s/2", times=1, kind="append"))
    with pytest.raises(StreamingQueryException, match="s/2: 400"):
        run(df, origin, tmp_path / "ck", **options)
    run(by_stream(df, partitions=5), origin, tmp_path / "ck", **options)

    for stream in range(5):
        assert origin.messages(f"s/{stream}") == split_evenly(600, stream)


def test_streams_are_copied_from_one_place_to_another(spark: SparkSession, origin: Beside, tmp_path: Path) -> None:
    save(numbers(spark, 300), origin, orderBy="n")
    names = ",".join(f"s/{stream}" for stream in range(5))
    source = spark.readStream.format("durable_streams").options(
        url=origin.url, streams=names, startingOffsets="earliest", maxRowsPerTrigger="100"
    )
    df = source.load().withColumn("stream", sf.concat(sf.lit("copy/"), "stream"))

    run(by_stream(df), origin, tmp_path / "ck", orderBy="pos", maxBatchBytes="150")

    for stream in range(5):
        assert origin.messages(f"copy/s/{stream}") == split_evenly(300, stream)


def test_a_query_goes_on_from_an_old_checkpoint_only_to_be_told(
    spark: SparkSession, origin: Beside, tmp_path: Path
) -> None:
    df = files(spark, tmp_path / "in", batches=2, count=20)
    run(df, origin, tmp_path / "ck", orderBy="n")
    for log in ("offsets", "commits"):
        for name in ("1", ".1.crc"):
            (tmp_path / "ck" / log / name).unlink()
    (tmp_path / "ck" / "commits" / "0").unlink()
    (tmp_path / "ck" / "commits" / ".0.crc").unlink()

    with pytest.raises(StreamingQueryException, match="already has batch 1 of this query, and this is batch 0"):
        run(df, origin, tmp_path / "ck", orderBy="n")

    assert origin.messages("s/0") == split_evenly(20, 0)


def test_a_query_cannot_write_what_it_writes_anew_each_time(
    spark: SparkSession, origin: Beside, tmp_path: Path
) -> None:
    counts = files(spark, tmp_path / "in", batches=1, count=10).groupBy("stream").count()
    query = counts.writeStream.format("durable_streams").options(url=origin.url).outputMode("complete")

    with pytest.raises(StreamingQueryException, match="a stream only grows"):
        query.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start().awaitTermination()
