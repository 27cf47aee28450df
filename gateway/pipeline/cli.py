"""`durable-gateway pipeline …`: one command for each step of the pipeline, and `run` for all of them.

Every command works on a lake (`--lake`, or its alias `--in`), prints progress on stderr and the result on stdout, and
may be repeated: finished work is not done again.  Exit statuses are those of the other commands.  Spark is imported
when a command runs, so `--help` needs neither Spark nor Java.

`submitted` is for `spark-submit`: the same commands, on the cluster that `spark-submit` names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.exceptions import Abort, TyperException

from gateway.aio.clock import SystemClock
from gateway.pipeline.cli_options import (
    MIN_SPAN,
    Again,
    Conf,
    Curves,
    Follow,
    LakeUrl,
    Lines,
    Master,
    MinSpan,
    OneTable,
    PlanFile,
    Policy,
    Rate,
    SourceOptions,
    Target,
    Title,
    seconds,
    settings,
)
from gateway.pipeline.cli_run import Progress, failing, shown_progress, working
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.pipeline.events import Files, LogStream, Source, source_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.lake import Lake
    from gateway.pipeline.tables import Table

pipeline = typer.Typer(
    name="pipeline",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Analyse the access log on Spark: tables, miss-ratio curve, cache plan, report.",
)
"""The commands, as a part of the main command line."""

FAILED: Final = 1
MISUSED: Final = 2


@pipeline.command()
def ingest(
    source: Lines,
    lake: LakeUrl = "lake",
    option: SourceOptions = None,
    follow: Follow = False,
    again: Again = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Ingest access-log lines: unchanged (bronze), then typed and without duplicates (silver)."""
    lines = _source(source, option)
    if again and (follow or not isinstance(lines, Files)):
        raise typer.BadParameter("is for files, and not with --follow", param_hint="--again")
    with working(master, conf) as (spark, progress):
        _ingest(spark, lines, _lake(lake), progress, follow=follow, again=again)


@pipeline.command()
def aggregate(lake: LakeUrl = "lake", master: Master = None, conf: Conf = None) -> None:
    """Compute the gold tables of every day whose lines have changed."""
    with working(master, conf) as (spark, progress):
        _aggregate(spark, _lake(lake), progress)


@pipeline.command()
def table(
    source: Annotated[str, typer.Argument(metavar="URL", help="The stream.")],
    into: Annotated[
        str, typer.Option("--into", metavar="FOLDER", help="The Delta table: a folder, or a URL such as s3://b/orders.")
    ],
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            show_default="messages as they are",
            help="Columns of the stream's JSON messages, such as 'id bigint, at timestamp'; what does not fit goes to "
            "_corrupt.",
        ),
    ] = None,
    option: SourceOptions = None,
    follow: Follow = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Add what is new of a stream to a Delta table, each message once."""
    stream = _stream(source, option, "messages" if schema is None else "typed")
    with working(master, conf) as (spark, progress):
        from gateway.pipeline.stream_table import take_table

        count = take_table(spark, stream, _absolute(into), ddl=schema, follow=follow, progress=progress)
        typer.echo(f"table: {count:,} rows to {into}")


@pipeline.command()
def history(lake: LakeUrl = "lake") -> None:
    """List the versions of bronze: what each ingest added, the newest first."""
    with failing():
        from gateway.pipeline import upkeep

        for line in upkeep.history(_lake(lake)):
            typer.echo(line)


@pipeline.command()
def undo(
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that `pipeline history` lists.")],
    lake: LakeUrl = "lake",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Give all tables the content that they had with an older version of bronze.

    What was ingested since stays taken in; `pipeline ingest --again FILE` reads a file again.
    """
    with working(master, conf) as (spark, progress):
        from gateway.pipeline import upkeep
        from gateway.pipeline.ingest import bring_up

        tables = _lake(lake)
        upkeep.undo(tables, version)
        bring_up(spark, tables, progress)
        _aggregate(spark, tables, progress)


@pipeline.command()
def optimize(lake: LakeUrl = "lake", table: OneTable = None) -> None:
    """Rewrite small files as few large ones.  An ingest does so by itself where many have piled up."""
    with failing():
        from gateway.pipeline import upkeep

        tables, chosen = _upkept(lake, table)
        done = upkeep.optimize(tables, shown_progress(), tables=chosen)
        typer.echo(f"optimize: {done.before:,} files are {done.after:,} now")


@pipeline.command()
def vacuum(
    lake: LakeUrl = "lake",
    table: OneTable = None,
    keep: Annotated[
        str, typer.Option("--keep", metavar="TIME", help="How long files of older versions are kept, such as 30d.")
    ] = "30d",
) -> None:
    """Remove files that only older versions need, and those of runs that were killed."""
    keep_s = seconds(keep, "--keep")
    with failing():
        from gateway.pipeline import upkeep

        tables, chosen = _upkept(lake, table)
        done = upkeep.vacuum(tables, keep_s=keep_s, now=SystemClock().wall(), tables=chosen)
        typer.echo(f"vacuum: {done.removed:,} files removed")


@pipeline.command()
def curve(lake: LakeUrl = "lake", rate: Rate = None, master: Master = None, conf: Conf = None) -> None:
    """Compute the miss-ratio curves: the hit ratios of other cache sizes."""
    with working(master, conf) as (spark, progress):
        _curve(spark, _lake(lake), rate, progress)


@pipeline.command()
def plan(
    lake: LakeUrl = "lake",
    out: PlanFile = Path("plan.json"),
    target: Target = 0.9,
    policy: Policy = "s3-fifo",
    min_span: MinSpan = MIN_SPAN,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write the cache plan for a gateway: memory, streams to pin, to warm and not to store, and lifetimes."""
    min_span_s = seconds(min_span, "--min-span")
    with working(master, conf) as (spark, progress):
        _plan(spark, _lake(lake), out, target, policy, min_span_s, progress)


@pipeline.command()
def report(
    lake: LakeUrl = "lake",
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the report goes.")] = Path("report.html"),
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan to show in it.")] = None,
    curve: Curves = None,
    min_span: MinSpan = MIN_SPAN,
    title: Title = None,
) -> None:
    """Write a report of all tables as one HTML file.  It needs no Spark."""
    min_span_s = seconds(min_span, "--min-span")
    with failing():
        _report(_lake(lake), out, plan, curve or (), min_span_s, title, shown_progress())


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
    min_span: MinSpan = MIN_SPAN,
    rate: Rate = None,
    title: Title = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Run all steps: ingest, aggregate, curve, plan, report.  The report is written even if no plan can be made."""
    lines, min_span_s = _source(source, option), seconds(min_span, "--min-span")
    with working(master, conf) as (spark, progress):
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
        _report(tables, report, chosen, (), min_span_s, title, progress)


def submitted() -> int:
    """Run the command line on the Spark that `spark-submit` has started, and give the exit status."""
    try:
        pipeline(prog_name="pipeline", standalone_mode=False)
    except TyperException as error:
        text, status = error.format_message(), MISUSED
    except PipelineFailed as error:
        text, status = str(error), FAILED
    except (Abort, KeyboardInterrupt):
        text, status = "stopped", FAILED
    else:
        return 0
    typer.echo(f"pipeline: {text}", err=True)
    return status


# -- the steps; each prints its result


def _ingest(
    spark: SparkSession, source: Source, lake: Lake, progress: Progress, *, follow: bool, again: bool = False
) -> None:
    from gateway.pipeline.ingest import ingest

    typer.echo(ingest(spark, source, lake, follow=follow, again=again, progress=progress))


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
    lake: Lake,
    out: Path,
    plan: Path | None,
    curves: Sequence[str],
    min_span_s: float,
    title: str | None,
    progress: Progress,
) -> None:
    from gateway.pipeline.report import TITLE, write_report
    from gateway.pipeline.report.gather import gold_of

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
    source = source_of(texts, settings(options or [], "--option", "NAME=VALUE"), os.environ)
    if isinstance(source, Files):
        source.found()
    else:
        # Without Spark, `working` raises the error that matters.
        with suppress(ImportError):
            source.check()
    return source


def _stream(url: str, options: list[str] | None, format_: str) -> LogStream:
    """The stream that becomes a table."""
    source = source_of([url], settings(options or [], "--option", "NAME=VALUE"), os.environ)
    if not isinstance(source, LogStream):
        raise PipelineFailed(f"{url}: expected a stream's http:// or https:// URL")
    return replace(source, format=format_)


def _lake(url: str) -> Lake:
    from gateway.pipeline.lake import Lake

    if not url:
        raise typer.BadParameter("expected a folder, or the URL of an object store", param_hint="--lake")
    return Lake(_absolute(url))


def _upkept(lake: str, table: str | None) -> tuple[Lake, Sequence[Table]]:
    """The tables that an upkeep is for: those of a lake, or a single one."""
    from gateway.pipeline import upkeep

    return (_lake(lake), upkeep.TABLES) if table is None else upkeep.table_at(_absolute(table))


def _absolute(url: str) -> str:
    return url if "://" in url else str(Path(url).absolute())
