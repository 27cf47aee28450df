"""Exactly once, in: 36,000 messages in three streams that grow meanwhile, with workers and drivers killed.

In the long form there are 2,040,000, and a second driver is killed.  To start a driver and to warm it up takes twenty
seconds of a processor.  Where things are killed is known by what they have done, never by time: a gate at the origin
holds their reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from gateway.origin.faults import GatedSwitch
from gateway.origin.requests import Kind
from tests.effort import IS_LONG
from tests.pyspark_durable_streams.beside import JSON, Beside, beside
from tests.pyspark_durable_streams.reader_job import read_all
from tests.pyspark_durable_streams.sessions import BOUND_S, Program
from tests.waiting import eventually_on_disk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS: Final = ("in/0", "in/1", "in/2")
A_ROUND: Final = 170_000 if IS_LONG else 3_000
AN_APPEND: Final = 1_000
ROUNDS: Final = 4


@pytest.fixture
def origin() -> Iterator[Beside]:
    with beside() as running:
        yield running


def append(origin: Beside, number: int) -> None:
    """One more round of every stream."""
    for stream in STREAMS:
        for begin in range(number * A_ROUND, (number + 1) * A_ROUND, AN_APPEND):
            body = json.dumps([{"n": n} for n in range(begin, begin + AN_APPEND)]).encode()
            assert origin.ask("POST", stream, {"Content-Type": JSON}, body) == 204


def planned(checkpoint: Path, batch: int) -> None:
    """Return when Spark has written down where a batch ends: from then on it is run."""
    eventually_on_disk((checkpoint / "offsets" / str(batch)).exists, BOUND_S)


def held(origin: Beside) -> GatedSwitch:
    """A gate that some reader stands at."""
    gate = origin.do(lambda origin: origin.faults.hold(kind=Kind.CATCHUP))
    origin.run(gate.waiting(1))
    return gate


def open_gate(origin: Beside, gate: GatedSwitch) -> None:
    origin.do(lambda _: gate.release())


def test_every_message_arrives_once_and_in_order(origin: Beside, tmp_path: Path, spark: SparkSession) -> None:
    output, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    for stream in STREAMS:
        origin.create(stream)
    append(origin, 0)
    append(origin, 1)

    def start(number: int, spool: str) -> Program:
        return Program(
            "tests.pyspark_durable_streams.reader_job",
            [origin.url, ",".join(STREAMS), str(output), str(checkpoint), str(tmp_path / f"scratch{number}"), spool],
            tmp_path / f"log{number}",
        )

    # Tasks read the streams themselves: some are killed, and Spark runs them again; then the driver is killed.
    program = start(1, "0")
    try:
        killed, batch = 0, 0
        while not killed:
            planned(checkpoint, batch)
            gate = held(origin)
            killed = program.kill_workers()
            open_gate(origin, gate)
            batch += 1
        append(origin, 2)
        planned(checkpoint, batch)
        gate = held(origin)
        program.kill()
        open_gate(origin, gate)
    finally:
        program.end()

    append(origin, 3)
    if IS_LONG:
        # Tasks read what the driver kept; it is killed while it plans, with a batch done that it had begun before.
        program = start(2, str(1 << 28))
        try:
            planned(checkpoint, batch + 2)
            gate = held(origin)
            program.kill()
            open_gate(origin, gate)
        finally:
            program.end()

    # What is left is read by a driver that has been at work.
    read_all(spark, origin.url, ",".join(STREAMS), str(output), str(checkpoint), str(1 << 28))

    found = spark.read.parquet(str(output)).selectExpr("stream", "pos", "cast(get_json_object(value, '$.n') as long) n")
    wanted = A_ROUND * ROUNDS
    counts = found.groupBy("stream").agg({"*": "count", "pos": "max", "n": "min"}).collect()
    assert sorted((row["stream"], row["count(1)"], row["max(pos)"], row["min(n)"]) for row in counts) == [
        (stream, wanted, wanted - 1, 0) for stream in STREAMS
    ]
    assert found.where("n != pos").count() == 0
    assert found.distinct().count() == wanted * len(STREAMS)
