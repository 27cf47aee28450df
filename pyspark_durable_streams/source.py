"""What Spark finds under the name `durable_streams`: who reads and who writes."""

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
    """Durable Streams, read and written, in batches and as they grow."""

    # What a worker does not need it does not import: each of these brings its own.

    @classmethod
    def name(cls) -> str:
        """What `format` is given."""
        return "durable_streams"

    def schema(self) -> str:
        """The columns where the user names none."""
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
        """Writes what a query makes, batch by batch."""
        from pyspark_durable_streams.writer import stream_writer

        return stream_writer(schema, self.options, overwrite)
