"""References: the bytes and tapes that the lines of a log requested."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from gateway.pipeline.curve import placing, references
from gateway.pipeline.curve.simulate import Read
from gateway.tape.costs import TOKEN_COST, USUAL_COST
from tests.pipeline.curve.silver import EPOCH, Asked, requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = [
    Asked(1, "/a", 0, 100),
    # Long-polls and SSE: bytes that are not counted.
    Asked(2, "/a", 100, 130, "longpoll"),
    Asked(3, "/a", 130, 130, "longpoll", status=204),
    # A connection since the beginning: 40 bytes since the line before, framing included.
    Asked(4, "/a", 0, 160, "sse", sent=40, is_final=False),
    Asked(5, "/a", 130, 160),
    # The same bytes, coded.
    Asked(6, "/a", 0, 160, sent=23, coding="gzip"),
    # The first read of a stream that began before the log did.
    Asked(7, "/b", 500, 800),
    # Read only coded: no length is known.
    Asked(8, "/c", 0, 900, sent=50, coding="br"),
    # Bytes of another tape.
    Asked(9, "/a", 0, 70, partition="p"),
    # These reference nothing.
    Asked(10, "/a", 0, 160, status=0, outcome="aborted"),
    Asked(11, "/a", 0, 160, outcome="pass"),
    Asked(12, "/a", 0, 0, sent=0, start="now"),
    Asked(13, "/a", 0, 160, status=304, sent=0),
    Asked(14, "/a", mode="append", sent=0),
]


@dataclass(frozen=True)
class Placed:
    """What a worker finds."""

    summary: dict[str, Any]
    uses: list[Read]
    """In order of time."""
    figures: pa.Table

    @property
    def runs(self) -> list[tuple[int, int, bool]]:
        return [(use.low, use.high, bool(use.counted)) for use in self.uses]


def placed(spark: SparkSession, log: Iterable[Asked]) -> Placed:
    reads = references.reads_of(requests(spark, log)).toArrow()
    first_us = int(EPOCH.timestamp() * 1e6)
    tables: dict[str, list[pa.Table]] = {}
    for row in placing.placed(reads.to_batches(max_chunksize=3), first_us, first_us + 20_000_000):
        tables.setdefault(row["kind"][0].as_py(), []).extend(placing.tables_of([row.select(["payload"])]))
    (summary,), (figures,) = tables[placing.SUMMARY_KIND], tables[placing.FIGURES_KIND]
    uses = pa.concat_tables(tables[placing.USES_KIND]).sort_by("at").to_pylist()
    return Placed(summary.to_pylist()[0], [Read(**use) for use in uses], figures)


def test_reads_are_placed_by_the_bytes_sent(spark: SparkSession) -> None:
    found = placed(spark, LOG)
    assert found.runs == [
        (0, 100, True),
        (100, 130, False),
        (130, 130, False),
        (120, 160, False),
        (130, 160, True),
        (0, 160, True),
        (0, 300, True),
        (0, 0, True),
        (0, 70, True),
    ]
    tokens = 4 + 3 + 2 + 2
    assert found.summary == {
        "reads": 9,
        "counted": 5,
        "counted_bytes": 100 + 30 + 160 + 300 + 70,
        "loose": 2,
        "empty": 1,
        "tapes": 4,
        "working_bytes": 160 + 300 + 70 + 4 * USUAL_COST + tokens * TOKEN_COST,
        "nodes": ["edge-a"],
    }


def test_reads_added_up_as_they_come_are_placed_as_all_at_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [*LOG, *LOG, *(Asked(1.5 + at / 100, "/a", 0, 160, "sse", sent=at) for at in range(9)), *LOG[:7]]
    at_once = placed(spark, log)
    monkeypatch.setattr(placing, "_FEW", 3)
    monkeypatch.setattr(placing, "_MOST", 6)
    assert placed(spark, log) == at_once


def test_coded_reads_are_placed_by_their_length_before_coding(spark: SparkSession) -> None:
    log = [
        Asked(1, "/a", 0, 900, sent=50, saved=850, coding="br"),
        Asked(2, "/a", 900, 1_000, "longpoll", sent=20, saved=80, coding="gzip"),
        Asked(3, "/a", 0, 1_000, sent=60, saved=940, coding="br"),
    ]
    found = placed(spark, log)
    assert found.runs == [(0, 900, True), (900, 1_000, False), (0, 1_000, True)]
    assert [found.summary[name] for name in ("loose", "empty", "counted_bytes")] == [0, 0, 1_900]
    assert [(use.plain, use.gzip, use.br) for use in found.uses] == [(0, 0, 50), (0, 0, 0), (0, 0, 60)]


def test_a_re_created_stream_has_another_tape(spark: SparkSession) -> None:
    log = [
        Asked(1, "/a?x=1", 0, 100),
        Asked(2, "/a", mode="delete", sent=0, status=204),
        Asked(3, "/a", mode="create", sent=0, status=201),
        Asked(4, "/a?x=1", 0, 60),
        Asked(5, "/a?x=1", 60, 90),
        Asked(6, "/other", mode="create", sent=0, status=201),
    ]
    found = placed(spark, log)
    first, second, third = (use.tape for use in found.uses)
    assert first != second == third
    tapes = {row["tape"]: row for row in found.figures.to_pylist()}
    assert [tapes[tape]["extent"] for tape in (first, second)] == [100, 90]
    assert {row["stream"] for row in tapes.values()} == {"/a?x=1"}


def test_each_gateway_has_its_own_tape_and_offsets_are_the_same_for_all(spark: SparkSession) -> None:
    log = [
        Asked(1, "/a", 0, 100),
        Asked(2, "/a", 100, 150, node="edge-b", sent=9, coding="zstd"),
        Asked(3, "/a", 0, 150),
    ]
    found = placed(spark, log)
    assert found.runs == [(0, 100, True), (100, 150, True), (0, 150, True)]
    assert (found.summary["tapes"], sorted(found.summary["nodes"])) == (2, ["edge-a", "edge-b"])


def test_readers_woken_together_are_one_use(spark: SparkSession) -> None:
    log = [*(Asked(1.1 + number / 1_000, "/a", 0, 100) for number in range(50)), Asked(1.2, "/a", 50, 100, "longpoll")]
    woken, live = placed(spark, log).uses
    assert (woken.low, woken.high, woken.times, woken.counted, woken.plain) == (0, 100, 50, 50, 100)
    assert (live.low, live.high, live.times, live.counted, live.plain) == (50, 100, 1, 0, 0)
    assert woken.cost_per_byte == 1 + 3 * TOKEN_COST / 100
