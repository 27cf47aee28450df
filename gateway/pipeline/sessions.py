"""Sessions: the reads of one reader on one stream, joined over reconnects.

The log identifies a reader by client and user agent, on one stream of one route and partition.  Its reads, in the order
of their ends, form one session as long as each continues the one before: it starts within `GAP_S` of its end, at the
offset that it was answered with, or between that offset and its start (sent bytes need not have arrived, and readers
behind one address take turns).  A read from the stream's start, or from the tail, begins a new session.

Sessions are cut at midnight (UTC), so that a day is computed from its own requests only: `day` is the day on which the
reads ended.  A live read in progress has lines before its last one; they belong to its session and do not count as
reads.  Lines that are not requests belong to no session.

Reads are sorted by a hash of the reader, and each is compared with the one before.  Spark moves a reader's reads to
disk if they do not fit in memory: many readers behind one address may be one reader in the log.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import known
from gateway.pipeline.lake import Lake
from gateway.pipeline.session import fit_shuffles
from gateway.pipeline.tables import READS, REQUESTS, SESSIONS
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START

GAP_S: Final = 300
"""Longest time between the end of a read and the start of the next one in a session, in seconds.  A page in the
background returns within about a minute; a reader that returns after five has been away."""

_SILVER: Final = "silver"
"""The mark of the sessions: the version of silver that they are of."""
_READER: Final = ("day", "route", "protocol", "stream", "partition", "client", "user_agent")
_READ: Final = (
    *_READER,
    *("id", "time", "mode", "status", "duration_s", "start", "next_offset", "sent_bytes", "is_final", "close_reason"),
)


def update_sessions(spark: SparkSession, lake: Lake) -> int:
    """Bring the sessions up to silver: make those of changed days anew, and return how many days.  Raises Conflict."""
    silver, stored = lake.snapshot(REQUESTS), lake.snapshot(SESSIONS)
    since = stored.mark(_SILVER)
    if silver.version in (since, -1):
        return 0
    changes = silver.changes(-1 if since is None else since)
    days = {*silver.days(), *stored.days()} if changes is None else changes.days
    fit_shuffles(spark, sum(file.rows for file in silver.files(days)))
    files = lake.write(sessions(silver.read(spark, days=days, columns=_READ)), SESSIONS) if days else []
    stored.commit(files, replaces=days, marks={_SILVER: silver.version})
    return len(days)


def sessions(requests: DataFrame) -> DataFrame:
    """The sessions of these requests."""
    mode, is_final = f.col("mode"), f.col("is_final")
    is_live = mode != Mode.CATCHUP.value
    began_us = f.unix_micros("time") - f.round(f.col("duration_s") * 1_000_000).try_cast("bigint")
    reads = requests.where(mode.isin(*READS) & (is_final | (f.col("status") > 0))).select(
        *("day", "route", "protocol", "stream", "partition", "id", "mode", "is_final", "sent_bytes"),
        known("client"),
        known("user_agent"),
        f.coalesce("start", f.lit(START)).alias("start"),
        f.coalesce("next_offset", "start", f.lit(START)).alias("reached"),
        f.timestamp_micros(began_us).alias("began"),
        f.col("time").alias("ended"),
        (is_final & is_live).alias("is_live_read"),
        f.col("start").alias("first_offset"),
        f.col("next_offset").alias("last_offset"),
        f.when(is_live, f.col("close_reason")).alias("close_reason"),
        # Sorting by a number is what makes this quick.  Should two readers have the same one, their reads take turns,
        # and none of them goes on with one of the other.
        f.xxhash64(*_READER).alias("reader"),
    )
    in_order = Window.partitionBy("reader").orderBy("ended", "id")
    before = f.struct(*_READER, "mode", "is_final", "start", "reached", "ended")
    # Of a line that names no stream, that is what it has in common with another.
    is_one_reader = reduce(operator.and_, (f.col(name).eqNullSafe(f.col(f"before.{name}")) for name in _READER))
    is_one_connection = _is_unfinished_before() & (mode == f.col("before.mode"))
    compared = (
        reads.withColumn("before", f.lag(before).over(in_order))
        .withColumn("is_begun", ~_surely(is_one_reader & _goes_on()))
        .withColumn("is_connected", (mode == Mode.SSE.value) & ~_surely(is_one_reader & is_one_connection))
        .drop("before")
    )
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    ended = f.when(f.col("close_reason").isNotNull(), f.struct("ended", "id"))
    return (
        compared.withColumn("session", f.count_if("is_begun").over(so_far))
        .groupBy("reader", "session")
        .agg(
            *(f.first(name).alias(name) for name in _READER),
            f.min("began").alias("began"),
            f.max("ended").alias("ended"),
            f.count_if("is_final").alias("reads"),
            f.count_if("is_live_read").alias("live_reads"),
            f.greatest(f.count_if("is_connected") - 1, f.lit(0)).alias("reconnects"),
            f.sum("sent_bytes").alias("sent_bytes"),
            # The start offset of a later read is not the start of its session.
            f.max(f.when(f.col("is_begun"), f.col("first_offset"))).alias("first_offset"),
            f.max("last_offset").alias("last_offset"),
            f.max_by("close_reason", ended).alias("close_reason"),
        )
        .select(SESSIONS.names)
    )


def _goes_on() -> Column:
    """Whether a read continues the one `before` it."""
    start, start_before, reached = f.col("start"), f.col("before.start"), f.col("before.reached")
    is_soon = f.unix_micros("began") <= f.unix_micros("before.ended") + GAP_S * 1_000_000
    is_after = (start_before == START) | (start_before != NOW) & (start_before <= start)
    is_between = ~start.isin(START, NOW) & (start <= reached) & is_after
    return is_soon & ((start == reached) | is_between | _is_unfinished_before() & (start == start_before))


def _is_unfinished_before() -> Column:
    """Whether the line before describes a live read that goes on."""
    return ~f.col("before.is_final")


def _surely(claim: Column) -> Column:
    """Whether a claim is known to hold."""
    return f.coalesce(claim, f.lit(False))
