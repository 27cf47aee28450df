"""A Delta table of any durable stream: each message once, in batches or as they come.

The table is a lake of one table.  The offset that it stands at is committed with its rows, so a run that is killed, or
that meets another one, neither loses a message nor adds one twice.
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
"""Options that the lines of a log may not have."""
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
    """Add what is new of a stream to the table at `into`, a folder or URL; with `follow` until `stop` or SIGINT.

    With `ddl`, Spark's schema text, messages are JSON with these columns, and a message that does not fit goes to
    `_corrupt`, or the column that `columnNameOfCorruptRecord` names; without it, rows are messages as they are, or
    chunks of the stream with the option format=chunks.  With `moved`, a table that follows another URL goes on at
    this one.  Returns how many rows came.  Raises PipelineFailed.
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
        """The table, unless rows of this schema would leave one of its columns out."""
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
    """The source in the format of the table's rows.  Raises PipelineFailed for options that it cannot have."""
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
    # A message that does not fit has NULL in any column.
    return schema.toNullable()


def _ddl(kind: DataType) -> str:
    """Spark's text of a type.  `simpleString` does not quote the names of fields."""
    return StructType().add("x", kind).toDDL().removeprefix("x ")
