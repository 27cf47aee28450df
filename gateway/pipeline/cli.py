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
    Into,
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
from gateway.pipeline.cli_run import failing, shown_progress, working, write_report
from gateway.pipeline.errors import NothingToPlan, PipelineFailed
from gateway.pipeline.events import Files, LogStream, Source, source_of

if TYPE_CHECKING:
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
    with working(lake, master, conf) as steps:
        steps.ingest(lines, follow=follow, again=again)


@pipeline.command()
def aggregate(lake: LakeUrl = "lake", master: Master = None, conf: Conf = None) -> None:
    """Compute the gold tables of every day whose lines have changed."""
    with working(lake, master, conf) as steps:
        steps.aggregate()


@pipeline.command()
def table(
    source: Annotated[str, typer.Argument(metavar="URL", help="The stream.")],
    into: Into,
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
    with working(into, master, conf) as steps:
        from gateway.pipeline.stream_table import take_table

        count = take_table(steps.spark, stream, into, ddl=schema, follow=follow, progress=steps.progress)
        typer.echo(f"table: {count:,} rows to {into}")


@pipeline.command()
def history(lake: LakeUrl = "lake") -> None:
    """List the versions of bronze: what each ingest added, the newest first."""
    with failing():
        from gateway.pipeline import upkeep
        from gateway.pipeline.lake import Lake

        for line in upkeep.history(Lake(lake)):
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
    with working(lake, master, conf) as steps:
        from gateway.pipeline import upkeep
        from gateway.pipeline.ingest import bring_up

        upkeep.undo(steps.lake, version)
        bring_up(steps.spark, steps.lake, steps.progress)
        steps.aggregate()


@pipeline.command()
def optimize(lake: LakeUrl = "lake", table: OneTable = None) -> None:
    """Rewrite small files as few large ones.  An ingest does so by itself where many have piled up."""
    with failing():
        from gateway.pipeline import upkeep

        tables, chosen = _upkept(lake, table)
        before, after = upkeep.optimize(tables, shown_progress(), chosen)
        typer.echo(f"optimize: {before:,} files are {after:,} now")


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

        removed = upkeep.vacuum(*_upkept(lake, table), keep_s=keep_s, now=SystemClock().wall())
        typer.echo(f"vacuum: {removed:,} files removed")


@pipeline.command()
def curve(lake: LakeUrl = "lake", rate: Rate = None, master: Master = None, conf: Conf = None) -> None:
    """Compute the miss-ratio curves: the hit ratios of other cache sizes."""
    with working(lake, master, conf) as steps:
        steps.curve(rate)


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
    with working(lake, master, conf) as steps:
        steps.plan(out, target, policy, min_span_s)


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
        from gateway.pipeline.lake import Lake

        write_report(Lake(lake), out, plan, curve or (), min_span_s, title, shown_progress())


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
    with working(lake, master, conf) as steps:
        steps.ingest(lines)
        steps.aggregate()
        steps.curve(rate)
        chosen: Path | None = plan
        try:
            steps.plan(plan, target, policy, min_span_s)
        except NothingToPlan as error:
            typer.echo(f"plan: none: {error}")
            chosen = None
        write_report(steps.lake, report, chosen, (), min_span_s, title, steps.progress)


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


def _upkept(lake: str, table: str | None) -> tuple[Lake, Sequence[Table]]:
    """The tables that an upkeep is for: those of a lake, or a single one."""
    from gateway.pipeline import upkeep
    from gateway.pipeline.lake import Lake

    return (Lake(lake), upkeep.TABLES) if table is None else upkeep.table_at(table)
