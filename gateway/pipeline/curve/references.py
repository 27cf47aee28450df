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

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from gateway.pipeline.curve import placing
from gateway.pipeline.curve.sampling import SPACE
from gateway.pipeline.curve.scale import Ints
from gateway.pipeline.curve.streams import FIGURES, GAPS
from gateway.pipeline.lake import Snapshot
from gateway.pipeline.session import fit, persisted
from gateway.pipeline.tables import READS
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START

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
COLUMNS: Final = (
    *("time", "node", "route", "stream", "partition", "mode", "status", "outcome", "start", "next_offset"),
    *("sent_bytes", "saved_bytes", "fetched_bytes", "coding"),
)
"""The columns of silver that reads are made of."""
_ROWS_OF_A_PART: Final = 500_000
"""Most lines for each part of the tapes; a worker has the reads of one part in memory."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTED: Final = pa.schema([("step", pa.int64()), ("uses", pa.int64()), ("tapes", pa.int64())])


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
    first_us: int
    """Microseconds of the first line of silver, whether it is a read or not; 0 without lines."""
    last_us: int
    found: DataFrame
    """Rows of `placing.FOUND`."""
    _small: dict[str, list[pa.Table]] = field(default_factory=dict)

    def placement(self) -> Placement:
        """How well the reads could be placed, and their size."""
        parts = self._tables(placing.SUMMARY_KIND, placing.SUMMARY).to_pylist()
        nodes = {node for part in parts for node in part.pop("nodes")}
        counts = {name: sum(part[name] for part in parts) for name in placing.SUMMARY.names if name != "nodes"}
        return Placement(**counts, nodes=len(nodes))

    def gaps(self) -> pa.Table:
        """Rows of `streams.GAPS`."""
        return self._tables(placing.GAPS_KIND, GAPS)

    def uses(self, kept: int) -> pa.Table:
        """The uses of tapes whose place is below `kept`, as `simulate.Read` has them."""

        def below(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in placing.tables_of(batches):
                place = table["tape"].to_numpy() % SPACE
                yield from table.slice(0, int(np.searchsorted(place, kept))).to_batches()

        return self._of_uses().mapInArrow(below, from_arrow_schema(placing.USES)).toArrow()

    def counts(self, kept: int, steps: int) -> tuple[Ints, Ints]:
        """Numbers of uses and of tapes in each of equal steps of the places below `kept`."""

        def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in placing.tables_of(batches):
                tapes, uses = np.unique(table["tape"].to_numpy(), return_counts=True)
                is_below = tapes % SPACE < kept
                step = tapes[is_below] % SPACE * steps // kept
                of_step = np.bincount(step, uses[is_below], steps).astype(np.int64)
                columns = [np.arange(steps), of_step, np.bincount(step, minlength=steps)]
                yield pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=_COUNTED)

        found = self._of_uses().mapInArrow(counted, from_arrow_schema(_COUNTED)).toArrow()
        uses, tapes = (np.bincount(found["step"], found[name], steps).astype(np.int64) for name in ("uses", "tapes"))
        return uses, tapes

    def figures(self) -> DataFrame:
        """Rows of `streams.FIGURES`."""

        def figures(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in placing.tables_of(batches):
                yield from table.to_batches()

        is_it = f.col("kind") == placing.FIGURES_KIND
        return self.found.where(is_it).select("payload").mapInArrow(figures, from_arrow_schema(FIGURES))

    def _tables(self, kind: str, schema: pa.Schema) -> pa.Table:
        """A table of which each worker has found a part of few rows."""
        if not self._small:
            self._small.update({placing.SUMMARY_KIND: [], placing.GAPS_KIND: []})
            rows = self.found.where(f.col("kind").isin(*self._small)).toArrow()
            for found, table in zip(rows["kind"].to_pylist(), placing.tables_of(rows.to_batches()), strict=True):
                self._small[found].append(table)
        return pa.concat_tables([schema.empty_table(), *self._small[kind]])

    def _of_uses(self) -> DataFrame:
        return self.found.where(f.col("kind") == placing.USES_KIND).select("payload")


@contextmanager
def placed_reads(spark: SparkSession, silver: Snapshot) -> Iterator[PlacedReads]:
    """The placed reads of silver, for the block."""
    rows = sum(file.rows for file in silver.files())
    fit(spark, rows)
    parts = max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), -(-rows // _ROWS_OF_A_PART))
    first, last = silver.span("time")
    first_us, last_us = ((at - _EPOCH) // timedelta(microseconds=1) if at else 0 for at in (first, last))
    # All reads of a tape in one part.
    reads = reads_of(silver.read(spark, columns=COLUMNS)).repartition(parts, "scale")
    place = partial(placing.placed, first_us=first_us, last_us=last_us)
    with persisted(reads.mapInArrow(place, placing.FOUND)) as found:
        yield PlacedReads(silver, first_us, last_us, found)


def reads_of(requests: DataFrame) -> DataFrame:
    """The reads of silver's `requests` that name a tape and two offsets.

    Columns (`placing.READS`): `at` (microseconds); `tape` and `scale`, which is the same for every gateway (hashes);
    `node`, `route`, `stream`; `start`, `end`, `sent`, `fetched`, `length` (NULL if it is unknown), `sent_in` (the
    coding, or `plain` if the bytes were in memory; else NULL), `is_counted`, `is_asking` (the origin was asked about
    the tail), `is_tail` (the read's bytes are the last ones between its offsets), `is_apart` (the tape is shared by
    only some readers of the route).
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
        f.xxhash64("scale", "node").alias("tape"),
        *("scale", "node", "route", "stream"),
        start.alias("start"),
        f.col("next_offset").alias("end"),
        f.col("sent_bytes").alias("sent"),
        f.col("fetched_bytes").alias("fetched"),
        f.when((is_plain | (saved > 0)) & (f.col("mode") != Mode.SSE), f.col("sent_bytes") + saved).alias("length"),
        f.coalesce("coding", f.when(f.col("outcome").isin(*_FOUND), f.lit(placing.PLAIN))).alias("sent_in"),
        (f.col("mode") == Mode.CATCHUP).alias("is_counted"),
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
