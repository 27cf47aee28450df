"""An ingest that is killed in the middle of a step, as `kill -9` does: `python -m tests.pipeline.dying_ingest`.

Arguments: the lake, how the step is called, the folder that Spark works in, and the files.  The first day of what the
step writes is put in place, and then there is no process any more.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import Table
from tests.pipeline.access_lines import take
from tests.spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DyingLake(Lake):
    """A lake in which one step does not come to its end."""

    __slots__ = ()
    step = ""

    def _die_in(self, step: str, df: DataFrame) -> DataFrame:
        if step != self.step:
            return df
        first = df.selectExpr("min(day)").first()
        assert first is not None
        return df.where(df["day"] == first[0])

    def write_kinds(self, df: DataFrame, tables: Sequence[Table], batch: str) -> None:
        super().write_kinds(self._die_in("bronze", df), tables, batch)
        self._dies("bronze")

    def write_batch(self, df: DataFrame, table: Table, batch: str) -> None:
        super().write_batch(self._die_in("silver", df), table, batch)
        self._dies("silver")

    def write_days(self, df: DataFrame, table: Table, days: object = None) -> None:
        super().write_days(self._die_in("sessions", df), table)
        self._dies("sessions")

    def _dies(self, step: str) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(lake: str, step: str, folder: str, *files: str) -> None:
    """Ingest, up to the step."""
    DyingLake.step = step
    with local_spark(Path(folder)) as spark:
        take(spark, DyingLake(lake), *map(Path, files))


if __name__ == "__main__":
    main(*sys.argv[1:])
