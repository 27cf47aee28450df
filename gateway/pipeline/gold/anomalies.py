"""Hours far from the same hour of the days before.

For each route and measure, an hour is compared with the median of the same hour of the day on up to `DAYS` days before,
on which the route had at least one line.  An hour without lines counts 0, so silence is found too; a ratio without a
denominator is not compared.  Only hours that are over are considered: those before the hour of the newest line.

The score is the distance in robust standard deviations (1.4826 times the median absolute deviation).  A deviation is
taken as at least a tenth of the median, and at least the measure's grain: after a week of exactly constant load, one
more request is not an anomaly.  Listed are hours that are `FAR` from the median of at least `LEAST_DAYS` days; a
negative score is less than usual.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import HOUR, deviation, median, total, window

DAYS: Final = 7
LEAST_DAYS: Final = 3
FAR: Final = 5.0

_GRAINS: Final = {
    "requests": 10.0,
    "sent_bytes": 1_000_000.0,
    "fetched_bytes": 1_000_000.0,
    "origin_requests": 10.0,
    "errors": 10.0,
    "hit_ratio": 0.05,
}
"""Measures, and the least standard deviation assumed for each."""
_SLOT: Final = ("day", "hour", "route")


def anomalies(
    traffic: DataFrame, offload: DataFrame, errors: DataFrame, days: Collection[date], until: datetime
) -> DataFrame:
    """`tables.ANOMALIES` of these days, from the tables of these days and the `DAYS` before; hours from `until` (with a
    zone) on are not over."""
    values = measures(traffic, offload, errors)
    value = f.col("value")
    targets = f.transform(f.sequence(f.lit(1), f.lit(DAYS)), lambda step: f.date_add("day", step))
    usual = (
        values.select(f.explode(targets).alias("day"), "of_day", "route", "measure", "value")
        .where(f.col("day").isin([f.lit(day) for day in days]))
        .groupBy("day", "of_day", "route", "measure")
        .agg(f.collect_list(value).alias("values"))
        .withColumn("days", f.size("values"))
        .where(f.col("days") >= LEAST_DAYS)
        .withColumn("before", median(f.col("values")))
    )
    # A route has no values on a day without lines: its counts are 0, its ratios are missing.
    nothing = f.when(f.col("measure") != "hit_ratio", f.lit(0.0))
    grain = f.create_map(*[f.lit(part) for pair in _GRAINS.items() for part in pair])[f.col("measure")]
    spread = f.greatest(deviation(f.col("values"), f.col("before")), f.abs("before") / 10, grain)
    hour = f.timestamp_add("HOUR", f.col("of_day"), f.col("day").cast("timestamp"))
    return (
        usual.join(values.withColumn("is_there", f.lit(True)), ["day", "of_day", "route", "measure"], "left")
        .withColumn("value", f.when(f.col("is_there"), value).otherwise(nothing))
        .withColumn("hour", hour)
        .where(value.isNotNull() & (f.col("hour") < f.lit(until)))
        .withColumn("score", (value - f.col("before")) / spread)
        .where(f.abs("score") >= FAR)
    )


def measures(traffic: DataFrame, offload: DataFrame, errors: DataFrame) -> DataFrame:
    """The compared values: `value` by `day`, `of_day` (hours since its beginning), `route` and `measure`; it is 0 in
    hours of a route's day without lines."""
    hour = window(HOUR, f.col("minute"))
    summed = ("requests", "sent_bytes", "fetched_bytes", "origin_requests")
    lines = traffic.groupBy("day", hour, "route").agg(*map(total, summed))
    failed = errors.groupBy("day", hour, "route").agg(f.sum("requests").alias("errors"))
    hits = offload.groupBy("day", hour, "route").agg(
        f.try_divide(f.sum("by_tape"), f.sum("requests")).alias("hit_ratio")
    )
    every_hour = f.explode(f.sequence(f.lit(0), f.lit(23))).alias("of_day")
    counts = [name for name in _GRAINS if name != "hit_ratio"]
    joined = lines.join(failed, list(_SLOT), "left").join(hits, list(_SLOT), "left")
    wide = (
        lines.select("day", "route")
        .distinct()
        .select("day", "route", every_hour)
        .join(joined.withColumn("of_day", f.hour("hour")), ["day", "of_day", "route"], "left")
        .fillna(0, counts)
        .select("day", "of_day", "route", *[f.col(name).cast("double").alias(name) for name in _GRAINS])
    )
    return wide.unpivot(["day", "of_day", "route"], list(_GRAINS), "measure", "value")
