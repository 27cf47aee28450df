"""Exactly once, out: 36,000 messages, with workers and drivers killed while the origin's answer was under way.

In the long form there are 2,004,000, and a second driver is killed.  The short one has as many POSTs for the messages:
bodies are smaller.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.origin.app import Origin
from gateway.origin.faults import GatedSwitch
from gateway.origin.requests import Kind
from pyspark_durable_streams.posts import Framing, bodies
from tests.effort import IS_LONG
from tests.pyspark_durable_streams.beside import Beside, beside
from tests.pyspark_durable_streams.sessions import BOUND_S, Program
from tests.pyspark_durable_streams.sink_job import CONTENT_TYPE, MAX_BATCH_BYTES, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STREAMS: Final = 6
FILES: Final = 6
ROWS_A_FILE: Final = 334_000 if IS_LONG else 6_000
FILES_A_BATCH: Final = 2


@pytest.fixture
def origin() -> Iterator[Beside]:
    with beside() as running:
        yield running


def rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "stream": [f"out/{n % STREAMS}" for n in numbers],
            "value": [f'{{"n":{n}}}' for n in numbers],
        }
    )


def posts_needed(tables: list[pa.Table]) -> int:
    """By a run that nobody disturbs."""
    batches = [pa.concat_tables(tables[at : at + FILES_A_BATCH]) for at in range(0, FILES, FILES_A_BATCH)]
    framing = Framing.of(CONTENT_TYPE)
    needed = 0
    for batch in batches:
        values = batch["value"].combine_chunks().cast(pa.large_binary())
        needed += sum(len(bodies(values[at::STREAMS], framing, MAX_BATCH_BYTES)) for at in range(STREAMS))
    return needed


async def taken_but_not_told(origin: Origin, appends: int) -> GatedSwitch:
    """After so many appends: hold the answer to the next one, which is in the stream by then."""
    async with asyncio.timeout(BOUND_S):
        await origin.counters.reached(Kind.APPEND, appends)
        held = origin.faults.hold(kind=Kind.APPEND, times=1, when="reply")
        await held.waiting(1)
        return held


def test_nothing_is_lost_doubled_or_out_of_order_whoever_is_killed(
    spark: SparkSession, origin: Beside, tmp_path: Path
) -> None:
    tables = [rows(at * ROWS_A_FILE, (at + 1) * ROWS_A_FILE) for at in range(FILES)]
    (tmp_path / "in").mkdir()
    for number, table in enumerate(tables):
        path = tmp_path / "in" / f"{number}.parquet"
        pq.write_table(table, path, row_group_size=max(1_000, ROWS_A_FILE // 5))
        os.utime(path, (number, number))  # Spark takes the oldest first

    def start(run: int, tasks: int) -> Program:
        where = [str(tmp_path / name) for name in ("in", "checkpoint", f"scratch-{run}")]
        return Program(
            "tests.pyspark_durable_streams.sink_job", [origin.url, *where, str(tasks)], tmp_path / f"log-{run}"
        )

    def wait_for(appends: int) -> GatedSwitch:
        return origin.run(taken_but_not_told(origin.origin, appends))

    runs: list[Program] = []
    try:
        # Three tasks send.  Their workers are killed, later on the driver; an answer is under way each time.
        first = start(1, tasks=3)
        runs.append(first)
        held = wait_for(8)
        assert first.kill_workers() > 0
        origin.do(lambda _: held.release())
        held = wait_for(posts_needed(tables) // 2)
        first.kill()
        origin.do(lambda _: held.release())
        first.end()

        if IS_LONG:
            # The driver sends, in the middle of a batch that tasks have begun, and is killed too.
            before = origin.appends()
            second = start(2, tasks=0)
            runs.append(second)
            held = wait_for(before + 10)
            second.kill()
            origin.do(lambda _: held.release())
            second.end()
    finally:
        for program in runs:
            program.kill()
            program.end()
    # In the short form the driver sends the rest, from the middle of a batch that tasks have begun.
    write(spark, origin.url, str(tmp_path / "in"), str(tmp_path / "checkpoint"), tasks=5 if IS_LONG else 0)

    for stream in range(STREAMS):
        numbers = [json.loads(line)["n"] for line in origin.read(f"out/{stream}").splitlines()]
        assert numbers[0] == stream
        assert {after - before for before, after in pairwise(numbers)} == {STREAMS}
        assert len(numbers) == FILES * ROWS_A_FILE // STREAMS
    # What was brought again was taken for what it is.
    assert origin.appends() > posts_needed(tables) + 10
