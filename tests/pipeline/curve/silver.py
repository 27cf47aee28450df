"""Silver written by hand: a test gives the fields that matter, the rest are defaults."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from gateway.pipeline import tables
from gateway.pipeline.lake import Lake
from gateway.pipeline.parquet import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EPOCH: Final = datetime(2026, 11, 20, tzinfo=UTC)
START: Final = "-1"


def token(position: int) -> str:
    """An origin's offset at that position in bytes."""
    return START if position == 0 else f"{position:016d}"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: seconds after the beginning of the log, stream, and the range that it read (bytes)."""

    at: float
    stream: str
    low: int = 0
    high: int = 0
    mode: str = "catchup"
    sent: int | None = None
    """Body bytes; by default those of the range."""
    fetched: int = 0
    start: str | None = None
    """Another spelling of the start offset."""
    status: int = 200
    outcome: str = "hit"
    coding: str | None = None
    saved: int | None = None
    partition: str = ""
    node: str = "edge-a"
    route: str = "default"
    is_final: bool = True


def requests(spark: SparkSession, asked: Iterable[Asked]) -> DataFrame:
    """Silver's table with these requests."""
    schema = arrow_schema(tables.REQUESTS, [column.name for column in tables.REQUESTS.columns])
    rows = [_row(number, one) for number, one in enumerate(asked)]
    return spark.createDataFrame(pa.Table.from_pylist(rows, schema))


def lake_of(spark: SparkSession, url: str, asked: Iterable[Asked]) -> Lake:
    """A lake with these requests in silver."""
    lake = Lake(url)
    add_to(lake, spark, asked, replaces_all=True)
    return lake


def add_to(lake: Lake, spark: SparkSession, asked: Iterable[Asked], *, replaces_all: bool = False) -> None:
    """Have these requests in silver, too."""
    files = lake.write(requests(spark, asked), tables.REQUESTS)
    lake.snapshot(tables.REQUESTS).commit(files, replaces_all=replaces_all)


def _row(number: int, one: Asked) -> dict[str, Any]:
    time = EPOCH + timedelta(seconds=one.at)
    is_read = one.mode in ("catchup", "longpoll", "sse")
    return {
        "day": time.date(),
        "id": f"line-{number}",
        "time": time,
        "node": one.node,
        "route": one.route,
        "stream": one.stream,
        "partition": one.partition,
        "method": "GET" if is_read else {"delete": "DELETE", "create": "PUT", "append": "POST"}[one.mode],
        "mode": one.mode,
        "status": one.status,
        "outcome": one.outcome,
        "duration_s": 0.001,
        "start": one.start or token(one.low) if is_read else None,
        "next_offset": token(one.high) if is_read else None,
        "sent_bytes": one.high - one.low if one.sent is None else one.sent,
        "saved_bytes": one.saved,
        "fetched_bytes": one.fetched,
        "origin_requests": 1 if one.fetched else 0,
        "coding": one.coding,
        "is_final": one.is_final,
    }
