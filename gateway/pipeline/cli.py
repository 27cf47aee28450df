"""`durable-gateway pipeline …`: each step of the pipeline by itself, and `run` for all of them.

Every command works on a lake (`--lake`, or `--in` where that reads better), says what it does on stderr as it goes and
what came of it on stdout, and may be repeated: what is done is not done again.  Exit statuses are those of the other
commands.  Spark is imported when a command runs, so `--help` needs neither it nor Java.

`submitted` is for `spark-submit`: the same commands, on the cluster that it was told of.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, assert_never

import typer
from typer.exceptions import Abort, TyperException

from gateway.aio.clock import SystemClock
from gateway.config.cache_plan import PlanError
from gateway.config.values import ADMIN_TOKEN_VARIABLE
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
    help="What the access log tells of the traffic, on Spark: tables, miss-ratio curve, plan, report.",
)
"""The commands, for whoever puts a command line together."""

FAILED: Final = 1
MISUSED: Final = 2
_EXTRA: Final = "pip install 'durable-gateway[pipeline]'"

Told = Callable[[str], None]

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
        help="For a log that is a stream: an option of the Spark source, such as catalogue, the URL of the gateway's "
        f"admin port; may be repeated.  The Authorization header comes from ${AUTHORIZATION_VARIABLE}, the admin "
        f"port's token from ${ADMIN_TOKEN_VARIABLE}.",
    ),
]
LakeUrl = Annotated[
    str, typer.Option("--lake", "--in", metavar="FOLDER", help="Where the tables are: a folder, or a URL of Spark's.")
]
Master = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", show_default=DEFAULT_MASTER, help="Spark's master, such as local[4]."),
]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's own; may be repeated.")
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Go on with what comes, silver and gold, until SIGINT or SIGTERM.")
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate", metavar="R", min=1e-4, max=1, show_default="as it takes", help="Share of the keys to look at."
    ),
]
Target = Annotated[
    float, typer.Option("--target", metavar="RATIO", min=0, max=1, help="Hit ratio that the memory is to reach.")
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="NAME", help="`limits.eviction` of the gateway that takes the plan.")
]
PlanFile = Annotated[Path, typer.Option("--plan", "--out", metavar="FILE", help="Where the plan goes.")]
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
    """Take in access-log lines: as they came (bronze), then typed and each once (silver)."""
    lines = _source(source, option)
    with _working(master, conf) as (spark, told):
        _ingest(spark, lines, _lake(lake), told, follow=follow)


@pipeline.command()
def aggregate(lake: LakeUrl = "lake", master: Master = None, conf: Conf = None) -> None:
    """Compute the gold tables of every day that has changed."""
    with _working(master, conf) as (spark, told):
        _aggregate(spark, _lake(lake), told)


@pipeline.command()
def curve(lake: LakeUrl = "lake", rate: Rate = None, master: Master = None, conf: Conf = None) -> None:
    """Compute the miss-ratio curves: what caches of other sizes would have done."""
    with _working(master, conf) as (spark, told):
        _curve(spark, _lake(lake), rate, told)


@pipeline.command()
def plan(
    lake: LakeUrl = "lake",
    out: PlanFile = Path("plan.json"),
    target: Target = 0.9,
    policy: Policy = "s3-fifo",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write what follows for a gateway: its memory, what to pin, to warm and not to store, and for how long."""
    with _working(master, conf) as (spark, told):
        _plan(spark, _lake(lake), out, target, policy, told)


@pipeline.command()
def report(
    lake: LakeUrl = "lake",
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the report goes.")] = Path("report.html"),
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan to show in it.")] = None,
    title: Title = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write all that the tables say as one HTML file."""
    with _working(master, conf) as (spark, told):
        _report(spark, _lake(lake), out, plan, title, told)


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
    rate: Rate = None,
    title: Title = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Do all of it: ingest, aggregate, curve, plan, report.  Traffic that nothing can be planned by is reported too."""
    lines = _source(source, option)
    with _working(master, conf) as (spark, told):
        place = _lake(lake)
        _ingest(spark, lines, place, told, follow=False)
        _aggregate(spark, place, told)
        _curve(spark, place, rate, told)
        chosen: Path | None = plan
        try:
            _plan(spark, place, plan, target, policy, told)
        except NothingToPlan as error:
            typer.echo(f"plan: none: {error}")
            chosen = None
        _report(spark, place, report, chosen, title, told)


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


# -- the steps, each of which says what came of it


def _ingest(spark: SparkSession, source: Source, lake: Lake, told: Told, *, follow: bool) -> None:
    from gateway.pipeline.ingest import ingest

    typer.echo(ingest(spark, source, lake, follow=follow, progress=told))


def _aggregate(spark: SparkSession, lake: Lake, told: Told) -> None:
    from gateway.pipeline.aggregate import aggregate

    typer.echo(aggregate(spark, lake, progress=told))


def _curve(spark: SparkSession, lake: Lake, rate: float | None, told: Told) -> None:
    from gateway.pipeline.curve.measure import measure_curve

    typer.echo(measure_curve(spark, lake, rate=rate, progress=told))


def _plan(spark: SparkSession, lake: Lake, out: Path, target: float, policy: str, told: Told) -> None:
    from gateway.pipeline.planner import make_plan, write_plan

    made = make_plan(spark, lake, target_hit_ratio=target, policy=policy, clock=SystemClock(), progress=told)
    write_plan(made, out)
    typer.echo(
        f"plan: {out}: {made.memory.cache_bytes:,} bytes for a hit ratio of {made.memory.expected_hit_ratio:.1%} "
        f"({target:.1%} was asked for); {len(made.pin)} streams to pin, {len(made.warm)} to warm, "
        f"{len(made.do_not_store)} not to store, {len(made.lifetimes)} lifetimes"
    )


def _report(spark: SparkSession, lake: Lake, out: Path, plan: Path | None, title: str | None, told: Told) -> None:
    from gateway.pipeline.report import TITLE, write_report

    write_report(spark, lake, out, title=title or TITLE, plan=plan, progress=told)
    typer.echo(f"report: {out}")


# -- what they work with


def _source(texts: list[str], options: list[str] | None) -> Source:
    """Judged before Spark starts, which takes a while."""
    settings = _settings(options or [], "--option", "NAME=VALUE")
    source = source_of(texts, settings, os.environ)
    match source:
        case Files():
            source.found()
        case LogStream():
            # Without Spark there is more to complain of, and it is complained of.
            with suppress(ImportError):
                source.judge()
        case _:
            assert_never(source)
    return source


def _lake(url: str) -> Lake:
    from gateway.pipeline.lake import Lake

    if not url:
        raise typer.BadParameter("expected a folder, or a URL of Spark's", param_hint="--lake")
    return Lake(url if "://" in url else str(Path(url).absolute()))


@contextmanager
def _working(master: str | None, conf: list[str] | None) -> Iterator[tuple[SparkSession, Told]]:
    """Spark until the block ends, and somebody to tell of progress.  PipelineFailed for whatever goes wrong."""
    settings = _settings(conf or [], "--conf", "KEY=VALUE")
    clock = SystemClock()
    began = clock.now()

    def told(line: str) -> None:
        typer.echo(f"{clock.now() - began:7.1f} s  {line}", err=True)

    try:
        from py4j.protocol import Py4JError, Py4JNetworkError
        from pyspark.errors import PySparkException
    except ImportError:
        raise PipelineFailed(f"the pipeline needs Spark: {_EXTRA}") from None
    if master is None and not is_submitted(os.environ):
        master = DEFAULT_MASTER
    told(f"starting Spark on {master or 'the cluster of spark-submit'}")
    try:
        spark = open_session(master, settings)
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"Spark does not start: {one_line(error)}") from None
    # A service manager's word is taken as the terminal's is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield spark, told
    except KeyboardInterrupt:
        raise PipelineFailed("stopped: run it again, and it goes on from there") from None
    except PlanError as error:
        raise PipelineFailed(str(error)) from None
    except (Py4JNetworkError, ConnectionError):
        raise PipelineFailed("Spark's Java is gone: was there memory enough? --conf spark.driver.memory=4g") from None
    except (PySparkException, Py4JError) as error:
        raise PipelineFailed(f"Spark gave up: {one_line(error)}") from None
    finally:
        # Its Java may have been told to stop too, and be gone.
        with suppress(Py4JError, OSError):
            # Of work that is cut short, every task would complain by itself.
            spark.sparkContext.setLogLevel("OFF")
            spark.stop()


def _settings(texts: list[str], flag: str, wanted: str) -> dict[str, str]:
    settings = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            # What it is may be somebody's secret.
            raise typer.BadParameter(f"expected {wanted}", param_hint=flag)
        settings[key] = value
    return settings
