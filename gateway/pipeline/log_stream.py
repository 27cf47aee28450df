"""Read the new messages of a stream in batches.

This module uses the streaming reader of the project's Spark data source.  The driver determines the end of the next
batch, and tasks read the messages.  The offset of the batch's end is committed together with its rows.  There is no
checkpoint folder of Spark, because not every store for a lake could hold one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gateway.pipeline.errors import PipelineFailed, one_line
from gateway.pipeline.events import MARK, LogStream, with_hint
from gateway.pipeline.lake import File, Snapshot
from pyspark_durable_streams.errors import DurableStreamsError
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader


def each_batch(
    spark: SparkSession,
    source: LogStream,
    schema: StructType,
    snapshot: Snapshot,
    write: Callable[[DataFrame], list[File]],
    taken: Callable[[Snapshot, list[File]], None],
    *,
    moved: bool | None = None,
) -> None:
    """Read a stream from the progress committed in `snapshot` up to its current end.

    `write` writes the rows of a batch as files of the table.  The files are committed with the offset of the batch's
    end.  Then `taken` is called with the new snapshot and the files.  Errors of the source, in the driver or in tasks,
    are raised as PipelineFailed.

    `moved` is for a table of a single stream.  True continues at this URL with the progress of another URL.  False
    raises PipelineFailed if the table has progress of another URL.  None allows progress of several streams.
    """
    name = source.mark
    try:
        if not snapshot.mark(name):
            snapshot = _under_this_name(snapshot, source, moved)
        reader = StreamReader(schema, read_options(source.reading, is_streaming=True))
        try:
            reader.prepareForTriggerAvailableNow()
            start = snapshot.progress(name) or reader.initialOffset()
            while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
                files = write(_rows(spark, reader, reader.partitions(start, end), schema))
                snapshot = snapshot.commit_progress(files, name, end)
                taken(snapshot, files)
                start = end
        finally:
            reader.stop()
    except DurableStreamsError as error:
        raise PipelineFailed(f"{source.url}: {with_hint(str(error))}") from None
    except PySparkException as error:
        raise PipelineFailed(f"{source.url}: {with_hint(one_line(error))}") from None


def _under_this_name(snapshot: Snapshot, source: LogStream, moved: bool | None) -> Snapshot:
    """Find progress in this stream under another name, and commit it under the present name.

    The other name is an earlier release's spelling of the URL or, with `moved`, the stream's former URL.  Without such
    progress, return the snapshot unchanged.
    """
    earlier = sorted(name for *_, name in snapshot.progress_files() if name is not None and name.startswith(MARK))
    found = [name for name in earlier if LogStream(name.removeprefix(MARK)).mark == source.mark]
    if not found and moved is not None:
        if not earlier and snapshot.delta is not None and snapshot.files():
            raise PipelineFailed(
                f"{snapshot.lake.path(snapshot.table)}: has rows, but nothing tells how far streams were read: it was "
                "not copied whole"
            )
        if len(earlier) > moved:
            urls = " and ".join(name.removeprefix(MARK) for name in earlier)
            raise PipelineFailed(
                f"{snapshot.lake.path(snapshot.table)}: follows {urls}: --moved goes on at {source.url} if that is the "
                "one stream it follows, and another stream needs a table of its own"
            )
        found = earlier
    if not found:
        return snapshot
    state = snapshot.progress(found[0])
    here = dict.fromkeys(read_options(source.reading, is_streaming=True).streams)
    state |= {"streams": dict(zip(here, state["streams"].values(), strict=False)), "batch": {}, "last": ""}
    return snapshot.commit_progress([], source.mark, state, instead_of=found[0])


def _rows(spark: SparkSession, reader: StreamReader, parts: Sequence[Any], schema: StructType) -> DataFrame:
    """Return the messages of these parts of a batch.  Each part is read by one task."""

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(parts[number])

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(read, schema)
