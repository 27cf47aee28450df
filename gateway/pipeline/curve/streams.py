"""Compute the figures of each stream's reads that the plan is made from, and how long a cache keeps a tape.

Two times of a stream matter.  The *idle* time is the time between one read and the next, at any offsets.  It shows how
long the stream is in use.  The time *again* is the time between two reads of the same bytes.  It shows whether the
bytes are worth keeping.  A reader that continues from page to page reads nothing again.  If two readers read the same
bytes at the same time, the time *again* is zero.

`residence_s` inverts Denning's working set (CACM 1968).  The bytes used within a given time take a certain memory on
average, so a cache with that memory keeps bytes for that time.  This approximates every policy and is exact for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from gateway.pipeline.curve.scale import Ints
from gateway.pipeline.session import persisted
from gateway.tape.eviction import USE_S

WINDOWS: Final = 8
"""Number of equal parts that the time of the log is divided into."""
_SHORTLIST: Final = 20_000
"""Most streams considered for a plan, by each of two orders.  The driver may not have memory for all streams."""
_SECOND_US: Final = 1_000_000
_BINS_PER_DOUBLING: Final = 8
_NEVER: Final = np.iinfo(np.int64).max
NAMES: Final = ("tape", "route", "stream", "node", "is_apart")
"""The columns that identify a tape.  `is_apart` means that only some readers of the route share the tape."""
_KNOWN: Final = ("tape", "extent", "cost", "asked", "asked_bytes", "live", "fetched", "windows", "again", "returns")
FIGURES: Final = pa.schema(
    [
        *((name, pa.int64()) for name in (*_KNOWN, "idle", "last")),
        *((name, pa.string()) for name in ("route", "stream", "node")),
        ("is_apart", pa.bool_()),
    ]
)
"""The figures of a tape (times in microseconds)."""
GAPS: Final = pa.schema([*((name, pa.int64()) for name in ("bin", "gap", "cost")), ("cost_us", pa.float64())])
"""The figures of a group of gaps of about the same length.

A gap is the time between two uses of a tape; `gap` is the longest of the group, in microseconds.
"""


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The figures of one stream of one route, over the time of the log."""

    route: str
    stream: str
    bytes: int
    """Bytes that the stream takes in one gateway's cache, on average."""
    asked: int
    """Number of catch-up reads that were answered with bytes."""
    asked_bytes: int
    live: int
    """Number of lines of long-polls and SSE connections."""
    fetched_again: int
    """Bytes that the origin sent more than once to the same gateway."""
    windows: int
    """Number of parts of the log, of all `WINDOWS`, with catch-up reads of the stream."""
    again_s: float | None
    """The shortest time between two reads of the same bytes; None if no bytes were read twice."""
    returns: int
    """Number of reads that began a new use, after the stream had been idle."""
    idle_s: float
    """The longest idle time between two reads."""
    quiet_s: float
    """Time from the stream's last read to the end of the log."""
    asked_apart: int = 0
    """Reads among `asked` with credentials, on tapes that only some readers of the route share."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """A group of gaps (times between uses of tapes) of about the same length."""

    longest_s: float
    cost: float
    """Sum over the gaps of the tape's size in the cache (bytes)."""
    cost_seconds: float
    """Sum over the gaps of the tape's size times the gap's length."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The input of a plan, besides the curve."""

    span_s: float
    streams: tuple[StreamFigures, ...]
    gaps: tuple[Gaps, ...]
    """The gaps, sorted by length."""


def traffic_of(tapes: DataFrame, gaps: pa.Table, first_us: int, last_us: int) -> Traffic:
    """Add up the figures of tapes (`FIGURES`) by stream, and `gaps` (`GAPS`) by length.

    `first_us` and `last_us` are the times of the log's first and last line, in microseconds.
    """
    return Traffic((last_us - first_us) / _SECOND_US, _streams(tapes, last_us), _gaps(gaps))


def figures(uses: dict[str, Ints], names: pa.Table, last_us: int) -> tuple[pa.Table, pa.Table]:
    """Return a row for each tape among these uses (`FIGURES`), and a row for each group of gaps (`GAPS`).

    `names` has the columns `NAMES` of each tape, sorted by tape.
    """
    in_order = np.lexsort([uses[name] for name in ("high", "low", "at", "tape")])
    uses = {name: values[in_order] for name, values in uses.items()}
    tape, low, high, at, last = (uses[name] for name in ("tape", "low", "high", "at", "last"))
    is_first = np.concatenate([[True], tape[1:] != tape[:-1]])
    idle = np.where(is_first, _NEVER, at - _shifted(last))
    # The furthest end of each tape so far.  One running maximum serves all tapes: it runs over ranks, and a tape's
    # ranks are all above the ranks of the tape before it.
    ends, rank = np.unique(high, return_inverse=True)
    furthest = ends[np.maximum.accumulate(rank + np.cumsum(is_first) * len(ends)) % len(ends)]
    is_behind = ~is_first & (low < _shifted(furthest))
    by_start = np.lexsort((high, at, low, tape))
    is_next = (tape[by_start] == _shifted(tape[by_start])) & (low[by_start] == _shifted(low[by_start]))
    is_next[0] = False
    same = np.empty_like(at)
    same[by_start] = np.where(is_next, at[by_start] - _shifted(last[by_start]), _NEVER)
    again = np.where(same != _NEVER, same, np.where(is_behind, idle, _NEVER))
    again = np.where(high == low, _NEVER, np.where(uses["times"] > 1, 0, again))
    has_returned = (idle >= int(USE_S * _SECOND_US)) & ~is_first
    begins = np.flatnonzero(is_first)
    sums = {"asked": uses["asked"], "live": uses["live"], "fetched": uses["fetched"]}
    sums |= {"asked_bytes": uses["asked"] * (high - low), "returns": has_returned.astype(np.int64)}
    of_tapes = {
        "tape": tape[begins],
        **{name: np.add.reduceat(values, begins) for name, values in sums.items()},
        **{name: np.maximum.reduceat(uses[name], begins) for name in ("extent", "cost", "last")},
        "windows": np.bitwise_or.reduceat(uses["windows"], begins),
        "again": _known(np.minimum.reduceat(again, begins), _NEVER),
        "idle": _known(np.maximum.reduceat(np.where(has_returned, idle, -1), begins), -1),
        **{name: names[name] for name in NAMES[1:]},
    }
    gap = np.maximum(np.concatenate([idle[~is_first], last_us - of_tapes["last"]]), 0)
    costs = np.concatenate([uses["cost"][~is_first], of_tapes["cost"]])
    bins, at_bin = np.unique(np.floor(np.log(gap + 1) / np.log(2.0) * _BINS_PER_DOUBLING), return_inverse=True)
    longest = np.zeros(len(bins), np.int64)
    np.maximum.at(longest, at_bin, gap)
    of_bins = {
        "bin": bins.astype(np.int64),
        "gap": longest,
        "cost": np.bincount(at_bin, costs).astype(np.int64),
        "cost_us": np.bincount(at_bin, costs.astype(np.float64) * gap),
    }
    return pa.table(of_tapes).select(FIGURES.names).cast(FIGURES), pa.table(of_bins).cast(GAPS)


def _shifted(values: Ints) -> Ints:
    """Shift the values by one row: each row gets the value of the row before; the first row keeps its own."""
    return np.concatenate([values[:1], values[:-1]])


def _known(values: Ints, none: int) -> pa.Array:
    return pa.array(values, mask=values == none)


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
        rows = {tuple(row) for row in by_density.limit(_SHORTLIST).collect()}
        if len(rows) == _SHORTLIST:
            rows.update(tuple(row) for row in by_size.limit(_SHORTLIST).collect())
    return tuple(sorted((StreamFigures(*row) for row in rows), key=lambda one: (one.route, one.stream)))


def _gaps(bins: pa.Table) -> tuple[Gaps, ...]:
    found = bins.group_by("bin").aggregate([("gap", "max"), ("cost", "sum"), ("cost_us", "sum")]).sort_by("bin")
    rows = zip(*(found[name].to_pylist() for name in ("gap_max", "cost_sum", "cost_us_sum")), strict=True)
    return tuple(Gaps(gap / _SECOND_US, float(cost), cost_us / _SECOND_US) for gap, cost, cost_us in rows)


def residence_s(gaps: Sequence[Gaps], span_s: float, cache_bytes: float) -> float | None:
    """Estimate how many seconds a cache of this size keeps a tape after its last use; None if it has room for all.

    `gaps` are sorted by length, and include the times from last uses to the end of the log.
    """
    lengths_s = np.array([one.longest_s for one in gaps])
    costs = np.array([one.cost for one in gaps])
    # Of gaps longer than the window, only the window's length counts.
    longer = costs.sum() - costs.cumsum()
    memory = (np.cumsum([one.cost_seconds for one in gaps]) + longer * lengths_s) / max(span_s, 1e-6)
    if not len(gaps) or memory[-1] < cache_bytes:
        return None
    return float(np.interp(cache_bytes, [0, *memory], [0, *lengths_s]))
