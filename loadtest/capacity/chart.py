"""The chart of the guide: how full a fleet is by its machines, and what fills its busiest process.

Loads in, text out; the colours work on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from loadtest.capacity.model import Load
from loadtest.svg import INK, picture, text

_WIDTH: Final = 760
_LINES: Final = ("#d9480f", "#1971c2", "#2b8a3e")
_PARTS: Final = {
    "deliveries": "#d9480f",
    "joins": "#f4a27a",
    "long-polls": "#9c36b5",
    "heartbeats": "#868e96",
    "streams": "#1971c2",
    "hops": "#74b3e8",
    "timers": "#5c940d",
}
_LEFT: Final = 64
_RIGHT: Final = _WIDTH - 20
_TOP: Final = 40
_PANEL: Final = 250
_LEAST_SHARE: Final = 0.01
_MOST_SHARE: Final = 100.0
_BAR: Final = 22
_BARS_LEFT: Final = 190


def chart(growth: Sequence[Sequence[Load]], least: Sequence[Load]) -> str:
    """Draw a line for each demand, over growing fleets, and a bar for each demand, for its least fleet."""
    parts = [*_lines(growth), *_bars(least)]
    return picture(_WIDTH, _PANEL + 92 + len(least) * (_BAR + 12), parts)


def streams_of(load: Load) -> str:
    """The name of a line or bar."""
    streams = load.demand.streams
    return f"{streams:,} stream{'' if streams == 1 else 's'}"


def _lines(growth: Sequence[Sequence[Load]]) -> list[str]:
    bottom = _PANEL - 10
    most = max(load.fleet.machines for loads in growth for load in loads)

    def x(machines: int) -> float:
        return _LEFT + math.log(machines) / math.log(most) * (_RIGHT - _LEFT)

    def y(share: float) -> float:
        within = min(max(share, _LEAST_SHARE), _MOST_SHARE)
        return bottom - math.log(within / _LEAST_SHARE) / math.log(_MOST_SHARE / _LEAST_SHARE) * (bottom - _TOP)

    parts = [
        text(
            8,
            16,
            "Use of the fullest resource, as a share of what may be used, by the number of machines",
            weight="600",
        )
    ]
    for share, words in ((0.01, "1 %"), (0.1, "10 %"), (1.0, "100 %"), (10.0, "1,000 %"), (100.0, "10,000 %")):
        dash = " stroke-dasharray='4 3'" if share == 1 else ""
        width = 1.2 if share == 1 else 0.4
        parts.append(
            f"<line x1='{_LEFT}' y1='{y(share):.1f}' x2='{_RIGHT}' y2='{y(share):.1f}' stroke='{INK}' "
            f"stroke-width='{width}'{dash}/>"
        )
        parts.append(text(_LEFT - 6, y(share) + 4, words, anchor="end", size=10))
    steps = [2**exponent for exponent in range(int(math.log2(most)) + 1)]
    parts += [text(x(machines), bottom + 16, f"{machines}", anchor="middle", size=10) for machines in steps]
    for loads, colour in zip(growth, _LINES, strict=True):
        points = " ".join(f"{x(load.fleet.machines):.1f},{y(load.loaded_uses()[0].share):.1f}" for load in loads)
        parts.append(f"<polyline points='{points}' fill='none' stroke='{colour}' stroke-width='2'/>")
    for number, (loads, colour) in enumerate(zip(growth, _LINES, strict=True)):
        at = _RIGHT - 130
        parts.append(f"<rect x='{at}' y='{_TOP + 2 + 16 * number}' width='18' height='4' fill='{colour}'/>")
        parts.append(text(at + 24, _TOP + 8 + 16 * number, streams_of(loads[0])))
    return parts


def _bars(least: Sequence[Load]) -> list[str]:
    y = _PANEL + 42
    # A bar of one core at least, so that bars of small fleets do not look full.
    scale = (_RIGHT - 60 - _BARS_LEFT) / max(1.0, *(load.processor().used for load in least))
    title = "Processor time of the busiest process, of one core, in the smallest fleet that suffices or the largest"
    parts = [text(8, y - 10, title, weight="600")]
    for load in least:
        use = load.processor()
        machines = load.fleet.machines
        label = f"{streams_of(load)}, {machines} machine{'' if machines == 1 else 's'}"
        parts.append(text(_BARS_LEFT - 8, y + 15, label, anchor="end"))
        at = float(_BARS_LEFT)
        for name, value in use.parts.items():
            width = value * scale
            parts.append(f"<rect x='{at:.1f}' y='{y}' width='{width:.1f}' height='{_BAR}' fill='{_PARTS[name]}'/>")
            at += width
        parts.append(text(at + 6, y + 15, f"{use.used:.0%}"))
        y += _BAR + 12
    named = [name for name in _PARTS if any(load.processor().parts[name] > 0 for load in least)]
    for number, name in enumerate(named):
        at = 8 + number * 104
        parts.append(f"<rect x='{at}' y='{y + 4}' width='10' height='10' fill='{_PARTS[name]}'/>")
        parts.append(text(at + 16, y + 13, name))
    return parts
