"""The work of the pipeline's commands: the steps that need Spark, progress on stderr, and failures as one line."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from gateway.aio.clock import SystemClock
from gateway.pipeline.errors import NothingToPlan, PipelineFailed, brief, one_line
from gateway.pipeline.session import DEFAULT_MASTER, archive_for, end_java, is_submitted, open_session
from gateway.pipeline.whole_file import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.curve.references import PlacedReads
    from gateway.pipeline.events import Source
    from gateway.pipeline.lake import Lake
    from gateway.pipeline.planner import Basis

EXTRA: Final = "pip install 'durable-gateway[pipeline]'"

_STEPS: Final = (
    "pyarrow.dataset",
    *(f"gateway.pipeline.{name}" for name in ("ingest", "aggregate", "curve.measure", "planner", "report")),
)

MANY_BYTES: Final = 1 << 30
"""A run with a larger source takes minutes."""
_MANY_ROWS: Final = 2_000_000
"""A run on a lake with more lines takes minutes."""

Progress = Callable[[str], None]


def shown_progress() -> Progress:
    """Return a function that prints a line of progress, with the seconds since this call."""
    clock = SystemClock()
    began = clock.now()

    def progress(line: str) -> None:
        typer.echo(f"{clock.now() - began:7.1f} s  {line}", err=True)

    return progress


class Waits(logging.Handler):
    """Shows warnings of the Spark source as progress, such as a pause before it tries to reach a server again."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress(record.getMessage())


@contextmanager
def showing_waits(progress: Progress) -> Iterator[None]:
    """Show warnings of the Spark source only as progress, within the block."""
    log, waits = logging.getLogger("pyspark_durable_streams"), Waits(progress)
    log.addHandler(waits)
    log.propagate = False
    try:
        yield
    finally:
        log.propagate = True
        log.removeHandler(waits)


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that need Spark.  Each prints its result."""

    spark: SparkSession
    lake: Lake
    progress: Progress

    def ingest(self, source: Source, *, follow: bool = False, again: bool = False) -> None:
        """Write the source's lines to bronze and silver, and update the sessions."""
        from gateway.pipeline.ingest import ingest

        typer.echo(ingest(self.spark, source, self.lake, follow=follow, again=again, progress=self.progress))

    def aggregate(self) -> None:
        """Compute gold from silver."""
        typer.echo(self._aggregated())

    def curve(self, rate: float | None) -> None:
        """Compute the curve from silver."""
        typer.echo(self._measured(rate))

    def plan(self, out: Path, target: float, policy: str, min_span_s: float) -> None:
        """Make a plan from silver and the curve."""
        typer.echo(self._planned(out, target, policy, min_span_s))

    def gold_and_plan(self, out: Path, target: float, policy: str, min_span_s: float, rate: float | None) -> bool:
        """Compute gold, and at the same time the curve and the plan; return whether a plan was made.

        The curve and the plan share the placed reads.
        """
        from gateway.pipeline import tables
        from gateway.pipeline.curve.references import placed_reads
        from gateway.pipeline.planner import basis_of
        from gateway.pipeline.together import together

        gold: list[str] = []
        plan: list[str] = []
        is_planned = True

        def make_gold() -> None:
            gold.append(self._aggregated())

        def make_plan() -> None:
            nonlocal is_planned
            self.progress("curve: placing offsets")
            with placed_reads(self.spark, self.lake.snapshot(tables.REQUESTS)) as reads:
                # Compute the basis first, because the curve then keeps all processors busy.
                basis = basis_of(self.spark, reads)
                plan.append(self._measured(rate, reads))
            try:
                plan.append(self._planned(out, target, policy, min_span_s, basis))
            except NothingToPlan as error:
                plan.append(f"plan: none: {error}")
                is_planned = False

        together(self.spark, (make_plan, make_gold))
        typer.echo("\n".join([*gold, *plan]))
        return is_planned

    @contextmanager
    def over(self) -> Iterator[None]:
        """Stop Spark in the background while the block runs.  The block must not need Spark."""
        ending = threading.Thread(target=_end, args=(self.spark,), name="end of Spark")
        ending.start()
        try:
            yield
        finally:
            ending.join()

    def _aggregated(self) -> str:
        from gateway.pipeline.aggregate import aggregate

        return str(aggregate(self.spark, self.lake, progress=self.progress))

    def _measured(self, rate: float | None, reads: PlacedReads | None = None) -> str:
        from gateway.pipeline.curve.measure import measure_curve

        return str(measure_curve(self.spark, self.lake, rate=rate, progress=self.progress, reads=reads))

    def _planned(self, out: Path, target: float, policy: str, min_span_s: float, basis: Basis | None = None) -> str:
        from gateway.pipeline.planner import make_plan

        made = make_plan(
            self.spark,
            self.lake,
            target_hit_ratio=target,
            policy=policy,
            min_span_s=min_span_s,
            progress=self.progress,
            basis=basis,
        )
        # A gateway that reloads meanwhile must see the old plan or the new one, never a part.
        write_whole(out, made.text)
        if made.is_short:
            self.progress(
                f"plan: made from {made.made_from.span_s / 60:,.0f} min of traffic, and marked as short: a gateway "
                "keeps its memory unless cache.plan.take_short_memory is set; --min-span sets what is short"
            )
        return (
            f"plan: {out}: {made.memory.cache_bytes:,} bytes for a hit ratio of {made.memory.expected_hit_ratio:.1%} "
            f"(target {target:.1%}); {len(made.pin)} streams to pin, {len(made.warm)} to warm, "
            f"{len(made.do_not_store)} not to store, {len(made.lifetimes)} lifetimes"
        )


def write_report(lake: Lake, out: Path, **shown: Any) -> None:
    """Write a report of gold and the curve, without Spark.

    `shown` has further arguments of `gateway.pipeline.report.write_report`.
    """
    from gateway.pipeline import report
    from gateway.pipeline.derived import outdated
    from gateway.pipeline.report.gather import gold_of

    report.write_report(gold_of(lake), out, outdated=outdated(lake), **shown)
    typer.echo(f"report: {out}")


@contextmanager
def failing() -> Iterator[None]:
    """Turn errors within the block into PipelineFailed, except for errors of Spark."""
    # delta-rs also logs its errors at length.  Their messages are enough.
    os.environ.setdefault("RUST_LOG", "off")
    try:
        import pyarrow as pa
        from deltalake.exceptions import DeltaError

        yield
    except KeyboardInterrupt:
        raise PipelineFailed("stopped: the next run continues from here") from None
    except ImportError as error:
        raise PipelineFailed(f"the pipeline needs {error.name}: {EXTRA}") from None
    except (OSError, DeltaError, pa.ArrowException) as error:
        raise PipelineFailed(f"the lake's store failed: {brief(error)}") from None


@contextmanager
def working(url: str, master: str | None, conf: list[str] | None, *, is_long: bool = False) -> Iterator[Steps]:
    """Start a Spark session for the block, and yield the steps on the lake at `url`.

    Every failure becomes PipelineFailed.  `is_long` means that the run will take minutes.  A run on a lake with many
    lines is long in any case.
    """
    chosen = settings(conf or [], "--conf", "KEY=VALUE")
    progress = shown_progress()
    try:
        from py4j.protocol import Py4JError, Py4JNetworkError
        from pyspark.errors import PySparkException
    except ImportError:
        raise PipelineFailed(f"the pipeline needs Spark: {EXTRA}") from None
    with failing():
        from gateway.pipeline.lake import Lake
        from gateway.pipeline.tables import REQUESTS

        lake = Lake(url)
        rows = sum(file.rows for file in lake.snapshot(REQUESTS).files())
    if master is None and not is_submitted(os.environ):
        master = DEFAULT_MASTER
    progress(f"starting Spark on {master or 'the cluster of spark-submit'}")
    # Java takes seconds to start.  Import modules meanwhile.
    threading.Thread(target=_import_ahead, name="imports", daemon=True).start()
    is_short = not is_long and rows <= _MANY_ROWS
    archive = archive_for(master, chosen, is_short=is_short)
    try:
        spark = open_session(master, chosen, is_short=is_short, archive=archive)
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"Spark does not start: {one_line(error)}") from None
    threading.Thread(target=_start_worker, args=(spark,), name="first worker", daemon=True).start()
    # A service manager sends SIGTERM.  Handle it like SIGINT.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with failing(), showing_waits(progress):
        try:
            yield Steps(spark, lake, progress)
        except (Py4JNetworkError, ConnectionError):
            raise PipelineFailed("Spark's Java has died: more memory may help, --conf spark.driver.memory=4g") from None
        except (PySparkException, Py4JError) as error:
            raise PipelineFailed(f"Spark failed: {one_line(error)}") from None
        finally:
            _end(spark)
        if archive is not None and archive.is_new:
            progress("an archive of Java's classes is written, once: later runs start sooner")
            end_java()
            archive.keep()


def _end(spark: SparkSession) -> None:
    """Stop Spark if it is still running."""
    from py4j.protocol import Py4JError

    # The same signal may already have stopped Spark's Java.
    with suppress(Py4JError, OSError, AttributeError):
        # Otherwise each cancelled task logs an error.
        spark.sparkContext.setLogLevel("OFF")
        spark.stop()


def _import_ahead() -> None:
    with suppress(Exception):  # the step that needs the module reports the error
        for name in _STEPS:
            import_module(name)
        import_module("gateway.pipeline.report.drawing").begin()


def _start_worker(spark: SparkSession) -> None:
    """Start a Python worker while Spark plans the first query, which would otherwise wait for one."""
    with suppress(Exception):  # the session may have ended
        spark.range(1).mapInArrow(lambda batches: batches, "id bigint").collect()


def settings(texts: list[str], flag: str, wanted: str) -> dict[str, str]:
    """Parse settings of the form `name=value`.  Raises BadParameter."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # The text itself is not shown: it may be a secret.
            raise typer.BadParameter(f"expected {wanted}", param_hint=flag)
        found[key] = value
    return found
