"""Slow consumers: readers that were disconnected because they did not keep up."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import HOUR, known, total, window
from gateway.telemetry.access_record import CloseReason


def slow_consumers(requests: DataFrame) -> DataFrame:
    """`tables.SLOW_CONSUMERS`, from `tables.REQUESTS`."""
    return (
        requests.where(f.col("is_final") & (f.col("close_reason") == CloseReason.SLOW.value))
        .groupBy("day", window(HOUR), "route", "stream", known("client"), known("user_agent"))
        .agg(f.count("*").alias("cut_off"), total("sent_bytes"))
    )
