"""The Spark that jobs get."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.session import fit, open_session
from tests.spark import MASTER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_no_setting_moves_the_days_of_a_lake(spark: SparkSession) -> None:
    try:
        open_session(MASTER, {"spark.sql.session.timeZone": "Asia/Tokyo"})
        assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_times_are_utc_and_workers_run_the_drivers_python(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    rows = spark.sql("select date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm') as t").collect()
    assert rows[0].t == "1970-01-01 00:00"

    def pythons(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"python": [sys.executable]})

    found = spark.range(2).mapInArrow(pythons, "python string").distinct().collect()
    assert [row.python for row in found] == [sys.executable]


def test_an_error_of_spark_is_raised_and_not_logged(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    frame = spark.range(1)
    with pytest.raises(AnalysisException):
        frame.select(f.col("nothing"))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("master", "remote"), [("sc://127.0.0.1:15002", None), (MASTER, "sc://127.0.0.1:15002")])
def test_spark_connect_is_refused_before_anything_starts(
    master: str, remote: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if remote is not None:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    with pytest.raises(PipelineFailed, match="the pipeline does not run over Spark Connect: choose"):
        open_session(master)


def test_queries_over_few_rows_run_without_generated_code_where_the_settings_leave_that_open(
    spark: SparkSession,
) -> None:
    session = spark.newSession()
    code, parts = "spark.sql.codegen.wholeStage", session.conf.get("spark.sql.shuffle.partitions")
    session.conf.set("spark.durableGateway.fitted", code)
    fit(session, 1_000)
    assert session.conf.get(code) == "false"
    fit(session, 1_000_000)
    assert session.conf.get(code) == "true"
    assert session.conf.get("spark.sql.shuffle.partitions") == parts
