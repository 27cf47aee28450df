"""A Delta table of any durable stream: each message once, in batches or as they come.

The table is a lake of one table.  The offset that it stands at is committed with its rows, so a run that is killed, or
that meets another one, neither loses a message nor adds one twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from gateway.pipeline.errors import PipelineFailed, one_line
from gateway.pipeline.events import LogStream
from gateway.pipeline.ingest import FOLLOW_S
from gateway.pipeline.lake import Conflict, Lake
from gateway.pipeline.log_stream import StreamBatches
from gateway.pipeline.tables import Column, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_CORRUPT: Final = "_corrupt"
_MEANING: Final = "A column of the stream."


def take_table(
    spark: SparkSession,
    source: LogStream,
    into: str,
    *,
    ddl: str | None = None,
    follow: bool = False,
    progress: Callable[[str], None],
    stop: threading.Event | None = None,
) -> int:
    """Add what is new of a stream to the table at `into`, a folder or URL; with `follow` until `stop` or SIGINT.

    With `ddl`, Spark's schema text, messages are JSON with these columns, and a message that does not fit goes to
    `_corrupt`; without it, rows are messages as they are.  Returns how many rows came.  Raises PipelineFailed.
    """
    parent, _, place = into.rstrip("/").rpartition("/")
    schema = _schema(source, ddl)
    columns = tuple(Column(field.name, field.dataType.simpleString(), _MEANING) for field in schema.fields)
    if not parent or parent.endswith(":/"):
        raise PipelineFailed(
            f"{into}: expected the name of a table beneath a folder or bucket, such as s3://shop/orders"
        )
    table, lake = Table(place, columns, (), partition_by=()), Lake(parent)
    Lake(into)  # its name, too, is none that Spark would take for a pattern
    name, taken, is_over = f"stream {source.url}", 0, stop or threading.Event()
    try:
        while True:
            snapshot = lake.snapshot(table)
            try:
                with StreamBatches(spark, source.reading, schema, source.url) as stream, stream.failing():
                    offset = snapshot.progress(name)
                    while (batch := stream.after(offset)) is not None:
                        rows, offset = batch
                        files = lake.write(rows, table)
                        snapshot = snapshot.commit_progress(files, name, offset)
                        count = sum(file.rows for file in files)
                        taken += count
                        progress(f"{into}: version {snapshot.version}, {count:,} rows")
            except Conflict as error:
                if not follow:
                    raise
                progress(f"{error}: once more")
            if not follow or is_over.wait(FOLLOW_S):
                return taken
    except KeyboardInterrupt:
        if not follow:
            raise
        progress("stopping")
        return taken


def _schema(source: LogStream, ddl: str | None) -> StructType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StringType, StructType

    from pyspark_durable_streams.formats import default_schema
    from pyspark_durable_streams.options import format_of

    try:
        if ddl is None:
            return cast("StructType", StructType.fromDDL(default_schema(format_of(source.reading))))
        schema = cast("StructType", StructType.fromDDL(ddl))
    except PySparkException as error:
        raise PipelineFailed(f"schema: {one_line(error)}") from None
    return schema if _CORRUPT in schema.names else schema.add(_CORRUPT, StringType())
