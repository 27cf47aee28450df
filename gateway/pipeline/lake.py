"""The lake: one folder that holds every table, on whatever file system Spark is given.

Tables are replaced by days.  Rows are written to a temporary folder and renamed over the old day (Spark's dynamic
partition overwrite), one rename per folder, so a reader sees a day either before or after the change.  A writer that is
killed between two renames leaves some days new and others old.  So every step must be able to compute its days again
from other tables; running it again repairs them.

Tables that grow are also partitioned within a day, by the `batch` that brought the rows.  A batch that is run again
replaces its own rows and touches nothing else.  Readers of a table do not see batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.folder import Folder
from gateway.pipeline.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_DAY: Final = "day"
_BATCH: Final = "batch"
_KIND: Final = "kind"
_STAGING: Final = ".spark-staging-"
_COMPRESSION: Final = "zstd"
_PATTERNS: Final = frozenset("*?[]{}\\")


@dataclass(frozen=True, slots=True)
class Lake:
    """One lake; `url` is a folder's path or its URL, such as `s3a://…` or `hdfs://…`.  Raises PipelineFailed for a URL
    that Spark would read as a pattern."""

    url: str

    def __post_init__(self) -> None:
        if not _PATTERNS.isdisjoint(self.url):
            raise PipelineFailed(
                f"{self.url}: a lake has none of * ? [ ] {{ }} \\ in its name: Spark takes them for patterns"
            )

    def path(self, table: Table) -> str:
        """The folder of the table."""
        return self.place(table.place)

    def place(self, name: str) -> str:
        """The path of a folder in the lake, such as `checkpoints/files`."""
        return f"{self.url.rstrip('/')}/{name}"

    def read(self, spark: SparkSession, table: Table, days: Collection[date] | None = None) -> DataFrame:
        """The table with exactly its columns, for these days or all; empty if it does not exist yet."""
        found = self._stored(spark, table)
        if found is None:
            return spark.createDataFrame([], table.ddl)
        if days is not None:
            found = found.where(_is_of(days))
        return found.select([column.name for column in table.columns])

    def read_batches(
        self,
        spark: SparkSession,
        table: Table,
        *,
        batch: str | None = None,
        others_than: str | None = None,
        days: Collection[date] | None = None,
    ) -> DataFrame:
        """Rows of a table with batches: those of one batch, or those of all others."""
        from pyspark.sql import functions as f

        found = self._stored(spark, table)
        if found is None:
            return spark.createDataFrame([], table.ddl)
        if batch is not None:
            found = found.where(f.col(_BATCH) == batch)
        if others_than is not None:
            found = found.where(f.col(_BATCH) != others_than)
        if days is not None:
            found = found.where(_is_of(days))
        return found.select([column.name for column in table.columns])

    def days(
        self, spark: SparkSession, table: Table, *, batch: str | None = None, others_than: str | None = None
    ) -> tuple[date, ...]:
        """The table's days, sorted; those of one batch, or of all others.  It lists folders and reads no file."""
        files = Folder(spark, self.path(table))
        found = []
        for name in files.folders():
            key, _, value = name.partition("=")
            if key != _DAY or not _is_date(value):
                continue
            if batch is not None and not files.exists(f"{name}/{_BATCH}={batch}"):
                continue
            if others_than is not None and files.folders(name) == [f"{_BATCH}={others_than}"]:
                continue
            found.append(date.fromisoformat(value))
        return tuple(sorted(found))

    def write_days(self, df: DataFrame, table: Table, days: Iterable[date] | None = None) -> None:
        """Replace the days that occur in these rows.  Days in `days` without rows become empty."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        # The days are found while they are written: a query for them would compute the rows twice.
        seen = Observation()
        fitted = _fitted(df, table).observe(seen, f.collect_set(_DAY).alias(_DAY))
        _dynamic(fitted, _DAY).parquet(self.path(table))
        if days is None:
            return
        files = Folder(df.sparkSession, self.path(table))
        for day in set(days) - set(seen.get[_DAY]):
            files.remove(f"{_DAY}={day.isoformat()}")

    def write_batch(self, df: DataFrame, table: Table, batch: str) -> None:
        """Replace the rows that the same batch wrote before.

        A batch is only run again with the same rows, so none of its earlier days is left over.
        """
        from pyspark.sql import functions as f

        fitted = _fitted(df, table).withColumn(_BATCH, f.lit(batch))
        _dynamic(fitted, _DAY, _BATCH).parquet(self.path(table))

    def write_kinds(self, df: DataFrame, tables: Sequence[Table], batch: str) -> None:
        """Like `write_batch` for several tables in one folder; the column `kind` of a row names its table.

        The rows are computed once for all tables.
        """
        from pyspark.sql import functions as f

        (place,) = {table.place.rpartition("/")[0] for table in tables}
        _dynamic(df.withColumn(_BATCH, f.lit(batch)), _KIND, _DAY, _BATCH).parquet(self.place(place))

    def replace(self, df: DataFrame, table: Table) -> None:
        """Replace a whole table that is not partitioned by days."""
        made = f"{self.path(table)}.made"
        _fitted(df, table).write.mode("overwrite").option("compression", _COMPRESSION).parquet(made)
        files = Folder(df.sparkSession, self.url)
        files.remove(table.place)
        files.rename(f"{table.place}.made", table.place)

    def sweep(self, spark: SparkSession, tables: Iterable[Table]) -> None:
        """Remove temporary folders of killed writers beside these tables.  There must be no other writer."""
        places = {table.place for table in tables}
        # Tables that are written together have theirs in the folder above.
        for place in sorted(places | {place.rpartition("/")[0] for place in places}):
            files = Folder(spark, self.place(place))
            for name in files.folders():
                if name.startswith(_STAGING):
                    files.remove(name)

    def _stored(self, spark: SparkSession, table: Table) -> DataFrame | None:
        from pyspark.sql import functions as f

        path = self.path(table)
        if not Folder(spark, path).exists():
            return None
        # Otherwise Spark infers the types of partition columns from the folders' names.
        found = spark.read.schema(f"{table.ddl}, `{_BATCH}` string" if table.has_batches else table.ddl).parquet(path)
        for column in table.columns:
            if column.before is not None:
                found = found.withColumn(column.name, f.coalesce(f.col(column.name), f.lit(column.before)))
        return found


def _fitted(df: DataFrame, table: Table) -> DataFrame:
    from pyspark.sql import functions as f

    return df.select([f.col(column.name).cast(column.type).alias(column.name) for column in table.columns])


def _dynamic(df: DataFrame, *by: str) -> Any:
    writer = df.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    return writer.option("compression", _COMPRESSION).partitionBy(*by)


def _is_of(days: Collection[date]) -> Column:
    from pyspark.sql import functions as f

    return f.col(_DAY).isin([f.lit(day) for day in days]) if days else f.lit(False)


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
