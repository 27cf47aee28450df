"""Silver: the events of bronze with their types, each line once.

The schema is that of the access log (`gateway.ops.access_log.FIELDS`), read by name, and that of `tables.REQUESTS`.  A
line that comes twice has the same id and the same day, so it is looked for among the ids of its batch and of its days
in silver, as far as other batches wrote them.  There is no window beyond which a line is counted again.  Lines without
an id cannot be told apart, and all of them count.

Few lines come twice.  So first it is found out by a number made of each id which ids may be doubled, from one column
and with no line in hand; only those lines are compared in earnest, and all others go straight to their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline.bronze import day_of, line_fields, parsed, time_of
from gateway.pipeline.tables import LINES, REQUESTS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from gateway.pipeline.lake import Lake

# What a field that is left out means, where that is not "unknown".
_LEFT_OUT: Final[dict[str, Any]] = {"route": "-", "partition": "", "status": 0, "saved_bytes": 0, "origin_requests": 0}
_MARK: Final = "mark"


def write_silver(spark: SparkSession, lake: Lake, batch: str) -> None:
    """Write what a batch of bronze adds to silver."""
    days = lake.days(spark, LINES, batch=batch)
    if not days:
        return
    from pyspark.sql import functions as f

    came = lake.read_batches(spark, LINES, batch=batch).withColumn(_MARK, _mark(f.col("id")))
    stored = lake.read_batches(spark, REQUESTS, others_than=batch, days=days).select("id")
    doubtful = _doubtful(came.select(_MARK), stored.select(_mark(f.col("id")).alias(_MARK))).persist()
    try:
        if doubtful.isEmpty():
            lines = came.select("line")
        else:
            sure = came.join(doubtful, _MARK, "left_anti")
            lines = sure.select("line").unionAll(_once(came.join(doubtful, _MARK, "left_semi"), stored))
        lake.write_batch(typed(lines), REQUESTS, batch)
    finally:
        doubtful.unpersist()


def typed(lines: DataFrame) -> DataFrame:
    """The rows that lines are, each of which is an event (`line`)."""
    from pyspark.sql import functions as f

    read = lines.select(parsed(f.col("line")).alias("event"))
    event = {name: f.col(f"event.{name}") for name in line_fields()}
    made: list[Column] = []
    for column in REQUESTS.columns:
        match column.name:
            case "day":
                value = day_of(event["time"])
            case "time":
                value = time_of(event["time"])
            case name if name in event:
                # Never an error: a number that is too large is not known.
                value = event[name].try_cast(column.type)
            case _:
                value = f.lit(None).cast(column.type)
        if column.name in _LEFT_OUT:
            value = f.coalesce(value, f.lit(_LEFT_OUT[column.name]).cast(column.type))
        made.append(value.alias(column.name))
    return read.select(made)


def _mark(id_: Column) -> Column:
    """A number for an id; NULL for none.  Two ids seldom have the same."""
    from pyspark.sql import functions as f

    return f.when(id_.isNotNull(), f.xxhash64(id_))


def _doubtful(came: DataFrame, stored: DataFrame) -> DataFrame:
    """The marks that came more than once, or that are stored already."""
    from pyspark.sql import functions as f

    counted = came.where(f.col(_MARK).isNotNull()).groupBy(_MARK).agg(f.count("*").alias("times"))
    before = stored.where(f.col(_MARK).isNotNull()).join(counted.select(_MARK), _MARK, "left_semi")
    return counted.where("times > 1").select(_MARK).unionAll(before).distinct()


def _once(doubtful: DataFrame, stored: DataFrame) -> DataFrame:
    """Of lines that may have come before, each that has not, once; the same one whenever it is done again."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    order = Window.partitionBy("id").orderBy("line")
    first = doubtful.withColumn("place", f.row_number().over(order)).where("place = 1")
    return first.join(stored, "id", "left_anti").select("line")
