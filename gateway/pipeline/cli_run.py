"""What the pipeline's commands run: the steps on a Spark session, progress on stderr, and every failure as one line."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from gateway.aio.clock import SystemClock
from gateway.pipeline.errors import PipelineFailed, brief, one_line
from gateway.pipeline.session import DEFAULT_MASTER, is_submitted, open_session
from gateway.pipeline.whole_file import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.events import Source
    from gateway.pipeline.lake import Lake

EXTRA: Final = "pip install 'durable-gateway[pipeline]'"

Progress = Callable[[str], None]


def shown_progress() -> Progress:
    """Print progress, with the seconds since now."""
    clock = SystemClock()
    began = clock.now()

    def progress(line: str) -> None:
        typer.echo(f"{clock.now() - began:7.1f} s  {line}", err=True)

    return progress


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that need Spark, and that `run` has in common with other commands.  Each prints its result."""

    spark: SparkSession
    lake: Lake
    progress: Progress

    def ingest(self, source: Source, *, follow: bool = False, again: bool = False) -> None:
        """Lines to bronze, silver and sessions."""
        from gateway.pipeline.ingest import ingest

        typer.echo(ingest(self.spark, source, self.lake, follow=follow, again=again, progress=self.progress))

    def aggregate(self) -> None:
        """Silver to gold."""
        from gateway.pipeline.aggregate import aggregate

        typer.echo(aggregate(self.spark, self.lake, progress=self.progress))

    def curve(self, rate: float | None) -> None:
        """Silver to the curve."""
        from gateway.pipeline.curve.measure import measure_curve

        typer.echo(measure_curve(self.spark, self.lake, rate=rate, progress=self.progress))

    def plan(self, out: Path, target: float, policy: str, min_span_s: float) -> None:
        """Silver and the curve to a plan."""
        from gateway.pipeline.planner import make_plan

        made = make_plan(
            self.spark,
            self.lake,
            target_hit_ratio=target,
            policy=policy,
            min_span_s=min_span_s,
            progress=self.progress,
        )
        # A gateway that reloads sees the old plan or the new one.
        write_whole(out, made.text)
        if made.is_short:
            self.progress(
                f"plan: made from {made.made_from.span_s / 60:,.0f} min of traffic, and marked as short: a gateway "
                "keeps its memory unless cache.plan.take_short_memory is set; --min-span sets what is short"
            )
        typer.echo(
            f"plan: {out}: {made.memory.cache_bytes:,} bytes for a hit ratio of {made.memory.expected_hit_ratio:.1%} "
            f"(target {target:.1%}); {len(made.pin)} streams to pin, {len(made.warm)} to warm, "
            f"{len(made.do_not_store)} not to store, {len(made.lifetimes)} lifetimes"
        )


def write_report(lake: Lake, out: Path, **shown: Any) -> None:
    """Gold and the curve to a report, which needs no Spark; `shown` is as `gateway.pipeline.report` has it."""
    from gateway.pipeline import report
    from gateway.pipeline.derived import outdated
    from gateway.pipeline.report.gather import gold_of

    report.write_report(gold_of(lake), out, outdated=outdated(lake), **shown)
    typer.echo(f"report: {out}")


@contextmanager
def failing() -> Iterator[None]:
    """Turn failures of a command's part that needs no Spark session into PipelineFailed."""
    # delta-rs logs at length what its errors say in short.
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
def working(url: str, master: str | None, conf: list[str] | None) -> Iterator[Steps]:
    """The steps on the lake at `url`, on a Spark session for the block.  Every failure becomes PipelineFailed."""
    chosen = settings(conf or [], "--conf", "KEY=VALUE")
    progress = shown_progress()
    try:
        from py4j.protocol import Py4JError, Py4JNetworkError
        from pyspark.errors import PySparkException
    except ImportError:
        raise PipelineFailed(f"the pipeline needs Spark: {EXTRA}") from None
    with failing():
        from gateway.pipeline.lake import Lake

        lake = Lake(url)
    if master is None and not is_submitted(os.environ):
        master = DEFAULT_MASTER
    progress(f"starting Spark on {master or 'the cluster of spark-submit'}")
    try:
        spark = open_session(master, chosen)
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"Spark does not start: {one_line(error)}") from None
    # SIGTERM, from a service manager, stops the run as SIGINT does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with failing():
        try:
            yield Steps(spark, lake, progress)
        except (Py4JNetworkError, ConnectionError):
            raise PipelineFailed("Spark's Java has died: more memory may help, --conf spark.driver.memory=4g") from None
        except (PySparkException, Py4JError) as error:
            raise PipelineFailed(f"Spark failed: {one_line(error)}") from None
        finally:
            # The same signal may already have stopped Spark's Java.
            with suppress(Py4JError, OSError):
                # Otherwise every cancelled task logs an error of its own.
                spark.sparkContext.setLogLevel("OFF")
                spark.stop()


def settings(texts: list[str], flag: str, wanted: str) -> dict[str, str]:
    """The settings in texts such as `name=value`.  Raises BadParameter."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # The text itself is not shown: it may be a secret.
            raise typer.BadParameter(f"expected {wanted}", param_hint=flag)
        found[key] = value
    return found
