"""Panels of the miss-ratio curve, with the point chosen by the plan, and of the plan's entries."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from gateway.pipeline.report import axes, charts, wording
from gateway.pipeline.report.charts import Band, Line, Mark
from gateway.pipeline.report.figures import CurvePoint, Figures, Plan, Share
from gateway.pipeline.report.findings import name
from gateway.pipeline.report.markup import element
from gateway.pipeline.report.numbers import Column, Numbers
from gateway.pipeline.report.panel import Key, Panel, drawn, legend

_COLOURS = ("tape", "follow", "origin", "collapse")
_DASHES = ("", "long", "short", "mixed")
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
        "curve-bytes",
        "Miss ratio by memory: bytes",
        "Share of the bytes of catch-up reads that the origin has to send.",
        _NOTHING,
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
        "curve-reads",
        "Miss ratio by memory: reads",
        "Share of catch-up reads of which bytes are missing in memory.",
        _NOTHING,
    )
    plan = figures.plan
    return _curve(
        figures,
        panel,
        lambda point: point.miss_ratio,
        None if plan is None else 1 - plan.expected_hit_ratio,
        of_blocks=False,
        target=None if plan is None else 1 - plan.target_hit_ratio,
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
        f" for tapes with {made.policy} should hold all bytes of {wording.share(made.expected_hit_ratio)} of catch-up",
        f" reads, and {wording.share(made.expected_byte_hit_ratio)} of the bytes of all of them, give or take",
        f" {wording.share(made.error)}. Asked for were {wording.share(made.target_hit_ratio)} of the reads",
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
        element(
            "div",
            [element("p", text, class_="says") for text in (says, _looks(figures), _short(made)) if text],
            element("ul", rows, class_="items") if rows else None,
        ),
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


def _looks(figures: Figures) -> str:
    """What a hit does not spare the origin."""
    looked = figures.shares.get("looked", Share())
    if not looked.part:
        return ""
    return (
        "Bytes in memory do not always spare the origin the question whether the stream has grown: in this log it was "
        f"asked that before {wording.share(looked.ratio)} of catch-up reads were answered from memory."
    )


def _short(made: Plan) -> str:
    if not made.is_short:
        return ""
    return (
        f"It was made from {wording.span(made.span_s)} of traffic, and is marked as short: a gateway does not take its "
        "memory unless cache.plan.take_short_memory is set."
    )


def _curve(
    figures: Figures,
    panel: Panel,
    ratio: Callable[[CurvePoint], float],
    chosen: float | None,
    *,
    of_blocks: bool,
    target: float | None,
) -> Panel:
    every = [point for point in figures.curve if of_blocks or not point.policy.endswith(_BLOCKS)]
    if not every:
        return panel
    policies = list(dict.fromkeys(point.policy for point in every))
    # The curve of the gateway's own policy answers the question; the others are among the numbers.
    shown = [policy for policy in policies if policy in figures.curves] or policies[:1]
    by_policy = {policy: [one for one in every if one.policy == policy] for policy in shown}
    points = [point for one in by_policy.values() for point in one]
    made = figures.plan
    x = axes.sizes([float(p.cache_bytes) for p in points] + ([float(made.cache_bytes)] if made is not None else []))
    y = axes.parts([*(ratio(p) + (p.error or 0) * of_blocks for p in points), chosen, target])
    series = [
        Line(policy, _COLOURS[nth % len(_COLOURS)], [(p.cache_bytes, ratio(p)) for p in by_policy[policy]], dash)
        for nth, (policy, dash) in enumerate(zip(shown, itertools.cycle(_DASHES), strict=False))
    ]
    bands = [
        Band(
            line.colour,
            [(p.cache_bytes, ratio(p) - (p.error or 0), ratio(p) + (p.error or 0)) for p in by_policy[line.label]],
        )
        for line in series
        if of_blocks and any(point.error for point in by_policy[line.label])
    ]
    keys = [Key(line.label, line.colour, f"line {line.dash}") for line in series]
    mark = None
    if made is not None and chosen is not None:
        mark = Mark(float(made.cache_bytes), chosen, chosen - made.error, chosen + made.error)
        keys.append(Key(f"Plan: {wording.size(made.cache_bytes)}, {wording.share(chosen)}", "chosen", "dot"))
    if target is not None:
        keys.append(Key(f"Target: {wording.share(target)}", "quiet", "line short"))
    sizes = sorted({point.cache_bytes for point in every})
    at = {(point.policy, point.cache_bytes): point for point in every}
    return drawn(
        panel,
        charts.lines(x, y, series, bands=bands, mark=mark, rule=-1 if target is None else target),
        f"{'; '.join(key.label for key in keys)}.",
        legend(keys),
        Numbers(
            panel.name,
            [
                Column("Memory", wording.size),
                *(
                    column
                    for policy in policies
                    for column in (
                        Column(policy, wording.share),
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
        ),
        note=" ".join(_notes(points[0], has_bands=bool(bands), more=len(policies) - len(shown))),
    )


def _notes(point: CurvePoint, *, has_bands: bool, more: int) -> list[str]:
    looked_at = "all played" if point.rate >= 1 else f"of whose tapes 1 in {wording.times(1 / point.rate)} was played"
    return [
        f"From {wording.many(point.references, 'catch-up read')}, {looked_at}.",
        "What was read for the first time counts as missing, whatever the memory.",
        *(["Bands are 95 % intervals."] if has_bands else []),
        *([f"{wording.many(more, 'other curve')} among the numbers; `report --curve` draws them."] if more else []),
    ]
