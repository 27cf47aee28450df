"""The figures of streams, from reads that have been placed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.pipeline.curve.streams import StreamFigures, traffic_of
from gateway.tape.costs import TOKEN_COST, USUAL_COST
from tests.pipeline.test_sessions import batches_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = (
    "at bigint, tape bigint, low bigint, high bigint, is_counted boolean, fetched bigint, route string, stream string, "
    "node string, extent bigint, tokens bigint, is_apart boolean"
)
S = 1_000_000
HOUR = 3_600 * S


def test_figures_are_of_whole_tapes_however_few_uses_a_worker_looks_at_together(spark: SparkSession) -> None:
    reads = []
    for tape in range(6):
        about = ("r", f"/{tape}", "n", 100, 2, tape == 0)
        reads += [
            (10 * S, tape, 0, 50, True, 50, *about),
            (10 * S + 5, tape, 0, 50, False, None, *about),  # of the same use
            (20 * S, tape, 50, 100, True, 50, *about),  # goes on, and reads nothing again
            (1_800 * S, tape, 20, 40, True, 20, *about),
            (1_830 * S, tape, 60, 60, True, 0, *about),
        ]
    with batches_of(spark, 3):
        placed = spark.createDataFrame(reads, SCHEMA).persist()
        found, by_one = (traffic_of(placed, 0, HOUR, at_once=most) for most in (1 << 18, 1))
    placed.unpersist()
    assert by_one.streams == found.streams
    figures = StreamFigures(
        "r", "/1", 100 + USUAL_COST + 2 * TOKEN_COST, asked=3, asked_bytes=120, live=1, fetched_again=20, windows=2,
        again_s=0.0, returns=3, idle_s=1_780.0, quiet_s=1_770.0,
    )  # fmt: skip
    assert found.streams[1] == figures
    assert found.streams[0] == replace(figures, stream="/0", asked_apart=3)
    for traffic in (found, by_one):
        assert [round(gap.longest_s, 6) for gap in traffic.gaps] == [9.999995, 30.0, 1_780.0]
        assert [gap.cost / figures.bytes for gap in traffic.gaps] == [6, 6, 12]
