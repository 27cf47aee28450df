"""`durable-gateway pipeline …`: one command for each step of the pipeline, and `run` for all of them.

Every command works on a lake (`--lake`, or its alias `--in`), prints progress on stderr and the result on stdout, and
may be repeated: finished work is not done again.  Exit statuses are those of the other commands.  Spark is imported
when a command runs, so `--help` needs neither Spark nor Java.

`submitted` is for `spark-submit`: the same commands, on the cluster that `spark-submit` names.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, assert_never

import typer
from typer.exceptions import Abort, TyperException

from gateway.aio.clock import SystemClock
from gateway.config.errors import PlanError
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.pipeline.errors import NothingToPlan, PipelineFailed, one_line
from gateway.pipeline.events import AUTHORIZATION_VARIABLE, Files, LogStream, Source, source_of
from gateway.pipeline.session import DEFAULT_MASTER, is_submitted, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.lake import Lake

pipeline = typer.Typer(
    name="pipeline",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Analyse the access log on Spark: tables, miss-ratio curve, cache plan, report.",
)
"""The commands, as a part of the main command line."""

FAILED: Final = 1
MISUSED: Final = 2
_MIN_SPAN: Final = "24h"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EXTRA: Final = "pip install 'durable-gateway[pipeline]'"

Progress = Callable[[str], None]

Lines = Annotated[
    list[str],
    typer.Argument(
        metavar="SOURCE...",
        help="Files, folders or globs of access-log lines, or the URL of the stream that a gateway logs to.",
    ),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="For a log in a stream: an option of the Spark source, such as catalogue, the URL of the gateway's "
        f"admin port; may be repeated.  The Authorization header comes from ${AUTHORIZATION_VARIABLE}, the admin "
        f"port's token from ${ADMIN_TOKEN_VARIABLE}.",
    ),
]
LakeUrl = Annotated[
    str, typer.Option("--lake", "--in", metavar="FOLDER", help="The lake: a folder, or a URL for Spark.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", show_default=DEFAULT_MASTER, help="Spark's master, such as local[4]."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Keep reading new lines, and update silver and gold, until SIGINT or SIGTERM.")
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="R",
        min=1e-4,
        max=1,
        show_default="chosen to bound the work",
        help="Share of blocks and tapes to sample.",
    ),
]
Target = Annotated[
    float,
    typer.Option("--target", metavar="RATIO", min=0, max=1, help="Hit ratio that the memory should reach."),
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="NAME", help="`limits.eviction` of the gateway that applies the plan.")
]
MinSpan = Annotated[
    str,
    typer.Option(
        "--min-span",
        metavar="TIME",
        help="Shortest time that a log should cover, such as 90m, 24h or 7d.  The plan and the report of a shorter one "
        "are marked, and a gateway does not take the memory of such a plan unless told to.",
    ),
]
PlanFile = Annotated[Path, typer.Option("--plan", "--out", metavar="FILE", help="File to write the plan to.")]
Curves = Annotated[
    list[str] | None,
    typer.Option(
        "--curve",
        metavar="POLICY",
        show_default="the plan's policy",
        help="A policy whose curve is drawn; may be repeated.  The numbers below have all of them.",
    ),
]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="The report's heading.")]


@pipeline.command()
def ingest(
    source: Lines,
    lake: LakeUrl = "lake",
    option: SourceOptions = None,
    follow: Follow = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Ingest access-log lines: unchanged (bronze), then typed and without duplicates (silver)."""
    lines = _source(source, option)
    with _working(master, conf) as (spark, progress):
        _ingest(spark, lines, _lake(lake), progress, follow=follow)


@pipeline.command()
def aggregate(lake: LakeUrl = "lake", master: Master = None, conf: Conf = None) -> None:
    """Compute the gold tables of every day whose lines have changed."""
    with _working(master, conf) as (spark, progress):
        _aggregate(spark, _lake(lake), progress)


@pipeline.command()
def curve(lake: LakeUrl = "lake", rate: Rate = None, master: Master = None, conf: Conf = None) -> None:
    """Compute the miss-ratio curves: the hit ratios of other cache sizes."""
    with _working(master, conf) as (spark, progress):
        _curve(spark, _lake(lake), rate, progress)


@pipeline.command()
def plan(
    lake: LakeUrl = "lake",
    out: PlanFile = Path("plan.json"),
    target: Target = 0.9,
    policy: Policy = "s3-fifo",
    min_span: MinSpan = _MIN_SPAN,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write the cache plan for a gateway: memory, streams to pin, to warm and not to store, and lifetimes."""
    min_span_s = _seconds(min_span, "--min-span")
    with _working(master, conf) as (spark, progress):
        _plan(spark, _lake(lake), out, target, policy, min_span_s, progress)


@pipeline.command()
def report(
    lake: LakeUrl = "lake",
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the report goes.")] = Path("report.html"),
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan to show in it.")] = None,
    curve: Curves = None,
    min_span: MinSpan = _MIN_SPAN,
    title: Title = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write a report of all tables as one HTML file."""
    min_span_s = _seconds(min_span, "--min-span")
    with _working(master, conf) as (spark, progress):
        _report(spark, _lake(lake), out, plan, curve or (), min_span_s, title, progress)


@pipeline.command()
def run(
    source: Lines,
    lake: LakeUrl = "lake",
    option: SourceOptions = None,
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="Where the plan goes.")] = Path("plan.json"),
    report: Annotated[Path, typer.Option("--report", metavar="FILE", help="Where the report goes.")] = Path(
        "report.html"
    ),
    target: Target = 0.9,
    policy: Policy = "s3-fifo",
    min_span: MinSpan = _MIN_SPAN,
    rate: Rate = None,
    title: Title = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Run all steps: ingest, aggregate, curve, plan, report.  The report is written even if no plan can be made."""
    lines, min_span_s = _source(source, option), _seconds(min_span, "--min-span")
    with _working(master, conf) as (spark, progress):
        tables = _lake(lake)
        _ingest(spark, lines, tables, progress, follow=False)
        _aggregate(spark, tables, progress)
        _curve(spark, tables, rate, progress)
        chosen: Path | None = plan
        try:
            _plan(spark, tables, plan, target, policy, min_span_s, progress)
        except NothingToPlan as error:
            typer.echo(f"plan: none: {error}")
            chosen = None
        _report(spark, tables, report, chosen, (), min_span_s, title, progress)


def submitted() -> int:
    """Run the command line on the Spark that `spark-submit` has started, and give the exit status."""
    try:
        pipeline(prog_name="pipeline", standalone_mode=False)
    except TyperException as error:
        return _complain(error.format_message(), MISUSED)
    except PipelineFailed as error:
        return _complain(str(error), FAILED)
    except (Abort, KeyboardInterrupt):
        return _complain("stopped", FAILED)
    return 0


def _complain(text: str, status: int) -> int:
    typer.echo(f"pipeline: {text}", err=True)
    return status


# -- the steps; each prints its result


def _ingest(spark: SparkSession, source: Source, lake: Lake, progress: Progress, *, follow: bool) -> None:
    from gateway.pipeline.ingest import ingest

    typer.echo(ingest(spark, source, lake, follow=follow, progress=progress))


def _aggregate(spark: SparkSession, lake: Lake, progress: Progress) -> None:
    from gateway.pipeline.aggregate import aggregate

    typer.echo(aggregate(spark, lake, progress=progress))


def _curve(spark: SparkSession, lake: Lake, rate: float | None, progress: Progress) -> None:
    from gateway.pipeline.curve.measure import measure_curve

    typer.echo(measure_curve(spark, lake, rate=rate, progress=progress))


def _plan(
    spark: SparkSession, lake: Lake, out: Path, target: float, policy: str, min_span_s: float, progress: Progress
) -> None:
    from gateway.pipeline.planner import make_plan, write_plan

    made = make_plan(
        spark,
        lake,
        target_hit_ratio=target,
        policy=policy,
        min_span_s=min_span_s,
        clock=SystemClock(),
        progress=progress,
    )
    write_plan(made, out)
    if made.is_short:
        progress(
            f"plan: made from {made.made_from.span_s / 60:,.0f} min of traffic, and marked as short: a gateway keeps "
            "its memory unless cache.plan.take_short_memory is set; --min-span sets what is short"
        )
    typer.echo(
        f"plan: {out}: {made.memory.cache_bytes:,} bytes for a hit ratio of {made.memory.expected_hit_ratio:.1%} "
        f"(target {target:.1%}); {len(made.pin)} streams to pin, {len(made.warm)} to warm, "
        f"{len(made.do_not_store)} not to store, {len(made.lifetimes)} lifetimes"
    )


def _report(
    spark: SparkSession,
    lake: Lake,
    out: Path,
    plan: Path | None,
    curves: Sequence[str],
    min_span_s: float,
    title: str | None,
    progress: Progress,
) -> None:
    try:
        from gateway.pipeline.report import TITLE, write_report
        from gateway.pipeline.report.gold import gold_of
    except ImportError as error:
        # On a cluster the driver may have Spark and nothing else of the extra.
        raise PipelineFailed(f"the report needs {error.name}: {_EXTRA}") from None

    write_report(
        gold_of(lake),
        out,
        title=title or TITLE,
        plan=plan,
        curves=curves,
        min_span_s=min_span_s,
        progress=progress,
    )
    typer.echo(f"report: {out}")


# -- sources, the lake and Spark


def _source(texts: list[str], options: list[str] | None) -> Source:
    """The source of the lines.  It is checked before Spark starts, because that takes a while."""
    settings = _settings(options or [], "--option", "NAME=VALUE")
    source = source_of(texts, settings, os.environ)
    match source:
        case Files():
            source.found()
        case LogStream():
            # Without Spark, `_working` raises the error that matters.
            with suppress(ImportError):
                source.check()
        case _:
            assert_never(source)
    return source


def _lake(url: str) -> Lake:
    from gateway.pipeline.lake import Lake

    if not url:
        raise typer.BadParameter("expected a folder, or a URL for Spark", param_hint="--lake")
    return Lake(url if "://" in url else str(Path(url).absolute()))


@contextmanager
def _working(master: str | None, conf: list[str] | None) -> Iterator[tuple[SparkSession, Progress]]:
    """A Spark session for the block, and a function that prints progress.  Every failure becomes PipelineFailed."""
    settings = _settings(conf or [], "--conf", "KEY=VALUE")
    clock = SystemClock()
    began = clock.now()

    def progress(line: str) -> None:
        typer.echo(f"{clock.now() - began:7.1f} s  {line}", err=True)

    try:
        from py4j.protocol import Py4JError, Py4JNetworkError
        from pyspark.errors import PySparkException
    except ImportError:
        raise PipelineFailed(f"the pipeline needs Spark: {_EXTRA}") from None
    if master is None and not is_submitted(os.environ):
        master = DEFAULT_MASTER
    progress(f"starting Spark on {master or 'the cluster of spark-submit'}")
    try:
        spark = open_session(master, settings)
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"Spark does not start: {one_line(error)}") from None
    # SIGTERM, from a service manager, stops the run as SIGINT does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield spark, progress
    except KeyboardInterrupt:
        raise PipelineFailed("stopped: the next run continues from here") from None
    except PlanError as error:
        raise PipelineFailed(str(error)) from None
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


def _seconds(text: str, flag: str) -> float:
    """The seconds of a time such as `90m`."""
    with suppress(KeyError, ValueError):
        seconds = float(text[:-1]) * _UNITS_S[text[-1:]]
        if 0 <= seconds < float("inf"):
            return seconds
    raise typer.BadParameter("expected a number and a unit: s, m, h or d, such as 24h", param_hint=flag)


def _settings(texts: list[str], flag: str, wanted: str) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # The text itself is not shown: it may be a secret.
            raise typer.BadParameter(f"expected {wanted}", param_hint=flag)
        settings[key] = value
    return settings
