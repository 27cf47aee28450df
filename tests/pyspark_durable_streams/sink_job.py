"""A driver for tests to kill: a query from Parquet files to streams, until there is nothing more to write.

    python -m tests.pyspark_durable_streams.sink_job URL INPUT CHECKPOINT SCRATCH TASKS

TASKS 0 leaves the sending to the driver.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_durable_streams import by_stream
from tests.effort import IS_LONG
from tests.spark import settings, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# As many attempts as a cluster gives a task; local runs have one otherwise.
MASTER = "local[2,4]"
CONTENT_TYPE = "application/ndjson"
MAX_BATCH_BYTES = 65_536 if IS_LONG else 4_096


def write(spark: SparkSession, url: str, source: str, checkpoint: str, tasks: int) -> None:
    """What the driver does."""
    df = (
        spark.readStream.schema("n long, stream string, value string").option("maxFilesPerTrigger", "2").parquet(source)
    )
    if tasks:
        df = by_stream(df, partitions=tasks)
    query = (
        df.writeStream.format("durable_streams")
        .options(url=url, create=CONTENT_TYPE, orderBy="n", maxBatchBytes=str(MAX_BATCH_BYTES))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(url: str, source: str, checkpoint: str, scratch: str, tasks: str) -> None:
    spark = started(MASTER, settings(Path(scratch), compiles=False))
    write(spark, url, source, checkpoint, int(tasks))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
