"""Lines of an access log for the pipeline's tests, and what a lake says of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.aio.clock import ManualClock
from gateway.pipeline.events import LateLines, source_of
from gateway.pipeline.ingest import Ingested, ingest
from gateway.pipeline.lake import Lake
from gateway.pipeline.tables import LINES, REJECTS, REQUESTS, SESSIONS, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON: Final = 1_790_251_200.0
"""2026-09-24T12:00:00Z."""
DAY_S: Final = 86_400
TABLES: Final = (LINES, REJECTS, REQUESTS, SESSIONS)


def line(number: int, *, at: float | None = None, **more: Any) -> bytes:
    """A line of its own for each number, one a second from noon on; a field that is None is left out."""
    told = {
        "time": NOON + number if at is None else at,
        "id": f"c0ffee.{number:x}.0",
        "v": 1,
        "node": "edge",
        "route": "default",
        "stream": "/s",
        "method": "GET",
        "mode": "longpoll",
        "status": 200,
        "outcome": "followed",
        "duration_s": 0.5,
        "start": f"{number:08d}",
        "next_offset": f"{number + 1:08d}",
        "sent_bytes": 100 + number,
        "fetched_bytes": 0,
        "client": "192.0.2.0",
        "is_final": True,
        **more,
    }
    return orjson.dumps({key: value for key, value in told.items() if value is not None}) + b"\n"


def lines(*numbers: int, **more: Any) -> bytes:
    return b"".join(line(number, **more) for number in numbers)


def take(spark: SparkSession, lake: Lake, *paths: Path, **more: Any) -> Ingested:
    """One ingest of files."""
    source = source_of([str(path) for path in paths])
    clock = ManualClock(wall=NOON + 2 * DAY_S)
    return ingest(spark, source, lake, clock=clock, **{"progress": lambda _: None, **more})


def take_late(spark: SparkSession, lake: Lake) -> Ingested:
    """An ingest of the lake's late lines."""
    return ingest(spark, LateLines(), lake, progress=lambda _: None)


def rows(lake: Lake, table: Table) -> list[tuple[Any, ...]]:
    """All rows of a table, in an order; read without Spark, whose least job takes a third of a second."""
    found = lake.snapshot(table).arrow([column.name for column in table.columns]).read_all().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def column(lake: Lake, table: Table, name: str) -> list[Any]:
    """The values of a column, in an order."""
    return sorted(lake.snapshot(table).arrow([name]).read_all().column(0).to_pylist())


def ids(lake: Lake) -> list[int]:
    """The numbers of silver's lines, in order."""
    return sorted(int(id_.split(".")[1], 16) for id_ in column(lake, REQUESTS, "id"))


def contents(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
    """All that an ingest writes."""
    return {table.name: rows(lake, table) for table in TABLES}
