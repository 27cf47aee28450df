"""Formats numbers for tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_STEPS: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(count: float) -> str:
    """Format bytes with a binary unit: `512 B`, `1.5 MiB`."""
    for unit, step in _STEPS:
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} B"


def rate(count: float) -> str:
    """Format a rate: with one decimal below 10, otherwise as a whole number."""
    return f"{count:,.0f}" if count >= 10 or count == 0 else f"{count:.1f}"


def ratio(value: float | None) -> str:
    """Format a share in percent; `-` for None."""
    return "-" if value is None else f"{value:.1%}"


def share(value: float | None) -> str:
    """Format a share in percent, but do not round it up to 100 %; an en dash for None."""
    if value is None:
        return "–"
    return ">99.9%" if 0.9995 <= value < 1 else f"{value:.1%}"


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: `3h 20m`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, step in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= step or (unit == "s" and not parts):
            parts.append(f"{left // step}{unit}")
            left %= step
    return " ".join(parts[:2])


def stream_name(stream: Mapping[str, Any]) -> str:
    """Return a stream's path and query."""
    query = stream.get("query") or ""
    return f"{stream['path']}?{query}" if query else str(stream["path"])


def stream_state(stream: Mapping[str, Any]) -> str:
    """Return `closed`, `live`, or an empty text."""
    return "closed" if stream["is_closed"] else "live" if stream["is_followed"] else ""
