"""Silver: the events of bronze with their types, each line once.

The schema is that of the access log (`gateway.ops.access_log.fields`), read by name, and that of `tables.REQUESTS`.  A
duplicate of a line has the same id and the same day, so the ids of new lines are compared with each other and with
those of the same days in silver.  There is no window after which a duplicate counts again.  Lines without an id cannot
be compared, and all of them count.

Few lines are duplicates.  So hashes of the ids, which need one column only, first find the ids that may occur twice.
Only lines with those ids are compared in full; all others are written at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import groupby
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.pipeline.bronze import day_of, line_fields, parsed, time_of
from gateway.pipeline.lake import File, Lake, Snapshot
from gateway.pipeline.session import fit_shuffles, persisted
from gateway.pipeline.tables import DURABLE_STREAMS, LINES, REQUESTS

# The meaning of a missing field, where that is not "unknown".
_LEFT_OUT: Final[dict[str, Any]] = {
    "route": "-",
    "protocol": DURABLE_STREAMS,
    "partition": "",
    "status": 0,
    "saved_bytes": 0,
    "origin_requests": 0,
}
_KEY: Final = REQUESTS.key
_MARK: Final = "mark"
_BRONZE: Final = "bronze"
"""The mark of silver: the version of bronze that it has the lines of."""


def update_silver(spark: SparkSession, lake: Lake) -> int:
    """Bring silver up to bronze, and return how many lines it gained.  Raises Conflict.

    Each version of bronze has a commit of its own, so that `gained` can tell what it added.  If lines have left bronze,
    or the new ones are compacted with others, their days are made anew in one commit.
    """
    bronze, silver = lake.snapshot(LINES), lake.snapshot(REQUESTS)
    since = silver.mark(_BRONZE)
    if bronze.version in (since, -1):
        return 0
    changes = bronze.changes(-1 if since is None else since)
    in_bronze = bronze.files()
    fit_shuffles(spark, sum(file.rows for file in in_bronze))
    day_of_file = {file.path: file.day for file in in_bronze}
    if changes is not None and changes.is_addition and day_of_file.keys() >= changes.added.keys():
        count = 0
        for version, group in groupby(changes.added, changes.added.__getitem__):
            paths = list(group)
            days = {day for path in paths if (day := day_of_file[path]) is not None}
            stored = silver.read(spark, columns=_KEY, days=days)
            files = _write(partial(bronze.read, spark, paths=paths), stored, lake)
            rows = sum(file.rows for file in files)
            silver = silver.commit(files, marks={_BRONZE: version}, about=_about(version, version, rows))
            count += rows
        if silver.mark(_BRONZE) != bronze.version:
            silver.commit(marks={_BRONZE: bronze.version})
        return count
    days = {*bronze.days(), *silver.days()} if changes is None else {*changes.days}
    files = _write(partial(bronze.read, spark, days=days), spark.createDataFrame([], "day date, id string"), lake)
    count = sum(file.rows for file in files) - sum(file.rows for file in silver.files(days))
    first = 0 if since is None else since + 1
    silver.commit(files, replaces=days, marks={_BRONZE: bronze.version}, about=_about(first, bronze.version, count))
    return count


def _about(first: int, last: int, rows: int) -> dict[str, str]:
    return {_BRONZE: f"{first}-{last}", "rows": str(rows)}


def gained(silver: Snapshot, versions: Collection[int], since: int) -> int:
    """How many lines these versions of bronze added to silver after its own version `since`, by whichever run; with
    those of other versions that were made anew with them."""
    if silver.delta is None or silver.version <= since:
        return 0
    count = 0
    for commit in silver.delta.history(silver.version - since):
        first, _, last = str(commit.get(_BRONZE, "")).partition("-")
        if last and any(int(first) <= version <= int(last) for version in versions):
            count += int(commit["rows"])
    return count


def _write(came: Callable[..., DataFrame], stored: DataFrame, lake: Lake) -> list[File]:
    """Write what `came` adds to the lines whose days and ids are `stored`."""
    # A hash, which two lines seldom share; NULL without an id.
    mark = f.when(f.col("id").isNotNull(), f.xxhash64(*_KEY)).alias(_MARK)
    with persisted(_doubtful(came(columns=_KEY).select(mark), stored.select(mark))) as doubtful:
        if doubtful.isEmpty():
            return lake.write(typed(came(columns=("line",))), REQUESTS)
        marked = came(columns=(*_KEY, "line")).withColumn(_MARK, mark)
        sure = marked.join(doubtful, _MARK, "left_anti")
        again = _once(marked.join(doubtful, _MARK, "left_semi"), stored)
        return lake.write(typed(sure.select("line").unionAll(again)), REQUESTS)


def typed(lines: DataFrame) -> DataFrame:
    """Typed rows from lines, each of which is an event (column `line`)."""
    read = lines.select(parsed(f.col("line")).alias("event"))
    event = {name: f.col(f"event.{name}") for name in line_fields()}
    of_time = {"day": day_of(event["time"]), "time": time_of(event["time"])}
    made: list[Column] = []
    for column in REQUESTS.columns:
        # Never an error: a number that is too large becomes NULL.
        value = of_time[column.name] if column.name in of_time else event[column.name].try_cast(column.type)
        if column.name in _LEFT_OUT:
            value = f.coalesce(value, f.lit(_LEFT_OUT[column.name]).cast(column.type))
        made.append(value.alias(column.name))
    return read.select(made)


def _doubtful(came: DataFrame, stored: DataFrame) -> DataFrame:
    """Hashes that occur more than once in the batch, or are stored already."""
    counted = came.where(f.col(_MARK).isNotNull()).groupBy(_MARK).agg(f.count("*").alias("times"))
    before = stored.where(f.col(_MARK).isNotNull()).join(counted.select(_MARK), _MARK, "left_semi")
    return counted.where("times > 1").select(_MARK).unionAll(before).distinct()


def _once(doubtful: DataFrame, stored: DataFrame) -> DataFrame:
    """The new lines among possible duplicates, each once; a repeated run chooses the same ones."""
    first = doubtful.groupBy(*_KEY).agg(f.min("line").alias("line"))
    return first.join(stored, list(_KEY), "left_anti").select("line")
