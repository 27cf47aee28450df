"""New messages of a stream, in batches whose ends are known before they are read.

It drives the Spark data source's own streaming reader: the driver finds the end of the next batch, and tasks read it.
The offset of a batch's end is committed with the rows of the batch, so there is no checkpoint folder, which not
every store that holds a lake could hold.
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
    """Read a stream up to its tails as of now, from the progress that is committed in `snapshot`.

    `write` writes the rows of a batch as files of the table.  They are committed with the offset of the batch's end,
    and `taken` gets the new snapshot and the files.  Errors of the source, in the driver and in tasks, are raised as
    PipelineFailed.

    A table of one stream says by `moved` whether progress at another URL is progress here; without, it is refused.
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
    """The table with the progress that stands under the URL's spelling of an earlier release, or where it `moved`."""
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
    """The messages of these parts of a batch, each part read by a task of its own."""

    def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from reader.read(parts[number])

    return spark.range(0, len(parts), 1, max(len(parts), 1)).mapInArrow(read, schema)
