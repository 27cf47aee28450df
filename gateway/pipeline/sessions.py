"""Sessions: the reads of one reader on one stream, joined over reconnects.

The log identifies a reader by client and user agent, on one stream of one route and partition.  Its reads, in the order
of their ends, form one session as long as each continues the one before: it starts within `GAP_S` of its end, at the
offset that it was answered with, or between that offset and its start (sent bytes need not have arrived, and readers
behind one address take turns).  A read from the stream's start, or from the tail, begins a new session.

Sessions are cut at midnight (UTC), so that a day is computed from its own requests only: `day` is the day on which the
reads ended.  A live read in progress has lines before its last one; they belong to its session and do not count as
reads.  Lines that are not requests belong to no session.

Spark sorts the reads by a hash of the reader, on disk if they do not fit in memory: many readers behind one address may
be one reader in the log.  Its Python workers compare each read with the one before, in batches, and write the sessions.
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
"""Longest time between the end of a read and the start of the next one in a session, in seconds.  A page in the
background returns within about a minute; a reader that returns after five has been away."""

_SILVER: Final = "silver"
"""The mark of the sessions: the version of silver that they are of."""
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
    # Of the read that begins the session.
    ("first_offset", "first", _FIRST),
    ("last_offset", "max"),
    ("close_reason", "last"),
]
"""How the columns of reads become those of sessions."""


def update_sessions(spark: SparkSession, lake: Lake) -> int:
    """Bring the sessions up to silver: make those of changed days anew, and return how many days.  Raises Conflict."""
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
    """The sessions of these requests."""
    return _in_order(requests).mapInArrow(_joined, SESSIONS.ddl)


def _in_order(requests: DataFrame) -> DataFrame:
    """The reads among these requests, those of one reader in the order of their ends, in one partition."""
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
            # Sorting by a number is what makes this quick.  Should two readers have the same one, their reads take
            # turns, and none of them goes on with one of the other.
            f.xxhash64(*_READER).alias("reader"),
        )
        .repartition("reader")
        .sortWithinPartitions("reader", "ended", "id")
        .drop("id")
    )


def _joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sessions of reads in order.

    A reader's session may go on in the next batch, so the last one of a batch is held until then.
    """
    last: pa.Table | None = None
    held: pa.Table | None = None
    for rows in (_with_offsets(batch) for batch in batches if batch.num_rows):
        # Nothing goes on with a row of NULLs.
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
            # The first one is the rest of that of the batch before.
            both = pa.concat_tables([held, found.slice(0, 1)]).set_column(0, "session", pa.array([0, 0]))
            found = pa.concat_tables([_added_up(both), found.slice(1)])
        yield from _whole(found.slice(0, found.num_rows - 1))
        held = found.slice(found.num_rows - 1)
    if held is not None:
        yield from _whole(held)


def _with_offsets(batch: pa.RecordBatch) -> pa.Table:
    """Reads with two more columns: `start` and `reached`, the offsets before and after each."""
    rows = pa.Table.from_batches([batch])
    start = pc.fill_null(rows["first_offset"], START)
    return rows.append_column("start", start).append_column("reached", pc.coalesce(rows["last_offset"], start))


def _compared(rows: pa.Table, before: pa.Table) -> tuple[Any, Any]:
    """Whether each read begins a session, and whether it is the first line of an SSE connection; `before` has the read
    before each."""
    # Two lines without a stream have that in common.
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
    """Whether a claim is known to hold, of each row."""
    return pc.fill_null(claim, False).to_numpy()


def _added_up(rows: pa.Table) -> pa.Table:
    """The sessions of reads, or of parts of sessions, in order, as parts of sessions."""
    found = rows.group_by("session", use_threads=False).aggregate(_ADDED_UP)
    return found.rename_columns(["session", *(name for name, *_ in _ADDED_UP)])


def _whole(parts: pa.Table) -> Iterator[pa.RecordBatch]:
    """Whole sessions as rows of the table."""
    reconnects = np.maximum(parts["is_connected"].to_numpy() - 1, 0)
    schema = arrow_schema(SESSIONS)
    yield from parts.append_column("reconnects", pa.array(reconnects)).select(schema.names).cast(schema).to_batches()
