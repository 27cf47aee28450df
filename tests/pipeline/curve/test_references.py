"""References: the bytes and tapes that the lines of a log requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.pipeline.curve import references
from gateway.tape.costs import TOKEN_COST, USUAL_COST
from tests.pipeline.curve.silver import Asked, requests

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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


def runs(reads: DataFrame) -> list[tuple[int, int, bool]]:
    rows = reads.orderBy("at").select("low", "high", "is_counted").collect()
    return [tuple(row) for row in rows]


def test_reads_are_placed_by_the_bytes_sent(spark: SparkSession) -> None:
    reads = references.placed(references.reads_of(requests(spark, LOG))).persist()
    assert runs(reads) == [
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
    assert [row.is_loose for row in reads.orderBy("at").collect()] == [False] * 6 + [True, True, False]
    found = references.placement(reads)
    reads.unpersist()
    assert (found.reads, found.counted, found.counted_bytes) == (9, 5, 100 + 30 + 160 + 300 + 70)
    assert (found.tapes, found.nodes, found.loose, found.empty) == (4, 1, 2, 1)
    tokens = 4 + 3 + 2 + 2
    assert found.working_bytes == 160 + 300 + 70 + 4 * USUAL_COST + tokens * TOKEN_COST


def test_coded_reads_are_placed_by_their_length_before_coding(spark: SparkSession) -> None:
    log = [
        Asked(1, "/a", 0, 900, sent=50, saved=850, coding="br"),
        Asked(2, "/a", 900, 1_000, "longpoll", sent=20, saved=80, coding="gzip"),
        Asked(3, "/a", 0, 1_000, sent=60, saved=940, coding="br"),
    ]
    reads = references.placed(references.reads_of(requests(spark, log)))
    assert runs(reads) == [(0, 900, True), (900, 1_000, False), (0, 1_000, True)]
    found = references.placement(reads)
    assert (found.loose, found.empty, found.counted_bytes) == (0, 0, 1_900)


def test_a_re_created_stream_has_another_tape(spark: SparkSession) -> None:
    log = [
        Asked(1, "/a?x=1", 0, 100),
        Asked(2, "/a", mode="delete", sent=0, status=204),
        Asked(3, "/a", mode="create", sent=0, status=201),
        Asked(4, "/a?x=1", 0, 60),
        Asked(5, "/a?x=1", 60, 90),
        Asked(6, "/other", mode="create", sent=0, status=201),
    ]
    rows = references.placed(references.reads_of(requests(spark, log))).orderBy("at").collect()
    assert [row.extent for row in rows] == [100, 90, 90]
    assert rows[0].tape != rows[1].tape == rows[2].tape


def test_each_gateway_has_its_own_tape_and_offsets_are_the_same_for_all(spark: SparkSession) -> None:
    log = [
        Asked(1, "/a", 0, 100),
        Asked(2, "/a", 100, 150, node="edge-b", sent=9, coding="zstd"),
        Asked(3, "/a", 0, 150),
    ]
    reads = references.placed(references.reads_of(requests(spark, log)))
    assert runs(reads) == [(0, 100, True), (100, 150, True), (0, 150, True)]
    found = references.placement(reads)
    assert (found.tapes, found.nodes) == (2, 2)


def test_readers_woken_together_are_one_use(spark: SparkSession) -> None:
    log = [*(Asked(1.1 + number / 1_000, "/a", 0, 100) for number in range(50)), Asked(1.2, "/a", 50, 100, "longpoll")]
    reads = references.placed(references.reads_of(requests(spark, log)))
    rows = references.uses_of(reads, 1_000_000).orderBy("low").collect()
    assert [(row.low, row.high, row.times, row.counted) for row in rows] == [(0, 100, 50, 50), (50, 100, 1, 0)]
    assert rows[0].cost_per_byte == 1 + 3 * TOKEN_COST / 100
