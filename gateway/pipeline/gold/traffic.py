"""Traffic, offload and errors: sums a minute, made in one pass.

`sums` is that pass: a row for each minute, route, protocol, mode, outcome and status.  The three tables are derived
from it, so lines are read once.

A minute's `origin_requests` and `fetched_bytes` are those of the lines written in it.  The bytes of a live request are
logged with the next line of a reader, so the offload of a single minute may include parts of its neighbours.  A ratio
is negative if the origin was asked for more than was delivered (retries, a first reader that left).
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from gateway.pipeline import tables
from gateway.pipeline.gold.lines import MINUTE, count_of, is_read, ratio, shaped, total, window
from gateway.protocol.cache_status import Outcome

_BY_TAPE = (Outcome.HIT, Outcome.STALE_IF_ERROR)
_BY_COLLAPSE = (Outcome.COLLAPSED,)
_BY_FOLLOW = (Outcome.FOLLOWED,)
_BY_JOIN = (Outcome.JOINED, Outcome.REVALIDATED)
_ERRORS = (Outcome.REFUSED, Outcome.FAILED, Outcome.ABORTED)


def sums(requests: DataFrame) -> DataFrame:
    """`tables.REQUESTS` added up, as the source of the tables here."""
    return requests.groupBy("day", window(MINUTE), "route", "protocol", "mode", "outcome", "status").agg(
        count_of(f.col("is_final")).alias("requests"),
        total("sent_bytes"),
        total("saved_bytes"),
        total("fetched_bytes"),
        total("origin_requests"),
        count_of(f.col("is_final") & (f.col("origin_requests") == 0)).alias("spared_requests"),
    )


def traffic(sums: DataFrame) -> DataFrame:
    """`tables.TRAFFIC`."""
    figures = sums.groupBy(*tables.TRAFFIC.key, "day").agg(
        total("requests"),
        total("sent_bytes"),
        total("saved_bytes"),
        total("fetched_bytes"),
        total("origin_requests"),
        total("spared_requests"),
    )
    return shaped(figures, tables.TRAFFIC)


def offload(sums: DataFrame) -> DataFrame:
    """`tables.OFFLOAD`."""
    requests, read = f.col("requests"), f.col("sent_bytes") + f.col("saved_bytes")
    figures = (
        sums.where(is_read())
        .groupBy(*tables.OFFLOAD.key, "day")
        .agg(
            total("requests"),
            total("origin_requests"),
            total("sent_bytes"),
            total("saved_bytes"),
            total("fetched_bytes"),
            _requests_by("by_tape", _BY_TAPE),
            _requests_by("by_collapse", _BY_COLLAPSE),
            _requests_by("by_follow", _BY_FOLLOW),
            _requests_by("by_join", _BY_JOIN),
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
    return shaped(figures, tables.OFFLOAD)


def errors(sums: DataFrame) -> DataFrame:
    """`tables.ERRORS`."""
    is_error = (f.col("status") >= 400) | f.col("outcome").isin(*[outcome.value for outcome in _ERRORS])
    figures = sums.where(is_error & (f.col("requests") > 0)).groupBy(*tables.ERRORS.key, "day").agg(total("requests"))
    return shaped(figures, tables.ERRORS)


def _requests_by(name: str, outcomes: tuple[Outcome, ...]) -> Column:
    is_so = f.col("outcome").isin(*[outcome.value for outcome in outcomes])
    return f.coalesce(f.sum(f.when(is_so, f.col("requests"))), f.lit(0)).alias(name)
