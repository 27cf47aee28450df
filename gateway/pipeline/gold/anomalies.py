"""Find hours that differ greatly from the same hour of the days before.

For each route and measure, an hour is compared with the median of the same hour on the `DAYS` days before.  Days on
which the route had no line at all are left out.  An hour without lines counts as 0, so missing traffic is found too.  A
ratio without a denominator is not compared.  The hour of the newest line, which is not complete, is left out.

The score is the difference from the median in robust standard deviations (1.4826 times the median absolute deviation).
A negative score means less than usual.  The deviation is taken as at least a tenth of the median, and at least a fixed
minimum for each measure.  Otherwise one more request would be an anomaly after a week of constant load.

The table has the hours with a score of at least `FAR`, in either direction, and at least `LEAST_DAYS` days to compare
with.
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
"""The measures, and the smallest standard deviation that is assumed for each."""
_SLOT: Final = ("day", "hour", "route")


def anomalies(
    traffic: DataFrame, offload: DataFrame, errors: DataFrame, days: Collection[date], until: datetime
) -> DataFrame:
    """Compute `tables.ANOMALIES` of these days.

    The three tables must have these days and the `DAYS` days before each.  Hours from `until` on (a time with a zone)
    are not complete and are left out.
    """
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
    # On a day without lines, a route's counts are 0 and its ratios are missing.
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
    """Return the values to compare: `value` by `day`, `of_day` (the hour of the day), `route` and `measure`.

    On a day with lines of a route, the route's counts are 0 in the hours without lines.
    """
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
