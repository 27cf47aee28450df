"""Latency of answers, by minute, route and mode.

Long-polls and SSE connections are left out, because their duration is the time they waited; `delivery` covers them.  A
remembered answer takes 0 s in the log, which rounds down to microseconds.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import MINUTE, is_live, window
from gateway.pipeline.gold.sketches import filled, quantiles, sketch_of


def latency(requests: DataFrame) -> DataFrame:
    """`tables.LATENCY`, from `tables.REQUESTS`."""
    figures = (
        requests.where(f.col("is_final") & ~is_live())
        .groupBy("day", window(MINUTE), "route", "mode")
        .agg(
            f.count("*").alias("requests"),
            filled(sketch_of(f.col("duration_s"))).alias("duration_sketch"),
            filled(sketch_of(f.col("first_byte_s"))).alias("first_byte_sketch"),
        )
    )
    figures = quantiles(figures, "duration_sketch", "duration")
    return quantiles(figures, "first_byte_sketch", "first_byte")
