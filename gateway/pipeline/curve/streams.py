"""Figures of each stream's reads, from which the plan is made, and the time that a cache keeps anything.

A stream is *idle* between one read and the next, at any offsets, which shows how long it lives.  Bytes are read *again*
after the time since an earlier read from the same offset, which shows whether they are worth keeping: a reader that
continues from page to page reads nothing again, and two concurrent readers read again at once.

`residence_s` inverts Denning's working set (CACM 1968): the bytes used within a time take a certain memory on average,
so a cache of that memory keeps what was used within that time.  It approximates all policies and is exact for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from gateway.pipeline.curve.references import cost
from gateway.pipeline.session import persisted
from gateway.tape.eviction import USE_S

WINDOWS: Final = 8
"""Number of equal parts that the time of the log is divided into."""
_SHORTLIST: Final = 20_000
"""Most streams considered for a plan, in each of two orders; a driver may not have room for all streams."""
_SECOND_US: Final = 1_000_000
_BINS_PER_DOUBLING: Final = 8


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One stream of one route, over the time of the log."""

    route: str
    stream: str
    bytes: int
    """Bytes that it takes in a gateway's cache."""
    asked: int
    """Catch-up reads that were answered with bytes."""
    asked_bytes: int
    live: int
    """Lines of long-polls and SSE connections."""
    fetched_again: int
    """Bytes that the origin sent more than once to the same gateway."""
    windows: int
    """Number of the `WINDOWS` parts of the log with catch-up reads of it."""
    again_s: float | None
    """The shortest time after which any of its bytes were read again; None if none were."""
    returns: int
    """Number of reads after it had been idle."""
    idle_s: float
    """The longest idle time between two reads."""
    quiet_s: float
    """Time from its last read to the end of the log."""
    asked_apart: int = 0
    """Reads among `asked` on tapes that only some readers of the route share, because they showed credentials."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Times between uses of tapes, grouped by about the same length."""

    longest_s: float
    cost: float
    """Sum of the tapes' sizes in the cache (bytes), over gaps."""
    cost_seconds: float
    """The same sum, with each size multiplied by its gap."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Everything a plan is made from, besides the curve."""

    span_s: float
    streams: tuple[StreamFigures, ...]
    gaps: tuple[Gaps, ...]
    """By length."""


def traffic_of(reads: DataFrame, first_us: int, last_us: int) -> Traffic:
    """The figures of placed reads (`references.placed`); the log's first and last line are at these microseconds."""
    size = f.col("high") - f.col("low")
    window = f.least(f.floor((f.col("at") - first_us) * WINDOWS / max(1, last_us - first_us)), f.lit(WINDOWS - 1))
    uses = reads.groupBy("tape", "low", "high", f.floor(f.col("at") / _SECOND_US).alias("second")).agg(
        f.min("at").alias("at"),
        f.max("at").alias("last"),
        f.count("*").alias("times"),
        f.count_if(f.col("is_counted") & (size > 0)).alias("asked"),
        f.count_if(~f.col("is_counted")).alias("live"),
        f.sum("fetched").alias("fetched"),
        f.bit_or(f.when(f.col("is_counted") & (size > 0), f.pow(f.lit(2.0), window).cast("int"))).alias("windows"),
        *(f.first(name).alias(name) for name in ("route", "stream", "node", "extent", "tokens", "is_apart")),
    )
    before = Window.partitionBy("tape").orderBy("at", "low", "high")
    same = Window.partitionBy("tape", "low").orderBy("at", "high")
    so_far = before.rowsBetween(Window.unboundedPreceding, -1)
    uses = (
        uses.withColumn("idle", f.col("at") - f.lag("last").over(before))
        .withColumn("reach", f.max("high").over(so_far))
        .withColumn("same", f.col("at") - f.lag("last").over(same))
    )
    again = (
        f.when(size == 0, None)
        .when(f.col("times") > 1, 0)
        .when(f.col("same").isNotNull(), f.col("same"))
        .when(f.col("low") < f.col("reach"), f.col("idle"))
    )
    returned = f.col("idle") >= int(USE_S * _SECOND_US)
    with persisted(uses.withColumn("cost", cost(f.col("extent"), f.col("tokens")))) as uses:
        tapes = uses.groupBy("tape").agg(
            *(f.first(name).alias(name) for name in ("route", "stream", "node", "extent", "cost", "is_apart")),
            *(f.sum(name).alias(name) for name in ("asked", "live", "fetched")),
            f.sum(f.col("asked") * size).alias("asked_bytes"),
            f.bit_or("windows").alias("windows"),
            f.min(again).alias("again"),
            f.count_if(returned).alias("returns"),
            f.max(f.when(returned, f.col("idle"))).alias("idle"),
            f.max("last").alias("last"),
        )
        gaps = _gaps(uses, tapes, last_us)
        streams = _streams(tapes, last_us)
    return Traffic((last_us - first_us) / _SECOND_US, streams, gaps)


def _streams(tapes: DataFrame, last_us: int) -> tuple[StreamFigures, ...]:
    figures = (
        tapes.groupBy("route", "stream")
        .agg(
            f.ceil(f.sum("cost") / f.count_distinct("node")).alias("bytes"),
            *(f.sum(name).alias(name) for name in ("asked", "asked_bytes", "live", "returns")),
            f.sum(f.when(f.col("is_apart"), f.col("asked")).otherwise(0)).alias("asked_apart"),
            f.sum(f.greatest(f.col("fetched") - f.col("extent"), f.lit(0))).alias("fetched_again"),
            f.bit_count(f.coalesce(f.bit_or("windows"), f.lit(0))).alias("windows"),
            (f.min("again") / _SECOND_US).alias("again_s"),
            (f.coalesce(f.max("idle"), f.lit(0)) / _SECOND_US).alias("idle_s"),
            ((f.lit(last_us) - f.max("last")) / _SECOND_US).alias("quiet_s"),
        )
        .select(*StreamFigures.__slots__)
    )
    with persisted(figures) as streams:
        by_density = streams.orderBy(f.desc(f.col("asked_bytes") / f.col("bytes")), "route", "stream")
        by_size = streams.orderBy(f.desc("bytes"), "route", "stream")
        rows = {tuple(row) for order in (by_density, by_size) for row in order.limit(_SHORTLIST).collect()}
    return tuple(sorted((StreamFigures(*row) for row in rows), key=lambda one: (one.route, one.stream)))


def _gaps(uses: DataFrame, tapes: DataFrame, last_us: int) -> tuple[Gaps, ...]:
    between = uses.where("idle is not null").select("cost", f.greatest("idle", f.lit(0)).alias("gap"))
    after = tapes.select("cost", (f.lit(last_us) - f.col("last")).alias("gap"))
    rows = (
        between.union(after)
        .groupBy(f.floor(f.log2(f.col("gap") + 1) * _BINS_PER_DOUBLING).alias("bin"))
        .agg(f.max("gap"), f.sum("cost"), f.sum(f.col("cost").cast("double") * f.col("gap")))
        .orderBy("bin")
        .collect()
    )
    return tuple(Gaps(row[1] / _SECOND_US, float(row[2]), row[3] / _SECOND_US) for row in rows)


def residence_s(gaps: Sequence[Gaps], span_s: float, cache_bytes: float) -> float | None:
    """How long a cache of that size keeps what was used (seconds); None if it has room for everything.

    `gaps` are in order of length, and include the times from last uses to the end of the log.
    """
    lengths_s = np.array([one.longest_s for one in gaps])
    costs = np.array([one.cost for one in gaps])
    # Gaps up to a length count in full; longer ones count as far as the window reaches.
    longer = costs.sum() - costs.cumsum()
    memory = (np.cumsum([one.cost_seconds for one in gaps]) + longer * lengths_s) / max(span_s, 1e-6)
    if not len(gaps) or memory[-1] < cache_bytes:
        return None
    return float(np.interp(cache_bytes, [0, *memory], [0, *lengths_s]))
