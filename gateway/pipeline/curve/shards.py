"""The exact curve of a sample (SHARDS: Waldspurger et al., FAST 2015), on Spark.

A block is in the sample when its hash falls under a threshold, with all of its references; so each reference's stack
distance within the sample, divided by the sampling rate, is what it would be in the whole.  The rate is chosen by how
many *blocks* are kept, for the error depends on their number and not on the log's length.

Popular blocks are few, and whether one of them is in the sample or not tilts it.  How many references there should be
is known, and the difference is taken as hits of the smallest cache, as those of popular blocks are (SHARDS-adj, ibid.
3.4): misses are divided by the references that were expected, not by those that came.

The sample is played whole, in one group, and once more in `REPLICAS` parts.  The parts are for the error alone: how far
they scatter says how far the whole, which is as many times as large, may be off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from gateway.pipeline.curve.kernel import Ints, Trace, hits

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Floats = npt.NDArray[np.float64]

SPACE: Final = 1 << 24
"""The hashes that the threshold divides."""
REPLICAS: Final = 8
_STUDENT: Final = 2.365
"""Half of the 95 % interval, in standard errors, of the mean of eight."""
_WHOLE: Final = -1
"""The group of all that was sampled, beside those of its parts."""
_FIELDS: Final = "replica bigint, cache_bytes bigint, missed bigint, missed_bytes bigint, keys bigint"


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Miss ratios by cache size."""

    cache_bytes: Ints
    miss_ratio: Floats
    byte_miss_ratio: Floats
    error: Floats | None
    """Half width of the 95 % interval of `byte_miss_ratio`; None where nothing was left out."""
    sampled_keys: int
    rate: float


@dataclass(frozen=True, slots=True, eq=False)
class Misses:
    """What caches of some sizes did not have of a sample, or of a part of it."""

    references: Ints
    bytes: Ints
    keys: int


def threshold(rate: float) -> int:
    """How many of the SPACE hashes are in a sample at about this rate; never none."""
    return max(1, min(SPACE, round(rate * SPACE)))


def missed(trace: Trace, cache_bytes: Ints, rate: float) -> Misses:
    """What caches of these sizes (bytes, ascending) would have missed of a sample of blocks at `rate`."""
    had = hits(trace, cache_bytes, rate)
    return Misses(trace.references - had.references, trace.bytes - had.bytes, len(np.unique(trace.keys)))


def curve_of(
    whole: Misses, parts: Sequence[Misses], cache_bytes: Ints, *, references: int, asked_bytes: int, rate: float
) -> Curve:
    """The curve that a sample at `rate` gives of `references` that asked for so many bytes in all.

    `parts` are `REPLICAS` parts of the sample, or none where it is the whole log.
    """
    error = None
    if parts and rate < 1:
        ratios = np.array([_ratio(part.bytes, asked_bytes * rate / len(parts)) for part in parts])
        error = _STUDENT * ratios.std(axis=0, ddof=1) / np.sqrt(len(parts))
    return Curve(
        cache_bytes,
        _ratio(whole.references, references * rate),
        _ratio(whole.bytes, asked_bytes * rate),
        error,
        whole.keys,
        rate,
    )


def _ratio(missed: Ints, expected: float) -> Floats:
    # A sample may have more misses than references were expected.
    return np.minimum(1.0, missed / max(1.0, expected))


def lru_curve(blocks: DataFrame, cache_bytes: Ints, *, references: int, asked_bytes: int, rate: float) -> Curve:
    """The curve of a least-recently-used cache of blocks, of references as `references.blocks_of` gives them.

    `cache_bytes` are the sizes, ascending; `references` and `asked_bytes` are what all of `blocks` has that is counted.
    """
    from pyspark.sql import functions as f

    kept = threshold(rate)
    sample = blocks.where(f.pmod("key", f.lit(SPACE)) < kept)
    part = f.pmod(f.shiftright("key", 24), f.lit(REPLICAS))
    group = f.lit(_WHOLE).cast("bigint") if kept == SPACE else f.explode(f.array(f.lit(_WHOLE).cast("bigint"), part))
    rows = sample.withColumn("replica", group).groupBy("replica").applyInArrow(_play(cache_bytes, kept), _FIELDS)
    found = rows.toArrow()
    by_replica = {replica: _misses_of(found, replica, cache_bytes) for replica in range(_WHOLE, REPLICAS)}
    whole = by_replica.pop(_WHOLE)
    parts = () if kept == SPACE else tuple(by_replica.values())
    return curve_of(whole, parts, cache_bytes, references=references, asked_bytes=asked_bytes, rate=kept / SPACE)


def _play(cache_bytes: Ints, kept: int) -> Callable[[tuple[object, ...], pa.Table], pa.Table]:
    """What plays one group: the whole sample, or a part of it."""

    def play(group: tuple[object, ...], table: pa.Table) -> pa.Table:
        import pyarrow as pa

        replica = int(str(group[0]))
        rate = kept / SPACE / (1 if replica == _WHOLE else REPLICAS)
        found = missed(trace_of(table), cache_bytes, rate)
        count = len(cache_bytes)
        columns = {
            "replica": np.full(count, replica),
            "cache_bytes": cache_bytes,
            "missed": found.references,
            "missed_bytes": found.bytes,
            "keys": np.full(count, found.keys),
        }
        return pa.table({name: pa.array(column, pa.int64()) for name, column in columns.items()})

    return play


def trace_of(table: pa.Table) -> Trace:
    """References in the order of time, from rows in any; ties go by read and block, so that it is one order."""
    at, read, block = (table[name].to_numpy() for name in ("at", "read", "block"))
    order = np.lexsort((block, read, at))
    keys, sizes, lows, highs = (
        np.ascontiguousarray(table[name].to_numpy()[order], np.int64) for name in ("key", "size", "low", "high")
    )
    return Trace(keys, sizes, lows, highs, np.asarray(table["is_counted"].to_numpy())[order].astype(np.bool_))


def _misses_of(found: pa.Table, replica: int, cache_bytes: Ints) -> Misses:
    """A group's rows; one in which nothing came has no rows, and missed nothing."""
    is_its = found["replica"].to_numpy() == replica
    if not is_its.any():
        nothing = np.zeros(len(cache_bytes), np.int64)
        return Misses(nothing, nothing, 0)
    columns = {name: found[name].to_numpy()[is_its] for name in ("cache_bytes", "missed", "missed_bytes", "keys")}
    order = np.argsort(columns["cache_bytes"])
    return Misses(columns["missed"][order], columns["missed_bytes"][order], int(columns["keys"][0]))
