"""New messages of a stream, in batches whose ends are known before they are read.

It drives the Spark data source's own streaming reader: the driver finds the end of the next batch, and tasks read it.
The caller commits the offset of a batch's end with the rows of the batch, so there is no checkpoint folder, which not
every store that holds a lake could hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from gateway.pipeline.errors import PipelineFailed, one_line
from gateway.pipeline.events import with_hint
from pyspark_durable_streams.errors import DurableStreamsError
from pyspark_durable_streams.options import read_options
from pyspark_durable_streams.stream import StreamReader


class StreamBatches:
    """The batches of a source that is read up to its tails as of now.  A context manager."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], schema: StructType, name: str) -> None:
        self._spark = spark
        self._schema = schema
        self._name = name
        with self.failing():
            self._reader = StreamReader(schema, read_options(options, is_streaming=True))
            self._reader.prepareForTriggerAvailableNow()

    def __enter__(self) -> StreamBatches:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.stop()

    def after(self, offset: Any) -> tuple[DataFrame, Any] | None:
        """The batch after an offset (None: the beginning) and the offset of its end; None if there is no more."""
        with self.failing():
            start = self._reader.initialOffset() if offset is None else offset
            end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
            if end == start:
                return None
            tasks = self._reader.partitions(start, end)
        reader = self._reader

        def read(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from reader.read(tasks[number])

        numbers = self._spark.range(0, len(tasks), 1, max(len(tasks), 1))
        return numbers.mapInArrow(read, self._schema), end

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn errors of the source, in the driver and in tasks, into PipelineFailed."""
        try:
            yield
        except DurableStreamsError as error:
            raise PipelineFailed(f"{self._name}: {with_hint(str(error))}") from None
        except PySparkException as error:
            raise PipelineFailed(f"{self._name}: {with_hint(one_line(error))}") from None
