"""The lake: a folder, or a prefix in an object store, in which every table is a Delta table.

Spark's tasks write Parquet files (`gateway.pipeline.parquet`).  The driver then adds the files to a table in one
commit, so a reader sees all of a change or nothing of it.  Any program that supports Delta Lake can read the tables.

A commit is based on the snapshot that it was computed from.  It fails with `Conflict` if another run has committed to
the table since.  So two runs need no lock, on any store, and neither overwrites the other's work.

A *mark* is a name and a number that are committed together with rows, as a transaction identifier (Delta protocol,
"Transaction Identifiers").  Marks record what the rows were computed from:

- A table that is computed from another table has the version of that table as its mark.
- The progress in a source does not fit into a number.  It is written to a small file in the folder `_progress` before
  the commit, and the mark is the number in the file's name.

If a run is killed, either both the rows and the marks of a commit are stored, or neither.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from gateway.aio.clock import SystemClock
from gateway.pipeline.errors import PipelineFailed, brief, one_line
from gateway.pipeline.parquet import WRITTEN, Reader, Writer, arrow_schema, partition_values
from gateway.pipeline.store import Store, settings_of
from gateway.pipeline.tables import BRONZE, REQUESTS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DAY: Final = "day"
_KIND: Final = "kind"
_PATTERNS: Final = frozenset("*?[]{}\\")
_PROGRESS: Final = "_progress"
_WITH_THE_FIRST: Final = (BRONZE.place, REQUESTS.place)
"""Tables that the first ingest creates.  If one is missing, the lake is new or of an earlier release."""
LEAST_KEEP_S: Final = 3_600
"""A vacuum keeps files for at least this many seconds, so that it does not remove the files of a run in progress."""
_CLEANED_AT: Final = 100
"""Every hundredth commit removes expired entries from the table's log.  The same commits write a checkpoint."""
_MOST_READERS: Final = 64
"""Most tasks that read the files of a query in an object store."""


class Conflict(PipelineFailed):
    """Another run has committed to the table since this run read it."""


@dataclass(frozen=True, slots=True)
class File:
    """A Parquet file: its path in the table's folder, its size in bytes, when it was written (Unix ms), its rows."""

    path: str
    size: int
    written_at: int
    rows: int

    @property
    def day(self) -> date | None:
        """The day of its rows; None if the table is not partitioned by day."""
        value = partition_values(self.path).get(_DAY)
        return None if value is None else date.fromisoformat(value)

    @property
    def kind(self) -> str | None:
        """The kind of its rows; None if the table is not partitioned by kind."""
        return partition_values(self.path).get(_KIND)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes that commits made to a table, apart from compaction."""

    added: Mapping[str, int]
    """Paths of the added files, each with the version that added it.  Compaction may have replaced some of them."""
    days: frozenset[date]
    """Days of added and removed files."""
    is_addition: bool
    """Whether no file was removed."""


class Lake:
    """One lake.  `url` is the path of a folder, or the URL of a prefix such as `s3://bucket/lake`.

    Raises PipelineFailed for a URL that Spark would take for a pattern, and for settings that make delta-rs crash.
    """

    def __init__(self, url: str) -> None:
        if url.startswith("file:///"):
            url = unquote(url.removeprefix("file://"))
        # Spark's workers have other working directories than the driver.
        url = url.rstrip("/") if "://" in url else str(Path(url).absolute())
        if not _PATTERNS.isdisjoint(url):
            odd = "* ? [ ] { } \\"
            raise PipelineFailed(f"{url}: a lake has none of {odd} in its name: Spark takes them for patterns")
        self.url: Final = url
        self.store: Final = Store(url, settings_of(url, os.environ))

    def path(self, table: Table) -> str:
        """Return the URL of the table's folder."""
        return f"{self.url}/{table.place}"

    def snapshot(self, table: Table, version: int | None = None) -> Snapshot:
        """Return the table as it is now, or at `version`.  Raises PipelineFailed.

        A table that does not exist is empty and has the version -1.
        """
        try:
            delta = DeltaTable(self.path(table), version=version, storage_options=dict(self.store.settings))
        except TableNotFoundError:
            if table.place in _WITH_THE_FIRST:
                self._check_is_of_now()
            return Snapshot(self, table, None)
        except (DeltaError, OSError) as error:
            raise PipelineFailed(f"{self.path(table)}: {brief(error)}") from None
        return Snapshot(self, table, delta)

    def _check_is_of_now(self) -> None:
        """Raise PipelineFailed for a lake of an earlier release, without Delta tables.

        Otherwise this release would begin new tables there, and a vacuum would remove the old lines.
        """
        if any("/batch=" in path for path, _ in self.store.listed(BRONZE.place)):
            # The text names a local copy of a lake in an object store, because an ingest reads only local files.
            folder = self.url if self.store.local is not None else "LOCAL_COPY"
            raise PipelineFailed(
                f"{self.url}: is a lake of an earlier release: take its lines over into a new one with "
                f"`pipeline ingest {folder}/bronze/kind=lines --lake NEW`"
            )

    def read(self, spark: SparkSession, table: Table, days: Collection[date] | None = None) -> DataFrame:
        """Return the rows of these days, or all, with exactly the table's columns.

        A table that does not exist yet has no rows.
        """
        return self.snapshot(table).read(spark, days=days)

    def read_files(self, spark: SparkSession, table: Table, paths: Sequence[str]) -> DataFrame:
        """Return the rows of files in the table's folder.  The files need not be committed."""
        if not paths:
            return spark.createDataFrame([], table.ddl)
        if self.store.local is not None:
            base = self.path(table)
            reader = spark.read.schema(table.ddl).option("basePath", base)
            return reader.parquet(*(f"{base}/{path}" for path in paths)).select(table.names)
        listed = spark.createDataFrame([(path,) for path in paths], "path string")
        reader_of_tasks = Reader(self.store, f"{table.place}/", arrow_schema(table))
        return listed.repartition(min(len(paths), _MOST_READERS)).mapInArrow(reader_of_tasks, table.ddl)

    def write(self, df: DataFrame, table: Table) -> list[File]:
        """Write rows as files, which belong to no table until they are committed."""
        from pyspark.sql import functions as f

        writer = self.writer(table)
        names = table.names

        def named(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return writer(batch.rename_columns(names) for batch in batches)

        quoted = ["`{}`".format(name.replace("`", "``")) for name in names]
        columns = [f.col(name).cast(one.type) for name, one in zip(quoted, table.columns, strict=True)]
        # `mapInArrow` does not quote names, so the columns are numbered.
        numbered = df.select([column.alias(str(number)) for number, column in enumerate(columns)])
        return self.collect(numbered.mapInArrow(named, WRITTEN), table)[table]

    def write_few(self, rows: pa.Table, table: Table) -> list[File]:
        """Write rows in the memory of this process; like `write`."""
        return [self._file(row, table) for told in self.writer(table)(rows.to_batches()) for row in told.to_pylist()]

    def writer(self, table: Table) -> Writer:
        """Return the writer with which tasks write the table's files."""
        in_files = [name for name in table.names if name not in table.partition_by]
        return Writer(self.store, table.place, arrow_schema(table.with_columns(in_files)), table.partition_by)

    def collect(self, written: DataFrame, *tables: Table) -> dict[Table, list[File]]:
        """Run the tasks that write files, and return the files of each of these tables.

        `written` has the rows of `WRITTEN` that the tasks return.
        """
        files: dict[Table, list[File]] = {table: [] for table in tables}
        for row in written.collect():
            table = next(table for table in tables if row.path.startswith(f"{table.place}/"))
            files[table].append(self._file(row.asDict(), table))
        return files

    @staticmethod
    def _file(written: Mapping[str, Any], table: Table) -> File:
        return File(**{**written, "path": written["path"].removeprefix(f"{table.place}/")})

    @classmethod
    def of_table(cls, url: str) -> tuple[Lake, str]:
        """Return a lake for a single table at `url`, and the table's folder in it.

        Raises PipelineFailed for the URL of a whole bucket.
        """
        parent, _, place = cls(url).url.rpartition("/")
        if not parent or parent.endswith(":/"):
            wanted = "the name of a table beneath a folder or bucket, such as s3://shop/orders"
            raise PipelineFailed(f"{url}: expected {wanted}")
        return cls(parent), place


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A table at one version."""

    lake: Lake
    table: Table
    delta: DeltaTable | None = field(repr=False)

    @property
    def version(self) -> int:
        """The version of the table; -1 if the table does not exist."""
        return -1 if self.delta is None else self.delta.version()

    def mark(self, name: str) -> int | None:
        """Return the number of the mark with this name; None if there is no such mark."""
        return None if self.delta is None else self.delta.transaction_version(name)

    def files(self, days: Collection[date] | None = None) -> list[File]:
        """Return the files of these days, or all, sorted by path."""
        if self.delta is None:
            return []
        told = pa.table(self.delta.get_add_actions()).select(["path", "size_bytes", "modification_time", "num_records"])
        rows = zip(*(column.to_pylist() for column in told.sort_by("path").columns), strict=True)
        return [
            file
            for file in starmap(File, rows)
            if self.table.kind in (None, file.kind) and (days is None or file.day in days)
        ]

    def days(self) -> tuple[date, ...]:
        """Return the days with rows, sorted."""
        return tuple(sorted({file.day for file in self.files() if file.day is not None}))

    def read(
        self,
        spark: SparkSession,
        *,
        days: Collection[date] | None = None,
        columns: Sequence[str] | None = None,
        paths: Sequence[str] | None = None,
    ) -> DataFrame:
        """Return the rows of these days or of these files (by default all), with these columns (by default all)."""
        if paths is None:
            paths = [file.path for file in self.files(days)]
        table = self.table if columns is None else self.table.with_columns(columns)
        return self.lake.read_files(spark, table, paths)

    def arrow(self, columns: Sequence[str], paths: Sequence[str] | None = None) -> pa.RecordBatchReader:
        """Read rows in this process, from these files in the given order, or from all files sorted by path."""
        schema = arrow_schema(self.table, columns)
        chosen = [file.path for file in self.files()] if paths is None else paths
        batches = Reader(self.lake.store, f"{self.table.place}/", schema).read(chosen)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def span(self, column: str) -> tuple[Any, Any]:
        """Return the smallest and the largest value of a column whose values increase with the day.

        Only the files of the first and the last day are examined, by their statistics.  Without rows, both are None.
        """
        days = self.days()
        reader = Reader(self.lake.store, f"{self.table.place}/", arrow_schema(self.table, [column]))
        spans = [reader.span(file.path) for file in self.files({days[0], days[-1]})] if days else []
        known = [span for span in spans if span is not None]
        return min((low for low, _ in known), default=None), max((high for _, high in known), default=None)

    def changes(self, since: int) -> Changes | None:
        """Return the changes of the commits after version `since`; None if their log no longer exists."""
        if since > self.version:
            return None
        added: dict[str, int] = {}
        days: set[date] = set()
        is_addition = True
        for version in range(since + 1, self.version + 1):
            try:
                log = self.lake.store.read(f"{self.table.place}/_delta_log/{version:020d}.json")
            except FileNotFoundError:
                return None
            for action, about in (next(iter(orjson.loads(line).items())) for line in log.splitlines()):
                if action not in ("add", "remove") or not about["dataChange"]:
                    continue
                if self.table.kind is not None and about["partitionValues"][_KIND] != self.table.kind:
                    continue
                if (day := about["partitionValues"].get(_DAY)) is not None:
                    days.add(date.fromisoformat(day))
                if action == "add":
                    added[about["path"]] = version
                else:
                    added.pop(about["path"], None)
                    is_addition = False
        return Changes(added, frozenset(days), is_addition)

    def commit(
        self,
        files: Sequence[File] = (),
        *,
        replaces: Collection[date] = (),
        replaces_all: bool = False,
        marks: Mapping[str, int] | None = None,
        about: Mapping[str, str] | None = None,
    ) -> Snapshot:
        """Add files in one commit, and return the new snapshot.  Raises Conflict.

        The new files replace the files of the days `replaces`, or all files with `replaces_all`.  If the table has a
        kind, only files of this kind are replaced.  `about` is added to the table's history.
        """
        self._check_there(files)
        actions: list[Any] = []
        for file in files:
            stats = orjson.dumps({"numRecords": file.rows}).decode()
            actions.append(AddAction(file.path, file.size, partition_values(file.path), file.written_at, True, stats))
        schema = delta_schema(self.table)
        by = list(self.table.partition_by)
        how: dict[str, Any] = {
            "commit_properties": CommitProperties(
                custom_metadata=dict(about or {}),
                max_commit_retries=0,
                app_transactions=[Transaction(name, number) for name, number in (marks or {}).items()],
            ),
            # Search for expired commits rarely, because each search lists the whole log.
            "post_commithook_properties": PostCommitHookProperties(
                cleanup_expired_logs=(self.version + 1) % _CLEANED_AT == 0
            ),
        }
        try:
            if self.delta is None:
                create_table_with_add_actions(
                    self.lake.path(self.table),
                    schema,
                    actions,
                    partition_by=by,
                    storage_options=dict(self.lake.store.settings),
                    **how,
                )
                return self.lake.snapshot(self.table, version=0)
            present = self.present(schema)
            # A newer release may have added columns.
            if missing := [new for new in schema.fields if new.name not in present]:
                self.delta.alter.add_columns(missing, commit_properties=CommitProperties(max_commit_retries=0))
            committed = self.delta.version() + 1
            filters: list[Any] = [(_DAY, "in", sorted(map(str, replaces)))] if replaces else []
            if self.table.kind is not None:
                filters.append((_KIND, "=", self.table.kind))
            mode = "overwrite" if replaces or replaces_all else "append"
            self.delta.create_write_transaction(actions, mode, schema, by, filters or None, **how)
        except CommitFailedError:
            raise self.conflict() from None
        except DeltaError as error:
            if self.delta is None and self.lake.snapshot(self.table).delta is not None:
                raise self.conflict() from None
            raise PipelineFailed(f"{self.lake.path(self.table)}: {brief(error)}") from None
        # Return the committed version, because a later version may already have the progress of another run.
        return self.lake.snapshot(self.table, version=committed)

    def _check_there(self, files: Sequence[File]) -> None:
        """Raise PipelineFailed if a vacuum has removed one of these files, which are not committed yet."""
        young_ms = (SystemClock().wall() - LEAST_KEEP_S) * 1_000
        place, store = self.table.place, self.lake.store
        if any(file.written_at < young_ms and not store.has(f"{place}/{file.path}") for file in files):
            raise PipelineFailed(
                f"{self.lake.path(self.table)}: vacuum has removed files of this run, which takes longer than its "
                "--keep: run this again, and no vacuum meanwhile"
            )

    def conflict(self) -> Conflict:
        """Return the error of a run after another run has changed the table."""
        return Conflict(f"{self.lake.path(self.table)}: another run has written to it meanwhile: run this one again")

    def progress(self, name: str, *, may_lack: bool = False) -> Any:
        """Return the progress in the source `name`, as committed with rows; None if there is none.

        Raises Conflict.  If the file of the progress is missing, this raises PipelineFailed, or returns None with
        `may_lack`.
        """
        if not (number := self.mark(name)):
            return None
        try:
            return orjson.loads(self.lake.store.read(self._progress_path(number)))["state"]
        except FileNotFoundError:
            if self.lake.snapshot(self.table).mark(name) != number:
                raise self.conflict() from None  # a later commit has removed it
            if may_lack:
                return None
            raise PipelineFailed(
                f"{self.lake.url}/{self._progress_path(number)}: is missing, so the lake was not copied whole: copy "
                "it too; of files, `pipeline ingest --again` reads all again"
            ) from None

    def commit_progress(
        self, files: Sequence[File], name: str, state: Any, source: str | None = None, *, instead_of: str | None = None
    ) -> Snapshot:
        """Add files together with the progress `state` in the source `name`, in one commit.  Raises Conflict.

        The new progress replaces the earlier progress of the same name, or the progress of the name `instead_of`.  The
        table's history shows `source`, or `name` if it is None.
        """
        earlier = instead_of or name
        before = self.mark(earlier)
        content = orjson.dumps({"of": name, "state": state})
        # Each attempt writes a new file, because another run may be about to remove the file of an earlier attempt.
        number = uuid.uuid4().int >> 65
        self.lake.store.write(self._progress_path(number), content)
        about = {"source": source or name, "rows": str(sum(file.rows for file in files))}
        after = self.commit(files, marks={earlier: 0, name: number}, about=about)
        if before:
            self.lake.store.remove(self._progress_path(before))
        return after

    def progress_files(self) -> Iterator[tuple[str, int, str | None]]:
        """Yield the files of progress: the path in the lake, when it was written (Unix ms), and the source's name.

        The name is None for a file that no commit refers to.
        """
        for path, written_at in self.lake.store.listed(f"{self.table.place}/{_PROGRESS}"):
            try:
                name = orjson.loads(self.lake.store.read(path))["of"]
            except FileNotFoundError:
                continue  # another run has replaced the file
            except ValueError:
                name = ""  # a run was killed while it wrote the file
            yield path, written_at, name if path == self._progress_path(self.mark(name) or 0) else None

    def _progress_path(self, number: int) -> str:
        return f"{self.table.place}/{_PROGRESS}/{number:016x}.json"

    def present(self, schema: Schema) -> list[str]:
        """Return the names of the stored table's columns.

        Raises PipelineFailed if a column of `schema` has another type in the stored table.
        """
        present = {} if self.delta is None else {one.name: one.type for one in self.delta.schema().fields}
        for new in schema.fields:
            if present.get(new.name, new.type) != new.type:
                raise PipelineFailed(f"{self.lake.path(self.table)}: its column {new.name} has another type")
        return list(present)


def delta_schema(table: Table) -> Schema:
    """Return the Delta schema of a table.  Raises PipelineFailed for a type that Delta Lake does not support."""
    fields = []
    for name in table.names:
        try:
            fields += Schema.from_arrow(arrow_schema(table, [name])).fields
        except Exception as error:  # of no class of its own
            raise PipelineFailed(f"{table.name}: column {name}: {one_line(error)}") from None
    return Schema(fields)
