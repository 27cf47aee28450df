"""`by_stream`: puts all rows of a stream into one task, so that tasks can send in parallel.

A Python data source cannot ask Spark for a distribution, nor see the plan that delivers its rows.  The rows therefore
carry a proof: a column with the stream's name and the number of its task, which is the one that Spark's own
partitioning by that stream gives it.  A task accepts only rows with its own number and the name of the stream that the
row goes to.  If every task does so, no two can have rows of one stream, whatever has happened to the plan or to the
column since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark_durable_streams.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM_TASK: Final = "_durable_streams_task_of_stream"
"""The column with the task of a row's stream and the stream's name: `3/name`."""
ONLY_TASK: Final = "_durable_streams_only_task"
"""The column that assigns all rows to one task, for a frame that goes into one stream."""


def by_stream(df: DataFrame, stream: str | None = "stream", *, partitions: int | None = None) -> DataFrame:
    """`df` with all rows of a stream in one task, so that the sink's tasks send in parallel.

    `stream` is the column that names the stream; None: all rows go into one stream, the option `stream`, by one task.
    `partitions` is the number of tasks (default: `spark.sql.shuffle.partitions`); it may change between restarts.
    No step between this one and the write may move rows.
    """
    from pyspark.sql import functions as sf

    if stream is None:
        return df.withColumn(ONLY_TASK, sf.lit(0)).repartition(1)
    if partitions is None:
        partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    if partitions < 1:
        raise BadOption(f"partitions: at least 1 is expected, not {partitions}")
    # The same expression as HashPartitioning: the result is the number of the row's task.
    task = sf.pmod(sf.hash(stream), sf.lit(partitions))
    mark = sf.concat_ws("/", task.cast("string"), sf.col(stream))
    return df.withColumn(STREAM_TASK, mark).repartition(partitions, sf.col(stream))
