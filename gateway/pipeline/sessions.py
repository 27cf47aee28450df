"""Sessions: what one reader did on one stream, its reads joined over reconnects.

The log knows a reader as a client and a user agent, on one stream of one route and partition.  Its reads, in the order
in which they ended, are one session as long as each goes on where the one before came to: it asks for the offset that
the one before was answered with, or for one between that and where the one before had begun (what was sent need not
have arrived, and readers behind one address take turns), not much later than that one ended.  Who begins at the start
again, or skips to the tail, begins a session.

A session is cut at midnight (UTC), so that a day is computed from the requests of that day alone: `day` is the day on
which its reads ended.  A live read that goes on has lines before its last; they are of its session, and count as no
read.  What is no request at all is in no session.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import date
from typing import TYPE_CHECKING, Final

from gateway.pipeline.tables import REQUESTS, SESSIONS
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession, WindowSpec

    from gateway.pipeline.lake import Lake

GAP_S: Final = 300
"""So long after a read has ended may the next begin.  A page in the background comes back within a minute or so; who
comes back after five has been away."""

READS: Final = (Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE)

_READER: Final = ("day", "route", "stream", "partition", "client", "user_agent")


def write_sessions(spark: SparkSession, lake: Lake, days: Collection[date]) -> None:
    """Compute the sessions of these days anew."""
    lake.write_days(sessions(lake.read(spark, REQUESTS, days)), SESSIONS, days)


def sessions(requests: DataFrame) -> DataFrame:
    """The sessions of these requests."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    mode, is_final = f.col("mode"), f.col("is_final")
    is_read = mode.isin([str(mode) for mode in READS]) & (is_final | (f.col("status") > 0))
    reads = requests.where(is_read).select(
        *("day", "route", "stream", "partition", "time", "id", "mode", "is_final", "sent_bytes", "close_reason"),
        "next_offset",
        f.coalesce("client", f.lit("-")).alias("client"),
        f.coalesce("user_agent", f.lit("-")).alias("user_agent"),
        f.col("start").alias("named"),
        f.coalesce("start", f.lit(START)).alias("start"),
        f.coalesce("next_offset", "start", f.lit(START)).alias("reached"),
        f.timestamp_micros(f.unix_micros("time") - f.round(f.col("duration_s") * 1_000_000).try_cast("bigint")).alias(
            "began"
        ),
        # Sorting by a number is what makes this quick.  Should two readers have the same one, they share the order
        # below but no session, because sessions are also told apart by what the number was made of.
        f.xxhash64(*_READER).alias("reader"),
    )
    order = Window.partitionBy("reader").orderBy("time", "id")
    is_begun = ~f.coalesce(_goes_on(order), f.lit(False))
    is_connected = (mode == str(Mode.SSE)) & f.coalesce(
        f.lag("is_final").over(order) | (f.lag("mode").over(order) != mode), f.lit(True)
    )
    marked = reads.withColumns({"is_begun": is_begun, "is_connected": is_connected})
    number = f.sum(f.col("is_begun").cast("int")).over(order)
    is_live = mode != str(Mode.CATCHUP)
    grouped = marked.withColumn("number", number).groupBy("reader", "number", *_READER)
    made = grouped.agg(
        f.min("began").alias("began"),
        f.max("time").alias("ended"),
        f.count_if(is_final).alias("reads"),
        f.count_if(is_final & is_live).alias("live_reads"),
        f.greatest(f.count_if("is_connected") - 1, f.lit(0)).alias("reconnects"),
        f.sum("sent_bytes").alias("sent_bytes"),
        f.max(f.when(f.col("is_begun"), f.col("named"))).alias("first_offset"),
        f.max("next_offset").alias("last_offset"),
        f.max_by("close_reason", f.when(is_live & f.col("close_reason").isNotNull(), f.col("time"))).alias(
            "close_reason"
        ),
    )
    return made.select([column.name for column in SESSIONS.columns])


def _goes_on(order: WindowSpec) -> Column:
    """Whether a read goes on with the session of the one before it."""
    from pyspark.sql import functions as f

    start, before = f.col("start"), f.lag("start").over(order)
    reached = f.lag("reached").over(order)
    is_soon = f.unix_micros("began") <= f.unix_micros(f.lag("time").over(order)) + GAP_S * 1_000_000
    is_between = (start <= reached) & ((before == START) | (before != NOW) & (before <= start))
    is_same = ~f.lag("is_final").over(order) & (start == before)
    return is_soon & ((start == reached) | ~start.isin(START, NOW) & is_between | is_same)
