"""A driver for tests to kill: a query from streams to Parquet files, until there is nothing more to read.

python -m tests.pyspark_durable_streams.reader_job URL STREAMS OUTPUT CHECKPOINT SCRATCH SPOOL_BYTES
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.effort import IS_LONG
from tests.spark import settings, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As many attempts as a cluster gives a task; local runs have one otherwise.
MASTER: Final = "local[2,4]"
ROWS_A_BATCH: Final = 40_000 if IS_LONG else 8_000


def read_all(spark: SparkSession, url: str, streams: str, output: str, checkpoint: str, spool: str) -> None:
    """What the driver does."""
    query = (
        spark.readStream.format("durable_streams")
        .options(url=url, streams=streams, startingOffsets="earliest", spoolBytes=spool)
        .option("maxRowsPerTrigger", str(ROWS_A_BATCH))
        .load()
        .writeStream.format("parquet")
        .option("path", output)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(url: str, streams: str, output: str, checkpoint: str, scratch: str, spool: str) -> None:
    # Where tasks read the streams themselves, workers are not used again: those which are there are at work.
    conf = {**settings(Path(scratch), compiles=False), "spark.python.worker.reuse": "true" if int(spool) else "false"}
    spark = started(MASTER, conf)
    read_all(spark, url, streams, output, checkpoint, spool)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
