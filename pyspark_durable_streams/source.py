"""The data source that Spark finds under the name `durable_streams`: its readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """Durable Streams as source and sink, for batches and for streaming queries."""

    # The methods import what they need, so that a worker loads nothing else.

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "durable_streams"

    def schema(self) -> str:
        """The columns if the user names none."""
        from pyspark_durable_streams.formats import default_schema
        from pyspark_durable_streams.options import format_of

        return default_schema(format_of(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads a batch."""
        from pyspark_durable_streams.batch import BatchReader
        from pyspark_durable_streams.options import read_options

        return BatchReader(schema, read_options(self.options, is_streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  (Spark's name)
        """Reads streams as they grow."""
        from pyspark_durable_streams.options import read_options
        from pyspark_durable_streams.stream import StreamReader

        return StreamReader(schema, read_options(self.options, is_streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Writes a batch."""
        from pyspark_durable_streams.writer import batch_writer

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        """Writes the result of a streaming query, batch by batch."""
        from pyspark_durable_streams.writer import stream_writer

        return stream_writer(schema, self.options, overwrite)
