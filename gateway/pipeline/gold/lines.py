"""Expressions about silver's lines that the gold tables share: windows, kinds of requests, the hour before a day."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.tables import Table
from gateway.protocol.mode import Mode

LIVE: Final = (Mode.LONGPOLL.value, Mode.SSE.value)
READS: Final = (Mode.CATCHUP.value, *LIVE)

MINUTE: Final = "minute"
HOUR: Final = "hour"


def window(length: str, time: Column | None = None) -> Column:
    """The beginning of a line's minute or hour, under that name."""
    return f.date_trunc(length, f.col("time") if time is None else time).alias(length)


def known(name: str) -> Column:
    """A column that is part of a key, with `-` for NULL."""
    return f.coalesce(f.col(name), f.lit("-")).alias(name)


def total(name: str) -> Column:
    """An aggregate: the sum; 0 without rows."""
    return f.coalesce(f.sum(name), f.lit(0)).cast("bigint").alias(name)


def count_of(claim: Column) -> Column:
    """An aggregate: the number of lines for which `claim` is true."""
    return f.count(f.when(claim, 1))


def is_read() -> Column:
    """Whether the line is of a catch-up, a long-poll or an SSE connection."""
    return f.col("mode").isin(*READS)


def is_live() -> Column:
    """Whether the line is of a long-poll or an SSE connection."""
    return f.col("mode").isin(*LIVE)


def began_us() -> Column:
    """Unix microseconds when the request was read."""
    return ended_us() - f.round(f.col("duration_s") * 1_000_000).cast("bigint")


def ended_us() -> Column:
    """Unix microseconds when the request ended."""
    return f.unix_micros("time")


def with_the_hour_before(requests: DataFrame) -> DataFrame:
    """The lines of each day, with those of the last hour of the day before.  The column `of` is the day that a line is
    used for; lines of a day's last hour occur twice.

    Tables look back among lines with the same `of` and keep those with `of_its_day`.  So a day's figures are the same
    whether it is computed alone or with its neighbours.
    """
    day = f.col("day")
    days = f.when(f.hour("time") == 23, f.array(day, f.date_add(day, 1))).otherwise(f.array(day))
    return requests.withColumn("of", f.explode(days))


def of_its_day() -> Column:
    """Whether the line is of the day itself, not of the hour before it."""
    return f.col("day") == f.col("of")


def ratio(part: Column, whole: Column) -> Column:
    """`part` divided by `whole`; NULL if `whole` is 0."""
    return f.when(whole != 0, part / whole)


def shaped(frame: DataFrame, table: Table) -> DataFrame:
    """Exactly the table's columns, in its order, with its types."""
    return frame.select(*[f.col(column.name).cast(column.type).alias(column.name) for column in table.columns])
