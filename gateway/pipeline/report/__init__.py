"""The report: the tables as one HTML file, for any browser, without network access.

    lake --gather--> Figures --page--> HTML

`gather` queries Spark and returns plain values; everything after it is pure.  The file is written under a temporary
name and renamed, so that a partial report is never visible.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.config.cache_plan import CachePlan, parse_plan
from gateway.config.errors import PlanError
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.report.figures import Plan, PlanEntry
from gateway.pipeline.report.page import page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.lake import Lake

TITLE: Final = "What the traffic says"
_MOST_ENTRIES: Final = 5
"""Most entries shown of each list of the plan."""


def _silent(_: str) -> None:
    pass


def write_report(
    spark: SparkSession,
    lake: Lake,
    out: Path,
    *,
    title: str = TITLE,
    plan: Path | None = None,
    progress: Callable[[str], None] = _silent,
) -> None:
    """Write the lake's report to `out`; `plan` is the file of a plan to show in it.

    Raises PipelineFailed if the plan is invalid or the file cannot be written; `out` is then unchanged.
    """
    # Check the arguments before any Spark job.
    chosen = None if plan is None else _plan(plan)
    if not out.parent.is_dir():
        raise PipelineFailed(f"{out}: there is no folder {out.parent}")
    if out.is_dir():
        raise PipelineFailed(f"{out}: is a folder, and the report is a file")
    from gateway.pipeline.report.gather import gather

    figures = gather(spark, lake, progress)
    _write(out, page(replace(figures, plan=chosen), title))
    progress(f"report: {out}")


def chosen_point(plan: CachePlan) -> Plan:
    """The part of a plan that a report shows."""
    wishes = {name: getattr(plan, name) for name in ("pin", "warm", "do_not_store", "lifetimes")}
    return Plan(
        cache_bytes=plan.memory.cache_bytes,
        policy=plan.memory.policy,
        target_hit_ratio=plan.target_hit_ratio,
        expected_hit_ratio=plan.memory.expected_hit_ratio,
        expected_byte_hit_ratio=plan.memory.expected_byte_hit_ratio,
        error=plan.memory.error,
        wishes=tuple(
            PlanEntry(name, entry.route, entry.stream, entry.bytes, entry.reason)
            for name, entries in wishes.items()
            for entry in entries[:_MOST_ENTRIES]
        ),
        wished=sum(map(len, wishes.values())),
    )


def _plan(file: Path) -> Plan:
    try:
        return chosen_point(parse_plan(file))
    except PlanError as error:
        raise PipelineFailed(str(error)) from None


def _write(out: Path, text: str) -> None:
    beside = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        beside.write_bytes(text.encode())
        beside.replace(out)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        raise PipelineFailed(f"{out}: {error.strerror or error}") from None
