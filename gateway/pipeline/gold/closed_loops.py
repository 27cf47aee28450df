"""Find readers that keep requesting the end of a closed stream, although they have read all of it.

A closed stream never grows, so one answer is enough.  Three kinds of requests in the log count:

- A live read that ends with the reason `closed`.
- A long-poll that the tape answered with 204 at once.  It has no close reason, because it never waited.  This happens
  only at the end of a closed stream.
- A catch-up read that the tape answered without new bytes.  This alone does not show that the stream is closed.  The
  read counts if a request of the other two kinds was answered at the same offset in the hour before.

A reader with at least `LEAST` such requests in a minute is listed.  Fewer are normal: many clients request the end
twice, and several readers behind one address look like one.  So do readers of one network if `log.client_address` masks
addresses.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from gateway.pipeline import tables
from gateway.pipeline.gold.lines import MINUTE, is_live, known, latest, of_its_day, window, with_the_hour_before
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import CloseReason

LEAST: Final = 10
"""Least requests a minute of a listed reader."""
_END: Final = ("route", "stream", "next_offset")


def closed_loops(requests: DataFrame) -> DataFrame:
    """Compute `tables.CLOSED_LOOPS` from `tables.REQUESTS`, which must include the last hour of the day before."""
    # S2 streams are never closed.  Their live reads end with the reason `closed` at their limits.
    of_streams = requests.where(f.col("is_final") & (f.col("protocol") == tables.DURABLE_STREAMS))
    looked_at = with_the_hour_before(of_streams).select(
        "of", "day", "time", *_END, "client", "user_agent", "start", "mode", "status", "outcome", "close_reason"
    )
    is_answered_at_once = (
        (f.col("mode") == Mode.LONGPOLL.value)
        & (f.col("status") == 204)
        & (f.col("outcome") == Outcome.HIT.value)
        & f.col("close_reason").isNull()
    )
    closed = looked_at.where(is_live() & ((f.col("close_reason") == CloseReason.CLOSED.value) | is_answered_at_once))
    ends = closed.where(f.col("next_offset").isNotNull()).select("of", *_END).distinct()
    again = looked_at.where(
        (f.col("mode") == Mode.CATCHUP.value)
        & (f.col("outcome") == Outcome.HIT.value)
        & f.col("status").isin(200, 304)
        & (f.col("start") == f.col("next_offset"))
    ).join(ends, ["of", *_END], "left_semi")
    onward = Window.partitionBy("of", *_END).orderBy("time", f.desc("is_told"))
    found = (
        closed.withColumn("is_told", f.lit(True))
        .unionByName(again.withColumn("is_told", f.lit(False)))
        .withColumn("told_at", latest(f.when(f.col("is_told"), f.col("time")), onward))
        .where(f.col("is_told") | (f.col("time") <= f.expr("told_at + INTERVAL 1 HOUR")))
    )
    return (
        found.where(of_its_day())
        .groupBy("day", window(MINUTE), "route", "stream", known("client"), known("user_agent"))
        .agg(f.count("*").alias("requests"))
        .where(f.col("requests") >= LEAST)
    )
