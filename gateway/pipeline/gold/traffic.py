"""Traffic, offload and errors: sums a minute, made in one pass.

`sums` is that pass: a row for each minute, route, protocol, mode, outcome and status.  The three tables are derived
from it, so lines are read once.

A minute's `origin_requests` and `fetched_bytes` are those of the lines written in it.  The bytes of a live request are
logged with the next line of a reader, so the offload of a single minute may include parts of its neighbours.  A ratio
is negative if the origin was asked for more than was delivered (retries, a first reader that left).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import MINUTE, count_of, is_read, ratio, total, window
from gateway.pipeline.tables import ANSWERED_BY, ERRORS, OFFLOAD, TRAFFIC

SUMMED: Final = ("sent_bytes", "saved_bytes", "fetched_bytes", "origin_requests")
"""The columns of silver that are added up."""


def sums(requests: DataFrame) -> DataFrame:
    """`tables.REQUESTS` added up, as the source of the tables here."""
    is_final = f.col("is_final")
    return requests.groupBy("day", window(MINUTE), "route", "protocol", "mode", "outcome", "status").agg(
        count_of(is_final).alias("requests"),
        *map(total, SUMMED),
        count_of(is_final & (f.col("origin_requests") == 0)).alias("spared_requests"),
    )


def traffic(sums: DataFrame) -> DataFrame:
    """`tables.TRAFFIC`."""
    return sums.groupBy(*TRAFFIC.key, "day").agg(*map(total, ("requests", *SUMMED, "spared_requests")))


def offload(sums: DataFrame) -> DataFrame:
    """`tables.OFFLOAD`."""
    requests, read = f.col("requests"), f.col("sent_bytes") + f.col("saved_bytes")
    by = {
        f"by_{name}": f.sum(f.when(f.col("outcome").isin(*outcomes), requests))
        for name, outcomes in ANSWERED_BY.items()
    }
    return (
        sums.where(is_read())
        .groupBy(*OFFLOAD.key, "day")
        .agg(
            *map(total, ("requests", *SUMMED)),
            *(f.coalesce(counted, f.lit(0)).alias(name) for name, counted in by.items()),
        )
        .withColumns(
            {
                "hit_ratio": ratio(f.col("by_tape"), requests),
                "collapse_ratio": ratio(f.col("by_collapse") + f.col("by_follow"), requests),
                "joined_ratio": ratio(f.col("by_join"), requests),
                "request_offload": 1 - ratio(f.col("origin_requests"), requests),
                "byte_offload": 1 - ratio(f.col("fetched_bytes"), read),
            }
        )
    )


def errors(sums: DataFrame) -> DataFrame:
    """`tables.ERRORS`."""
    is_error = (f.col("status") >= 400) | f.col("outcome").isin(*ANSWERED_BY["unanswered"])
    return sums.where(is_error & (f.col("requests") > 0)).groupBy(*ERRORS.key, "day").agg(total("requests"))
