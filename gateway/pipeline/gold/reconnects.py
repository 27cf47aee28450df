"""Count the reconnects of live readers, and find storms: minutes with far more reconnects than usual.

A live read is a reconnect if an earlier read of the same reader ended at most `RETURN_S` before it began, and for an
unusual reason.  Usual reasons are the end of a long-poll (`answered`, `timed_out`) and the end of a closed stream.  A
reader is identified by route, stream, partition, client and user agent.  An SSE connection that is reopened after its
planned age counts as a reconnect, and so raises the usual number.

A read counts in the minute in which it ended.  Each minute in which live reads of a route ended has a row, so
`reconnects` may be 0.  A minute is a storm if all of these hold:

- It has at least `LEAST` reconnects.  Three readers that return are not a storm, even after a quiet hour.
- It has at least twice the usual number of reconnects.  The usual number is the median of the minutes of the hour
  before, of which at least `MINUTES` must have a row.
- It is at least `FAR` robust standard deviations above the usual number.  A deviation is taken as at least the square
  root of the usual number, the spread of independent arrivals.
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
    """Compute `tables.RECONNECTS` from `tables.REQUESTS`, which must include the last hour of the day before.

    `before` has this table's own rows of earlier days.
    """
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
    """Compute the table without `usual` and `is_storm`: `day`, `minute`, `route`, `reconnects` and `readers`."""
    # Lines are sorted by a hash of the reader, which is faster than sorting by five texts.
    person = known("client"), known("user_agent")
    reads = with_the_hour_before(requests.where(f.col("is_final") & is_live())).select(
        *("of", "day", "time", "route"),
        f.xxhash64("route", "stream", "partition", *person).alias("reader"),
        f.xxhash64(*person).alias("person"),
        began_us().alias("began"),
        ended_us().alias("ended"),
        (f.col("close_reason").isNotNull() & ~f.col("close_reason").isin(*_IN_ORDER)).alias("is_broken"),
    )
    # Each read becomes a row for its beginning and, if it ended for an unusual reason, a row for its end.
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
