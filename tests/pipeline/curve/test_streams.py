"""The figures of streams, from the uses of their tapes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from gateway.pipeline.curve.streams import StreamFigures, figures, traffic_of
from gateway.tape.costs import TOKEN_COST, USUAL_COST

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

S = 1_000_000
HOUR = 3_600 * S
COST = 100 + USUAL_COST + 2 * TOKEN_COST
USES = {
    "low": [0, 50, 20, 60],
    "high": [50, 100, 40, 60],
    # Of the first use, a second read is live; the second use goes on, and reads nothing again.
    "at": [10 * S, 20 * S, 1_800 * S, 1_830 * S],
    "last": [10 * S + 5, 20 * S, 1_800 * S, 1_830 * S],
    "times": [2, 1, 1, 1],
    "asked": [1, 1, 1, 0],
    "live": [1, 0, 0, 0],
    "fetched": [50, 50, 20, 0],
    "windows": [1, 1, 16, 0],
    "extent": [100] * 4,
    "cost": [COST] * 4,
}
TAPES = 6


def test_figures_of_a_stream_are_those_of_the_uses_of_its_tapes(spark: SparkSession) -> None:
    uses = {name: np.array(values * TAPES) for name, values in USES.items()}
    uses["tape"] = np.repeat(np.arange(TAPES), 4)
    rows = [{"tape": n, "route": "r", "stream": f"/{n}", "node": "n", "is_apart": n == 0} for n in range(TAPES)]
    tapes, gaps = figures(uses, pa.Table.from_pylist(rows), HOUR)
    traffic = traffic_of(spark.createDataFrame(tapes), pa.concat_tables([gaps, gaps]), 0, HOUR)
    expected = StreamFigures(
        "r", "/1", COST, asked=3, asked_bytes=120, live=1, fetched_again=20, windows=2,
        again_s=0.0, returns=3, idle_s=1_780.0, quiet_s=1_770.0,
    )  # fmt: skip
    assert traffic.streams[1] == expected
    assert traffic.streams[0] == replace(expected, stream="/0", asked_apart=3)
    assert [round(gap.longest_s, 6) for gap in traffic.gaps] == [9.999995, 30.0, 1_780.0]
    assert [gap.cost / COST for gap in traffic.gaps] == [12, 12, 24]
