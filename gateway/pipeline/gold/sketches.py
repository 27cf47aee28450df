"""Sketches: small summaries from which percentiles and numbers of distinct readers are estimated.

Sketches of short windows can be merged to one of a longer window.  Percentiles cannot be merged.

Durations are kept in KLL sketches of Apache DataSketches with K = 400, of at most 8.4 KB.  With up to K values, a
percentile p is exact: the smallest value whose rank is at least p.  With more values, the sketch samples at random.
With 99 % confidence, the rank of its percentile p is then within 0.68 percentage points of p (`RANK_ERROR`), even after
any number of merges.

Readers are counted by HyperLogLog sketches with 2^12 registers, of at most 4.1 KB.  Their standard error is 1.6 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

K: Final = 400
RANK_ERROR: Final = 0.0068
READERS_ERROR: Final = 0.0163
_LOG_REGISTERS: Final = 12

PERCENTILES: Final[Mapping[str, float]] = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def sketch_of(seconds: Column) -> Column:
    """Return an aggregate: the sketch of a column of seconds.  NULLs are ignored."""
    return f.kll_sketch_agg_double(seconds, K)


def values_in(sketch: Column) -> Column:
    """Return the number of values in a sketch; 0 for NULL."""
    return f.coalesce(f.kll_sketch_get_n_double(sketch), f.lit(0).cast("bigint"))


def filled(sketch: Column) -> Column:
    """Return the sketch, or NULL if it is empty."""
    return f.when(values_in(sketch) > 0, sketch)


def quantile(sketch: Column, probability: float) -> Column:
    """Return the value (seconds) whose rank is `probability`; NULL if there are no values."""
    # The query would fail on an empty sketch.
    return f.kll_sketch_get_quantile_double(filled(sketch), f.lit(probability))


def quantiles(frame: DataFrame, sketch: str, prefix: str) -> DataFrame:
    """Add the columns `<prefix>_p50_s`, `<prefix>_p90_s` and `<prefix>_p99_s`, computed from the column `sketch`."""
    return frame.withColumns(
        {f"{prefix}_{name}_s": quantile(f.col(sketch), rank) for name, rank in PERCENTILES.items()}
    )


def readers_of(client: Column, user_agent: Column) -> Column:
    """Return an aggregate: the sketch of the distinct readers of lines."""
    return f.hll_sketch_agg(f.xxhash64(client, user_agent), _LOG_REGISTERS)


def readers_in(sketch: Column) -> Column:
    """Return the estimated number of distinct readers in a sketch; 0 for NULL."""
    return f.coalesce(f.hll_sketch_estimate(sketch), f.lit(0).cast("bigint"))
