"""Compute the tables that add up the lines of a minute or an hour and need no earlier lines.

Traffic, offload and errors are derived from `sums`, a single pass over the lines.  It has a row for each minute, route,
protocol, mode, outcome and status.  A minute's `origin_requests` and `fetched_bytes` are the sums over the lines that
were written in this minute.  The bytes of a live request are logged with the next line of any of its readers.  The
offload of a single minute may therefore include bytes of its neighbours.  An offload is negative if the origin sent
more than readers got, for instance after retries, or if the first reader disconnected.

Latency leaves out long-polls and SSE connections, whose duration is mostly waiting; `delivery` covers long-polls.
Remembered answers are included, with the microseconds that they took.

Fan-out is the number of readers that one reply of the origin served, as a distribution by powers of two.  A live read
shares the stream's one live request with its `subscribers`.  A catch-up read shares its fetch with the reads that it
was `collapsed` with.  Catch-up reads without a fetch (hits) are left out.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import HOUR, MINUTE, is_live, is_read, known, total, window
from gateway.pipeline.gold.sketches import filled, quantiles, sketch_of
from gateway.pipeline.tables import ANSWERED_BY, ERRORS, OFFLOAD, TRAFFIC
from gateway.protocol.cache_status import Outcome
from gateway.telemetry.access_record import CloseReason

SUMMED: Final = ("sent_bytes", "saved_bytes", "fetched_bytes", "origin_requests")
"""The columns of silver that `sums` adds up."""


def sums(requests: DataFrame) -> DataFrame:
    """Add up `tables.REQUESTS`, as the input of `traffic`, `offload` and `errors`."""
    is_final = f.col("is_final")
    return requests.groupBy("day", window(MINUTE), "route", "protocol", "mode", "outcome", "status").agg(
        f.count_if(is_final).alias("requests"),
        *map(total, SUMMED),
        f.count_if(is_final & (f.col("origin_requests") == 0)).alias("spared_requests"),
        f.count_if(is_final & f.col("close_reason").eqNullSafe(CloseReason.LEFT.value)).alias("left_requests"),
    )


def traffic(sums: DataFrame) -> DataFrame:
    """Compute `tables.TRAFFIC`."""
    return sums.groupBy(*TRAFFIC.key, "day").agg(*map(total, ("requests", *SUMMED, "spared_requests")))


def offload(sums: DataFrame) -> DataFrame:
    """Compute `tables.OFFLOAD`."""
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
                "hit_ratio": f.try_divide(f.col("by_tape"), requests),
                "collapse_ratio": f.try_divide(f.col("by_collapse") + f.col("by_follow"), requests),
                "joined_ratio": f.try_divide(f.col("by_join"), requests),
                "request_offload": 1 - f.try_divide(f.col("origin_requests"), requests),
                "byte_offload": 1 - f.try_divide(f.col("fetched_bytes"), read),
            }
        )
    )


def errors(sums: DataFrame) -> DataFrame:
    """Compute `tables.ERRORS`.

    Live reads whose reader disconnected are left out, although their outcome is `aborted`.
    """
    is_error = (f.col("status") >= 400) | f.col("outcome").isin(*ANSWERED_BY["unanswered"])
    is_aborted = f.col("outcome") == Outcome.ABORTED.value
    ended_so = f.when(is_aborted, f.col("requests") - f.col("left_requests")).otherwise(f.col("requests"))
    failed = sums.withColumn("requests", ended_so).where(is_error & (f.col("requests") > 0))
    return failed.groupBy(*ERRORS.key, "day").agg(total("requests"))


def latency(requests: DataFrame) -> DataFrame:
    """Compute `tables.LATENCY` from `tables.REQUESTS`."""
    figures = (
        requests.where(f.col("is_final") & ~is_live())
        .groupBy("day", window(MINUTE), "route", "mode")
        .agg(
            f.count("*").alias("requests"),
            filled(sketch_of(f.col("duration_s"))).alias("duration_sketch"),
            filled(sketch_of(f.col("first_byte_s"))).alias("first_byte_sketch"),
        )
    )
    return quantiles(quantiles(figures, "duration_sketch", "duration"), "first_byte_sketch", "first_byte")


def fan_out(requests: DataFrame) -> DataFrame:
    """Compute `tables.FAN_OUT` from `tables.REQUESTS`."""
    sharers = f.when(is_live(), f.col("subscribers")).otherwise(f.col("collapsed"))
    # Count binary digits, because a logarithm is not exact.
    bucket = f.expr("shiftleft(bigint(1), length(bin(sharers)) - 1)")
    return (
        requests.where(f.col("is_final") & is_read())
        .select("day", window(HOUR), "route", "mode", sharers.alias("sharers"))
        .where(f.col("sharers") >= 1)
        .groupBy("day", "hour", "route", "mode", bucket.alias("at_least"))
        .agg(f.count("*").alias("requests"), f.max("sharers").alias("most"))
    )


def usage(requests: DataFrame) -> DataFrame:
    """Compute `tables.USAGE` from `tables.REQUESTS`: the allowed requests of each principal and tenant."""
    is_final, outcome = f.col("is_final"), f.col("outcome")
    is_named = f.col("principal").isNotNull() | f.col("tenant").isNotNull()
    lasted = f.sum(f.when(is_final & is_live(), f.col("duration_s")))
    return (
        requests.where(is_named & (outcome != Outcome.REFUSED.value))
        .groupBy("day", window(HOUR), *map(known, ("issuer", "tenant", "principal")))
        .agg(
            f.count_if(is_final & (outcome != Outcome.FAILED.value)).alias("requests"),
            *map(total, ("sent_bytes", "fetched_bytes")),
            f.coalesce(lasted, f.lit(0.0)).alias("live_s"),
        )
    )


def slow_consumers(requests: DataFrame) -> DataFrame:
    """Compute `tables.SLOW_CONSUMERS`: readers that were disconnected because they did not keep up."""
    return (
        requests.where(f.col("is_final") & (f.col("close_reason") == CloseReason.SLOW.value))
        .groupBy("day", window(HOUR), "route", "stream", known("client"), known("user_agent"))
        .agg(f.count("*").alias("cut_off"), total("sent_bytes"))
    )
