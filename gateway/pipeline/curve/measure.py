"""The step `curve`: replay the reads of silver through caches of many sizes, and write `tables.CURVE`.

Each of the gateway's eviction policies is replayed with the same cache sizes.  The largest cache has room for all
tapes.  Each replay begins with an empty cache at the log's first line, so the first read of a stream is always a miss.
A log of an hour therefore shows lower hit ratios than a log of a day.

A size is the size of one gateway's cache.  The caches of all gateways are replayed as one cache, whose size is this
size multiplied by the number of gateways.  This is accurate if the gateways share the load evenly.

Only a sample of bounded size is replayed, so a longer log takes no more work.  The same lake gives the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from gateway.pipeline import tables
from gateway.pipeline.curve.references import PlacedReads, Placement, placed_reads
from gateway.pipeline.curve.sampling import SPACE, curve_of, parted, threshold
from gateway.pipeline.curve.simulate import Missed, Read, play
from gateway.pipeline.derived import CURVE_MARK
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.lake import Lake
from gateway.pipeline.parquet import arrow_schema
from gateway.tape.costs import ANSWER_SHARE, CODED_SHARE
from gateway.tape.eviction import POLICIES

_TAPES: Final = 50_000
_USES: Final = 100_000
"""Approximate bounds on the replayed tapes and their uses.

Each use is replayed for every policy and size, and at some sizes once more in a part of the sample.  In total, this
takes half a minute of one core.
"""
_LEAST_TAPES: Final = 32
"""Fewest tapes to replay, even if they exceed the bound on uses: a curve of fewer tapes is meaningless."""
_POINTS: Final = 16
_STRIDE: Final = 4
_PARTS_STRIDE: Final = 3
"""The parts of a sample are replayed only at every third size.  The error of the other sizes is interpolated."""
_SMALLEST: Final = 1 << 20
_PLAYED: Final = pa.schema(
    [
        ("policy", pa.string()),
        ("size", pa.int64()),
        *((name, pa.list_(pa.int64())) for name in ("reads", "bytes")),
    ]
)
_LEAST_SHARE: Final = 1 / 1024
"""Smallest measured cache, as a share of the working set."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of the step."""

    placement: Placement
    policies: tuple[str, ...]
    points: int
    """Number of sizes of each curve."""
    rate: float
    """Share of the tapes that were replayed."""

    def __str__(self) -> str:
        if not self.points:
            return "curve: no catch-up reads that tapes have a part in, so no curve"
        found = self.placement
        sample = "all" if self.rate >= 1 else f"{self.rate:.2%}"
        return (
            f"curve: {self.points} sizes of {', '.join(self.policies)} from {found.counted:,} catch-up reads of "
            f"{found.tapes:,} tapes ({found.working_bytes:,} bytes), of which {sample} were replayed; "
            f"{found.loose:,} reads loosely placed, {found.empty:,} not at all"
        )


def measure_curve(
    spark: SparkSession,
    lake: Lake,
    *,
    sizes: Sequence[int] | None = None,
    rate: float | None = None,
    policies: Sequence[str] = tuple(POLICIES),
    progress: Callable[[str], None] = lambda line: None,
    reads: PlacedReads | None = None,
) -> Measured:
    """Compute the curves of the lake's silver and write them.  Raises PipelineFailed for invalid arguments.

    `sizes` are cache sizes in bytes, by default in geometric steps.  `rate` is the sampled share of the tapes, by
    default the largest that the bound on the work allows.  `policies` names the eviction policies to replay.  `reads`
    are the placed reads of silver; without them, this function places the reads.
    """
    if rate is not None and not 0 < rate <= 1:
        raise PipelineFailed(f"rate: expected more than 0 and at most 1, got {rate}")
    if sizes is not None and (not sizes or min(sizes) < 1):
        raise PipelineFailed("sizes: expected one at least, each a positive number of bytes")
    if unknown := [policy for policy in policies if policy not in POLICIES]:
        raise PipelineFailed(f"policies: {unknown[0]} is none of {', '.join(POLICIES)}")
    if reads is None:
        progress("curve: placing offsets")
        with placed_reads(spark, lake.snapshot(tables.REQUESTS)) as reads:
            return measure_curve(spark, lake, sizes=sizes, rate=rate, policies=policies, progress=progress, reads=reads)
    rows: list[tuple[object, ...]] = []
    found = reads.placement()
    measured = Measured(found, (), 0, 1.0)
    if found.counted:
        grid = sorted(set(sizes)) if sizes else grid_of(-(-found.working_bytes // found.nodes))
        progress(f"curve: {', '.join(policies)} in miniature")
        share, rows = _curves(spark, reads, grid, found, rate, policies)
        measured = Measured(found, tuple(policies), len(grid), share)
    points = pa.table(
        [[row[at] for row in rows] for at in range(len(tables.CURVE.names))], schema=arrow_schema(tables.CURVE)
    )
    files = lake.write_few(points, tables.CURVE)
    lake.snapshot(tables.CURVE).commit(files, replaces_all=True, marks={CURVE_MARK: reads.silver.version})
    return measured


def grid_of(working_bytes: int) -> list[int]:
    """Return cache sizes in geometric steps.  The largest has room for the whole working set and all copies."""
    smallest = max(min(_SMALLEST, working_bytes), round(working_bytes * _LEAST_SHARE))
    largest = int(np.ceil(working_bytes / (1 - 1 / CODED_SHARE - 1 / ANSWER_SHARE)))
    steps = np.geomspace(smallest, largest, _POINTS)[:-1]
    return sorted({min(largest, int(np.ceil(size))) for size in steps} | {largest})


def _curves(
    spark: SparkSession,
    reads: PlacedReads,
    grid: Sequence[int],
    found: Placement,
    rate: float | None,
    policies: Sequence[str],
) -> tuple[float, list[tuple[object, ...]]]:
    """Return the share of the tapes that were replayed, and the rows of the table."""
    if rate is not None:
        kept = threshold(rate)
    else:
        kept = SPACE if found.tapes <= _TAPES and found.reads <= _USES else _affordable(reads, found.tapes)
    rate = kept / SPACE
    sample = reads.uses(kept)
    if not sample.num_rows:
        raise PipelineFailed(f"rate: none of {found.tapes:,} tapes is in a sample of {rate:.2%}: look at more of them")
    tapes = len(sample["tape"].unique())
    nodes = found.nodes
    shared = spark.sparkContext.broadcast(sample)
    # Small caches evict more and so take longer.  Each job has caches of all sizes, so that all jobs take equally long.
    jobs = [(policy, grid[first::_STRIDE]) for first in range(min(_STRIDE, len(grid))) for policy in policies]
    # Sorting the uses costs about a few replays, so each task sorts once for several jobs.
    tasks = min(len(jobs), max(_STRIDE, 2 * spark.sparkContext.defaultParallelism))
    # Replay the parts only at some sizes.  The parts together take as long as the whole sample, and their scatter
    # changes little from one size to the next.
    with_parts = {*grid[::_PARTS_STRIDE], grid[-1]}

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole, *parts = parted(_in_order(shared.value), rate)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            policy, sizes = jobs[number]
            for size in sizes:
                played = [whole, *parts] if size in with_parts else [whole]
                found = [play(policy, size * nodes * share, part, nodes * share) for share, part in played]
                columns = [[policy], [size], [[one.reads for one in found]], [[one.bytes for one in found]]]
                yield pa.RecordBatch.from_arrays(list(map(pa.array, columns, _PLAYED.types)), schema=_PLAYED)

    try:
        # The jobs are rows of a query, so that the Python workers of other queries run them.
        done = spark.range(0, len(jobs), 1, tasks).mapInArrow(run, from_arrow_schema(_PLAYED)).toArrow()
    finally:
        shared.destroy()
    missed = {(one["policy"], one["size"]): list(map(Missed, one["reads"], one["bytes"])) for one in done.to_pylist()}
    rows: list[tuple[object, ...]] = []
    for policy in policies:
        of_policy = [missed[policy, size] for size in grid]
        curve = curve_of(grid, of_policy, reads=found.counted, asked_bytes=found.counted_bytes, rate=rate)
        error = [None] * len(grid) if curve.error is None else curve.error.tolist()
        points = zip(grid, curve.miss_ratio.tolist(), curve.byte_miss_ratio.tolist(), error, strict=True)
        rows += [(policy, *point, found.counted, tapes, rate) for point in points]
    return rate, rows


def _affordable(reads: PlacedReads, tapes: int) -> int:
    """Return the sampling threshold for about `_TAPES` tapes and `_USES` uses.

    The sample has at least `_LEAST_TAPES` tapes, or all if there are fewer.
    """
    kept = threshold(min(1.0, _TAPES / tapes))
    steps = 256
    reads_so_far, tapes_so_far = map(np.cumsum, reads.counts(kept, steps))
    if tapes_so_far[-1] <= _LEAST_TAPES:
        return kept
    affordable = int(np.searchsorted(reads_so_far, _USES, side="right"))
    needed = int(np.searchsorted(tapes_so_far, _LEAST_TAPES, side="left")) + 1
    return max(1, -(-kept * max(affordable, needed) // steps))


def _in_order(sample: pa.Table) -> list[Read]:
    """Sort the uses by time, then by tape and bytes."""
    ordered = sample.sort_by([(name, "ascending") for name in ("at", "tape", "low", "high")])
    return list(map(Read, *(ordered[name].to_numpy().tolist() for name in Read._fields)))
