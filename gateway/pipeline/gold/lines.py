"""Expressions that the gold tables share: windows, kinds of requests, the hour before a day, robust statistics.

The median and the median absolute deviation tolerate almost half of the values being outliers, so a storm does not make
the next one look usual.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as f

from gateway.pipeline.tables import LIVE, READS

MINUTE: Final = "minute"
HOUR: Final = "hour"
_NORMAL: Final = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""


def window(length: str, time: Column | None = None) -> Column:
    """The beginning of a line's minute or hour, under that name."""
    return f.date_trunc(length, f.col("time") if time is None else time).alias(length)


def known(name: str) -> Column:
    """A column that is part of a key, with `-` for NULL."""
    return f.coalesce(f.col(name), f.lit("-")).alias(name)


def total(name: str) -> Column:
    """An aggregate: the sum; 0 without rows."""
    return f.coalesce(f.sum(name), f.lit(0)).cast("bigint").alias(name)


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


def latest(value: Column, onward: WindowSpec) -> Column:
    """The last value that is not NULL, of the rows up to this one in the order of the window."""
    return f.last(value, ignorenulls=True).over(onward.rowsBetween(Window.unboundedPreceding, 0))


def median(values: Column) -> Column:
    """The median of an array without NULLs; NULL of an empty one."""
    ordered = f.array_sort(values)
    size = f.size(values)
    low = f.get(ordered, f.floor((size - 1) / 2).cast("int"))
    high = f.get(ordered, f.floor(size / 2).cast("int"))
    return f.when(size > 0, (low + high) / 2)


def deviation(values: Column, middle: Column) -> Column:
    """The robust standard deviation of an array around `middle`, its median."""
    return _NORMAL * median(f.transform(values, lambda value: f.abs(value - middle)))
