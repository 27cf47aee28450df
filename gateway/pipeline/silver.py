"""Silver: the events of bronze with typed columns, each line once.

The fields of a line (`gateway.ops.access_log.schema`) become the columns of `tables.REQUESTS` with the same names.

A duplicate of a line has the same id and the same day.  So the ids of new lines are compared with each other, and with
the ids of the same days in silver, however old.  Lines without an id cannot be compared, and all of them are kept.

Few lines are duplicates.  First, hashes of day and id show which ids may occur twice.  This step reads few columns.
Then only lines with those ids are compared in full, and all other lines are written directly.

The rows of plain lines have already been written when the lines were ingested (`gateway.pipeline.intake`).  Files
without a possible duplicate become part of silver unchanged.  Other files are copied without the possible duplicates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.pipeline.bronze import day_of, line_fields, parsed, time_of
from gateway.pipeline.lake import File, Lake, Snapshot
from gateway.pipeline.parquet import WRITTEN, Reader, arrow_schema, partition_values
from gateway.pipeline.session import fit, persisted
from gateway.pipeline.tables import LEFT_OUT, LINES, REQUESTS

_KEY: Final = REQUESTS.key
_MARK: Final = "mark"
_BRONZE: Final = "bronze"
"""The mark of silver: the version of bronze that it was computed from."""


_MOST_KEYS: Final = 100_000
"""Most possible duplicates that are passed to tasks as a list.  If a source is read again, every line is a possible
duplicate."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files with rows of silver that are not committed yet.  A line and its copies together have at least one row."""

    of: frozenset[str]
    """The files of bronze with exactly the lines of these rows."""
    files: tuple[File, ...]


def update_silver(spark: SparkSession, lake: Lake, prepared: Mapping[int, Prepared | None] | None = None) -> int:
    """Update silver from bronze, and return how many lines silver gained.  Raises Conflict.

    `prepared` has the prepared rows of some versions of bronze.

    Usually each version of bronze gets a separate commit of silver, so that `gained` can tell what it added.  If lines
    were removed from bronze, or new lines were compacted with old ones, the affected days are recomputed in one commit.
    """
    bronze, silver = lake.snapshot(LINES), lake.snapshot(REQUESTS)
    since = silver.mark(_BRONZE)
    if bronze.version in (since, -1):
        return 0
    changes = bronze.changes(-1 if since is None else since)
    in_bronze = bronze.files()
    fit(spark, sum(file.rows for file in in_bronze))
    day_of_file = {file.path: file.day for file in in_bronze}
    if changes is not None and changes.is_addition and day_of_file.keys() >= changes.added.keys():
        count = 0
        for version, group in groupby(changes.added, changes.added.__getitem__):
            paths = list(group)
            days = {day for path in paths if (day := day_of_file[path]) is not None}
            stored = silver.read(spark, columns=_KEY, days=days) if silver.files(days) else None
            ready = (prepared or {}).get(version)
            if ready is not None and ready.of <= set(paths):
                files = _complete(ready, bronze, paths, stored, spark)
            else:
                files = _write(partial(bronze.read, spark, paths=paths), stored, lake)
            rows = sum(file.rows for file in files)
            silver = silver.commit(files, marks={_BRONZE: version}, about=_about(version, version, rows))
            count += rows
        if silver.mark(_BRONZE) != bronze.version:
            silver.commit(marks={_BRONZE: bronze.version})
        return count
    days = {*bronze.days(), *silver.days()} if changes is None else {*changes.days}
    files = _write(partial(bronze.read, spark, days=days), None, lake)
    count = sum(file.rows for file in files) - sum(file.rows for file in silver.files(days))
    first = 0 if since is None else since + 1
    silver.commit(files, replaces=days, marks={_BRONZE: bronze.version}, about=_about(first, bronze.version, count))
    return count


def _about(first: int, last: int, rows: int) -> dict[str, str]:
    return {_BRONZE: f"{first}-{last}", "rows": str(rows)}


def gained(silver: Snapshot, versions: Collection[int], since: int) -> int:
    """Return how many lines these versions of bronze added to silver, after silver's version `since`.

    Commits of all runs count.  If a commit covers several versions of bronze, all of its lines count.
    """
    if silver.delta is None or silver.version <= since:
        return 0
    count = 0
    for commit in silver.delta.history(silver.version - since):
        first, _, last = str(commit.get(_BRONZE, "")).partition("-")
        if last and any(int(first) <= version <= int(last) for version in versions):
            count += int(commit["rows"])
    return count


def _write(came: Callable[..., DataFrame], stored: DataFrame | None, lake: Lake) -> list[File]:
    """Write the lines of `came` whose days and ids are not in `stored`, each once.

    None stands for an empty `stored`.
    """
    with persisted(_doubtful(came(columns=_KEY), stored)) as doubtful:
        if doubtful.isEmpty():
            return lake.write(typed(came(columns=("line",))), REQUESTS)
        marked = came(columns=(*_KEY, "line")).withColumn(_MARK, _mark())
        sure = marked.join(doubtful, _MARK, "left_anti")
        again = _once(marked.join(doubtful, _MARK, "left_semi"), stored)
        return lake.write(typed(sure.select("line").unionAll(again)), REQUESTS)


def _complete(
    ready: Prepared, bronze: Snapshot, paths: Sequence[str], stored: DataFrame | None, spark: SparkSession
) -> list[File]:
    """Return files of silver with the lines in `paths` of bronze whose days and ids are not in `stored`, each once.

    Prepared files are used where possible.
    """
    lake = bronze.lake
    came = partial(bronze.read, spark, paths=paths)
    others = [path for path in paths if path not in ready.of]
    keys = lake.read_files(spark, REQUESTS.with_columns(_KEY), [file.path for file in ready.files])
    if others:
        keys = keys.unionByName(bronze.read(spark, paths=others, columns=_KEY))
    marks = _doubtful(keys, stored).limit(_MOST_KEYS + 1).toArrow()
    if marks.num_rows > _MOST_KEYS:
        _remove(ready.files, lake)
        return _write(came, stored, lake)
    if not marks.num_rows:
        rest = bronze.read(spark, paths=others, columns=("line",))
        return [*ready.files, *(lake.write(typed(rest), REQUESTS) if others else ())]
    is_doubtful = f.broadcast(spark.createDataFrame(marks))
    found = keys.join(is_doubtful, _mark() == is_doubtful[_MARK], "left_semi").distinct().toArrow()
    files = _without(ready.files, found, lake, spark)
    chosen = f.broadcast(spark.createDataFrame(found))
    columns, key = (*_KEY, "line"), list(_KEY)
    rest = bronze.read(spark, paths=others, columns=columns).join(chosen, key, "left_anti").select("line")
    again = _once(came(columns=columns).join(chosen, key, "left_semi"), stored)
    return [*files, *lake.write(typed(rest.unionAll(again) if others else again), REQUESTS)]


def _without(files: Sequence[File], keys: pa.Table, lake: Lake, spark: SparkSession) -> list[File]:
    """Remove the rows with these keys: replace each file that has such rows by a copy, and return all files."""
    folder = f"{REQUESTS.place}/"
    ids_of = {str(day): keys.filter(pc.equal(keys["day"], day))["id"].combine_chunks() for day in keys["day"].unique()}
    names = Reader(lake.store, folder, arrow_schema(REQUESTS, ["id"]))
    rows = Reader(lake.store, folder, arrow_schema(REQUESTS))
    writer = lake.writer(REQUESTS)

    def copy(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            path = files[number].path
            ids = ids_of.get(partition_values(path)["day"])
            if ids is not None and any(pc.any(pc.is_in(batch["id"], ids)).as_py() for batch in names.read([path])):
                kept = (batch.filter(pc.invert(pc.is_in(batch["id"], ids))) for batch in rows.read([path]))
                yield from writer(kept)
            else:
                yield pa.RecordBatch.from_pylist([{**asdict(files[number]), "path": folder + path}])

    parts = max(1, min(len(files), spark.sparkContext.defaultParallelism))
    copied = spark.range(0, len(files), 1, parts).mapInArrow(copy, WRITTEN)
    copies = lake.collect(copied, REQUESTS)[REQUESTS]
    _remove(set(files) - set(copies), lake)
    return copies


def _remove(files: Iterable[File], lake: Lake) -> None:
    """Delete files that are not part of any commit."""
    for file in files:
        lake.store.remove(f"{REQUESTS.place}/{file.path}")


def typed(lines: DataFrame) -> DataFrame:
    """Turn lines (column `line`), all of which must be events, into rows of silver."""
    read = lines.select(parsed(f.col("line")).alias("event"))
    event = {name: f.col(f"event.{name}") for name in line_fields()}
    of_time = {"day": day_of(event["time"]), "time": time_of(event["time"])}
    made: list[Column] = []
    for column in REQUESTS.columns:
        # A number that is too large for its type becomes NULL, and must not fail the query.
        value = of_time[column.name] if column.name in of_time else event[column.name].try_cast(column.type)
        if column.name in LEFT_OUT:
            value = f.coalesce(value, f.lit(LEFT_OUT[column.name]).cast(column.type))
        made.append(value.alias(column.name))
    return read.select(made)


def _mark() -> Column:
    """Return a hash of a line's day and id, which two different lines seldom share; NULL without an id."""
    return f.when(f.col("id").isNotNull(), f.xxhash64(*_KEY)).alias(_MARK)


def _doubtful(came: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Return the hashes of keys that occur more than once in the batch, or are already stored."""
    counted = _marks(came).groupBy(_MARK).agg(f.count("*").alias("times"))
    twice = counted.where("times > 1").select(_MARK)
    if stored is None:
        return twice
    return twice.unionAll(_marks(stored).join(counted.select(_MARK), _MARK, "left_semi")).distinct()


def _marks(keys: DataFrame) -> DataFrame:
    return keys.select(_mark()).where(f.col(_MARK).isNotNull())


def _once(doubtful: DataFrame, stored: DataFrame | None) -> DataFrame:
    """Return the new lines among possible duplicates, each once.  A repeated run chooses the same lines."""
    first = doubtful.groupBy(*_KEY).agg(f.min("line").alias("line"))
    return (first if stored is None else first.join(stored, list(_KEY), "left_anti")).select("line")
