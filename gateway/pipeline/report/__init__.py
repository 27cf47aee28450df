"""The report: the tables as one HTML file, for any browser, without network access.

    gold --gather--> Figures --page--> HTML

`gather` reads the tables and returns plain values; everything after it is pure.  The file is written under a temporary
name and renamed, so that a partial report is never visible.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gateway.config.cache_plan import SHORT_S, CachePlan, covers_too_little, parse_plan
from gateway.config.errors import PlanError
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.report.figures import Figures, Plan, PlanEntry
from gateway.pipeline.report.gather import gather
from gateway.pipeline.report.page import page

if TYPE_CHECKING:
    from gateway.pipeline.report.gold import Gold

TITLE: Final = "What the traffic says"
DEFAULT_POLICY: Final = "s3-fifo"
"""The policy whose curve is drawn if there is no plan: the default of `limits.eviction`."""
_MOST_ENTRIES: Final = 5
"""Most entries shown of each list of the plan."""


def _silent(_: str) -> None:
    pass


def write_report(
    gold: Gold,
    out: Path,
    *,
    title: str = TITLE,
    plan: Path | None = None,
    curves: Sequence[str] = (),
    min_span_s: float = SHORT_S,
    progress: Callable[[str], None] = _silent,
) -> None:
    """Write the report of a lake's gold tables to `out`.

    `plan` is the file of a plan to show in it; `curves` names the policies whose curves are drawn, by default the
    plan's.  The report says that the log is short if it covers less than `min_span_s` seconds.

    Raises PipelineFailed if the plan is invalid, a curve was not measured, or the file cannot be written; `out` is then
    unchanged.
    """
    # Check the arguments before any Spark job.
    chosen = None if plan is None else _plan(plan)
    if not out.parent.is_dir():
        raise PipelineFailed(f"{out}: there is no folder {out.parent}")
    if out.is_dir():
        raise PipelineFailed(f"{out}: is a folder, and the report is a file")
    figures = gather(gold, progress)
    known = {point.policy for point in figures.curve}
    if unknown := [name for name in curves if name not in known]:
        raise PipelineFailed(f"curve: {unknown[0]} is none of those in the lake: {', '.join(sorted(known)) or 'none'}")
    curves = tuple(curves) or ((DEFAULT_POLICY,) if chosen is None else (chosen.policy,))
    figures = replace(figures, plan=chosen, curves=curves, is_short=is_short(figures, min_span_s))
    progress("report: charts")
    _write(out, page(figures, title))
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
        span_s=plan.made_from.span_s,
        is_short=plan.is_short,
        wishes=tuple(
            PlanEntry(name, entry.route, entry.stream, entry.bytes, entry.reason)
            for name, entries in wishes.items()
            for entry in entries[:_MOST_ENTRIES]
        ),
        wished=sum(map(len, wishes.values())),
    )


def is_short(figures: Figures, min_span_s: float) -> bool:
    """Whether the figures cover some time, but less than `min_span_s` seconds."""
    return bool(figures.span_s) and covers_too_little(figures.span_s, min_span_s)


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
