"""Robust statistics as Spark expressions: the median and the median absolute deviation.

Both tolerate almost half of the values being outliers, so a storm does not make the next one look usual.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

NORMAL = 1.4826
"""Ratio of the standard deviation to the median absolute deviation of a normal distribution."""


def median(values: Column) -> Column:
    """The median of an array without NULLs; NULL of an empty one."""
    ordered = f.array_sort(values)
    size = f.size(values)
    low = f.get(ordered, f.floor((size - 1) / 2).cast("int"))
    high = f.get(ordered, f.floor(size / 2).cast("int"))
    return f.when(size > 0, (low + high) / 2)


def deviation(values: Column, middle: Column) -> Column:
    """The robust standard deviation of an array around `middle`, its median."""
    return NORMAL * median(f.transform(values, lambda value: f.abs(value - middle)))
