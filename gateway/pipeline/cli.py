"""`durable-gateway pipeline …`: one command for each step of the pipeline, and `run` for all of them.

Every command works on a lake (`--lake`, or its alias `--in`).  It prints progress on stderr and the result on stdout.
A command may be repeated: it does not repeat finished work.  Exit statuses are those of the other commands.  Spark is
imported when a command runs, so `--help` needs neither Spark nor Java.

`submitted` runs the same commands under `spark-submit`, on its cluster.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer.exceptions import Abort, TyperException

from gateway.aio.clock import SystemClock
from gateway.config.variables import ADMIN_TOKEN_VARIABLE
from gateway.pipeline.cli_run import MANY_BYTES, failing, settings, shown_progress, working, write_report
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.events import AUTHORIZATION_VARIABLE, Files, LateLines, LogStream, Source, source_of
from gateway.pipeline.session import DEFAULT_MASTER

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
_MIN_SPAN: Final = "24h"
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def _named(folder: str) -> str:
    if not folder:
        raise typer.BadParameter("expected a folder, or the URL of an object store")
    return folder


_LINES: Final = "Files, folders or globs of access-log lines, or the URL of the stream that a gateway logs to."
_OPTION: Final = (
    "an option of the Spark source, such as catalogue, the URL of the gateway's admin port; may be repeated.  The "
    f"Authorization header comes from ${AUTHORIZATION_VARIABLE}, the admin port's token from ${ADMIN_TOKEN_VARIABLE}."
)
Lines = Annotated[list[str], typer.Argument(metavar="SOURCE", help=_LINES)]
LinesUnlessLate = Annotated[
    list[str] | None, typer.Argument(metavar="SOURCE", help=f"{_LINES}  Not with --late.", show_default=False)
]
SourceOptions = Annotated[
    list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help=f"For a log in a stream: {_OPTION}")
]
StreamOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help=_OPTION[0].upper() + _OPTION[1:]),
]
LakeUrl = Annotated[
    str,
    typer.Option(
        "--lake",
        "--in",
        metavar="FOLDER",
        callback=_named,
        help="The lake: a folder, or the URL of a prefix in an object store, such as s3://bucket/lake.",
    ),
]
Into = Annotated[
    str,
    typer.Option(
        "--into",
        metavar="FOLDER",
        callback=_named,
        help="The Delta table: a folder, or a URL such as s3://shop/orders.  It is created if it does not exist.",
    ),
]
OneTable = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="FOLDER", help="A folder or URL of a table made by `pipeline table`, in place of a lake."
    ),
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
Again = Annotated[
    bool,
    typer.Option(
        "--again",
        help="Read the files again from their beginnings, including lines that were rejected as late.  Lines with an "
        "id are not added twice.",
    ),
]
Late = Annotated[
    bool, typer.Option("--late", help="Ingest the lines that the lake has rejected as too late, in place of a SOURCE.")
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--rate",
        metavar="R",
        min=1e-4,
        max=1,
        show_default="chosen to bound the work",
        help="Share of tapes to sample.",
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
        help="Shortest time that a log should cover, such as 90m, 24h or 7d.  The plan and the report of a shorter log "
        "are marked.  A gateway uses the memory of such a plan only with cache.plan.take_short_memory.",
    ),
]
PlanFile = Annotated[Path, typer.Option("--plan", "--out", metavar="FILE", help="File to write the plan to.")]
Curves = Annotated[
    list[str] | None,
    typer.Option(
        "--curve",
        metavar="POLICY",
        show_default="the plan's policy",
        help="A policy whose curve is drawn; may be repeated.  The numbers below the chart include all policies.",
    ),
]
Title = Annotated[str | None, typer.Option("--title", metavar="TEXT", help="The report's heading.")]


@pipeline.command()
def ingest(
    source: LinesUnlessLate = None,
    lake: LakeUrl = "lake",
    option: SourceOptions = None,
    follow: Follow = False,
    again: Again = False,
    late: Late = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Ingest access-log lines: unchanged (bronze), then typed and without duplicates (silver)."""
    if late == bool(source):
        raise typer.BadParameter("expected one of them", param_hint="SOURCE or --late")
    if late and (option or follow or again):
        raise typer.BadParameter("not with --option, --follow and --again", param_hint="--late")
    lines = LateLines() if late else _source(source or [], option, lake)
    if again and (follow or not isinstance(lines, Files)):
        raise typer.BadParameter("is for files, and not with --follow", param_hint="--again")
    with working(lake, master, conf, is_long=follow or _is_large(lines, lake)) as steps:
        steps.ingest(lines, follow=follow, again=again)


@pipeline.command()
def aggregate(lake: LakeUrl = "lake", master: Master = None, conf: Conf = None) -> None:
    """Compute the gold tables of every day whose lines have changed."""
    with working(lake, master, conf) as steps:
        steps.aggregate()


@pipeline.command()
def table(
    source: Annotated[str, typer.Argument(metavar="URL", help="The stream, such as http://127.0.0.1:4437/orders.")],
    into: Into,
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="COLUMNS",
            show_default="each row is an unchanged message with its stream and offset",
            help="Columns of the table in Spark SQL, such as 'id bigint, at timestamp'.  Each message is a JSON object "
            "with these keys; a message that does not fit is kept as text in the column _corrupt.",
        ),
    ] = None,
    option: StreamOptions = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep adding new messages, every 10 s, until SIGINT or SIGTERM.")
    ] = False,
    moved: Annotated[
        bool,
        typer.Option(
            "--moved",
            help="The table was filled from another URL of the same stream: continue at this URL, after the last "
            "message in the table.",
        ),
    ] = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Add the new messages of a stream to a Delta table, each message once."""
    stream = source_of([source], settings(option or [], "--option", "NAME=VALUE"), os.environ)
    if not isinstance(stream, LogStream):
        raise PipelineFailed(f"{source}: expected a stream's http:// or https:// URL")
    # Check before Spark starts, which takes seconds.
    with failing():
        from gateway.pipeline.stream_table import checked

        checked(stream, schema)
    with working(into, master, conf) as steps:
        from gateway.pipeline.stream_table import take_table

        told = steps.progress
        count = take_table(steps.spark, stream, into, ddl=schema, follow=follow, moved=moved, progress=told)
        typer.echo(f"table: {count:,} rows to {into}")


@pipeline.command()
def history(lake: LakeUrl = "lake") -> None:
    """List the versions of bronze: what each ingest added, the newest first."""
    with failing():
        from gateway.pipeline import upkeep

        for line in upkeep.history(_existing(lake)):
            typer.echo(line)


@pipeline.command()
def undo(
    version: Annotated[int, typer.Argument(metavar="VERSION", help="A version that `pipeline history` lists.")],
    lake: LakeUrl = "lake",
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Restore all tables except the curve to an older version of bronze.

    Files that were ingested since still count as read; `pipeline ingest --again FILE` reads a file again.
    """
    with working(lake, master, conf) as steps:
        from gateway.pipeline import upkeep
        from gateway.pipeline.ingest import bring_up

        upkeep.undo(steps.lake, version)
        bring_up(steps.spark, steps.lake, steps.progress)
        steps.aggregate()


@pipeline.command()
def optimize(lake: LakeUrl = "lake", table: OneTable = None) -> None:
    """Rewrite many small files as a few large ones.  An ingest also does this when there are very many."""
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
    """Remove files that only older versions need, and files of runs that were killed."""
    keep_s = _seconds(keep, "--keep")
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
    min_span: MinSpan = _MIN_SPAN,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Write the cache plan for a gateway: memory, streams to pin, to warm and not to store, and lifetimes."""
    min_span_s = _seconds(min_span, "--min-span")
    with working(lake, master, conf) as steps:
        steps.plan(out, target, policy, min_span_s)


@pipeline.command()
def report(
    lake: LakeUrl = "lake",
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="File to write the report to.")] = Path(
        "report.html"
    ),
    plan: Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan to show in the report.")] = None,
    curve: Curves = None,
    min_span: MinSpan = _MIN_SPAN,
    title: Title = None,
) -> None:
    """Write a report of all tables as one HTML file.  This command needs no Spark."""
    min_span_s = _seconds(min_span, "--min-span")
    with failing():
        write_report(
            _existing(lake),
            out,
            title=title,
            plan=plan,
            curves=curve or (),
            min_span_s=min_span_s,
            progress=shown_progress(),
        )


@pipeline.command()
def run(
    source: Lines,
    lake: LakeUrl = "lake",
    option: SourceOptions = None,
    plan: Annotated[Path, typer.Option("--plan", metavar="FILE", help="File to write the plan to.")] = Path(
        "plan.json"
    ),
    report: Annotated[Path, typer.Option("--report", metavar="FILE", help="File to write the report to.")] = Path(
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
    lines, min_span_s = _source(source, option, lake), _seconds(min_span, "--min-span")
    with working(lake, master, conf, is_long=_is_large(lines, lake)) as steps:
        steps.ingest(lines)
        is_planned = steps.gold_and_plan(plan, target, policy, min_span_s, rate)
        chosen = plan if is_planned else None
        with steps.over():
            write_report(steps.lake, report, title=title, plan=chosen, min_span_s=min_span_s, progress=steps.progress)


def submitted() -> int:
    """Run the command line on the Spark that `spark-submit` has started; return the exit status."""
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


def _seconds(text: str, flag: str) -> float:
    """Convert a time such as `90m` to seconds."""
    with suppress(KeyError, ValueError):
        seconds = float(text[:-1]) * _UNITS_S[text[-1:]]
        if 0 <= seconds < float("inf"):
            return seconds
    raise typer.BadParameter("expected a number and a unit: s, m, h or d, such as 24h", param_hint=flag)


def _source(texts: list[str], options: list[str] | None, lake: str) -> Source:
    """Return the source of the lines.

    Its options are checked here, before Spark starts, which takes seconds.
    """
    source = source_of(texts, settings(options or [], "--option", "NAME=VALUE"), os.environ)
    if isinstance(source, LogStream):
        with failing():
            source.check()
        return source
    source.found(_folder_of(lake))
    return source


def _folder_of(lake: str) -> Path | None:
    """Return the lake's folder; None if it is in an object store."""
    # `failing` attributes errors to the lake's store, so it must not enclose the reading of log files.
    with failing():
        from gateway.pipeline.lake import Lake

        return Lake(lake).store.local


def _is_large(source: Source, lake: str) -> bool:
    """Whether the source is large, without the lake's own files; False for a stream, whose size is unknown."""
    with suppress(OSError):  # rotation may remove a file meanwhile
        return isinstance(source, Files) and source.size(_folder_of(lake)) > MANY_BYTES
    return False


def _upkept(lake: str, table: str | None) -> tuple[Lake, Sequence[Table]]:
    """Return the tables that a command maintains: all of a lake, or a single one."""
    from gateway.pipeline import upkeep

    return (_existing(lake), upkeep.TABLES) if table is None else upkeep.table_at(table)


def _existing(url: str) -> Lake:
    """Return the lake at a URL.  Raises PipelineFailed if there is none."""
    from gateway.pipeline.lake import Lake

    lake = Lake(url)
    if lake.store.is_empty():
        raise PipelineFailed(f"{lake.url}: there is no lake")
    return lake
