"""A lake of many small commits beside one of the same lines taken in at once.

Bronze and silver of a fresh lake are committed again, a few rows at a time, as a source that is followed for months
leaves them.  That lake is compacted.  Copies of both lakes then go through the same steps in turn, in one Spark.
"""

from __future__ import annotations

import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table as Shown

from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.events import source_of
from gateway.pipeline.ingest import bring_up, ingest
from gateway.pipeline.lake import File, Lake
from gateway.pipeline.parquet import Writer, arrow_schema
from gateway.pipeline.session import open_session
from gateway.pipeline.tables import BRONZE, REQUESTS, Table
from gateway.pipeline.upkeep import optimize
from loadtest.pipeline_bench.log import write_log

_FILES: Final = "files"
_BRONZE: Final = "bronze"
_NODE: Final = b"5eed00c0ffee"
_MORE_LINES: Final = 1_000
_ROUNDS: Final = 3

Took = dict[str, float]


def measure(commits: int, lines: int, out: Path, console: Console) -> None:
    """Commit `lines` lines in `commits` commits, to bronze and to silver; print and write what that costs later."""
    shutil.rmtree(out, ignore_errors=True)
    write_log(out / "log", lines)
    write_log(out / "more", _MORE_LINES, seed=6)
    more = out / "more" / "access.log"
    more.write_bytes(more.read_bytes().replace(_NODE, _NODE[::-1]))  # other lines, not the same ones again
    spark = open_session("local[2]")
    fresh, small = Lake(str(out / "fresh")), Lake(str(out / "small"))
    ingest(spark, source_of([str(out / "log")]), fresh, progress=_silent)
    commit_again(fresh, small, commits)
    before = len(small.snapshot(REQUESTS).files())
    began = time.perf_counter()
    many, few = optimize(small, _silent)
    compacted_s = time.perf_counter() - began
    bring_up(spark, small, _silent)

    took: dict[str, list[Took]] = {"fresh": [], "small": []}
    _steps(spark, out, "fresh")  # so that Spark has compiled its plans
    for _ in range(_ROUNDS):
        for name in took:
            took[name].append(_steps(spark, out, name))
    spark.stop()
    medians = {
        name: {step: statistics.median(run[step] for run in runs) for step in runs[0]} for name, runs in took.items()
    }
    shown = Shown(title=f"seconds, medians of {_ROUNDS}; {lines:,} lines in {commits:,} commits")
    for head in ("step", "fresh", "small commits, compacted", "ratio"):
        shown.add_column(head, justify="right")
    for step, seconds in medians["fresh"].items():
        other = medians["small"][step]
        shown.add_row(step, f"{seconds:.2f}", f"{other:.2f}", f"{other / seconds:.2f}")
    console.print(shown)
    console.print(f"compaction: {many:,} files to {few:,} in {compacted_s:.1f} s; silver had {before:,}")
    figures = {"commits": commits, "lines": lines, "compaction_s": compacted_s, "took": took}
    (out / "figures.json").write_text(json.dumps(figures, indent=1))


def commit_again(fresh: Lake, small: Lake, commits: int) -> None:
    """Commit bronze and silver of `fresh` to `small`, each in so many commits."""
    progress = fresh.snapshot(BRONZE).progress(_FILES)
    bronze = small.snapshot(BRONZE)
    for rows in _pieces(fresh, BRONZE, commits):
        bronze = bronze.commit_progress(_written(small, BRONZE, rows), _FILES, progress)
    silver = small.snapshot(REQUESTS)
    for version, rows in enumerate(_pieces(fresh, REQUESTS, commits)):
        silver = silver.commit(_written(small, REQUESTS, rows), marks={_BRONZE: version})
    silver.commit(marks={_BRONZE: bronze.version})


def _pieces(lake: Lake, table: Table, count: int) -> Iterator[pa.RecordBatch]:
    snapshot = lake.snapshot(table)
    total = sum(file.rows for file in snapshot.files())
    rows = snapshot.arrow([column.name for column in table.columns]).read_all().combine_chunks()
    for number in range(count):
        begin, end = number * total // count, (number + 1) * total // count
        [piece] = rows.slice(begin, end - begin).combine_chunks().to_batches()
        yield piece


def _written(lake: Lake, table: Table, rows: pa.RecordBatch) -> list[File]:
    in_files = [column.name for column in table.columns if column.name not in table.partition_by]
    writer = Writer(lake.store, table.place, arrow_schema(table, in_files), table.partition_by)
    # A piece that spans two days is two files.
    told = (row.values() for batch in writer([rows]) for row in batch.to_pylist())
    return [File(path.removeprefix(f"{table.place}/"), *more) for path, *more in told]


def _steps(spark: SparkSession, folder: Path, name: str) -> Took:
    copy = folder / "copy"
    shutil.copytree(folder / name, copy)
    lake = Lake(str(copy))

    def look() -> None:
        for table in (BRONZE, REQUESTS):
            lake.snapshot(table).files()

    more = source_of([str(folder / "more")])
    steps: dict[str, Callable[[], object]] = {
        "look at all files": look,
        "aggregate": lambda: aggregate(spark, lake, progress=_silent),
        f"ingest {_MORE_LINES:,} lines": lambda: ingest(spark, more, lake, progress=_silent),
        "aggregate again": lambda: aggregate(spark, lake, progress=_silent),
    }
    took: Took = {}
    for step, do in steps.items():
        began = time.perf_counter()
        do()
        took[step] = time.perf_counter() - began
    shutil.rmtree(copy)
    return took


def _silent(_: str) -> None:
    pass
