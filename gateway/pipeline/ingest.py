"""Ingest: write access-log lines to bronze and silver, and compute their sessions; repeated runs add no line twice.

The input is cut into batches.  Every batch takes the same steps: bronze, silver, and a mark on each day that it
touched.  Then the sessions of marked days are computed and the marks removed.  A batch has a name and folders of its
own (`lake`), so an unfinished batch is run again and replaces its own output.  Its content is fixed meanwhile: lines of
files stay in the landing folder until the batch is done (`landing`), and lines of a stream are named by the offsets in
Spark's checkpoint.

Batches run one after the other, and a lake has one ingest at a time.  While a source is followed, sessions and gold are
computed only from time to time, because their cost is that of the day, not of the batch.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Final, assert_never

from gateway.aio.clock import Clock, SystemClock
from gateway.pipeline.bronze import write_bronze
from gateway.pipeline.errors import PipelineFailed, one_line
from gateway.pipeline.events import Files, LogStream, Source, with_hint
from gateway.pipeline.folder import Folder
from gateway.pipeline.landing import Batch, Landing, source_name
from gateway.pipeline.lock import AtWork, locked
from gateway.pipeline.manifest import digest
from gateway.pipeline.sessions import write_sessions
from gateway.pipeline.silver import write_silver
from gateway.pipeline.tables import LATE_DAYS, LINES, REJECTS, REQUESTS, SESSIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from gateway.pipeline.lake import Lake

FOLLOW_S: Final = 10.0
"""Seconds between two checks for new lines."""
FIGURES_S: Final = 60.0
"""Least seconds between two computations of sessions and gold while a source is followed."""

_MARKS: Final = "checkpoints/days"
_STREAMS: Final = "checkpoints/streams"
_TABLES: Final = (LINES, REJECTS, REQUESTS, SESSIONS)

Told = Callable[[str], None]


@dataclass(slots=True)
class Ingested:
    """Counts of a run: events (`lines`), events new to silver (`added`), and rejected lines by reason."""

    batches: int = 0
    lines: int = 0
    added: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    days: set[date] = field(default_factory=set)

    @property
    def twice(self) -> int:
        """Events that were ingested before."""
        return self.lines - self.added

    def __str__(self) -> str:
        if not self.batches:
            return "ingest: nothing new"
        days = sorted(self.days)
        of = f" of {len(days)} days, {days[0]} to {days[-1]}" if days else ""
        rejected = f"; {self.rejects.total():,} rejected ({_listed(self.rejects)})" if self.rejects else ""
        return f"ingest: {self.added:,} lines{of}; {self.twice:,} had come before{rejected}"


def ingest(
    spark: SparkSession,
    source: Source,
    lake: Lake,
    *,
    follow: bool = False,
    progress: Told,
    clock: Clock | None = None,
    late_days: int | None = None,
    stop: threading.Event | None = None,
) -> Ingested:
    """Ingest the lines of a source that the lake does not have; with `follow` also new ones, until `stop` or SIGINT.

    Events of days `late_days` or more before the newest are rejected as too late.  None accepts any day, or, with
    `follow`, means three days.  Raises PipelineFailed if the source cannot be read or another ingest is running.
    """
    with locked(lake, "ingest"):
        lake.sweep(spark, _TABLES)
        work = _Ingest(
            spark, lake, progress, clock or SystemClock(), LATE_DAYS if late_days is None and follow else late_days
        )
        # Days marked by an earlier run that was killed.
        work.compute_sessions()
        if follow:
            work.follow(source, stop or threading.Event())
        else:
            work.take_all(source)
        work.compute_sessions()
        return work.ingested


@dataclass(slots=True)
class _Ingest:
    """One run."""

    spark: SparkSession
    lake: Lake
    told: Told
    clock: Clock
    late_days: int | None
    ingested: Ingested = field(default_factory=Ingested)
    _computed_at: float = float("-inf")

    def follow(self, source: Source, stop: threading.Event) -> None:
        """Ingest new lines until `stop` is set."""
        is_known = False
        try:
            while True:
                try:
                    self.take_all(source)
                    is_known = True
                except PipelineFailed as error:
                    # During rotation or compression a log is missing or incomplete for a moment.
                    if not is_known or not isinstance(source, Files):
                        raise
                    self.told(f"{error}: to be looked at again")
                self._compute_now_and_then()
                if stop.wait(FOLLOW_S):
                    return
        except KeyboardInterrupt:
            self.told("stopping")

    def take_all(self, source: Source) -> None:
        """Ingest everything that is new now."""
        match source:
            case Files():
                self._take_files(source)
            case LogStream():
                self._take_stream(source)
            case _:
                assert_never(source)

    def take(self, came: DataFrame, batch: str) -> None:
        """Write one batch (`line`, `source`, `taken`) to bronze and silver; idempotent."""
        oldest = None
        if self.late_days is not None and (known := self.lake.days(self.spark, REQUESTS, others_than=batch)):
            oldest = known[-1] - timedelta(days=self.late_days)
        write_bronze(came, self.lake, batch, oldest=oldest)
        self.told(f"{batch}: bronze")
        days = self.lake.days(self.spark, LINES, batch=batch)
        self._mark(days)
        write_silver(self.spark, self.lake, batch)
        self._count(batch, days)

    def compute_sessions(self) -> None:
        """Compute the sessions of marked days and remove the marks."""
        marks = Folder(self.spark, self.lake.place(_MARKS))
        names = [name for name in marks.files() if not name.startswith(".")]
        if not names:
            return
        write_sessions(self.spark, self.lake, [date.fromisoformat(name) for name in names])
        for name in names:
            marks.remove(name)
        self.told(f"sessions of {_counted(len(names), 'day')}")

    # -- the parts

    def _take_files(self, source: Files) -> None:
        landing = Landing(self.spark, self.lake)
        if (batch := landing.unfinished()) is not None:
            self.told(f"batch {batch.name} was not finished: once more")
            self._take_batch(landing, batch)
        files = source.found()
        if (batch := landing.land(files, self.clock.wall())) is not None:
            self._take_batch(landing, batch)

    def _take_batch(self, landing: Landing, batch: Batch) -> None:
        from pyspark.sql import functions as f

        lines = self.spark.read.option("lineSep", "\n").text(batch.url)
        came = lines.select(
            f.col("value").alias("line"),
            source_name(f.col("_metadata.file_name")).alias("source"),
            f.timestamp_micros(f.lit(int(batch.taken_at * 1_000_000))).alias("taken"),
        )
        self.told(f"{batch.name}: landed")
        self.take(came, batch.name)
        landing.done(batch)

    def _take_stream(self, source: LogStream) -> None:
        from pyspark.errors import StreamingQueryException

        query = self._query(source)
        try:
            # Short waits, so that a signal is handled in between.
            while not query.awaitTermination(1):
                pass
        except StreamingQueryException as error:
            raise PipelineFailed(f"{source.url}: {with_hint(one_line(error))}") from None
        finally:
            query.stop()

    def _query(self, source: LogStream) -> StreamingQuery:
        """Start a query over the stream's batches up to now."""
        from pyspark.sql import functions as f

        checkpoint = Folder(self.spark, self.lake.place(f"{_STREAMS}/{digest(source.url.encode())}"))
        came = (
            self.spark.readStream.format("durable_streams")
            .options(**source.reading)
            .load()
            # The batch's time comes from the checkpoint, so it is the same when the batch is run again.
            .select(
                f.col("value").alias("line"), f.lit(source.url).alias("source"), f.current_timestamp().alias("taken")
            )
        )

        def take(batch: DataFrame, number: int) -> None:
            lineage = str(json.loads(checkpoint.text("metadata"))["id"])[:8]
            self.take(batch, f"{lineage}-{number:08d}")

        writer = came.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint.url)
        return writer.trigger(availableNow=True).start()

    def _compute_now_and_then(self) -> None:
        now = self.clock.now()
        if now - self._computed_at < FIGURES_S:
            return
        from gateway.pipeline.aggregate import aggregate

        self.compute_sessions()
        try:
            aggregate(self.spark, self.lake, progress=self.told)
        except AtWork as error:
            self.told(f"{error}: gold the next time")
        self._computed_at = now

    def _mark(self, days: tuple[date, ...]) -> None:
        marks = Folder(self.spark, self.lake.place(_MARKS))
        marks.make()
        for day in days:
            if not marks.exists(day.isoformat()):
                marks.write_text(day.isoformat(), "")

    def _count(self, batch: str, days: tuple[date, ...]) -> None:
        from pyspark.sql import functions as f

        lines, added = (
            self.lake.read_batches(self.spark, table, batch=batch, days=days).count() for table in (LINES, REQUESTS)
        )
        reason = f.substring_index("reason", ":", 1).alias("reason")
        rejects = self.lake.read_batches(self.spark, REJECTS, batch=batch).select(reason).groupBy("reason").count()
        found = Counter({row[0]: row[1] for row in rejects.collect()})
        self.ingested.batches += 1
        self.ingested.lines += lines
        self.ingested.added += added
        self.ingested.rejects += found
        self.ingested.days.update(days)
        rejected = f", {found.total():,} rejected: {_listed(found)}" if found else ""
        self.told(f"{batch}: silver, {added:,} lines, {lines - added:,} had come before{rejected}")


def _listed(rejects: Counter[str]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in rejects.most_common())


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
