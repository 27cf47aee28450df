"""Sketches: as exact as documented, merged or not, and NULL without values."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from random import Random
from typing import TYPE_CHECKING, Any

from gateway.pipeline.gold.sketches import (
    PERCENTILES,
    RANK_ERROR,
    READERS_ERROR,
    K,
    filled,
    quantile,
    readers_in,
    readers_of,
    sketch_of,
    values_in,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession


def sketched(spark: SparkSession, rows: list[tuple[str, int, float | None]]) -> DataFrame:
    """A sketch for each route and minute."""
    from pyspark.sql import functions as f

    frame = spark.createDataFrame(rows, "route string, minute int, seconds double")
    return frame.groupBy("route", "minute").agg(filled(sketch_of(f.col("seconds"))).alias("sketch"))


def merged_quantiles(
    frame: DataFrame, by: list[str], sketch: str, probabilities: Mapping[str, float] = PERCENTILES
) -> DataFrame:
    """Percentiles of wider windows than the table's: a row for each group of `by`."""
    from pyspark.sql import functions as f

    whole = frame.groupBy(*by).agg(f.kll_merge_agg_double(sketch, K).alias("merged"))
    found = [quantile(f.col("merged"), probability).alias(name) for name, probability in probabilities.items()]
    return whole.select(*by, values_in(f.col("merged")).alias("count"), *found)


def assert_near(values: list[float], found: dict[str, Any]) -> None:
    """Each percentile has about its rank."""
    values.sort()
    for name, probability in PERCENTILES.items():
        low, high = (bisect(values, found[name]) / len(values) for bisect in (bisect_left, bisect_right))
        # Six percentiles are looked at; each is within its error in 99 of 100 runs.
        assert low - 3 * RANK_ERROR <= probability <= high + 3 * RANK_ERROR, name


def test_percentiles_of_an_hour_are_those_of_its_lines_within_the_error(spark: SparkSession) -> None:
    random = Random(7)
    rows = [("a", number % 60, random.lognormvariate(-4, 2)) for number in range(60_000)]
    (row,) = merged_quantiles(sketched(spark, [*rows]), ["route"], "sketch").collect()
    found = row.asDict()
    assert (found["route"], found["count"]) == ("a", 60_000)
    assert_near([seconds for _, _, seconds in rows], found)
    whole = [(route, 0, seconds) for route, _, seconds in rows]
    (row,) = merged_quantiles(sketched(spark, [*whole]), ["minute"], "sketch").collect()
    assert_near([seconds for _, _, seconds in rows], row.asDict())


def test_few_values_stay_exact_however_they_are_merged(spark: SparkSession) -> None:
    values = [number / 7 for number in range(1, K + 1)]
    frame = sketched(spark, [("a", number % 9, value) for number, value in enumerate(values)])
    half = {"half": 0.5, "all": 1.0}
    (row,) = merged_quantiles(frame, ["route"], "sketch", half).collect()
    assert (row["count"], row["half"], row["all"]) == (K, values[K // 2 - 1], values[-1])


def test_a_sketch_without_values_is_null(spark: SparkSession) -> None:
    frame = sketched(spark, [("a", 0, None), ("b", 0, None), ("b", 1, 0.5)])
    assert [row["sketch"] is None for row in frame.orderBy("route", "minute").collect()] == [True, True, False]
    found = merged_quantiles(frame, ["route"], "sketch").orderBy("route").collect()
    assert [tuple(row) for row in found] == [("a", 0, None, None, None), ("b", 1, 0.5, 0.5, 0.5)]


def test_readers_of_two_hours_are_counted_once(spark: SparkSession) -> None:
    from pyspark.sql import functions as f

    frame = spark.range(12_000).select(
        (f.col("id") % 2).alias("hour"), f.concat(f.lit("10."), f.col("id") % 3_000).alias("client")
    )
    hours = frame.groupBy("hour").agg(readers_of(f.col("client"), f.lit("-")).alias("sketch"))
    (row,) = hours.agg(f.hll_union_agg("sketch").alias("sketch")).select(readers_in(f.col("sketch"))).collect()
    assert abs(row[0] - 3_000) <= 3_000 * 4 * READERS_ERROR
