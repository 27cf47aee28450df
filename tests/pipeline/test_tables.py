"""The tables fit together, and the page that lists them lists what they are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.pipeline import tables
from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import Table

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "pipeline-tables.md").read_text()
EVERY = [found for found in vars(tables).values() if isinstance(found, Table)]


def listed() -> str:
    """The page's tables, from those of the code."""
    parts = []
    for table in EVERY:
        rows = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in table.columns]
        key = ", ".join(f"`{name}`" for name in table.key) or "line, as often as it came"
        parts.append(f"### {table.title}\n\nOne row for each {key}.\n\n| column | type | |\n|---|---|---|\n")
        parts.append("\n".join(rows) + "\n\n")
    return "".join(parts).rstrip("\n") + "\n"


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.title)
def test_a_key_is_made_of_columns_and_what_is_cut_by_day_has_one(table: Table) -> None:
    names = [column.name for column in table.columns]
    assert len(set(names)) == len(names)
    assert set(table.key) <= set(names)
    assert ("day" in names) == table.place.startswith(("bronze", "silver/", "gold/"))


def test_no_two_tables_lie_in_one_place() -> None:
    assert len({table.title for table in EVERY}) == len(EVERY)
    assert {table.place for table in tables.GOLD} == {t.place for t in EVERY if t.place.startswith("gold/")}


def test_the_page_lists_every_table_and_column() -> None:
    assert f"<!-- tables -->\n{listed()}" in PAGE


def test_the_span_of_a_column_is_found_with_and_without_the_statistics_of_files(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path))
    times = [datetime(2026, 9, 24 + number // 2, 12, number, tzinfo=UTC) for number in range(6)]
    rows = [pa.table({"day": [at.date()], "time": pa.array([at], pa.timestamp("us", "UTC"))}) for at in times]
    table = tables.REQUESTS.with_columns(["day", "time"])
    assert lake.snapshot(table).span("time") == (None, None)
    files = [lake.write_few(row, table)[0] for row in rows]
    snapshot = lake.snapshot(table).commit(files)
    assert snapshot.span("time") == (times[0], times[-1])
    for row, file in zip(rows, files, strict=True):
        pq.write_table(row.select(["time"]), tmp_path / table.place / file.path, write_statistics=False)
    assert snapshot.span("time") == (times[0], times[-1])
