"""Every row of a stream to one task, which is what lets tasks send side by side.

A Python data source cannot ask Spark for a distribution, and it cannot see the plan that brings it its rows.  So the
rows bring the proof along: a column with the number of the task that the stream belongs to, which is the one that
Spark's own partitioning by that stream gives it, and with the stream's name.  A task takes only rows with its own
number and with the name that the row goes to.  Where every task does so, no two can have rows of one stream, whatever
has happened to the plan or to the column since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark_durable_streams.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STREAM_TASK: Final = "_durable_streams_task_of_stream"
"""The column that says which task a row's stream belongs to, and what that stream was: `3/name`."""
ONLY_TASK: Final = "_durable_streams_only_task"
"""The column that says that all rows belong to one task, for a frame that goes into one stream."""


def by_stream(df: DataFrame, stream: str | None = "stream", *, partitions: int | None = None) -> DataFrame:
    """`df` with all rows of a stream in one task, so that the sink's tasks send themselves, side by side.

    `stream` is the column that names the stream; None: all rows go into one stream, the option `stream`, by one task.
    `partitions` is the number of tasks (default: `spark.sql.shuffle.partitions`); it may change between restarts.
    Nothing may move rows between this and the write.
    """
    from pyspark.sql import functions as sf

    if stream is None:
        return df.withColumn(ONLY_TASK, sf.lit(0)).repartition(1)
    if partitions is None:
        partitions = int(df.sparkSession.conf.get("spark.sql.shuffle.partitions") or 200)
    if partitions < 1:
        raise BadOption(f"partitions: at least 1 is wanted, not {partitions}")
    # The very expression of HashPartitioning: the row's number is that of the task it will be in.
    task = sf.pmod(sf.hash(stream), sf.lit(partitions))
    mark = sf.concat_ws("/", task.cast("string"), sf.col(stream))
    return df.withColumn(STREAM_TASK, mark).repartition(partitions, sf.col(stream))
