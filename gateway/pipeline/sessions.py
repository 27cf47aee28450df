"""Sessions: the reads of one reader on one stream, joined over reconnects.

A reader is identified by client and user agent, on one stream of one route and partition.  Its reads are sorted by the
time at which they ended.  A read continues the session of the read before it under two conditions:

- It began at most `GAP_S` after the end of the previous read.
- It began at the offset that the previous read reached, or between the previous read's start and this offset.  The
  second case happens if sent bytes did not arrive, or if several readers behind one address take turns.

A read from the stream's start, or from the tail (`now`), begins a new session.

Sessions are cut at midnight (UTC), so that a day is computed from its own requests only.  `day` is the day on which the
reads ended.  The access log has one line for each read that has ended, and further lines for a live read that is still
in progress.  The further lines belong to the read's session but do not count as reads.  Lines that are not requests
belong to no session.

Spark sorts the reads by a hash of the reader.  Many readers behind one address look like one reader with very many
reads, which may not fit in memory.  Spark then sorts them on disk.  Python workers then compare each read with the one
before, in batches, and write the sessions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.pipeline.gold.lines import known
from gateway.pipeline.lake import Lake
from gateway.pipeline.parquet import WRITTEN, arrow_schema
from gateway.pipeline.session import fit
from gateway.pipeline.tables import READS, REQUESTS, SESSIONS
from gateway.protocol.mode import Mode
from gateway.protocol.names import NOW, START

GAP_S: Final = 300
"""Longest time between the end of a read and the start of the next one in the same session, in seconds.

A browser page in the background reconnects within about a minute.  A reader that returns after five minutes was away.
"""

_SILVER: Final = "silver"
"""The mark of the sessions: the version of silver that they were computed from."""
_READER: Final = ("day", "route", "protocol", "stream", "partition", "client", "user_agent")
_READ: Final = (
    *_READER,
    *("id", "time", "mode", "status", "duration_s", "start", "next_offset", "sent_bytes", "is_final", "close_reason"),
)
_FIRST: Final = pc.ScalarAggregateOptions(skip_nulls=False)
_ADDED_UP: Final = [
    *((name, "first", _FIRST) for name in _READER),
    ("began", "min"),
    ("ended", "max"),
    *((name, "sum") for name in ("reads", "live_reads", "is_connected", "sent_bytes")),
    # The offset of the read that begins the session.
    ("first_offset", "first", _FIRST),
    ("last_offset", "max"),
    ("close_reason", "last"),
]
"""How the columns of reads are aggregated to the columns of sessions."""


def update_sessions(spark: SparkSession, lake: Lake) -> int:
    """Compute the sessions of all days whose silver has changed; return the number of days.  Raises Conflict."""
    silver, stored = lake.snapshot(REQUESTS), lake.snapshot(SESSIONS)
    since = stored.mark(_SILVER)
    if silver.version in (since, -1):
        return 0
    changes = silver.changes(-1 if since is None else since)
    days = {*silver.days(), *stored.days()} if changes is None else changes.days
    fit(spark, sum(file.rows for file in silver.files(days)))
    files = []
    if days:
        writer = lake.writer(SESSIONS)
        reads = _in_order(silver.read(spark, days=days, columns=_READ))
        files = lake.collect(reads.mapInArrow(lambda batches: writer(_joined(batches)), WRITTEN), SESSIONS)[SESSIONS]
    stored.commit(files, replaces=days, marks={_SILVER: silver.version})
    return len(days)


def sessions(requests: DataFrame) -> DataFrame:
    """Return the sessions of these requests."""
    return _in_order(requests).mapInArrow(_joined, SESSIONS.ddl)


def _in_order(requests: DataFrame) -> DataFrame:
    """Return the reads among these requests, sorted by reader and by the time at which they ended.

    All reads of a reader are in one partition.
    """
    mode, is_final = f.col("mode"), f.col("is_final")
    is_live = mode != Mode.CATCHUP.value
    began_us = f.unix_micros("time") - f.round(f.col("duration_s") * 1_000_000).try_cast("bigint")
    return (
        requests.where(mode.isin(*READS) & (is_final | (f.col("status") > 0)))
        .select(
            *("day", "route", "protocol", "stream", "partition", "id", "mode", "is_final", "sent_bytes"),
            known("client"),
            known("user_agent"),
            f.timestamp_micros(began_us).alias("began"),
            f.col("time").alias("ended"),
            f.col("start").alias("first_offset"),
            f.col("next_offset").alias("last_offset"),
            f.when(is_live, f.col("close_reason")).alias("close_reason"),
            # Sorting by a number is fast.  If two readers have the same hash, their reads are mixed, but a read never
            # continues the session of the other reader.
            f.xxhash64(*_READER).alias("reader"),
        )
        .repartition("reader")
        .sortWithinPartitions("reader", "ended", "id")
        .drop("id")
    )


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sessions of sorted reads.

    The last session of a batch may continue in the next batch, so it is held until then.
    """
    last: pa.Table | None = None
    held: pa.Table | None = None
    for rows in (_with_offsets(batch) for batch in batches if batch.num_rows):
        # Compare the first read with a row of NULLs, which no read continues.
        ahead = pa.Table.from_pylist([{}], rows.schema) if last is None else last
        is_begun, is_connected = _compared(rows, pa.concat_tables([ahead, rows]).slice(0, rows.num_rows))
        last = rows.slice(rows.num_rows - 1)
        counted = {
            "session": np.cumsum(is_begun),
            "is_connected": is_connected,
            "reads": _holds(rows["is_final"]),
            "live_reads": _holds(pc.and_(rows["is_final"], pc.not_equal(rows["mode"], Mode.CATCHUP.value))),
        }
        for name, values in counted.items():
            rows = rows.append_column(name, pa.array(values.astype(np.int64)))
        found = _added_up(rows)
        if held is not None and is_begun[0]:
            yield from _whole(held)
        elif held is not None:
            # The first session of this batch is the rest of the held one.
            both = pa.concat_tables([held, found.slice(0, 1)]).set_column(0, "session", pa.array([0, 0]))
            found = pa.concat_tables([_added_up(both), found.slice(1)])
        yield from _whole(found.slice(0, found.num_rows - 1))
        held = found.slice(found.num_rows - 1)
    if held is not None:
        yield from _whole(held)


def _with_offsets(batch: pa.RecordBatch) -> pa.Table:
    """Add two columns to reads: `start` and `reached`, the offsets before and after each read."""
    rows = pa.Table.from_batches([batch])
    start = pc.fill_null(rows["first_offset"], START)
    return rows.append_column("start", start).append_column("reached", pc.coalesce(rows["last_offset"], start))


def _compared(rows: pa.Table, before: pa.Table) -> tuple[Any, Any]:
    """Return whether each read begins a session, and whether it is the first line of an SSE connection.

    `before` has the previous read of each read.
    """
    # Two NULLs count as the same value.
    is_one_reader = reduce(pc.and_, (_is_same(rows[name], before[name]) for name in ("reader", *_READER)))
    is_unfinished = pc.invert(before["is_final"])
    goes_on = pc.and_kleene(is_one_reader, _goes_on(rows, before, is_unfinished))
    is_one_connection = pc.and_kleene(is_unfinished, pc.equal(rows["mode"], before["mode"]))
    is_sse = pc.equal(rows["mode"], Mode.SSE.value)
    return ~_holds(goes_on), _holds(is_sse) & ~_holds(pc.and_kleene(is_one_reader, is_one_connection))


def _goes_on(rows: pa.Table, before: pa.Table, is_unfinished: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether each read continues the one before it."""
    start, start_before, reached = rows["start"], before["start"], before["reached"]
    gap_us = pc.subtract(rows["began"].cast(pa.int64()), before["ended"].cast(pa.int64()))
    is_after = pc.or_(
        pc.equal(start_before, START),
        pc.and_(pc.not_equal(start_before, NOW), pc.less_equal(start_before, start)),
    )
    is_position = pc.invert(pc.is_in(start, pa.array([START, NOW])))
    is_between = reduce(pc.and_, (is_position, pc.less_equal(start, reached), is_after))
    is_the_same = pc.and_kleene(is_unfinished, pc.equal(start, start_before))
    is_joined = reduce(pc.or_kleene, (pc.equal(start, reached), is_between, is_the_same))
    return pc.and_kleene(pc.less_equal(gap_us, GAP_S * 1_000_000), is_joined)


def _is_same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray:
    are_absent = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), False), are_absent)


def _holds(claim: pa.ChunkedArray) -> Any:
    """Return for each row whether the condition is true, and not NULL."""
    return pc.fill_null(claim, False).to_numpy()


def _added_up(rows: pa.Table) -> pa.Table:
    """Aggregate reads, or parts of sessions, to sessions.  The result may be aggregated again."""
    found = rows.group_by("session", use_threads=False).aggregate(_ADDED_UP)
    return found.rename_columns(["session", *(name for name, *_ in _ADDED_UP)])


def _whole(parts: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield complete sessions as rows of the table."""
    reconnects = np.maximum(parts["is_connected"].to_numpy() - 1, 0)
    schema = arrow_schema(SESSIONS)
    yield from parts.append_column("reconnects", pa.array(reconnects)).select(schema.names).cast(schema).to_batches()
