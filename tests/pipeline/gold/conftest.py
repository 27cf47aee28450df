"""A lake for gold: silver written as ingest writes it, gold read back as plain rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.pipeline.aggregate import Aggregated, aggregate
from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import REQUESTS, Table
from tests.pipeline.gold import exact
from tests.pipeline.gold.silver_log import Line, arrow, log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class GoldLake:
    """One lake and the Spark on it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.lake = Lake(str(folder))

    def copied(self, folder: Path) -> GoldLake:
        """A lake with the same content."""
        shutil.copytree(self.folder, folder)
        return GoldLake(self.spark, folder)

    def run(self, progress: Callable[[str], None] = lambda text: None) -> Aggregated:
        """Compute the changed days."""
        return aggregate(self.spark, self.lake, progress=progress)

    def take_in(self, lines: Sequence[Line]) -> None:
        """Write lines to silver."""
        frame = self.spark.createDataFrame(arrow(lines)).repartition("day")
        self.lake.snapshot(REQUESTS).commit(self.lake.write(frame, REQUESTS))

    def rows(self, table: Table) -> list[tuple[Any, ...]]:
        """The table's rows, as `exact` has them."""
        return exact.stored(self.lake, table)


LOG = log()


@pytest.fixture(scope="package")
def whole(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> GoldLake:
    """The whole log and its gold, computed once for all tests; a test that changes it takes a copy."""
    gold = GoldLake(spark, tmp_path_factory.mktemp("gold") / "whole")
    gold.take_in(LOG)
    gold.run()
    return gold


@pytest.fixture
def gold(spark: SparkSession, tmp_path: Path) -> GoldLake:
    return GoldLake(spark, tmp_path / "lake")
