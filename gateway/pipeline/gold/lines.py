"""Expressions that the gold tables share: windows, kinds of requests, the hour before a day, robust statistics.

Usual values are medians, and deviations are median absolute deviations.  Both tolerate outliers in almost half of the
values.  An unusual hour therefore does not make the next unusual hour look normal.
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
    """Return the beginning of a line's minute or hour, as a column named `minute` or `hour`."""
    return f.date_trunc(length, f.col("time") if time is None else time).alias(length)


def known(name: str) -> Column:
    """Return a column with `-` in place of NULL, for use in a key."""
    return f.coalesce(f.col(name), f.lit("-")).alias(name)


def total(name: str) -> Column:
    """Return an aggregate: the sum of a column, or 0 without rows."""
    return f.coalesce(f.sum(name), f.lit(0)).cast("bigint").alias(name)


def is_read() -> Column:
    """Whether a line is of a catch-up read, a long-poll or an SSE connection."""
    return f.col("mode").isin(*READS)


def is_live() -> Column:
    """Whether a line is of a long-poll or an SSE connection."""
    return f.col("mode").isin(*LIVE)


def began_us() -> Column:
    """When the request began, in Unix microseconds."""
    return ended_us() - f.round(f.col("duration_s") * 1_000_000).cast("bigint")


def ended_us() -> Column:
    """When the request ended, in Unix microseconds."""
    return f.unix_micros("time")


def with_the_hour_before(requests: DataFrame) -> DataFrame:
    """Return the lines of each day together with the lines of the last hour of the day before.

    The new column `of` is the day whose figures a line is used for.  A line of a day's last hour occurs twice, for its
    own day and for the next one.

    A table looks back only among lines with the same `of`, and in the end keeps only the lines of the day itself
    (`of_its_day`).  So a day's figures are the same whether it is computed alone or with its neighbours.
    """
    day = f.col("day")
    days = f.when(f.hour("time") == 23, f.array(day, f.date_add(day, 1))).otherwise(f.array(day))
    return requests.withColumn("of", f.explode(days))


def of_its_day() -> Column:
    """Whether a line is of the day itself, not of the hour before it."""
    return f.col("day") == f.col("of")


def latest(value: Column, onward: WindowSpec) -> Column:
    """Return the last value that is not NULL, among the rows up to this one in the order of the window."""
    return f.last(value, ignorenulls=True).over(onward.rowsBetween(Window.unboundedPreceding, 0))


def median(values: Column) -> Column:
    """Return the median of an array without NULLs; NULL if the array is empty."""
    ordered = f.array_sort(values)
    size = f.size(values)
    low = f.get(ordered, f.floor((size - 1) / 2).cast("int"))
    high = f.get(ordered, f.floor(size / 2).cast("int"))
    return f.when(size > 0, (low + high) / 2)


def deviation(values: Column, middle: Column) -> Column:
    """Return the robust standard deviation of an array whose median is `middle`."""
    return _NORMAL * median(f.transform(values, lambda value: f.abs(value - middle)))
