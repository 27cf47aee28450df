"""Panels of the miss-ratio curve, with the point chosen by the plan, and of the plan's entries."""

from __future__ import annotations

from collections.abc import Callable

from gateway.pipeline.report import charts, scales, wording
from gateway.pipeline.report.charts import Band, Line, Mark, Rule
from gateway.pipeline.report.figures import CurvePoint, Figures, Plan
from gateway.pipeline.report.findings import name
from gateway.pipeline.report.markup import element
from gateway.pipeline.report.numbers import Column, Numbers
from gateway.pipeline.report.panel import Panel

_COLOURS = ("tape", "follow", "origin", "collapse")
_DASHES = ("", "long", "short", "mixed")
_LRU_BLOCKS = "lru-blocks"
_BLOCKS = "-blocks"
"""Suffix of the name of a curve over blocks, which has no reads."""
_KINDS = {
    "pin": "Keep",
    "warm": "Fetch in advance",
    "do_not_store": "Do not store",
    "lifetimes": "Give up when idle",
}
_NOTHING = "No curve was measured: `durable-gateway pipeline curve` does it, from reads that began at a known offset."


def bytes_curve(figures: Figures) -> Panel:
    """Byte miss ratio by memory."""
    panel = Panel(
        "curve-bytes", "Miss ratio by memory: bytes", "Share of the bytes that the origin has to send.", _NOTHING
    )
    plan = figures.plan
    return _curve(
        figures,
        panel,
        lambda point: point.byte_miss_ratio,
        None if plan is None else 1 - plan.expected_byte_hit_ratio,
        of_blocks=True,
        target=None,
    )


def reads_curve(figures: Figures) -> Panel:
    """Miss ratio of reads by memory."""
    panel = Panel(
        "curve-reads", "Miss ratio by memory: reads", "Share of the reads that the origin is asked for.", _NOTHING
    )
    plan = figures.plan
    return _curve(
        figures,
        panel,
        lambda point: point.miss_ratio,
        None if plan is None else 1 - plan.expected_hit_ratio,
        of_blocks=False,
        target=plan,
    )


def plan(figures: Figures) -> Panel:
    """The plan's recommendations and their reasons."""
    panel = Panel(
        "plan",
        "The plan",
        "What the gateway should keep, and in how much memory.",
        "No plan was given: `durable-gateway pipeline plan` makes one, and `report --plan` shows it here.",
        is_wide=True,
    )
    made = figures.plan
    if made is None:
        return panel
    reached = made.expected_hit_ratio + made.error >= made.target_hit_ratio
    says = [
        element("b", wording.size(made.cache_bytes)),
        f" for tapes with {made.policy}: {wording.share(made.expected_hit_ratio)} of catch-up reads",
        f" and {wording.share(made.expected_byte_hit_ratio)} of their bytes without the origin,",
        f" give or take {wording.share(made.error)}. Asked for were {wording.share(made.target_hit_ratio)}",
        "." if reached else ", but nothing better was found.",
    ]
    rows = [
        element(
            "li",
            element("span", _KINDS.get(wish.wish, wish.wish), class_="wish"),
            " ",
            name(wish.stream),
            element("small", f" {wording.size(wish.bytes)}. {wish.reason}"),
        )
        for wish in made.wishes
    ]
    shown = len(made.wishes)
    return Panel(
        panel.name,
        panel.title,
        panel.about,
        panel.nothing,
        element("div", element("p", says, class_="says"), element("ul", rows, class_="items") if rows else None),
        numbers=Numbers(
            "plan",
            [Column("Kind"), Column("Stream"), Column("Route"), Column("Bytes", wording.size), Column("Reason")],
            [(wish.wish, wish.stream, wish.route, wish.bytes, wish.reason) for wish in made.wishes],
        )
        if rows
        else None,
        is_wide=True,
        note=f"The first of each kind: {shown} of {wording.many(made.wished, 'entry', 'entries')}."
        if made.wished > shown
        else "",
    )


def _curve(
    figures: Figures,
    panel: Panel,
    ratio: Callable[[CurvePoint], float],
    chosen: float | None,
    *,
    of_blocks: bool,
    target: Plan | None,
) -> Panel:
    points = [point for point in figures.curve if of_blocks or not point.policy.endswith(_BLOCKS)]
    if not points:
        return panel
    policies = list(dict.fromkeys(point.policy for point in points))
    by_policy = {policy: [one for one in points if one.policy == policy] for policy in policies}
    every = [float(point.cache_bytes) for point in points]
    made = figures.plan
    x = scales.sizes([*every, *([float(made.cache_bytes)] if made and made.cache_bytes else [])])
    errors = [(ratio(point) + (point.error or 0)) for point in points] if of_blocks else []
    y = scales.parts([*(ratio(point) for point in points), *errors, chosen])
    colours = {policy: _COLOURS[nth % len(_COLOURS)] for nth, policy in enumerate(policies)}
    series = [
        Line(
            policy, colours[policy], [(p.cache_bytes, ratio(p)) for p in by_policy[policy]], _DASHES[nth % len(_DASHES)]
        )
        for nth, policy in enumerate(policies)
    ]
    bands = [
        Band(colours[policy], [(p.cache_bytes, ratio(p) - (p.error or 0), ratio(p) + (p.error or 0)) for p in points])
        for policy, points in by_policy.items()
        if of_blocks and any(point.error for point in points)
    ]
    marks = []
    if made is not None and chosen is not None:
        marks.append(
            Mark(
                f"Plan: {wording.size(made.cache_bytes)}, {wording.share(chosen)}",
                "chosen",
                float(made.cache_bytes),
                chosen,
                max(chosen - made.error, 0.0),
                min(chosen + made.error, 1.0),
            )
        )
    rules = (
        []
        if target is None
        else [Rule(f"Target: {wording.share(1 - target.target_hit_ratio)}", 1 - target.target_hit_ratio)]
    )
    sizes = sorted({point.cache_bytes for point in points})
    at = {(point.policy, point.cache_bytes): point for point in points}
    says = f"{panel.title}, {', '.join(policies)}" + (f". {marks[0].label}." if marks else ".")
    best = next((one for one in points if not one.policy.endswith(_BLOCKS)), points[0])
    return Panel(
        panel.name,
        panel.title,
        panel.about,
        panel.nothing,
        charts.lines(x, y, series, says=says, bands=bands, marks=marks, rules=rules),
        charts.legend(series),
        Numbers(
            panel.name,
            [
                Column("Memory", wording.size),
                *(
                    column
                    for policy in policies
                    for column in (
                        Column(policy, wording.share, colours[policy]),
                        *([Column(f"{policy} ±", wording.share)] if of_blocks else []),
                    )
                ),
            ],
            [
                (
                    size,
                    *(
                        value
                        for policy in policies
                        for point in [at.get((policy, size))]
                        for value in (
                            None if point is None else ratio(point),
                            *([None if point is None else point.error] if of_blocks else []),
                        )
                    ),
                )
                for size in sizes
            ],
            places=[x.place(size) for size in sizes],
        ),
        note=" ".join(_notes(best, has_bands=bool(bands), has_blocks=any(one.endswith(_BLOCKS) for one in policies))),
    )


def _notes(point: CurvePoint, *, has_bands: bool, has_blocks: bool) -> list[str]:
    looked_at = "all played" if point.rate >= 1 else f"of whose tapes 1 in {wording.times(1 / point.rate)} was played"
    return [
        f"From {wording.many(point.references, 'catch-up read')}, {looked_at}.",
        "What was read for the first time counts as missing, whatever the memory.",
        *(["Bands are 95 % intervals."] if has_bands else []),
        *([f"{_LRU_BLOCKS} gives up blocks, the gateway's policies whole tapes."] if has_blocks else []),
    ]
