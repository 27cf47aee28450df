"""The report: the lake's tables as one HTML file.  A browser shows it without network access.

    gold --gather--> Figures --page--> HTML

`gather` reads the tables and returns plain values.  Everything after `gather` is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from gateway.config.cache_plan import SHORT_S, covers_too_little, parse_plan
from gateway.config.errors import PlanError
from gateway.pipeline.errors import PipelineFailed
from gateway.pipeline.report.gather import Gold, gather
from gateway.pipeline.report.page import page
from gateway.pipeline.whole_file import write_whole

TITLE: Final = "What the traffic says"
DEFAULT_POLICY: Final = "s3-fifo"
"""The policy whose curve is drawn without a plan.  It is the default of `limits.eviction`."""


def write_report(
    gold: Gold,
    out: Path,
    *,
    title: str | None = None,
    plan: Path | None = None,
    curves: Sequence[str] = (),
    min_span_s: float = SHORT_S,
    outdated: Sequence[str] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Write the report of a lake's gold tables to `out`.

    `plan` is the file of a plan to show.  `curves` names the policies whose curves are drawn, by default the plan's.
    A log that covers less than `min_span_s` seconds is marked as short.  `outdated` has a sentence for each part of the
    report that is not up to date.

    Raises PipelineFailed if the plan is invalid, a curve was not measured, or the file cannot be written.  `out` is
    then unchanged.
    """
    try:
        chosen = None if plan is None else parse_plan(plan)
    except PlanError as error:
        raise PipelineFailed(str(error)) from None
    if not out.parent.is_dir():
        raise PipelineFailed(f"{out}: there is no folder {out.parent}")
    if out.is_dir():
        raise PipelineFailed(f"{out}: is a folder, and the report is a file")
    figures = gather(gold, progress)
    known = {row["policy"] for row in figures.curve}
    if unknown := [name for name in curves if name not in known]:
        raise PipelineFailed(f"curve: {unknown[0]} is none of those in the lake: {', '.join(sorted(known)) or 'none'}")
    curves = tuple(curves) or (DEFAULT_POLICY if chosen is None else chosen.memory.policy,)
    is_short = bool(figures.span_s) and covers_too_little(figures.span_s, min_span_s)
    for one in outdated:
        progress(f"report: {one}")
    progress("report: charts")
    shown = replace(figures, plan=chosen, curves=curves, is_short=is_short, outdated=tuple(outdated))
    write_whole(out, page(shown, title or TITLE))
    progress(f"report: {out}")
