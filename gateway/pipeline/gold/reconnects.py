"""Reconnects of live readers, and storms: minutes with far more reconnects than usual.

A live read is a reconnect if another read of the same reader (route, stream, partition, client, user agent) ended at
most `RETURN_S` before it began, for a reason other than the usual end of a long-poll (`answered`, `timed_out`) or the
end of a closed stream (`closed_loops` lists readers that return to one).  An SSE connection that is opened again after
its planned age counts, and is part of the usual number.

A read counts in the minute in which it ended.  There is a row for each minute in which live reads of a route ended, so
`reconnects` may be 0.  A minute is a storm if its reconnects

- are at least `LEAST`: three readers that return are not a storm, even after a quiet hour;
- are at least twice the usual number: the median of the hour before, which has at least `MINUTES` rows;
- and lie `FAR` robust standard deviations above it, where one is at least the square root of the usual number, the
  spread of independent arrivals.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import (
    MINUTE,
    began_us,
    deviation,
    ended_us,
    is_live,
    known,
    latest,
    median,
    of_its_day,
    window,
    with_the_hour_before,
)
from gateway.telemetry.access_record import CloseReason

RETURN_S: Final = 300
LEAST: Final = 20
MINUTES: Final = 5
FAR: Final = 5.0

_IN_ORDER: Final = (CloseReason.ANSWERED.value, CloseReason.TIMED_OUT.value, CloseReason.CLOSED.value)


def reconnects(requests: DataFrame, before: DataFrame) -> DataFrame:
    """`tables.RECONNECTS`, from `tables.REQUESTS` with the hour before, and this table's own rows `before` them."""
    rows = returns(requests)
    known_rows = before.select("day", "minute", "route", "reconnects", "readers", f.lit(False).alias("is_new"))
    seconds = f.unix_seconds("minute")
    hour = Window.partitionBy("route").orderBy(seconds).rangeBetween(-3_600, -60)
    figures = (
        rows.withColumn("is_new", f.lit(True))
        .unionByName(known_rows)
        .withColumn("hour", f.collect_list(f.col("reconnects").cast("double")).over(hour))
        .where(f.col("is_new"))
        .withColumn("usual", f.when(f.size("hour") >= MINUTES, median(f.col("hour"))))
    )
    usual, now = f.col("usual"), f.col("reconnects")
    spread = f.greatest(deviation(f.col("hour"), usual), f.sqrt(usual), f.lit(1.0))
    is_storm = (now >= LEAST) & (now >= 2 * usual) & (now - usual >= FAR * spread)
    return figures.withColumn("is_storm", f.coalesce(is_storm, f.lit(False)))


def returns(requests: DataFrame) -> DataFrame:
    """The table without `usual` and `is_storm`: `day`, `minute`, `route`, `reconnects` and `readers`."""
    # The reader as a hash: lines are sorted by it, which is faster than by five texts.
    person = known("client"), known("user_agent")
    reads = with_the_hour_before(requests.where(f.col("is_final") & is_live())).select(
        *("of", "day", "time", "route"),
        f.xxhash64("route", "stream", "partition", *person).alias("reader"),
        f.xxhash64(*person).alias("person"),
        began_us().alias("began"),
        ended_us().alias("ended"),
        (f.col("close_reason").isNotNull() & ~f.col("close_reason").isin(*_IN_ORDER)).alias("is_broken"),
    )
    # Each read gives a row for its beginning, and one for its end unless that was an ordinary one.
    begins = f.struct(f.col("began").alias("at"), f.lit(False).alias("is_end"))
    ends = f.struct(f.col("ended").alias("at"), f.lit(True).alias("is_end"))
    ended_at = latest(f.when(f.col("is_end"), f.col("at")), Window.partitionBy("of", "reader").orderBy("at", "is_end"))
    found = (
        reads.select("*", f.inline(f.when(f.col("is_broken"), f.array(begins, ends)).otherwise(f.array(begins))))
        .withColumn("ended_at", ended_at)
        .where(~f.col("is_end") & of_its_day())
        .withColumn("is_back", f.coalesce(f.col("at") - f.col("ended_at") <= RETURN_S * 1_000_000, f.lit(False)))
    )
    return (
        found.groupBy("day", window(MINUTE), "route", "person")
        .agg(f.count_if("is_back").alias("times"))
        .groupBy("day", "minute", "route")
        .agg(f.sum("times").alias("reconnects"), f.count_if(f.col("times") > 0).alias("readers"))
    )
