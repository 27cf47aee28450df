"""Sessions: the reads of one reader on one stream, joined over reconnects.

The log identifies a reader by client and user agent, on one stream of one route and partition.  Its reads, in the order
of their ends, form one session as long as each continues the one before.  A read continues the one before if it starts
within `GAP_S` of its end, at the offset that the earlier read was answered with, or between that offset and the earlier
read's start (sent bytes need not have arrived, and readers behind one address take turns).  A read that begins at the
stream's start again, or skips to the tail, begins a new session.

Sessions are cut at midnight (UTC), so that a day is computed from its own requests only: `day` is the day on which the
reads ended.  A live read in progress has lines before its last one; they belong to its session and do not count as
reads.  Lines that are not requests belong to no session.

Reads are sorted by reader and processed once, a batch at a time.  Only the previous read and the open session are kept
between batches, so memory does not grow with the reads of a reader.  (Spark's window functions hold all reads of a
reader at once, and many readers behind one address may be one reader in the log.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from gateway.pipeline.tables import REQUESTS, SESSIONS
from gateway.protocol.mode import Mode
from gateway.protocol.offsets import NOW, START

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from gateway.pipeline.lake import Lake

Truths = npt.NDArray[np.bool_]

GAP_S: Final = 300
"""Longest time between the end of a read and the start of the next one in a session, in seconds.  A page in the
background returns within about a minute; a reader that returns after five has been away."""

READS: Final = (Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE)

_SILVER: Final = "silver"
"""The mark of the sessions: the version of silver that they are of."""
_READER: Final = ("day", "route", "protocol", "stream", "partition", "client", "user_agent")
_READ: Final = (
    *("day", "route", "protocol", "stream", "partition", "client", "user_agent", "id", "time", "mode", "status"),
    *("duration_s", "start", "next_offset", "sent_bytes", "is_final", "close_reason"),
)
_FOLDS: Final = (
    *((name, "first") for name in _READER),
    ("began", "min"),
    ("ended", "max"),
    ("reads", "sum"),
    ("live_reads", "sum"),
    ("connections", "sum"),
    ("sent_bytes", "sum"),
    ("first_offset", "first"),
    ("last_offset", "max"),
    ("close_reason", "last"),
)
"""How each column is aggregated when consecutive sessions are joined; NULLs are ignored."""
_TYPES: Final = {column.name: column.type for column in SESSIONS.columns} | {"connections": "bigint"}
_JOINED: Final = ", ".join(f"`{name}` {_TYPES[name]}" for name, _ in _FOLDS)


def update_sessions(spark: SparkSession, lake: Lake) -> int:
    """Bring the sessions up to silver: make those of changed days anew, and return how many days.  Raises Conflict."""
    silver, stored = lake.snapshot(REQUESTS), lake.snapshot(SESSIONS)
    since = stored.mark(_SILVER)
    if silver.version in (since, -1):
        return 0
    changes = silver.changes(-1 if since is None else since)
    days = {*silver.days(), *stored.days()} if changes is None else changes.days
    files = lake.write(sessions(silver.read(spark, days=days, columns=_READ)), SESSIONS) if days else []
    stored.commit(files, replaces=days, marks={_SILVER: silver.version})
    return len(days)


def sessions(requests: DataFrame) -> DataFrame:
    """The sessions of these requests."""
    from pyspark.sql import functions as f

    mode, is_final = f.col("mode"), f.col("is_final")
    is_read = mode.isin([str(mode) for mode in READS]) & (is_final | (f.col("status") > 0))
    is_live = mode != str(Mode.CATCHUP)
    reads = requests.where(is_read).select(
        *("day", "route", "protocol", "stream", "partition", "id", "mode", "is_final", "sent_bytes"),
        f.coalesce("client", f.lit("-")).alias("client"),
        f.coalesce("user_agent", f.lit("-")).alias("user_agent"),
        f.coalesce("start", f.lit(START)).alias("start"),
        f.coalesce("next_offset", "start", f.lit(START)).alias("reached"),
        # And what a session would be that had no other read.
        f.timestamp_micros(f.unix_micros("time") - f.round(f.col("duration_s") * 1_000_000).try_cast("bigint")).alias(
            "began"
        ),
        f.col("time").alias("ended"),
        is_final.cast("bigint").alias("reads"),
        (is_final & is_live).cast("bigint").alias("live_reads"),
        f.col("start").alias("first_offset"),
        f.col("next_offset").alias("last_offset"),
        f.when(is_live, f.col("close_reason")).alias("close_reason"),
        # Sorting by a number is what makes this quick.  Should two readers have the same one, their reads take turns,
        # and none of them goes on with one of the other.
        f.xxhash64(*_READER).alias("reader"),
    )
    in_order = reads.repartition("reader").sortWithinPartitions("reader", "ended", "id").drop("reader", "id")
    joined = in_order.mapInArrow(_join, _JOINED)
    made = joined.withColumn("reconnects", f.greatest(f.col("connections") - 1, f.lit(0)))
    return made.select([column.name for column in SESSIONS.columns])


def _join(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sessions of reads that come sorted by reader, and then by when they ended."""
    import pyarrow as pa

    last: pa.Table | None = None
    open_session: pa.Table | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        reads = pa.Table.from_batches([batch])
        # Before the first of all is a read of which nothing is known.
        last = reads.take(pa.array([None], pa.int64())) if last is None else last
        before = pa.concat_tables([last, reads.slice(0, len(reads) - 1)])
        last = reads.slice(len(reads) - 1)
        is_one_reader = _is_of_one_reader(reads, before)
        is_begun = ~(is_one_reader & _goes_on(reads, before))
        is_connected = _is(reads["mode"], str(Mode.SSE)) & ~(is_one_reader & _is_one_connection(reads, before))
        parts, numbers = _alone(reads, is_begun, is_connected), np.cumsum(is_begun, dtype=np.int64)
        if open_session is not None:
            parts, numbers = pa.concat_tables([open_session, parts]), np.concatenate([[0], numbers])
        found = _folded(parts, numbers)
        open_session = found.slice(len(found) - 1)
        yield from found.slice(0, len(found) - 1).to_batches()
    if open_session is not None:
        yield from open_session.to_batches()


def _goes_on(reads: pa.Table, before: pa.Table) -> Truths:
    """Whether a read continues the one before it."""
    import pyarrow.compute as pc

    start, start_before, reached = reads["start"], before["start"], before["reached"]
    latest = pc.add(before["ended"].cast("int64"), GAP_S * 1_000_000)
    is_soon = _so(pc.less_equal(reads["began"].cast("int64"), latest))
    is_position = ~_is(start, START) & ~_is(start, NOW)
    is_after = ~_is(start_before, NOW) & _so(pc.less_equal(start_before, start))
    is_between = is_position & _so(pc.less_equal(start, reached)) & (_is(start_before, START) | is_after)
    return is_soon & (_is(start, reached) | is_between | _is_unfinished(before) & _is(start, start_before))


def _is_one_connection(reads: pa.Table, before: pa.Table) -> Truths:
    """Whether a line describes the same live read as the line before it."""
    return _is_unfinished(before) & _is(reads["mode"], before["mode"])


def _alone(reads: pa.Table, is_begun: Truths, is_connected: Truths) -> pa.Table:
    """Each read as a session of its own, ready to be folded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    alone = {
        "connections": is_connected.astype(np.int64),
        # The start offset of a later read is not the start of its session.
        "first_offset": pc.if_else(is_begun, reads["first_offset"], None),
    }
    return pa.table({name: alone[name] if name in alone else reads[name] for name, _ in _FOLDS})


def _folded(sessions: pa.Table, numbers: npt.NDArray[np.int64]) -> pa.Table:
    """Join consecutive sessions with the same number."""
    import pyarrow as pa

    numbered = sessions.append_column("number", pa.array(numbers))
    folded = numbered.group_by("number", use_threads=False).aggregate(list(_FOLDS))
    return pa.table({name: folded[f"{name}_{fold}"] for name, fold in _FOLDS})


def _is_of_one_reader(reads: pa.Table, before: pa.Table) -> Truths:
    import pyarrow.compute as pc

    # Of a line that names no stream, that is what it has in common with another.
    both = ((reads[name], before[name]) for name in _READER)
    found: Truths = np.logical_and.reduce(
        [_is(one, other) | _so(pc.and_(pc.is_null(one), pc.is_null(other))) for one, other in both]
    )
    return found


def _is_unfinished(reads: pa.Table) -> Truths:
    return _is(reads["is_final"], False)


def _is(values: pa.ChunkedArray, others: pa.ChunkedArray | str | bool) -> Truths:
    """Where they are known to be equal."""
    import pyarrow.compute as pc

    return _so(pc.equal(values, others))


def _so(truths: pa.ChunkedArray) -> Truths:
    """Where it is known to be so."""
    import pyarrow.compute as pc

    found: Truths = pc.fill_null(truths, False).to_numpy()
    return found
