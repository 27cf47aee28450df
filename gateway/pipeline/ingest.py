"""Ingest: write access-log lines to bronze and silver, and compute the sessions.  Repeated runs add no line twice.

The lines of a batch are committed to bronze together with the progress in the source.  Then silver is updated from
bronze, and the sessions are updated from silver.  Silver is committed with the version of bronze that it was computed
from, and the sessions with the version of silver (`gateway.pipeline.lake`).  A run therefore finds and finishes the
work of an earlier run that was killed.

If two runs overlap, the one that commits second repeats its batch.  While a source is followed, sessions and gold are
computed at most once a minute, because each computation processes whole days and not only the new batch.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Final, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructType

from gateway.aio.clock import Clock, SystemClock
from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import Files, LateLines, LogStream, Source
from gateway.pipeline.intake import write_rows, write_spooled
from gateway.pipeline.lake import Conflict, File, Lake, Snapshot
from gateway.pipeline.log_files import LogFiles
from gateway.pipeline.log_stream import each_batch
from gateway.pipeline.manifest import Manifest, read_manifest
from gateway.pipeline.sessions import update_sessions
from gateway.pipeline.silver import Prepared, gained, update_silver
from gateway.pipeline.tables import BRONZE, LATE, LATE_DAYS, LINES, REJECTS, REQUESTS
from gateway.pipeline.upkeep import MANY, optimize
from gateway.pipeline.wording import many

FOLLOW_S: Final = 10.0
"""Seconds between two checks for new lines while a source is followed."""
FIGURES_S: Final = 60.0
"""Shortest time in seconds between two computations of sessions and gold while a source is followed."""

_FILES: Final = "files"
"""The name under which the lake records the progress in files."""
_TRIES: Final = 5

Told = Callable[[str], None]
T = TypeVar("T")


@dataclass(slots=True)
class Ingested:
    """Counts of one run: events (`lines`), events new to silver (`added`), and rejected lines by reason.

    They do not include lines that other runs ingest meanwhile.
    """

    batches: int = 0
    lines: int = 0
    added: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    days: set[date] = field(default_factory=set)

    @property
    def twice(self) -> int:
        """Number of events that silver already had."""
        return self.lines - self.added

    def __str__(self) -> str:
        if not self.batches:
            return "ingest: nothing new"
        days = sorted(self.days)
        of = f" of {many(len(days), 'day')}, {days[0]} to {days[-1]}" if days else ""
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in self.rejects.most_common())
        rejected = f"; {self.rejects.total():,} rejected ({reasons})" if self.rejects else ""
        return f"ingest: {self.added:,} lines{of}; {self.twice:,} had come before{rejected}"


def ingest(
    spark: SparkSession,
    source: Source,
    lake: Lake,
    *,
    follow: bool = False,
    again: bool = False,
    progress: Told,
    clock: Clock | None = None,
    late_days: int | None = None,
    stop: threading.Event | None = None,
) -> Ingested:
    """Ingest the lines of a source that the lake does not have yet.

    With `follow`, keep ingesting new lines until `stop` is set or SIGINT arrives.  Events more than `late_days` days
    before silver's newest day are rejected as too late.  If `late_days` is None, the limit is three days with `follow`,
    and there is no limit without it.  With `again`, files are read from their beginnings, even if they were read
    before; silver still gets no line twice.

    Raises PipelineFailed if the source cannot be read, and Conflict if other runs keep writing to the lake.
    """
    late_days = LATE_DAYS if late_days is None and follow else late_days
    # A killed run may have left lines in bronze that silver lacks.  They must not count as lines of this run.
    bring_up(spark, lake, progress)
    silver = lake.snapshot(REQUESTS).version
    work = _Ingest(spark, lake, progress, clock or SystemClock(), late_days, silver)
    if follow:
        work.follow(source, stop or threading.Event())
    else:
        work.take_all(source, again=again)
    bring_up(spark, lake, progress)
    work.settle()
    optimize(lake, progress, many=MANY)
    return work.ingested


def retried(work: Callable[[], T], told: Told) -> T:
    """Do the work, and repeat it if another run has committed meanwhile.

    Raises Conflict after `_TRIES` attempts.
    """
    for _ in range(_TRIES - 1):
        try:
            return work()
        except Conflict as error:
            told(f"{error}: once more")
    return work()


def followed(turn: Callable[[], None], stop: threading.Event, told: Told) -> None:
    """Call `turn` every `FOLLOW_S` seconds until `stop` is set or SIGINT arrives.

    If a turn fails with a Conflict, the next turn does its work.
    """
    try:
        while True:
            try:
                turn()
            except Conflict as error:
                told(f"{error}: to be looked at again")
            if stop.wait(FOLLOW_S):
                return
    except KeyboardInterrupt:
        told("stopping")


def bring_up(spark: SparkSession, lake: Lake, progress: Told) -> None:
    """Update silver from bronze, and the sessions from silver.

    Raises Conflict if other runs keep writing to the lake.
    """
    retried(lambda: update_silver(spark, lake), progress)
    if days := retried(lambda: update_sessions(spark, lake), progress):
        progress(f"sessions of {many(days, 'day')}")


@dataclass(slots=True)
class _Ingest:
    """One run of `ingest`."""

    spark: SparkSession
    lake: Lake
    told: Told
    clock: Clock
    late_days: int | None
    _counted_to: int
    """The version of silver up to which `ingested.added` is complete."""
    ingested: Ingested = field(default_factory=Ingested)
    _computed_at: float = float("-inf")
    _has_forgotten: bool = False
    _held: dict[int | None, Manifest] = field(default_factory=dict)
    """The manifest at the end of the last turn.  Its key is the mark of bronze (`gateway.pipeline.lake`) that was
    committed with the manifest."""
    _prepared: Prepared | None = None
    """Rows of silver for the batch that is about to be committed to bronze."""
    _uncounted: dict[int, int] = field(default_factory=dict)
    """The number of lines of each batch that `settle` has not counted yet.  The key is the version of bronze that the
    batch's commit made."""

    def follow(self, source: Source, stop: threading.Event) -> None:
        """Ingest new lines until `stop` is set."""
        is_known = False

        def turn() -> None:
            nonlocal is_known
            try:
                self.take_all(source)
                is_known = True
            except PipelineFailed as error:
                # While a log is rotated or compressed, it is missing or incomplete for a moment.
                if not (is_known and isinstance(source, Files)):
                    raise
                self.told(f"{error}: to be looked at again")
            self._compute_now_and_then()

        followed(turn, stop, self.told)

    def take_all(self, source: Source, *, again: bool = False) -> None:
        """Ingest all lines that are new now."""
        match source:
            case Files():
                retried(lambda: self._take_files(source, again=again), self.told)
            case LogStream():
                retried(lambda: self._take_stream(source), self.told)
            case LateLines():
                retried(self._take_late, self.told)

    def settle(self) -> None:
        """Count how many lines silver gained from the batches that are not counted yet.

        Silver must be up to date with bronze.  The number is read from silver's log, whose entries are kept for thirty
        days.  A source may be followed for longer, so this is called again and again while a source is followed.
        """
        if not self._uncounted:
            return
        silver = self.lake.snapshot(REQUESTS)
        count = gained(silver, self._uncounted, self._counted_to)
        # If a commit recomputed whole days, its count includes lines of other runs, so the sum may be too high.  Such a
        # commit also subtracts the lines that the command `undo` has removed, so the sum may be negative.
        self.ingested.added += min(sum(self._uncounted.values()), max(0, count))
        self._uncounted, self._counted_to = {}, silver.version

    # -- steps

    def _take_files(self, source: Files, *, again: bool) -> None:
        bronze = self.lake.snapshot(BRONZE)
        paths = source.found(self.lake.store.local)
        held = self._held.pop(bronze.mark(_FILES), None)
        files = LogFiles(self.lake.store, held or read_manifest(bronze.progress(_FILES, may_lack=again)))
        if again and not self._has_forgotten:
            files.forget(paths)
            bronze = bronze.commit_progress([], _FILES, files.manifest.to_json())
            self._has_forgotten = True
        for spooled in files.batches(paths):
            first, *others = spooled.sources
            named = f"{first} and {many(len(others), 'more file')}" if others else first
            batch = write_spooled(self.spark, self.lake, spooled.paths, taken_us=self._now_us(), oldest=self._oldest())
            self._prepared = batch.prepared
            bronze = bronze.commit_progress(batch.bronze, _FILES, files.manifest.to_json(), named)
            self._taken(bronze, batch.bronze)
        self._held = {bronze.mark(_FILES): files.manifest}
        if files.unreadable:
            raise PipelineFailed("; ".join(files.unreadable))

    def _take_stream(self, source: LogStream) -> None:
        def write(rows: DataFrame) -> list[File]:
            return self._written(rows.select(f.col("value").alias("line"), f.lit(source.url).alias("source")))

        schema = StructType().add("value", StringType())
        each_batch(self.spark, source, schema, self.lake.snapshot(BRONZE), write, self._taken)

    def _take_late(self) -> None:
        """Move the late lines from the rejects to the events, in one commit."""
        rejects = self.lake.snapshot(replace(BRONZE, kind=REJECTS.kind))
        is_late = f.col("reason") == LATE
        late = rejects.read(self.spark).where(is_late)
        days = {row.day for row in late.select("day").distinct().collect()}
        if not days:
            return
        kept = self.lake.write(rejects.read(self.spark, days=days).where(~is_late), BRONZE)
        written = self._written(late.select("line", "source"))
        about = {"source": "late lines", "rows": str(sum(file.rows for file in written))}
        self._taken(rejects.commit([*written, *kept], replaces=days, about=about), written)

    def _written(self, came: DataFrame) -> list[File]:
        """Write one batch (`line`, `source`) as files of bronze."""
        batch = write_rows(self.spark, self.lake, came, taken_us=self._now_us(), oldest=self._oldest())
        self._prepared = batch.prepared
        return batch.bronze

    def _now_us(self) -> int:
        return int(self.clock.wall() * 1_000_000)

    def _oldest(self) -> date | None:
        """Return the oldest day whose events are accepted; None if all are."""
        if self.late_days is not None and (known := self.lake.snapshot(REQUESTS).days()):
            return known[-1] - timedelta(days=self.late_days)
        return None

    def _taken(self, bronze: Snapshot, files: list[File]) -> None:
        """Count the files of a batch, which has just been committed to `bronze`, and update silver."""
        # Count first.  The update of silver may fail with a Conflict, but the lines are in bronze already.
        self._count(bronze.version, files)
        self.told(f"bronze {bronze.version}: {sum(file.rows for file in files):,} lines")
        prepared, self._prepared = self._prepared, None
        self.told(f"silver: {update_silver(self.spark, self.lake, {bronze.version: prepared}):,} lines more")
        self.settle()

    def _compute_now_and_then(self) -> None:
        now = self.clock.now()
        if now - self._computed_at < FIGURES_S:
            return
        try:
            bring_up(self.spark, self.lake, self.told)
            self.settle()
            aggregate(self.spark, self.lake, progress=self.told)
            optimize(self.lake, self.told, many=MANY)
        except Conflict as error:
            self.told(f"{error}: gold the next time")
        self._computed_at = now

    def _count(self, version: int, files: list[File]) -> None:
        if rejected := [file.path for file in files if file.kind == REJECTS.kind]:
            reasons = self.lake.snapshot(REJECTS).arrow(["reason"], rejected).read_all().column(0)
            self.ingested.rejects.update(str(reason).partition(":")[0] for reason in reasons.to_pylist())
        lines = [file for file in files if file.kind == LINES.kind]
        rows = self._uncounted[version] = sum(file.rows for file in lines)
        self.ingested.batches += 1
        self.ingested.lines += rows
        self.ingested.days.update(file.day for file in lines if file.day is not None)
