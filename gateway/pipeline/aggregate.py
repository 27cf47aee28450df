"""Compute the gold tables of the days whose silver has changed.

A day is computed again if its lines in silver have changed since the last run.  Some tables also use earlier days, so
later days are computed again too: the next day for tables that look back one hour, and seven days for anomalies.  A run
replaces whole days of a table and never appends to them.  A day that is no longer in silver is removed from gold.

Several tables are computed at a time.  One table is always committed last, with the version of silver that all of them
were computed from.  If a run is killed before that commit, the next run computes the same days again.  The same silver
always gives the same gold, except for the randomness of large sketches (`gateway.pipeline.gold.sketches`).

The cost of a run is proportional to the number of lines in its days.  Without changes, a run only opens the tables.  A
run notes the versions of all tables before it reads silver.  If two runs overlap, one of them fails with a Conflict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from gateway.pipeline import tables
from gateway.pipeline.derived import GOLD_MARK, LAST_OF_GOLD
from gateway.pipeline.gold.anomalies import DAYS, LEAST_DAYS, anomalies
from gateway.pipeline.gold.closed_loops import closed_loops
from gateway.pipeline.gold.delivery import delivery
from gateway.pipeline.gold.reconnects import reconnects
from gateway.pipeline.gold.top_streams import ranks, top_streams
from gateway.pipeline.gold.windows import (
    SUMMED,
    errors,
    fan_out,
    latency,
    offload,
    slow_consumers,
    sums,
    traffic,
    usage,
)
from gateway.pipeline.lake import File, Lake, Snapshot
from gateway.pipeline.session import fit, persisted
from gateway.pipeline.tables import LATE_DAYS, Table
from gateway.pipeline.together import together

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Result of a run."""

    days: tuple[date, ...]
    """Days whose lines had changed.  All their tables were computed."""
    followed: tuple[date, ...]
    """Later days that were computed again in part, because some of their tables use the lines of `days`."""
    newest: datetime | None
    """Time of silver's newest line (UTC, naive); None without lines."""
    final_before: datetime | None
    """Figures before this time no longer change while a source is followed, because ingest rejects lines that old.  An
    ingest of files accepts lines of any age."""

    def __str__(self) -> str:
        if self.newest is None:
            return "gold: no lines yet"
        done = "nothing has changed" if not self.days else f"{_told(self.days)} computed"
        again = f", {_told(self.followed)} looked at again" if self.followed else ""
        return f"gold: {done}{again}; days before {self.final_before:%Y-%m-%d} are final where a source is followed"


def aggregate(spark: SparkSession, lake: Lake, *, progress: Callable[[str], None]) -> Aggregated:
    """Compute the gold tables of every day whose silver has changed, and of the later days that depend on it.

    Raises Conflict if another run has changed a gold table meanwhile.
    """
    gold = {table: lake.snapshot(table) for table in tables.GOLD}
    silver = lake.snapshot(tables.REQUESTS)
    stored = silver.days()
    last = gold[LAST_OF_GOLD].mark(GOLD_MARK)
    if not stored and last is None:
        # A missing table reads as an empty one.
        return Aggregated((), (), None, None)
    changes = None if last is None else silver.changes(last)
    if changes is None:
        changed = {*stored, *(day for snapshot in gold.values() for day in snapshot.days())}
    else:
        changed = set(changes.days)
    newest = None
    if stored:
        newest = silver.span("time")[1].replace(tzinfo=None)
    followed: tuple[date, ...] = ()
    if changed:
        fit(spark, sum(file.rows for file in silver.files(changed)))
        progress(f"gold: {len(changed & set(stored))} of {len(stored)} days have changed ({_told(sorted(changed))})")
        followed = _Run(spark, silver, gold, progress).compute(changed, stored, newest)
    elif last != silver.version:
        gold[LAST_OF_GOLD].commit(marks={GOLD_MARK: silver.version})
    final_before = newest and newest.replace(hour=0, minute=0, second=0, microsecond=0) - LATE_DAYS * _DAY
    return Aggregated(tuple(sorted(changed)), followed, newest, final_before)


@dataclass(frozen=True, slots=True)
class _Run:
    """One computation of gold from one version of silver."""

    spark: SparkSession
    silver: Snapshot
    gold: dict[Table, Snapshot]
    progress: Callable[[str], None]

    def compute(self, changed: Collection[date], stored: Sequence[date], newest: datetime | None) -> tuple[date, ...]:
        """Write all tables, and return the days besides `changed` that were computed.

        The last table is committed with the version of silver.
        """
        there = set(stored)
        gone = set(changed) - there
        lines = partial(self._lines, changed)
        after = _with_followers(changed, 1) & there
        before = {day - _DAY for day in after} - after
        behind = partial(self._and_the_hour_before, after, before & there, "stream", "close_reason")
        # A day's last hours are complete once a later day exists.  So the day before a changed day is compared again.
        days_before = {max((other for other in stored if other < day), default=day) for day in changed}
        compared = (_with_followers(changed, DAYS) | days_before) & there
        read = {day - step * _DAY for day in compared for step in range(DAYS + 1)}
        # Spark would take a time without a zone as local.
        until = (newest or datetime.max.replace(tzinfo=UTC)).replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
        last: list[File] = []

        def of_sums() -> None:
            with persisted(sums(lines("protocol", "outcome", "status", "close_reason", *SUMMED))) as summed:
                for compute, table in ((traffic, tables.TRAFFIC), (offload, tables.OFFLOAD), (errors, tables.ERRORS)):
                    self._write(compute(summed), table, changed)
            days_back = ([day - step * _DAY for step in range(1, DAYS + 1)] for day in compared)
            if not any(len(there.intersection(days)) >= LEAST_DAYS for days in days_back):
                return  # no day has enough earlier days to be compared with
            by_minute, of_reads, failed = (
                self._stored(table, read) for table in (tables.TRAFFIC, tables.OFFLOAD, tables.ERRORS)
            )
            found = anomalies(by_minute, of_reads, failed, compared, until)
            last.extend(self._files(found, LAST_OF_GOLD, compared | gone))

        def of_streams() -> None:
            chosen = lines("protocol", "stream", "client", "user_agent", *SUMMED)
            with persisted(ranks(chosen)) as ranked:
                self._write(top_streams(chosen, ranked), tables.TOP_STREAMS, changed)

        def of_latency() -> None:
            self._write(latency(lines("duration_s", "first_byte_s")), tables.LATENCY, changed)

        def of_fan_out() -> None:
            self._write(fan_out(lines("subscribers", "collapsed")), tables.FAN_OUT, changed)

        def of_slow_consumers() -> None:
            cut_off = lines("stream", "client", "user_agent", "close_reason", "sent_bytes")
            self._write(slow_consumers(cut_off), tables.SLOW_CONSUMERS, changed)

        def of_delivery() -> None:
            woken = behind("node", "status", "start", "next_offset", "duration_s")
            self._write(delivery(woken), tables.DELIVERY, after | gone)

        def of_closed_loops() -> None:
            looped = behind("protocol", "status", "outcome", "start", "next_offset", "client", "user_agent")
            self._write(closed_loops(looped), tables.CLOSED_LOOPS, after | gone)

        def of_reconnects() -> None:
            returned = behind("partition", "client", "user_agent", "duration_s")
            earlier = self._stored(tables.RECONNECTS, before)
            self._write(reconnects(returned, earlier), tables.RECONNECTS, after | gone)

        def of_usage() -> None:
            used = lines("principal", "tenant", "issuer", "outcome", "duration_s", "sent_bytes", "fetched_bytes")
            self._write(usage(used), tables.USAGE, changed)

        # The tables that take longest begin first.
        parts = (of_sums, of_streams, of_reconnects, of_delivery, of_closed_loops)
        together(self.spark, (*parts, of_latency, of_fan_out, of_slow_consumers, of_usage))
        marks = {GOLD_MARK: self.silver.version}
        snapshot = self.gold[LAST_OF_GOLD]
        self.gold[LAST_OF_GOLD] = snapshot.commit(last, replaces=compared | gone, marks=marks)
        return tuple(sorted((after | compared) - set(changed)))

    def _write(self, frame: DataFrame, table: Table, days: Collection[date]) -> None:
        self.gold[table] = self.gold[table].commit(self._files(frame, table, days), replaces=days)

    def _files(self, frame: DataFrame, table: Table, days: Collection[date]) -> list[File]:
        self.progress(f"{table.place}: {_told(sorted(days))}")
        chosen = frame.where(f.col("day").isin([f.lit(day) for day in sorted(days)]))
        one_file_a_day = chosen.repartition("day").sortWithinPartitions("day", *table.key)
        return self.silver.lake.write(one_file_a_day, table)

    def _stored(self, table: Table, days: Collection[date]) -> DataFrame:
        return self.gold[table].read(self.spark, days=days)

    def _lines(self, days: Collection[date], *more: str) -> DataFrame:
        """The lines of these days, with the columns that every table needs and `more`.

        Other columns are not read, because each one costs requests to an object store.
        """
        return self.silver.read(self.spark, days=days, columns=("day", "time", "route", "mode", "is_final", *more))

    def _and_the_hour_before(self, days: Collection[date], before: Collection[date], *more: str) -> DataFrame:
        """The lines of these days, and of the last hour of each day in `before`."""
        lines = self._lines(days, *more)
        if not before:
            return lines
        # With a range of times, Spark can skip row groups by their Parquet statistics.
        hour = "time >= timestamp '{} 23:00:00' and time < timestamp '{} 00:00:00'"
        hours = (hour.format(day, day + _DAY) for day in sorted(before))
        return lines.unionByName(self._lines(before, *more).where(" or ".join(hours)))


def _with_followers(days: Collection[date], count: int) -> set[date]:
    return {day + step * _DAY for day in days for step in range(count + 1)}


def _told(days: Sequence[date]) -> str:
    if len(days) <= 3:
        return ", ".join(day.isoformat() for day in days)
    return f"{len(days)} days from {days[0]} to {days[-1]}"
