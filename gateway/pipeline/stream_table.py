"""Copy a durable stream into a Delta table, each message once.

The table is a lake with a single table.  The offset up to which the stream was read is committed with the rows.  So no
message is lost or added twice, even if a run is killed or two runs overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType, StructType

from gateway.pipeline.errors import PipelineFailed, one_line
from gateway.pipeline.events import LogStream
from gateway.pipeline.ingest import followed, retried
from gateway.pipeline.lake import File, Lake, Snapshot, delta_schema
from gateway.pipeline.log_stream import each_batch
from gateway.pipeline.tables import Column, Table
from gateway.pipeline.upkeep import MANY, optimize
from pyspark_durable_streams.errors import BadOption
from pyspark_durable_streams.formats import Format, check_schema, default_schema

_CORRUPT: Final = "_corrupt"
_FREE: Final = ("chunkbytes", "mode", "tails")
"""Options that may be set here, but not for a stream of log lines."""
_MEANING: Final = "A column of the stream."


def take_table(
    spark: SparkSession,
    source: LogStream,
    into: str,
    *,
    ddl: str | None = None,
    follow: bool = False,
    moved: bool = False,
    progress: Callable[[str], None],
    stop: threading.Event | None = None,
) -> int:
    """Add the new messages of a stream to the table at `into`, a folder or URL; return the number of new rows.

    With `follow`, keep adding messages until `stop` is set or SIGINT arrives.  `ddl` is a schema in Spark's syntax.  If
    it is given, messages are JSON objects with these columns.  A message that does not fit goes to the column
    `_corrupt`, or the one named by the option `columnNameOfCorruptRecord`.  Without `ddl`, a row is an unchanged
    message or, with the option format=chunks, a chunk of the stream.  With `moved`, a table that has followed another
    URL continues at this one.

    Raises PipelineFailed.
    """
    lake, place = Lake.of_table(into)
    source = checked(source, ddl)
    schema = _schema(source, ddl)
    columns = tuple(Column(field.name, _ddl(field.dataType), _MEANING) for field in schema.fields)
    table = Table(place, columns, (), partition_by=())
    written = delta_schema(table)
    taken = 0

    def write(rows: DataFrame) -> list[File]:
        return lake.write(rows, table)

    def count(snapshot: Snapshot, files: list[File]) -> None:
        nonlocal taken
        rows = sum(file.rows for file in files)
        taken += rows
        progress(f"{lake.path(table)}: version {snapshot.version}, {rows:,} rows")

    def fitting() -> Snapshot:
        """Return the table.  Raises PipelineFailed if it has a column that the schema lacks."""
        snapshot = lake.snapshot(table)
        if left := [name for name in snapshot.present(written) if name not in table.names]:
            raise PipelineFailed(
                f"{lake.path(table)}: the schema lacks {', '.join(left)}: "
                "name all columns that the table has, and new ones as you like"
            )
        return snapshot

    def take() -> None:
        before = taken
        retried(lambda: each_batch(spark, source, schema, fitting(), write, count, moved=moved), progress)
        if taken > before:
            optimize(lake, progress, (table,), many=MANY)

    if follow:
        followed(take, stop or threading.Event(), progress)
    else:
        take()
    return taken


def checked(source: LogStream, ddl: str | None) -> LogStream:
    """Return the source with the format of the table's rows.  Raises PipelineFailed for invalid options."""
    options = dict(source.options)
    kind = options.pop("format", Format.MESSAGES if ddl is None else Format.TYPED).lower()
    if (kind == Format.TYPED) != (ddl is not None):
        raise PipelineFailed("option format: messages or chunks without --schema, and typed with it")
    source = replace(source, options=options, format=kind)
    source.check(free=_FREE)
    return source


def _schema(source: LogStream, ddl: str | None) -> StructType:
    try:
        schema = cast("StructType", StructType.fromDDL(default_schema(Format(source.format)) if ddl is None else ddl))
    except PySparkException as error:
        raise PipelineFailed(f"schema: {one_line(error)}") from None
    misfits = source.options.get("columnnameofcorruptrecord", _CORRUPT)
    if ddl is not None and misfits not in schema.names:
        schema = schema.add(misfits, StringType())
    try:
        check_schema(Format(source.format), schema, (misfits,))
    except BadOption as error:
        raise PipelineFailed(f"schema: {error}") from None
    # A message that does not fit has NULL in every other column.
    return schema.toNullable()


def _ddl(kind: DataType) -> str:
    """Return a type in Spark's schema syntax.  Unlike `simpleString`, this quotes the names of fields."""
    return StructType().add("x", kind).toDDL().removeprefix("x ")
