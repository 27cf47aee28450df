"""Gold is what DuckDB computes from the same lines, table by table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.pipeline import tables
from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.tables import Table
from tests.pipeline.gold import exact
from tests.pipeline.gold.conftest import GoldLake
from tests.pipeline.gold.silver_log import arrow, log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = log()


@pytest.fixture(scope="module")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> GoldLake:
    """Gold of the whole log, computed once."""
    gold = GoldLake(spark, Path(tmp_path_factory.mktemp("gold")) / "lake")
    gold.take_in(LOG)
    aggregate(spark, gold.lake, progress=lambda text: None)
    return gold


@pytest.mark.parametrize("table", tables.GOLD, ids=lambda table: table.name)
def test_gold_is_what_duckdb_computes_from_the_same_lines(whole: GoldLake, table: Table) -> None:
    expected = exact.rows(arrow(LOG), table)
    found = whole.rows(table)
    assert len(expected) > 1, "nothing to compare"
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert exact.is_same(one, other), f"{one}\nis not\n{other}\nin {exact.columns(table)}"
