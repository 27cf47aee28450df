"""Percentiles and distinct readers, by sketches.  Wider windows merge sketches, never percentiles.

Seconds are kept as Apache DataSketches KLL sketches with K = 400, of 8.4 KB at most.  Up to K values the percentile is
exact: the smallest value whose rank is at least p.  Beyond, the sketch samples at random: with 99 % confidence, its
percentile p has a rank within p +- 0.68 percentage points (`RANK_ERROR`), however often it was merged.

Readers are counted by HyperLogLog sketches (2^12 registers): a standard error of 1.6 %, 4.1 KB at most.
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
    """An aggregate: the sketch of these seconds; NULLs are ignored."""
    return f.kll_sketch_agg_double(seconds, K)


def values_in(sketch: Column) -> Column:
    """Number of values in a sketch; 0 for NULL."""
    return f.coalesce(f.kll_sketch_get_n_double(sketch), f.lit(0).cast("bigint"))


def filled(sketch: Column) -> Column:
    """The sketch, or NULL if it is empty."""
    return f.when(values_in(sketch) > 0, sketch)


def quantile(sketch: Column, probability: float) -> Column:
    """The value (seconds) whose rank is `probability`; NULL if there are no values."""
    # An empty sketch would fail the query.
    return f.kll_sketch_get_quantile_double(filled(sketch), f.lit(probability))


def quantiles(frame: DataFrame, sketch: str, prefix: str) -> DataFrame:
    """`frame` with `<prefix>_p50_s`, `<prefix>_p90_s` and `<prefix>_p99_s` from its column `sketch`."""
    return frame.withColumns(
        {f"{prefix}_{name}_s": quantile(f.col(sketch), rank) for name, rank in PERCENTILES.items()}
    )


def readers_of(client: Column, user_agent: Column) -> Column:
    """An aggregate: the sketch of the distinct readers of lines."""
    return f.hll_sketch_agg(f.xxhash64(client, user_agent), _LOG_REGISTERS)


def readers_in(sketch: Column) -> Column:
    """Estimated number of distinct readers in a sketch."""
    return f.coalesce(f.hll_sketch_estimate(sketch), f.lit(0).cast("bigint"))
