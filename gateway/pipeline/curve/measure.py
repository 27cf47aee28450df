"""The step `curve`: silver in, `tables.CURVE` out.

It computes four curves over one grid of cache sizes, up to the cost of all tapes together: `lru-blocks` (see `shards`),
and the gateway's policies in miniature (see `simulate`).  All begin with an empty cache at the log's first line, so a
log of an hour shows less than a log of a day.

A size is that of one gateway's cache; all caches together are replayed as one that is as many times as large, which is
right as far as they share the load evenly.

Samples are bounded, so the work is, whatever the length of the log.  The same lake gives the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.pipeline import tables
from gateway.pipeline.curve import references
from gateway.pipeline.curve.kernel import Ints, Misses
from gateway.pipeline.curve.references import BLOCK_BYTES, Placement
from gateway.pipeline.curve.shards import REPLICAS, SPACE, Curve, curve_of, lru_curve, threshold
from gateway.pipeline.curve.simulate import USE_US, Missed, Read, play
from gateway.pipeline.derived import CURVE_MARK
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.lake import Lake, Snapshot
from gateway.pipeline.session import persisted
from gateway.tape.eviction import POLICIES

BLOCKS_POLICY: Final = "lru-blocks"

_BLOCKS: Final = 100_000
"""Approximate number of sampled blocks: twice what an error of 0.01 takes."""
_REFERENCES: Final = 5_000_000
"""Approximate bound on references to them: a minute's work, and about 600 MB in the one task that holds them all."""
_TAPES: Final = 20_000
_READS: Final = 80_000
"""Approximate numbers of replayed tapes and reads; each is replayed once for every policy and size, and once more in a
part."""
_LEAST_TAPES: Final = 32
"""Least number of replayed tapes, however often they were read: the curve of fewer says nothing."""
_POINTS: Final = 16
_STRIDE: Final = 4
_SMALLEST: Final = 1 << 20
_LEAST_SHARE: Final = 1 / 1024
"""Smallest measured cache, as a share of the working set."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of the step."""

    placement: Placement
    policies: tuple[str, ...]
    points: int
    """Number of sizes of each curve."""
    block_rate: float
    tape_rate: float

    def __str__(self) -> str:
        if not self.points:
            return "curve: no catch-up reads that tapes have a part in, so no curve"
        found = self.placement
        blocks, tapes = ("all" if rate >= 1 else f"{rate:.2%}" for rate in (self.block_rate, self.tape_rate))
        return (
            f"curve: {self.points} sizes of {', '.join(self.policies)} from {found.counted:,} catch-up reads of "
            f"{found.tapes:,} tapes ({found.working_bytes:,} bytes); of blocks {blocks} were looked "
            f"at, of tapes {tapes}; {found.loose:,} reads loosely placed, {found.empty:,} not at all"
        )


def measure_curve(
    spark: SparkSession,
    lake: Lake,
    *,
    sizes: Sequence[int] | None = None,
    rate: float | None = None,
    block_bytes: int = BLOCK_BYTES,
    policies: Sequence[str] = tuple(POLICIES),
    progress: Callable[[str], None] = lambda line: None,
) -> Measured:
    """Compute the curves of the lake's silver and write them.  Raises PipelineFailed for invalid arguments.

    `sizes` are cache sizes in bytes, by default a geometric grid; `rate` is the sampled share of blocks and of tapes,
    by default as large as the bound on the work allows; `policies` names the gateway's policies to replay.
    """
    if rate is not None and not 0 < rate <= 1:
        raise PipelineFailed(f"rate: expected more than 0 and at most 1, got {rate}")
    if sizes is not None and (not sizes or min(sizes) < 1):
        raise PipelineFailed("sizes: expected one at least, each a positive number of bytes")
    if block_bytes < 1:
        raise PipelineFailed(f"block_bytes: expected a positive number, got {block_bytes}")
    if unknown := [policy for policy in policies if policy not in POLICIES]:
        raise PipelineFailed(f"policies: {unknown[0]} is none of {', '.join(POLICIES)}")
    progress("curve: placing offsets")
    silver = lake.snapshot(tables.REQUESTS)
    requests = silver.read(spark, columns=references.COLUMNS)
    # Names are long, and only a plan needs them.
    asked = references.reads_of(requests).drop("route", "stream", "fetched", "is_apart")
    with persisted(references.placed(asked)) as reads:
        found = references.placement(reads, block_bytes)
        if not found.counted:
            _write(spark, silver, [])
            return Measured(found, (), 0, 1.0, 1.0)
        grid = np.array(sorted(set(sizes)) if sizes else grid_of(-(-found.working_bytes // found.nodes)), np.int64)
        progress(f"curve: exact distances of {found.blocks:,} blocks")
        blocks = lru_curve(
            references.blocks_of(reads, block_bytes),
            grid * found.nodes,
            references=found.counted_touched,
            asked_bytes=found.counted_bytes,
            rate=rate or min(1.0, _BLOCKS / max(1, found.blocks), _REFERENCES / max(1, found.touched)),
        )
        progress(f"curve: {', '.join(policies)} in miniature")
        played = _miniatures(spark, reads, grid * found.nodes, found, rate, policies)
    rows = _rows(BLOCKS_POLICY, blocks, grid, found.counted_touched)
    for policy, curve in played.items():
        rows += _rows(policy, curve, grid, found.counted)
    _write(spark, silver, rows)
    tape_rate = next((curve.rate for curve in played.values()), 1.0)
    return Measured(found, (BLOCKS_POLICY, *played), len(grid), blocks.rate, tape_rate)


def _write(spark: SparkSession, silver: Snapshot, rows: list[tuple[object, ...]]) -> None:
    lake = silver.lake
    files = lake.write(spark.createDataFrame(rows, tables.CURVE.ddl), tables.CURVE)
    lake.snapshot(tables.CURVE).commit(files, replaces_all=True, marks={CURVE_MARK: silver.version})


def grid_of(working_bytes: int) -> list[int]:
    """Cache sizes up to the whole working set, in geometric steps."""
    smallest = max(min(_SMALLEST, working_bytes), round(working_bytes * _LEAST_SHARE))
    steps = np.geomspace(smallest, working_bytes, _POINTS)[:-1]
    return sorted({min(working_bytes, int(np.ceil(size))) for size in steps} | {working_bytes})


def _miniatures(
    spark: SparkSession, reads: DataFrame, grid: Ints, found: Placement, rate: float | None, policies: Sequence[str]
) -> dict[str, Curve]:
    uses = references.uses_of(reads, USE_US)
    kept = threshold(rate) if rate is not None else _affordable(uses, found.tapes)
    rate = kept / SPACE
    sample = uses.where(f.pmod("tape", f.lit(SPACE)) < kept).toArrow()
    if not sample.num_rows:
        raise PipelineFailed(f"rate: none of {found.tapes:,} tapes is in a sample of {rate:.2%}: look at more of them")
    shared = spark.sparkContext.broadcast(sample)
    # Each task replays some large caches and some small ones, which evict more.
    jobs = [(policy, grid[first::_STRIDE].tolist()) for policy in policies for first in range(_STRIDE)]

    def run(job: tuple[str, list[int]]) -> Iterator[tuple[tuple[str, int], list[Missed]]]:
        policy, sizes = job
        parts = _parted(_in_order(shared.value), rate)
        for size in sizes:
            yield (policy, size), [play(policy, size * share, part) for share, part in parts]

    try:
        outcome = spark.sparkContext.parallelize(jobs, len(jobs)).flatMap(run).collectAsMap()
    finally:
        shared.destroy()
    keys = len(np.unique(sample["tape"].to_numpy()))

    def curve(policy: str) -> Curve:
        by_part = zip(*(outcome[policy, size] for size in grid.tolist()), strict=True)
        counts = (np.array([(one.reads, one.bytes) for one in part]).T for part in by_part)
        whole, *parts = (Misses(reads, missing, keys) for reads, missing in counts)
        return curve_of(whole, parts, references=found.counted, asked_bytes=found.counted_bytes, rate=rate)

    return {policy: curve(policy) for policy in policies}


def _affordable(uses: DataFrame, tapes: int) -> int:
    """The sampling threshold that keeps about `_TAPES` tapes and `_READS` uses, and at least `_LEAST_TAPES` tapes, or
    all."""
    kept = threshold(min(1.0, _TAPES / tapes))
    steps = 256
    place = f.pmod("tape", f.lit(SPACE))
    step = f.floor(place * steps / kept)
    counts = uses.where(place < kept).groupBy(step).agg(f.count("*"), f.count_distinct("tape")).collect()
    by_step = np.zeros((steps, 2), np.int64)
    for at, *row in counts:
        by_step[at] = row
    reads_so_far, tapes_so_far = by_step.cumsum(axis=0).T
    if tapes_so_far[-1] <= _LEAST_TAPES:
        return kept
    affordable = int(np.searchsorted(reads_so_far, _READS, side="right"))
    needed = int(np.searchsorted(tapes_so_far, _LEAST_TAPES, side="left")) + 1
    return max(1, -(-kept * max(affordable, needed) // steps))


def _parted(reads: list[Read], rate: float) -> list[tuple[float, list[Read]]]:
    """A sample of tapes at `rate` and, if it is not the whole log, each of its parts; each with the share of all tapes
    that it represents."""
    out = [(rate, reads)]
    if rate < 1:
        parts: list[list[Read]] = [[] for _ in range(REPLICAS)]
        for read in reads:
            parts[(read.tape >> 24) % REPLICAS].append(read)
        out += [(rate / REPLICAS, part) for part in parts]
    return out


def _in_order(sample: pa.Table) -> list[Read]:
    """Uses in order of time; ties are broken by the bytes that are read."""
    ordered = sample.sort_by([(name, "ascending") for name in ("at", "tape", "low", "high")])
    return list(map(Read, *(ordered[name].to_numpy().tolist() for name in Read._fields)))


def _rows(policy: str, curve: Curve, grid: Ints, references: int) -> list[tuple[object, ...]]:
    error = np.full(len(grid), None) if curve.error is None else curve.error
    columns = (column.tolist() for column in (grid, curve.miss_ratio, curve.byte_miss_ratio, error))
    return [(policy, *row, references, curve.sampled_keys, curve.rate) for row in zip(*columns, strict=True)]
