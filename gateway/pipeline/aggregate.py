"""Compute the gold tables: which days, from which lines, in an order in which a killed run can be repeated.

A day is computed again if its silver has changed since the last computation (`gateway.pipeline.gold.books`).  Tables
that look back on a changed day are computed again too: the day after it for tables that look back one hour, seven days
for anomalies.  Each table's days are replaced, never appended to.  The books are closed once all tables are written.  A
run that is killed earlier leaves them open, and the next run computes the same days again.  So gold is a function of
silver, except for the randomness of large sketches (`gateway.pipeline.gold.sketches`).

The cost of a call is proportional to the lines of the days it computes, not to the lake.  If nothing has changed, it is
the cost of listing silver's files.  `gateway.pipeline.ingest` calls it once a minute at most while it follows a source.

A day that is no longer in silver keeps its gold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.pipeline import tables
from gateway.pipeline.gold.anomalies import DAYS, anomalies
from gateway.pipeline.gold.books import Books
from gateway.pipeline.gold.closed_loops import closed_loops
from gateway.pipeline.gold.delivery import delivery
from gateway.pipeline.gold.fan_out import fan_out
from gateway.pipeline.gold.latency import latency
from gateway.pipeline.gold.reconnects import reconnects
from gateway.pipeline.gold.slow_consumers import slow_consumers
from gateway.pipeline.gold.top_streams import ranks, top_streams
from gateway.pipeline.gold.traffic import errors, offload, sums, traffic
from gateway.pipeline.lake import Lake
from gateway.pipeline.lock import locked
from gateway.pipeline.tables import LATE_DAYS, Table

_DAY: Final = timedelta(days=1)
# Spark sorts the lines first where an aggregation that keeps objects has more groups than this; by default 128.  A day
# has 1,440 minutes; 20,000 sketches take about 100 MB.
_GROUPS: Final = ("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", "20000")


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Result of a run."""

    days: tuple[date, ...]
    """Days whose lines had changed; all their tables were computed."""
    followed: tuple[date, ...]
    """Days computed again in part, because some of their tables look back on `days`."""
    newest: datetime | None
    """Time of silver's newest line (UTC, naive); None without lines."""
    final_before: datetime | None
    """Windows that end at this time or before are final while a source is followed: ingest rejects lines of theirs.
    Lines of given files are ingested at any age."""

    def __str__(self) -> str:
        if self.newest is None:
            return "gold: no lines yet"
        done = "nothing has changed" if not self.days else f"{_told(self.days)} computed"
        again = f", {_told(self.followed)} looked at again" if self.followed else ""
        return f"gold: {done}{again}; days before {self.final_before:%Y-%m-%d} are final where a source is followed"


def aggregate(
    spark: SparkSession,
    lake: Lake,
    *,
    since: date | None = None,
    late_days: int = LATE_DAYS,
    progress: Callable[[str], None],
) -> Aggregated:
    """Compute the gold tables of every day whose silver has changed, and of the days that look back on it.

    With `since`, all days from that one on are computed, changed or not, and earlier days are left as they are.
    `late_days` is ingest's, and decides which windows are final.  Raises AtWork if another run is at work.
    """
    stored = lake.days(spark, tables.REQUESTS)
    if not stored:
        # A missing table reads as an empty one.
        return Aggregated((), (), None, None)
    with locked(lake, "aggregate"):
        return _aggregate(spark, lake, stored, since, late_days, progress)


def _aggregate(
    spark: SparkSession,
    lake: Lake,
    stored: Sequence[date],
    since: date | None,
    late_days: int,
    progress: Callable[[str], None],
) -> Aggregated:
    newest = _newest(lake.read(spark, tables.REQUESTS, stored[-1:]))
    books = Books(spark, lake)
    asked = [day for day in stored if since is None or day >= since]
    sources = books.sources(asked)
    made = {} if since is not None else books.made()
    changed = tuple(day for day in asked if made.get(day) != sources[day])
    followed: tuple[date, ...] = ()
    if changed:
        progress(f"gold: {len(changed)} of {len(stored)} days have changed ({_told(changed)})")
        books.begin(changed)
        lake.sweep(spark, tables.GOLD)
        with _many_groups(spark):
            followed = _compute(spark, lake, changed, stored, newest, progress)
        books.finish({day: sources[day] for day in changed})
    midnight = newest.replace(hour=0, minute=0, second=0, microsecond=0)
    return Aggregated(changed, followed, newest, midnight - late_days * _DAY)


def _compute(
    spark: SparkSession,
    lake: Lake,
    changed: Sequence[date],
    stored: Sequence[date],
    newest: datetime,
    progress: Callable[[str], None],
) -> tuple[date, ...]:
    """Write all tables; return the days other than `changed` that were computed for some of them."""
    there = set(stored)

    def write(frame: DataFrame, table: Table, days: Collection[date]) -> None:
        progress(f"{table.place}: {_told(sorted(days))}")
        lake.write_days(_one_file_a_day(frame.where(_is_of(days)), table), table, days)

    lines = lake.read(spark, tables.REQUESTS, changed)
    summed = sums(lines).persist()
    try:
        write(traffic(summed), tables.TRAFFIC, changed)
        write(offload(summed), tables.OFFLOAD, changed)
        write(errors(summed), tables.ERRORS, changed)
    finally:
        summed.unpersist()
    write(latency(lines), tables.LATENCY, changed)
    ranked = ranks(lines).persist()
    try:
        write(top_streams(lines, ranked), tables.TOP_STREAMS, changed)
    finally:
        ranked.unpersist()
    write(fan_out(lines), tables.FAN_OUT, changed)
    write(slow_consumers(lines), tables.SLOW_CONSUMERS, changed)

    after = _with_followers(changed, 1) & there
    before = {day - _DAY for day in after} - after
    behind = _and_the_hour_before(spark, lake, after, before & there)
    write(delivery(behind), tables.DELIVERY, after)
    write(closed_loops(behind), tables.CLOSED_LOOPS, after)
    write(reconnects(behind, lake.read(spark, tables.RECONNECTS, before)), tables.RECONNECTS, after)

    # The last hours of a day are over once a later day exists.
    compared = (_with_followers(changed, DAYS) | {_day_before(day, stored) for day in changed}) & there
    read = {day - step * _DAY for day in compared for step in range(DAYS + 1)}
    found = anomalies(
        lake.read(spark, tables.TRAFFIC, read),
        lake.read(spark, tables.OFFLOAD, read),
        lake.read(spark, tables.ERRORS, read),
        compared,
        # With its zone: a naive time would be taken as local.
        newest.replace(minute=0, second=0, microsecond=0, tzinfo=UTC),
    )
    write(found, tables.ANOMALIES, compared)
    return tuple(sorted((after | compared) - set(changed)))


def _and_the_hour_before(
    spark: SparkSession, lake: Lake, days: Collection[date], before: Collection[date]
) -> DataFrame:
    """Lines of these days, and those of the last hour of `before`."""
    lines = lake.read(spark, tables.REQUESTS, days)
    if not before:
        return lines
    # As a range of times, which Parquet's row-group statistics can skip by.
    hours = [
        (f.col("time") >= f.lit(f"{day} 23:00:00").cast("timestamp"))
        & (f.col("time") < f.lit(f"{day + _DAY} 00:00:00").cast("timestamp"))
        for day in sorted(before)
    ]
    last = lake.read(spark, tables.REQUESTS, before).where(reduce(lambda one, other: one | other, hours))
    return lines.unionByName(last)


def _newest(lines: DataFrame) -> datetime:
    found = lines.agg(f.date_format(f.max("time"), "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")).first()
    assert found is not None
    return datetime.fromisoformat(found[0])


def _with_followers(days: Collection[date], count: int) -> set[date]:
    return {day + step * _DAY for day in days for step in range(count + 1)}


def _day_before(day: date, stored: Sequence[date]) -> date:
    """The nearest earlier day with lines; `day` itself if there is none."""
    return max((other for other in stored if other < day), default=day)


def _one_file_a_day(frame: DataFrame, table: Table) -> DataFrame:
    return frame.repartition("day").sortWithinPartitions("day", *table.key)


def _is_of(days: Collection[date]) -> Column:
    return f.col("day").isin([f.lit(day) for day in sorted(days)])


def _told(days: Sequence[date]) -> str:
    if len(days) <= 3:
        return ", ".join(day.isoformat() for day in days)
    return f"{len(days)} days from {days[0]} to {days[-1]}"


@contextmanager
def _many_groups(spark: SparkSession) -> Iterator[None]:
    """Keep aggregations in memory during the block."""
    name, value = _GROUPS
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is not None:
            spark.conf.set(name, before)
