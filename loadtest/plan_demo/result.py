"""The experiment's result, as a table and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from loadtest.plan_demo.stage import Life
from loadtest.svg import INK, picture, text

AFTER_START: Final = 300
"""Number of reads that count as just after a start."""

_COLOURS: Final = ("#868e96", "#1971c2", "#d9480f")
_WIDTH: Final = 760
_PANEL: Final = 190
_BINS: Final = 120


@dataclass(frozen=True, slots=True)
class Arm:
    """One gateway's lives, one after the other."""

    name: str
    cache_bytes: int
    lives: tuple[Life, ...]

    @property
    def hits(self) -> list[bool]:
        """Of every read of every life."""
        return [hit for life in self.lives for hit in life.hits]

    @property
    def hit_ratio(self) -> float:
        """Reads answered from memory, of all."""
        return sum(self.hits) / len(self.hits)

    @property
    def hit_ratio_after_start(self) -> float:
        """The same of the first reads of each life."""
        early = [hit for life in self.lives for hit in life.hits[:AFTER_START]]
        return sum(early) / len(early)

    @property
    def origin_bytes(self) -> int:
        """Bytes that the origin sent."""
        return sum(life.origin_bytes[-1] for life in self.lives)

    @property
    def origin_requests(self) -> int:
        """Requests at the origin."""
        return sum(life.origin_requests for life in self.lives)

    def document(self) -> dict[str, Any]:
        """Its figures, for JSON."""
        return {
            "name": self.name,
            "cache_bytes": self.cache_bytes,
            "reads": len(self.hits),
            "hit_ratio": round(self.hit_ratio, 4),
            "hit_ratio_after_start": round(self.hit_ratio_after_start, 4),
            "origin_requests": self.origin_requests,
            "origin_bytes": self.origin_bytes,
            "sent_bytes": sum(life.sent_bytes for life in self.lives),
        }


def table(arms: Sequence[dict[str, Any]]) -> str:
    """The arms' documents in Markdown."""
    head = ["gateway", "memory", "hit ratio", f"first {AFTER_START} reads after a start", "origin requests"]
    head += ["the origin sent", "of what readers got"]
    lines = [f"| {' | '.join(head)} |", f"|---{'|--:' * (len(head) - 1)}|"]
    lines += [
        f"| {arm['name']} | {arm['cache_bytes'] / 2**20:.1f} MiB | {arm['hit_ratio']:.1%} "
        f"| {arm['hit_ratio_after_start']:.1%} | {arm['origin_requests']:,} | {arm['origin_bytes'] / 1e6:.1f} MB "
        f"| {arm['origin_bytes'] / arm['sent_bytes']:.1%} |"
        for arm in arms
    ]
    return "\n".join(lines) + "\n"


def chart(arms: Sequence[Arm]) -> str:
    """Hit ratio, and what the origin had sent, read by read; a start is a line from top to bottom."""
    ratios = [_ratios(arm) for arm in arms]
    sent = [_sent(arm) for arm in arms]
    most = max(max(line) for line in sent) or 1.0
    parts = [
        *_panel(0, "Hit ratio, over the reads of three lives", "100 %", ratios, 1.0, arms),
        *_panel(_PANEL, "The origin has sent", f"{most / 1e6:.0f} MB", sent, most, arms),
    ]
    for number, arm in enumerate(arms):
        x, y = 40 + number * 240, 2 * _PANEL + 12
        parts.append(f"<rect x='{x}' y='{y - 8}' width='18' height='4' fill='{_COLOURS[number]}'/>")
        parts.append(text(x + 24, y, arm.name))
    return picture(_WIDTH, 2 * _PANEL + 24, parts)


def _ratios(arm: Arm) -> list[float]:
    hits = arm.hits
    size = max(1, len(hits) // _BINS)
    return [sum(part) / len(part) for at in range(0, len(hits) - size + 1, size) if (part := hits[at : at + size])]


def _sent(arm: Arm) -> list[float]:
    sent: list[float] = []
    before = 0
    for life in arm.lives:
        sent += [before + now for now in life.origin_bytes]
        before += life.origin_bytes[-1]
    return sent[:: max(1, len(sent) // (2 * _BINS))] + sent[-1:]


def _panel(
    top: int, title: str, largest: str, lines: Sequence[Sequence[float]], most: float, arms: Sequence[Arm]
) -> list[str]:
    left, right, upper, lower = 52, _WIDTH - 10, top + 26, top + _PANEL - 18
    parts = [text(8, top + 16, title, weight="600")]
    for value, words in ((0.0, "0"), (0.5, ""), (1.0, largest)):
        y = lower - value * (lower - upper)
        parts.append(f"<line x1='{left}' y1='{y}' x2='{right}' y2='{y}' stroke='{INK}' stroke-width='0.4'/>")
        parts.append(text(left - 6, y + 4, words, anchor="end", size=10))
    total = len(arms[0].hits)
    read = 0
    for life in arms[0].lives:
        x = left + read / total * (right - left)
        parts.append(
            f"<line x1='{x:.1f}' y1='{upper}' x2='{x:.1f}' y2='{lower}' stroke='{INK}' stroke-dasharray='3 3'/>"
        )
        parts.append(text(x + 4, upper + 10, "start", size=9))
        read += len(life.hits)
    for number, line in enumerate(lines):
        step = (right - left) / max(1, len(line) - 1)
        points = " ".join(
            f"{left + at * step:.1f},{lower - value / most * (lower - upper):.1f}" for at, value in enumerate(line)
        )
        parts.append(f"<polyline points='{points}' fill='none' stroke='{_COLOURS[number]}' stroke-width='1.8'/>")
    return parts
