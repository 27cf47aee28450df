"""Format numbers for people, like the console: counts, sizes, shares, spans of time and times.

For an unknown value, None, the functions for numbers return `–`.  A share is never rounded up to 100 % or down to 0 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Final

NONE: Final = "–"
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def _if_known(write: Callable[[float], str]) -> Callable[[float | None], str]:
    @wraps(write)
    def written(value: float | None) -> str:
        return NONE if value is None or not math.isfinite(value) else write(value)

    return written


@_if_known
def count(value: float) -> str:
    """Format a count: `1,204`, from a million on `3.42 M`, below ten with one decimal if it is not whole."""
    for least, unit in ((1e9, "G"), (1e6, "M")):
        # A value that would be rounded up to one million is written as `1 M`.
        if abs(value) >= least * 0.9999995:
            return f"{_three(value / least)} {unit}"
    if abs(value) < 10 and value != round(value):
        return f"{value:.1f}"
    return f"{value:,.0f}"


@_if_known
def size(value: float) -> str:
    """Format bytes in powers of 1024, with the units of the configuration."""
    at = 0
    while at < len(_SIZES) - 1 and abs(value) >= (1023.5 if at == 0 else 1023.95):
        value /= 1024
        at += 1
    whole = at == 0 or abs(value) >= 99.95 or value == round(value)
    return f"{value:,.0f} {_SIZES[at]}" if whole else f"{value:.1f} {_SIZES[at]}"


@_if_known
def share(value: float) -> str:
    """Format a share of 1 as a percentage."""
    if 0.9995 <= value < 1:
        return ">99.9 %"
    if 0 < value < 0.0005:
        return "<0.1 %"
    if -0.0005 < value < 0:
        return ">−0.1 %"
    # Round first, because 1 - 0.9 is slightly less than 0.1 and must be shown as 10 %.
    percent = round(value * 100, 9)
    text = f"{percent:,.0f} %" if abs(percent) >= 1000 or percent == round(percent) else f"{percent:,.1f} %"
    return text.replace("-", "−")


@_if_known
def span(seconds: float) -> str:
    """Format seconds in units from microseconds to days."""
    if seconds == 0:
        return "0 s"
    if seconds < 0:
        return f"−{span(-seconds)}"
    for least, unit, unit_s in ((0.9995, "s", 1.0), (0.9995e-3, "ms", 1e-3), (0.0, "µs", 1e-6)):
        if seconds >= least and seconds < 120:
            return f"{_three(max(seconds / unit_s, 0.01))} {unit}"
    for most, unit, unit_s in ((7200, "min", 60), (172_800, "h", 3600)):
        if seconds < most:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


@_if_known
def times(ratio: float) -> str:
    """Format a factor: `1.08`, `14.2`, `5,012`."""
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:,.0f}"


def moment(at: int) -> str:
    """Format a time (Unix seconds) to the minute, in UTC: `2026-11-21 14:05`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


def many(number: int, one: str, more: str | None = None) -> str:
    """Format a number with its noun: `1 stream`, `3 streams`."""
    return f"{count(number)} {one if number == 1 else more or one + 's'}"


def _three(value: float) -> str:
    """Format a value with three significant digits, without trailing zeros after the point."""
    text = f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
