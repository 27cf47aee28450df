"""Write and read the Parquet files of a lake's tables in Spark's tasks, with pyarrow.

A task writes one file for each combination of partition values in its rows.  Each file has a unique name.  The files
belong to no table until the driver commits them (`gateway.pipeline.lake`).  Files of a task or a run that died are
never committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.pipeline.store import Store
from gateway.pipeline.tables import Table

_COMPRESSION: Final = "zstd"
_BUFFER_BYTES: Final = 64 << 20
"""Bytes of rows that a task buffers for all its files.  Beyond it, the largest buffer is written as a row group."""

WRITTEN: Final = "path string, size bigint, written_at bigint, rows bigint"
"""Columns of the rows that a task returns, one for each file that it wrote."""

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


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes rows to files in `folder`; a function for `DataFrame.mapInArrow`.

    The rows must have the columns of `schema` and of `partition_by`.  The columns of `partition_by` become parts of the
    files' paths, and are not in the files.
    """

    store: Store
    folder: str
    schema: pa.Schema
    partition_by: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a row of `WRITTEN` for each file."""
        with self.open() as files:
            for batch in batches:
                files.add(pa.Table.from_batches([batch]))
        yield from files.told()

    @contextmanager
    def open(self) -> Iterator[Files]:
        """Open new files, which are complete at the end of the block."""
        with ExitStack() as stack:
            files = Files(self, stack)
            yield files
            files.flush()


@dataclass(slots=True)
class Files:
    """The files that one task writes."""

    _writer: Writer
    _stack: ExitStack
    _files: dict[str, _File] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Add each row to the file of its partition."""
        writer, files = self._writer, self._files
        for path, chosen in self._split(rows):
            if path not in files:
                name = f"{writer.folder}/{path}{uuid.uuid4()}.parquet"
                files[path] = _File(writer.store, name, writer.schema, self._stack)
            files[path].hold(chosen)
        while sum(file.held_bytes for file in files.values()) > _BUFFER_BYTES:
            max(files.values(), key=lambda file: file.held_bytes).flush()

    def flush(self) -> None:
        """Write the rows that are still in memory."""
        for file in self._files.values():
            file.flush()

    def told(self) -> Iterator[pa.RecordBatch]:
        """Yield a row of `WRITTEN` for each file."""
        for file in self._files.values():
            size, written_at = self._writer.store.size_and_time(file.path)
            told = {"path": file.path, "size": size, "written_at": written_at, "rows": file.rows}
            yield pa.RecordBatch.from_pylist([told])

    def _split(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if not rows.num_rows:
            return
        by, schema = self._writer.partition_by, self._writer.schema
        combinations = rows.group_by(list(by)).aggregate([]).to_pylist() if by else [{}]
        for values in combinations:
            path = "".join(f"{name}={values[name]}/" for name in by)
            is_of = [pc.equal(rows[name], pa.scalar(value, rows[name].type)) for name, value in values.items()]
            chosen = rows if len(combinations) == 1 else rows.filter(reduce(pc.and_, is_of))
            yield path, chosen.select(schema.names).cast(schema)


@dataclass(slots=True)
class _File:
    """One file that is being written."""

    store: Store
    path: str
    schema: pa.Schema
    stack: ExitStack
    rows: int = 0
    held_bytes: int = 0
    _held: list[pa.Table] = field(default_factory=list)
    _writer: Any = None

    def hold(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self.rows += rows.num_rows
        self.held_bytes += rows.nbytes

    def flush(self) -> None:
        """Write the buffered rows as one row group."""
        if self._writer is None:
            out = self.stack.enter_context(self.store.writing(self.path))
            self._writer = self.stack.enter_context(pq.ParquetWriter(out, self.schema, compression=_COMPRESSION))
        if self._held:
            held = pa.concat_tables(self._held)
            self._writer.write_table(held, row_group_size=held.num_rows)
        self._held, self.held_bytes = [], 0


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads the columns of `schema` from files.  The files' paths continue the prefix `folder`.

    Partition columns are read from the path.  A column that a file lacks is NULL.
    """

    store: Store
    folder: str
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files in the column `path`; for `DataFrame.mapInArrow`."""
        for batch in batches:
            yield from self.read(batch.column(0).to_pylist())

    def read(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of these files, in the order of the paths."""
        if paths:
            # This import takes a second, because it imports pandas.
            import pyarrow.dataset as ds

            files = [f"{self.folder}{path}" for path in paths]
            rows = ds.dataset(files, self.schema, "parquet", self.store.files, "hive")
            # Read ahead little, because sketches are large.
            yield from rows.to_batches(batch_readahead=1, fragment_readahead=1)

    def span(self, path: str) -> tuple[Any, Any] | None:
        """Return the smallest and the largest value of the schema's only column in a file; None without rows."""
        with self.store.files.open_input_file(f"{self.folder}{path}") as file:
            about = pq.ParquetFile(file).metadata
        [name] = self.schema.names
        at = about.schema.names.index(name)
        groups = [about.row_group(number).column(at) for number in range(about.num_row_groups)]
        if all(group.is_stats_set and group.statistics.has_min_max for group in groups):
            spans = [(group.statistics.min, group.statistics.max) for group in groups]
        else:
            spans = [tuple(pc.min_max(batch.column(0)).as_py().values()) for batch in self.read([path])]
        known = [span for span in spans if span[0] is not None]
        return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def partition_values(path: str) -> dict[str, str]:
    """Return the partition values in a file's path, such as `{"day": "2026-09-24"}`."""
    parts = (part.partition("=") for part in path.split("/")[:-1])
    return {name: value for name, equals, value in parts if equals}


def arrow_schema(table: Table, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the Arrow schema of these columns of a table, or of all."""
    types = {column.name: column.type for column in table.columns}
    return pa.schema([(name, _arrow_type(types[name])) for name in columns or types])


def _arrow_type(type_: str) -> pa.DataType:
    if (known := _TYPES.get(type_)) is not None:
        return known
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    return to_arrow_schema(cast("StructType", StructType.fromDDL(f"x {type_}")), timezone="UTC").field(0).type
