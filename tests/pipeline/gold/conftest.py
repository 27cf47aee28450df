"""A lake for gold: silver written as ingest writes it, gold read back as plain rows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from gateway.pipeline.aggregate import Aggregated, aggregate
from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import REQUESTS, Table
from tests.pipeline.gold import exact
from tests.pipeline.gold.silver_log import Line, arrow, at, line, log

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


def shuffled(lines: Sequence[Line]) -> list[Line]:
    """The same lines in no order."""
    return Random(1).sample(lines, len(lines))


FIRST: Final = line(at(2, 12.5), id="first", mode="sse", first_byte_s=None, close_reason="left", is_final=False)
LOG: Final = [FIRST, *shuffled(log())]


class OneLine(NamedTuple):
    """A lake with nothing but `FIRST`, and its gold."""

    gold: GoldLake
    done: Aggregated


@pytest.fixture(scope="package")
def one_line(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> OneLine:
    gold = GoldLake(spark, tmp_path_factory.mktemp("gold") / "one-line")
    gold.take_in([FIRST])
    return OneLine(gold, gold.run())


@pytest.fixture(scope="package")
def whole(one_line: OneLine, tmp_path_factory: pytest.TempPathFactory) -> GoldLake:
    """The whole log and its gold, computed once for all tests; a test that changes it takes a copy.

    Its first line has come before all others, which are in no order.
    """
    gold = one_line.gold.copied(tmp_path_factory.mktemp("gold") / "whole")
    gold.take_in(LOG[1:])
    gold.run()
    return gold


@pytest.fixture
def gold(spark: SparkSession, tmp_path: Path) -> GoldLake:
    return GoldLake(spark, tmp_path / "lake")
