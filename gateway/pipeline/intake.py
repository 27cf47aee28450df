"""Write one batch of new lines as files of bronze and, for most lines, also as files of silver.

Tasks write each plain line (`gateway.pipeline.plain`) to both tables in one pass.  They write the few odd lines to the
spool, and a second query classifies these lines.

The new files of silver are only `Prepared`: no commit includes them yet.  They become part of silver when silver is
updated to the version of bronze that the batch makes (`gateway.pipeline.silver`).  If this run is killed before that,
or another run updates silver first, silver is computed from bronze instead.  A vacuum then removes the unused files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as f

from gateway.pipeline.bronze import classified
from gateway.pipeline.lake import File, Lake
from gateway.pipeline.log_files import SPOOL
from gateway.pipeline.parquet import WRITTEN, Reader, arrow_schema
from gateway.pipeline.plain import Sorter
from gateway.pipeline.silver import Prepared
from gateway.pipeline.tables import BRONZE, REQUESTS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILES_OF_A_TASK: Final = 4
"""Most files of the spool that one task reads.  Few files are read by one task each, to use all processors."""
_TABLES: Final = (BRONZE, REQUESTS, SPOOL)


@dataclass(frozen=True, slots=True)
class Batch:
    """The files of a batch: the files of bronze, and the files of silver with the rows of plain lines."""

    bronze: list[File]
    prepared: Prepared


def write_spooled(
    spark: SparkSession, lake: Lake, paths: Sequence[str], *, taken_us: int, oldest: date | None
) -> Batch:
    """Write the lines of these files in the spool; `taken_us` is the time of ingestion (Unix microseconds)."""
    reader = Reader(lake.store, f"{SPOOL.place}/", arrow_schema(SPOOL))
    parts = max(min(len(paths), spark.sparkContext.defaultParallelism), -(-len(paths) // _FILES_OF_A_TASK))
    numbers = spark.range(0, len(paths), 1, parts)
    sorter = _sorter(lake, taken_us, oldest)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        chosen = [paths[number] for batch in batches for number in batch.column(0).to_pylist()]
        return sorter(reader.read(chosen))

    return _batch(spark, lake, numbers.mapInArrow(write, WRITTEN), taken_us, oldest)


def write_rows(spark: SparkSession, lake: Lake, rows: DataFrame, *, taken_us: int, oldest: date | None) -> Batch:
    """Write the lines of `rows` (columns `line`, `source`); `taken_us` is the time of ingestion (Unix microseconds)."""
    sorter = _sorter(lake, taken_us, oldest)
    written = rows.select(SPOOL.names).mapInArrow(sorter, WRITTEN)
    return _batch(spark, lake, written, taken_us, oldest)


def _sorter(lake: Lake, taken_us: int, oldest: date | None) -> Sorter:
    bronze, silver, odd = map(lake.writer, _TABLES)
    return Sorter(bronze, silver, odd, taken_us // 1_000_000, oldest)


def _batch(spark: SparkSession, lake: Lake, written: DataFrame, taken_us: int, oldest: date | None) -> Batch:
    files = lake.collect(written, *_TABLES)
    bronze, silver, odd = (files[table] for table in _TABLES)
    of = frozenset(file.path for file in bronze)
    try:
        if odd:
            lines = lake.read_files(spark, SPOOL, [file.path for file in odd])
            taken = f.timestamp_micros(f.lit(taken_us)).alias("taken")
            bronze += lake.write(classified(lines.select("*", taken), oldest=oldest), BRONZE)
    finally:
        for file in odd:
            lake.store.remove(f"{SPOOL.place}/{file.path}")
    return Batch(bronze, Prepared(of, tuple(silver)))
