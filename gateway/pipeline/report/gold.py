"""How the report reads the lake: columns of a table as Arrow record batches, one table at a time.

The report needs nothing else of the lake, so that any store of Arrow data can stand in for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from gateway.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.lake import Lake

Gold = Callable[[Table, Sequence[str]], pa.RecordBatchReader]
"""All rows of a table, with these columns in the types of `schema_of`; no rows if there is no such table yet."""

_DAY: Final = "day"
_TYPES: Final = {
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "double": pa.float64(),
    "int": pa.int32(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
}


def schema_of(table: Table, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of these columns."""
    types = {column.name: _TYPES[column.type] for column in table.columns}
    return pa.schema([(name, types[name]) for name in columns])


def gold_of(spark: SparkSession, lake: Lake) -> Gold:
    """The tables of a lake."""

    def read(table: Table, columns: Sequence[str]) -> pa.RecordBatchReader:
        schema = schema_of(table, columns)
        # Sketches are large: one day of them at a time.
        is_large = pa.binary() in schema.types
        parts: list[dict[str, object]] = [{}]
        if is_large:
            parts = [{"days": [day]} for day in lake.days(spark, table)]

        def batches() -> Iterator[pa.RecordBatch]:
            for part in parts:
                rows = lake.read(spark, table, **part).select(*columns).toArrow()  # type: ignore[arg-type]
                yield from rows.cast(schema).to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())

    return read
