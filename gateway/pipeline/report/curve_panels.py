"""The report's cards of the miss-ratio curve, and of the plan."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from gateway.pipeline.report import axes, charts
from gateway.pipeline.report.charts import Series
from gateway.pipeline.report.figures import Figures, Row
from gateway.pipeline.report.markup import element
from gateway.pipeline.report.panel import Column, Content, Key, Panel, legend, name, named
from gateway.pipeline.wording import many, share, size, span, times

_LOOKS: Final = (("tape", ""), ("follow", "long"), ("origin", "short"), ("collapse", "mixed"))
"""The colours and dashes of the curves, in turn."""
_KINDS: Final = {
    "pin": "Keep",
    "warm": "Fetch in advance",
    "do_not_store": "Do not store",
    "lifetimes": "Give up when idle",
}
"""The lists of a plan, and their names in the report."""
_MOST_ENTRIES: Final = 5
"""Most entries shown of each list of the plan."""

_NO_CURVE: Final = (
    "No curve was measured: `durable-gateway pipeline curve` does it, from reads that began at a known offset."
)


def curve(figures: Figures, *, is_bytes: bool) -> Content | None:
    """Make the card of the curves, with the point and the target of the plan.

    Only the curves of bytes have an error.
    """
    every = figures.curve
    if not every:
        return None
    ratio = "byte_miss_ratio" if is_bytes else "miss_ratio"
    policies = list(dict.fromkeys(row["policy"] for row in every))
    # Draw the chosen policies.  The curves of the others are only among the numbers.
    shown = [policy for policy in policies if policy in figures.curves] or policies[:1]
    series = [Series(policy, policy, *look) for policy, look in zip(shown, itertools.cycle(_LOOKS), strict=False)]
    rows = [row for row in every if row["policy"] in shown]
    values = [{"x": row["cache_bytes"], "y": row[ratio], "key": row["policy"]} for row in rows]
    if is_bytes:
        for value, row in zip(values, rows, strict=True):
            if (error := row["error"]) is not None:
                value |= {"low": value["y"] - error, "high": value["y"] + error}
    sizes = [value["x"] for value in values]
    highest = [value.get("high", value["y"]) for value in values]
    keys = legend("line", series)
    made = figures.plan
    if made is None:
        x, y = axes.sizes(sizes), axes.parts(highest)
        above = []
    else:
        memory = made.memory
        chosen = 1 - (memory.expected_byte_hit_ratio if is_bytes else memory.expected_hit_ratio)
        targets = [] if is_bytes else [1 - made.target_hit_ratio]
        x, y = axes.sizes([*sizes, memory.cache_bytes]), axes.parts([*highest, chosen, *targets])
        above = [*charts.rules(y, targets), *charts.mark(x, y, memory.cache_bytes, chosen, memory.error)]
        keys.append(Key("dot chosen", f"Plan: {size(memory.cache_bytes)}, {share(chosen)}"))
        keys += [Key("line short quiet", f"Target: {share(target)}") for target in targets]
    return Content(
        charts.lines(x, y, values, series, above),
        f"{'; '.join(key.label for key in keys)}.",
        keys,
        *_numbers(every, policies, ratio, has_errors=is_bytes),
        _note(rows[0], has_bands=is_bytes and any(row["error"] for row in rows), more=len(policies) - len(shown)),
    )


def plan(figures: Figures) -> Content | None:
    """Make the card of the plan: its recommendations and their reasons."""
    made = figures.plan
    if made is None:
        return None
    memory = made.memory
    reached = memory.expected_hit_ratio + memory.error >= made.target_hit_ratio
    says = [
        element("b", size(memory.cache_bytes)),
        f" for tapes with {memory.policy} should hold all bytes of {share(memory.expected_hit_ratio)} of catch-up",
        f" reads, and {share(memory.expected_byte_hit_ratio)} of the bytes of all of them",
        f", give or take {share(memory.error)}" if memory.error else "",
        f". Asked for were {share(made.target_hit_ratio)} of the reads",
        "." if reached else ", but nothing better was found.",
    ]
    rows = [{"kind": kind, **entry.model_dump()} for kind in _KINDS for entry in getattr(made, kind)[:_MOST_ENTRIES]]
    entries = sum(len(getattr(made, kind)) for kind in _KINDS)
    items = [
        element(
            "li",
            element("span", _KINDS[row["kind"]], class_="wish"),
            " ",
            name(row["stream"]),
            element("small", f" {size(row['bytes'])}. {row['reason']}"),
        )
        for row in rows
    ]
    columns = [*named("Kind", "Stream", "Route"), *named("Bytes", write=size), *named("Reason")]
    looked = figures.share("looked")
    looks = (
        "Bytes in memory do not always spare the origin the question whether the stream has grown: in this log it was "
        f"asked that before {share(looked.ratio)} of catch-up reads were answered from memory."
    )
    short = (
        f"It was made from {span(made.made_from.span_s)} of traffic, and is marked as short: a gateway does not take "
        "its memory unless cache.plan.take_short_memory is set."
    )
    said = [says, *([looks] if looked.part else []), *([short] if made.is_short else [])]
    body = element(
        "div",
        [element("p", text, class_="says") for text in said],
        element("ul", items, class_="items") if items else None,
    )
    shown = f"The first of each kind: {len(rows)} of {many(entries, 'entry', 'entries')}."
    return Content(body, columns=columns, rows=rows, note=shown if entries > len(rows) else "")


def _numbers(
    every: Sequence[Row], policies: Sequence[str], ratio: str, *, has_errors: bool
) -> tuple[list[Column], list[Row]]:
    """Return the columns and rows of a table with a row for each memory size."""
    fields = [field for policy in policies for field in (policy, *([f"{policy} ±"] if has_errors else []))]
    by_size: defaultdict[int, dict[str, Any]] = defaultdict(lambda: dict.fromkeys(fields))
    for row in every:
        by_size[row["cache_bytes"]] |= {row["policy"]: row[ratio], f"{row['policy']} ±": row["error"]}
    columns = [Column("Memory", "cache_bytes", size), *(Column(field, field, share) for field in fields)]
    return columns, [{"cache_bytes": cache_bytes, **by_size[cache_bytes]} for cache_bytes in sorted(by_size)]


def _note(row: Row, *, has_bands: bool, more: int) -> str:
    played = "all played" if row["rate"] >= 1 else f"of whose tapes 1 in {times(1 / row['rate'])} was played"
    parts = [
        f"From {many(row['references'], 'catch-up read')}, {played}.",
        "What was read for the first time counts as missing, whatever the memory.",
        "Bands are 95 % intervals." if has_bands else "",
        f"{many(more, 'other curve')} among the numbers; `report --curve` draws them." if more else "",
    ]
    return " ".join(filter(None, parts))


PANELS: Final = (
    Panel(
        "curve-bytes",
        "Miss ratio by memory: bytes",
        "Share of the bytes of catch-up reads that the origin has to send.",
        partial(curve, is_bytes=True),
        _NO_CURVE,
    ),
    Panel(
        "curve-reads",
        "Miss ratio by memory: reads",
        "Share of catch-up reads of which bytes are missing in memory.",
        partial(curve, is_bytes=False),
        _NO_CURVE,
    ),
    Panel(
        "plan",
        "The plan",
        "What the gateway should keep, and in how much memory.",
        plan,
        "No plan was given: `durable-gateway pipeline plan` makes one, and `report --plan` shows it here.",
        is_wide=True,
    ),
)
