"""Find the reads of tapes in silver: for each read the tape, and the two offsets between which its bytes lie.

A tape holds one incarnation of a stream, in one gateway, for one route and the readers that share it.  A DELETE, or a
second PUT that creates the stream, begins a new incarnation.  An expiry in between is not in the log.

- A catch-up read that was answered with bytes looks in the cache.  It counts as a hit or a miss.
- Long-polls and SSE reads add bytes to the tape and keep it in use.  Live bytes come from the origin once, whatever the
  size of the cache, so these reads are replayed but not counted.
- An SSE connection has several lines in the log.  Each line has two offsets: where the reader began, and where the
  reader is.  The line also has a number of bytes.  These are the last bytes before the second offset.
- A read that was refused, failed, relayed or cut off is left out.

The length of a compressed answer is its length before compression.  If the log does not have this length, the read's
position follows from the lengths of other reads.  If there are no such reads, the read counts as empty.  `Placement`
counts empty reads, and reads whose position is uncertain (`scale` explains this).
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
"""Outcomes of reads that used a tape."""
_ASKING: Final = (Outcome.REVALIDATED, Outcome.JOINED)
_FOUND: Final = (Outcome.HIT, *_ASKING)
"""Outcomes of reads whose bytes were in memory, so that the answer could be remembered."""
COLUMNS: Final = (
    *("time", "node", "route", "stream", "partition", "mode", "status", "outcome", "start", "next_offset"),
    *("sent_bytes", "saved_bytes", "fetched_bytes", "coding"),
)
"""The columns of silver that `reads_of` needs."""
_ROWS_OF_A_PART: Final = 500_000
"""Lines of the log in each part of the tapes.  A worker holds the reads of one part in memory."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_COUNTED: Final = pa.schema([("step", pa.int64()), ("uses", pa.int64()), ("tapes", pa.int64())])


@dataclass(frozen=True, slots=True)
class Placement:
    """How well the reads of a log could be placed."""

    reads: int
    """Reads in silver that used a tape."""
    counted: int
    """Catch-up reads among them with known bytes."""
    counted_bytes: int
    """Bytes requested by those catch-up reads."""
    loose: int
    """Reads at an offset whose distance from the stream's beginning is unknown.  Their positions are too low."""
    empty: int
    """Reads that were sent bytes, but whose range on the tape is unknown."""
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
    """Time of silver's first line, a read or not, in Unix microseconds; 0 without lines."""
    last_us: int
    found: DataFrame
    """Rows of `placing.FOUND`."""
    _small: dict[str, list[pa.Table]] = field(default_factory=dict)

    def placement(self) -> Placement:
        """Return how well the reads could be placed, and their total size."""
        parts = self._tables(placing.SUMMARY_KIND, placing.SUMMARY).to_pylist()
        nodes = {node for part in parts for node in part.pop("nodes")}
        counts = {name: sum(part[name] for part in parts) for name in placing.SUMMARY.names if name != "nodes"}
        return Placement(**counts, nodes=len(nodes))

    def gaps(self) -> pa.Table:
        """Return rows of `streams.GAPS`."""
        return self._tables(placing.GAPS_KIND, GAPS)

    def uses(self, kept: int) -> pa.Table:
        """Return the uses of the tapes whose sampling hash is below `kept`, with the columns of `simulate.Read`."""

        def below(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in placing.tables_of(batches):
                place = table["tape"].to_numpy() % SPACE
                yield from table.slice(0, int(np.searchsorted(place, kept))).to_batches()

        return self._of_uses().mapInArrow(below, from_arrow_schema(placing.USES)).toArrow()

    def counts(self, kept: int, steps: int) -> tuple[Ints, Ints]:
        """Divide the sampling hashes below `kept` into equal steps; return the number of uses and of tapes in each."""

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
        """Return rows of `streams.FIGURES`."""

        def figures(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for table in placing.tables_of(batches):
                yield from table.to_batches()

        is_it = f.col("kind") == placing.FIGURES_KIND
        return self.found.where(is_it).select("payload").mapInArrow(figures, from_arrow_schema(FIGURES))

    def _tables(self, kind: str, schema: pa.Schema) -> pa.Table:
        """Return a small table, of which each worker has computed some rows."""
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
    """Compute the placed reads of silver, and keep them for the block."""
    rows = sum(file.rows for file in silver.files())
    fit(spark, rows)
    parts = max(int(spark.conf.get("spark.sql.shuffle.partitions") or 1), -(-rows // _ROWS_OF_A_PART))
    first, last = silver.span("time")
    first_us, last_us = ((at - _EPOCH) // timedelta(microseconds=1) if at else 0 for at in (first, last))
    # All reads of a tape must be in one part.
    reads = reads_of(silver.read(spark, columns=COLUMNS)).repartition(parts, "scale")
    place = partial(placing.placed, first_us=first_us, last_us=last_us)
    with persisted(reads.mapInArrow(place, placing.FOUND)) as found:
        yield PlacedReads(silver, first_us, last_us, found)


def reads_of(requests: DataFrame) -> DataFrame:
    """Return the reads in silver's `requests` that used a tape and have two offsets.

    The columns (`placing.READS`) are

    - `at`: microseconds
    - `tape`, `scale`: hashes of the tape with and without its gateway
    - `node`, `route`, `stream`
    - `start`, `end`: the offsets
    - `sent`, `fetched`: bytes sent to the reader, and fetched from the origin
    - `length`: bytes between the offsets; NULL if unknown
    - `sent_in`: the coding; `plain` if there is none and the bytes were in memory; else NULL
    - `is_counted`: the read is a catch-up read
    - `is_asking`: the gateway asked the origin for the stream's tail
    - `is_tail`: the read's bytes are the last ones between its offsets
    - `is_apart`: only some readers of the route share the tape
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
    """Return the times at which incarnations ended or began, by route and path.

    Streams with a single such time are left out.
    """
    is_deletion = (f.col("mode") == Mode.DELETE) & f.col("status").between(200, 299)
    is_creation = (f.col("mode") == Mode.CREATE) & (f.col("status") == 201)
    return (
        requests.where(is_deletion | is_creation)
        .groupBy("route", f.substring_index("stream", "?", 1).alias("path"))
        .agg(f.sort_array(f.collect_list("time")).alias("begun"))
        .where(f.size("begun") > 1)
    )
