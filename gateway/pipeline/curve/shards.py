"""The exact curve of a sample (SHARDS: Waldspurger et al., FAST 2015), on Spark.

A block is in the sample, with all of its references, if its hash is below a threshold.  So each reference's stack
distance within the sample, divided by the sampling rate, estimates its distance in the whole.  The error depends on the
number of *blocks* that are kept.

Popular blocks are few, so the presence of one in the sample distorts it.  So misses are divided by the expected number
of references, not by the actual one: the difference counts as hits of the smallest cache (SHARDS-adj, ibid. 3.4).

The sample is played as a whole, and again in `REPLICAS` parts, whose scatter shows how far off the whole may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.curve.kernel import Ints, Misses, Trace, missed

Floats = npt.NDArray[np.float64]

SPACE: Final = 1 << 24
"""The range of hashes that the threshold divides."""
REPLICAS: Final = 8
_STUDENT: Final = 2.365
"""Half of the 95 % interval of the mean of eight, in standard errors."""
_WHOLE: Final = -1
"""The group of the whole sample, next to the groups of its parts."""
_FIELDS: Final = "replica bigint, references array<bigint>, bytes array<bigint>, keys bigint"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Miss ratios by cache size."""

    miss_ratio: Floats
    byte_miss_ratio: Floats
    error: Floats | None
    """Half width of the 95 % interval of `byte_miss_ratio`; None if nothing was left out."""
    sampled_keys: int
    rate: float


def threshold(rate: float) -> int:
    """Number of the SPACE hashes in a sample at about this rate; at least one."""
    return max(1, min(SPACE, round(rate * SPACE)))


def curve_of(whole: Misses, parts: Sequence[Misses], *, references: int, asked_bytes: int, rate: float) -> Curve:
    """The curve estimated from a sample at `rate`, for `references` that requested `asked_bytes` in all.

    `parts` are `REPLICAS` parts of the sample; none if the sample is the whole log.
    """
    error = None
    if parts and rate < 1:
        ratios = np.array([_ratio(part.bytes, asked_bytes * rate / len(parts)) for part in parts])
        error = _STUDENT * ratios.std(axis=0, ddof=1) / np.sqrt(len(parts))
    miss_ratio, byte_miss_ratio = _ratio(whole.references, references * rate), _ratio(whole.bytes, asked_bytes * rate)
    return Curve(miss_ratio, byte_miss_ratio, error, whole.keys, rate)


def _ratio(missed: Ints, expected: float) -> Floats:
    # A sample may have more misses than the expected number of references.
    return np.minimum(1.0, missed / max(1.0, expected))


def lru_curve(blocks: DataFrame, cache_bytes: Ints, *, references: int, asked_bytes: int, rate: float) -> Curve:
    """The curve of a least-recently-used cache of blocks; `blocks` are references as from `references.blocks_of`.

    `cache_bytes` are the sizes, ascending; `references` and `asked_bytes` are the totals of counted references in all
    of `blocks`.
    """
    kept = threshold(rate)
    sample = blocks.where(f.pmod("key", f.lit(SPACE)) < kept)
    part = f.pmod(f.shiftright("key", 24), f.lit(REPLICAS))
    group = f.lit(_WHOLE).cast("bigint") if kept == SPACE else f.explode(f.array(f.lit(_WHOLE).cast("bigint"), part))

    def play(key: tuple[object, ...], table: pa.Table) -> pa.Table:
        replica = int(str(key[0]))
        share = kept / SPACE / (1 if replica == _WHOLE else REPLICAS)
        return pa.Table.from_pylist([{"replica": replica, **asdict(missed(trace_of(table), cache_bytes, share))}])

    rows = sample.withColumn("replica", group).groupBy("replica").applyInArrow(play, _FIELDS)
    found = {
        row.replica: Misses(np.array(row["references"]), np.array(row["bytes"]), row["keys"]) for row in rows.collect()
    }
    nothing = Misses(np.zeros_like(cache_bytes), np.zeros_like(cache_bytes), 0)
    whole, *parts = (found.get(replica, nothing) for replica in range(_WHOLE, REPLICAS if kept < SPACE else 0))
    return curve_of(whole, parts, references=references, asked_bytes=asked_bytes, rate=kept / SPACE)


def trace_of(table: pa.Table) -> Trace:
    """References in order of time, from rows in any order.  Ties are broken by read and block, so the order is
    total."""
    at, read, block = (table[name].to_numpy() for name in ("at", "read", "block"))
    order = np.lexsort((block, read, at))
    keys, sizes, lows, highs = (
        np.ascontiguousarray(table[name].to_numpy()[order], np.int64) for name in ("key", "size", "low", "high")
    )
    return Trace(keys, sizes, lows, highs, np.asarray(table["is_counted"].to_numpy())[order].astype(np.bool_))
