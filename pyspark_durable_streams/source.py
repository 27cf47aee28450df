"""The data source that Spark finds under the name `durable_streams`: its readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from pyspark_durable_streams.errors import DurableStreamsError, in_one_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Durable Streams as source and sink, for batches and for streaming queries."""

    # The methods import what they need, so that a worker loads nothing else.

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "durable_streams"

    @in_one_line
    def schema(self) -> str:
        """The columns if the user names none."""
        from pyspark_durable_streams.formats import default_schema
        from pyspark_durable_streams.options import format_of

        return default_schema(format_of(self.options))

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        from pyspark_durable_streams.batch import BatchReader
        from pyspark_durable_streams.options import read_options

        return BatchReader(schema, read_options(self.options, is_streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Reads streams as they grow."""
        from pyspark_durable_streams.options import read_options
        from pyspark_durable_streams.stream import StreamReader

        try:
            return StreamReader(schema, read_options(self.options, is_streaming=True))
        except DurableStreamsError as error:
            return _Refusal(error)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Writes a batch."""
        from pyspark_durable_streams.writer import batch_writer

        return batch_writer(schema, self.options, overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Writes the result of a streaming query, batch by batch."""
        from pyspark_durable_streams.writer import stream_writer

        return stream_writer(schema, self.options, overwrite)


class _Refusal(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that cannot be made, in place of the error: if `streamReader` raises, Spark reports an error of its own,
    that it has no reader to stop.
    """

    def __init__(self, error: DurableStreamsError) -> None:
        self._error = error

    @in_one_line
    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (Spark's names)
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._refuse()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._refuse()

    def read(self, partition: InputPartition) -> NoReturn:
        self._refuse()
