"""Fan-out: how many readers one answer of the origin served, as a distribution by powers of two.

A live read shares the stream's one live request with its `subscribers`; a catch-up read shares its fetch with those it
was `collapsed` with.  Catch-up reads without a fetch (hits) shared nothing and are not among these.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import HOUR, is_live, is_read, window


def fan_out(requests: DataFrame) -> DataFrame:
    """`tables.FAN_OUT`, from `tables.REQUESTS`."""
    sharers = f.when(is_live(), f.col("subscribers")).otherwise(f.col("collapsed"))
    # By binary digits, because a logarithm is not exact.
    bucket = f.expr("shiftleft(bigint(1), length(bin(sharers)) - 1)")
    return (
        requests.where(f.col("is_final") & is_read())
        .select("day", window(HOUR), "route", "mode", sharers.alias("sharers"))
        .where(f.col("sharers") >= 1)
        .groupBy("day", "hour", "route", "mode", bucket.alias("at_least"))
        .agg(f.count("*").alias("requests"), f.max("sharers").alias("most"))
    )
