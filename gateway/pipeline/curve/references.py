"""Turn silver into references: the bytes of a tape that each read requested.

A tape holds one incarnation of one stream for one route and the readers that share it, in one gateway.  A DELETE, or a
second PUT that creates the stream, begins another (an expiry in between is not visible).  `scale` gives each offset a
byte position; a read's bytes lie between its two offsets.

- A catch-up read that was answered with bytes queries the cache, and is counted.
- Long-polls and SSE bring bytes to the tape and keep it in use, but do not query the cache: live bytes come from the
  origin once, whatever its size.  So they are replayed and not counted.
- An SSE line names the offsets at which its reader began and now stands.  Its bytes are the last ones in between, as
  many as were sent, so the many lines of one connection do not read the beginning again each time.
- A read that was refused, failed, relayed or cut off references nothing.

A coded answer has the length that it had before coding.  If the log does not say that, the read is placed by the
lengths of other reads, and if there are none it is empty.  `Placement` counts empty and loosely placed reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from gateway.pipeline.curve.scale import Step, place
from gateway.pipeline.curve.simulate import Read
from gateway.pipeline.lake import Snapshot
from gateway.pipeline.session import fit, persisted
from gateway.pipeline.tables import READS
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START
from gateway.tape.costs import TOKEN_COST, USUAL_COST

FROM_TAPE: Final = (
    Outcome.HIT,
    Outcome.REVALIDATED,
    Outcome.JOINED,
    Outcome.MISS,
    Outcome.COLLAPSED,
    Outcome.FOLLOWED,
    Outcome.STALE_IF_ERROR,
)
"""Outcomes of reads in which the tape took part."""
_ASKING: Final = (Outcome.REVALIDATED, Outcome.JOINED)
_FOUND: Final = (Outcome.HIT, *_ASKING)
"""Outcomes of reads whose bytes were in memory, so that the answer could be remembered."""
_PLAIN: Final = "plain"
VARIANTS: Final = (_PLAIN, "gzip", "br", "zstd")
"""Forms of a body: without coding, and in each of `gateway.protocol.coding`, which workers cannot import."""

COLUMNS: Final = (
    *("time", "node", "route", "stream", "partition", "mode", "status", "outcome", "start", "next_offset"),
    *("sent_bytes", "saved_bytes", "fetched_bytes", "coding"),
)
"""The columns of silver that reads are made of."""
_FOR_PLANS: Final = ("route", "stream", "fetched", "is_apart")
"""Columns of reads that only a plan needs."""
_BUCKETS: Final = 64
"""Groups of tapes whose offsets are placed together: enough for a cluster's cores, and large enough to be worth a
call."""
_PLACED: Final = pa.schema(
    [*((name, pa.int64()) for name in ("step", "low", "high", "extent", "tokens")), ("is_loose", pa.bool_())]
)


@dataclass(frozen=True, slots=True)
class Placement:
    """How well the reads of a log could be placed."""

    reads: int
    """Reads in silver in which the tape took part."""
    counted: int
    """Catch-up reads among them with known bytes."""
    counted_bytes: int
    """Bytes requested by those catch-up reads."""
    loose: int
    """Reads at an offset that no chain of known lengths leads to; the bytes before it seem fewer than they are."""
    empty: int
    """Reads whose answer had bytes of unknown length; they reference nothing."""
    tapes: int
    working_bytes: int
    """Cost of all tapes together."""
    nodes: int
    """Number of gateways that wrote the log."""


@dataclass(frozen=True, slots=True)
class PlacedReads:
    """The placed reads of one version of silver, computed once."""

    silver: Snapshot
    rows: DataFrame
    """The columns of `placed`."""


@contextmanager
def placed_reads(spark: SparkSession, silver: Snapshot, *, has_names: bool = True) -> Iterator[PlacedReads]:
    """The placed reads of silver, for the block; without names, which are long, they suffice for a curve."""
    fit(spark, sum(file.rows for file in silver.files()))
    reads = reads_of(silver.read(spark, columns=COLUMNS))
    with persisted(placed(reads if has_names else reads.drop(*_FOR_PLANS))) as rows:
        yield PlacedReads(silver, rows)


def reads_of(requests: DataFrame) -> DataFrame:
    """The reads of silver's `requests` that name a tape and two offsets.

    Columns: `at` (microseconds), `node`, `route`, `stream`; `tape`, `scale` (the same for every gateway) and `step`
    (hashes); `start`, `end`, `sent`, `fetched`, `length` (NULL if it is unknown), `is_counted`, `sent_in` (the coding,
    or `plain` if the bytes were in memory; else NULL), `is_asking` (the origin was asked about the tail), `is_tail`
    (the read's bytes are the last ones between its offsets), `is_apart` (the tape is shared by only some readers of the
    route).
    """
    start = f.coalesce(f.col("start"), f.lit(START))
    is_plain = f.col("coding").isNull()
    saved = f.coalesce(f.col("saved_bytes"), f.lit(0))
    reads = requests.where(
        f.col("mode").isin(*READS)
        & f.col("outcome").isin(*FROM_TAPE)
        & f.col("status").isin(200, 204)
        & f.col("next_offset").isNotNull()
        & (start != NOW)
    )
    begun = _incarnations(requests)
    path = f.substring_index("stream", "?", 1)
    reads = (
        reads.withColumn("path", path)
        .join(begun, ["route", "path"], "left")
        .withColumn("incarnation", f.expr("coalesce(size(filter(begun, one -> one <= time)), 0)"))
    )
    scale = f.xxhash64(
        *(f.coalesce(f.col(name), f.lit("")) for name in ("route", "partition", "stream")), "incarnation"
    )
    return reads.withColumn("scale", scale).select(
        f.unix_micros("time").alias("at"),
        *("node", "route", "stream"),
        f.xxhash64("scale", "node").alias("tape"),
        "scale",
        f.xxhash64("scale", start, "next_offset").alias("step"),
        start.alias("start"),
        f.col("next_offset").alias("end"),
        f.col("sent_bytes").alias("sent"),
        f.col("fetched_bytes").alias("fetched"),
        f.when((is_plain | (saved > 0)) & (f.col("mode") != Mode.SSE), f.col("sent_bytes") + saved).alias("length"),
        (f.col("mode") == Mode.CATCHUP).alias("is_counted"),
        f.coalesce("coding", f.when(f.col("outcome").isin(*_FOUND), f.lit(_PLAIN))).alias("sent_in"),
        f.col("outcome").isin(*_ASKING).alias("is_asking"),
        ((f.col("mode") == Mode.SSE) & is_plain).alias("is_tail"),
        (f.coalesce(f.col("partition"), f.lit("")) != "").alias("is_apart"),
    )


def _incarnations(requests: DataFrame) -> DataFrame:
    """The times at which streams were created anew, by route and path.  Streams that never were are left out."""
    is_deletion = (f.col("mode") == Mode.DELETE) & f.col("status").between(200, 299)
    is_creation = (f.col("mode") == Mode.CREATE) & (f.col("status") == 201)
    return (
        requests.where(is_deletion | is_creation)
        .groupBy("route", f.substring_index("stream", "?", 1).alias("path"))
        .agg(f.sort_array(f.collect_list("time")).alias("begun"))
        .where(f.size("begun") > 1)
    )


def placed(reads: DataFrame) -> DataFrame:
    """`reads` with their places: `low` and `high` (bytes from the tape's beginning), the tape's `extent` and `tokens`
    (the number of offsets named by its readers), and `is_loose`."""
    steps = reads.groupBy("scale", "step", "start", "end").agg(f.max("length").alias("length"))
    scales = steps.groupBy(f.pmod("scale", f.lit(_BUCKETS)).alias("bucket")).applyInArrow(
        _place_bucket, from_arrow_schema(_PLACED)
    )
    # The steps are fewer than the reads, so they are hashed, and nothing has to be sorted.
    found = reads.drop("start", "end").join(scales.hint("shuffle_hash"), "step", "left")
    found = found.fillna(0, ["low", "high", "extent", "tokens"]).fillna(True, ["is_loose"])
    last = f.greatest(f.col("low"), f.col("high") - f.col("sent"))
    # What the places were found by is not kept.
    return found.withColumn("low", f.when(f.col("is_tail"), last).otherwise(f.col("low"))).drop(
        "scale", "step", "is_tail"
    )


def _place_bucket(table: pa.Table) -> pa.Table:
    table = table.sort_by([("scale", "ascending"), ("step", "ascending")])
    rows = zip(*(table[name].to_pylist() for name in ("scale", "step", "start", "end", "length")), strict=True)
    found = [row for _, group in groupby(rows, key=itemgetter(0)) for row in _place_tape(list(group))]
    return pa.table([[row[at] for row in found] for at in range(len(_PLACED))], schema=_PLACED)


def _place_tape(rows: list[tuple[int, int, str, str, int | None]]) -> Iterator[tuple[Any, ...]]:
    scale = place(Step(start, end, length) for _, _, start, end, length in rows)
    at, extent = scale.positions, scale.extent
    for _, step, start, end, _ in rows:
        if start in at and end in at:
            is_loose = start in scale.loose or end in scale.loose
            yield step, at[start], max(at[start], at[end]), extent, len(at), is_loose


def cost(extent: Column, tokens: Column) -> Column:
    """About what a tape of that many bytes and offsets costs, by the accounting of `gateway.tape.store`."""
    return extent + USUAL_COST + TOKEN_COST * tokens


def placement(reads: DataFrame) -> Placement:
    """Count how well these placed reads could be placed, and their size."""
    size = f.col("high") - f.col("low")
    # A text in place of a key would make Spark sort the reads.
    tape = reads.groupBy("tape", "node").agg(
        *(f.max(name).alias(name) for name in ("extent", "tokens")),
        f.count("*").alias("reads"),
        f.count_if(f.col("is_counted") & (size > 0)).alias("counted"),
        f.sum(f.when(f.col("is_counted"), size)).alias("counted_bytes"),
        f.count_if("is_loose").alias("loose"),
        f.count_if((size == 0) & (f.col("sent") > 0) & f.col("length").isNull()).alias("empty"),
    )
    row = tape.agg(
        *(f.sum(name).alias(name) for name in ("reads", "counted", "counted_bytes", "loose", "empty")),
        f.count("*").alias("tapes"),
        f.sum(cost(f.col("extent"), f.col("tokens"))).alias("working_bytes"),
        f.count_distinct("node").alias("nodes"),
    ).collect()[0]
    return Placement(**{name: int(value or 0) for name, value in row.asDict().items()})


def uses_of(reads: DataFrame, use_us: int) -> DataFrame:
    """One row for all placed reads of the same bytes within one use, as in `simulate.Read`: of a thousand readers that
    are woken together, one fetches the bytes and the others find them."""
    per_byte = 1 + TOKEN_COST * f.col("tokens") / f.greatest(f.col("extent"), f.lit(1))
    return (
        reads.groupBy("tape", "low", "high", f.floor(f.col("at") / use_us))
        .agg(
            f.min("at").alias("at"),
            f.first(per_byte).alias("cost_per_byte"),
            f.count("*").alias("times"),
            f.count_if("is_counted").alias("counted"),
            *(_most_sent(name).alias(name) for name in VARIANTS),
            (f.count_if(f.col("is_counted") & f.col("is_asking")) == 0).alias("is_alone"),
        )
        .select(*Read._fields)
    )


def _most_sent(variant: str) -> Column:
    """An aggregate: the most bytes sent in this coding, or `plain` from memory; 0 if there were none."""
    is_it = f.col("is_counted") & (f.col("sent_in") == variant)
    return f.coalesce(f.max(f.when(is_it, f.col("sent"))), f.lit(0))
