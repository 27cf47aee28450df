"""Gold is what DuckDB computes from the same lines, table by table."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gateway.pipeline import tables
from gateway.pipeline.tables import Table
from tests.pipeline.gold import exact
from tests.pipeline.gold.conftest import LOG, GoldLake
from tests.pipeline.gold.silver_log import arrow


@pytest.fixture(scope="module")
def silver() -> pa.Table:
    return arrow(LOG)


@pytest.mark.parametrize("table", tables.GOLD, ids=lambda table: table.name)
def test_gold_is_what_duckdb_computes_from_the_same_lines(whole: GoldLake, silver: pa.Table, table: Table) -> None:
    expected = exact.rows(silver, table)
    found = whole.rows(table)
    assert len(expected) > 1, "nothing to compare"
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert exact.is_same(one, other), f"{one}\nis not\n{other}\nin {exact.columns(table)}"


def test_the_log_contains_the_rare_cases(whole: GoldLake) -> None:
    storms = [row[1] for row in whole.rows(tables.RECONNECTS) if row[-1] and row[2] == "chat"]
    assert storms == ["2026-11-09 00:30:00"]
    scores = {row[2:4]: row[-1] for row in whole.rows(tables.ANOMALIES)}
    assert scores["chat", "requests"]
    assert {score > 0 for score in (row[-1] for row in whole.rows(tables.ANOMALIES))} == {True, False}
    loops = {row[5] for row in whole.rows(tables.CLOSED_LOOPS) if row[3] == "/chat/closed"}
    assert loops == {"loop", "waiter", "catch-up 0042"}
    assert min(row[4] for row in whole.rows(tables.DELIVERY)) == 0
    assert {row[0] for row in whole.rows(tables.DELIVERY)} == {"2026-11-08", "2026-11-09"}
