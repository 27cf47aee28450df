"""Axes of charts: the range that is drawn, and its ticks.

Vega-Lite chooses the ticks of linear axes and of time.  Logarithmic axes and axes of bytes specify their ticks and
labels, so that the labels are round numbers in the units that people read.  A value outside an axis is drawn at its
end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from gateway.pipeline.wording import size, span

_MOST_TICKS: Final = 8
_SHARE: Final = "format(datum.value * 100, ',~r') + ' %'"
_COUNT: Final = (
    "abs(datum.value) < 1000000 ? format(datum.value, ',~r')"
    " : abs(datum.value) < 1000000000 ? format(datum.value / 1000000, ',.3~r') + ' M'"
    " : format(datum.value / 1000000000, ',.3~r') + ' G'"
)
_CLOCK: Final = (
    "utchours(datum.value) == 0 && utcminutes(datum.value) == 0"
    " ? utcFormat(datum.value, '%b %-d') : utcFormat(datum.value, '%H:%M')"
)


@dataclass(frozen=True, slots=True)
class Axis:
    """The range of an axis, and Vega-Lite's channel for it (type, scale, axis) without a field."""

    low: float
    high: float
    channel: dict[str, Any]

    def of(self, field: str) -> dict[str, Any]:
        """Return the channel for a field."""
        return {"field": field, **self.channel}

    def beyond(self, values: Iterable[float | None]) -> list[float]:
        """Return the values outside the axis, in their order."""
        return [value for value in values if value is not None and not self.low <= value <= self.high]


def amounts(values: Iterable[float], *, is_bytes: bool = False) -> Axis:
    """Return a linear axis from 0 to the largest of these counts, or bytes."""
    most = max(values, default=0.0)
    if not is_bytes:
        high = max(most, 1.0)
        return _linear(0.0, high, {"labelExpr": _COUNT, "tickMinStep": 1}, nice=True)
    step = 2.0 ** max(math.ceil(math.log2(max(most, 1.0) / 5)), 0)
    if step == 256:  # 1280 would be shown as 1.2 KiB
        step = 512.0
    number = max(math.ceil(most / step), 1)
    return _linear(0.0, step * number, _named([step * at for at in range(number + 1)], size))


def shares(values: Iterable[float | None], *, least: float = 0.0) -> Axis:
    """Return an axis of shares up to 100 %.

    It begins at 0, or below negative values at a multiple of 25 %, but never below `least`.
    """
    lowest = min((value for value in values if value is not None), default=0.0)
    low = 0.0 if lowest >= 0 else max(math.floor(lowest * 4) / 4, min(least, 0.0))
    return _linear(low, 1.0, {"labelExpr": _SHARE})


def parts(values: Iterable[float]) -> Axis:
    """Return an axis of shares from 0 to the largest."""
    most = min(max(values, default=1.0), 1.0)
    return _linear(0.0, max(most, 0.01), {"labelExpr": _SHARE}, nice=True)


def spans(values: Iterable[float | None]) -> Axis:
    """Return a logarithmic axis of seconds, with at least two decades."""
    known = [value for value in values if value is not None and value > 0 and math.isfinite(value)]
    first = math.floor(math.log10(min(known)) + 1e-9) if known else -3
    last = math.ceil(math.log10(max(known)) - 1e-9) if known else -1
    last = max(last, first + 2)
    stride = math.ceil((last - first) / 5)
    ticks = [10.0**power for power in range(first, last + 1, stride)]
    # Powers of ten are not round in minutes and hours.
    return _log(10.0**first, 10.0**last, 10, ticks, lambda at: span(at) if at < 100 else f"{at:,.0f} s")


def sizes(values: Iterable[float]) -> Axis:
    """Return a logarithmic axis of bytes, with ticks at powers of two."""
    known = [value for value in values if value > 0]
    low, high = (min(known), max(known)) if known else (1.0, 1024.0)
    if high < low * 4:
        low, high = low / 2, high * 2
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    stride = max(math.ceil((last - first + 1) / _MOST_TICKS), 1)
    return _log(low, high, 2, [2.0**power for power in range(first, last + 1) if power % stride == 0], size)


def times(first: int, last: int) -> Axis:
    """Return an axis of time (UTC) from `first` to `last` (Unix seconds).  Its values are in milliseconds."""
    low, high = 1000.0 * first, 1000.0 * max(last, first + 60)
    channel = {
        "type": "temporal",
        "scale": {"type": "utc", "domain": [low, high]},
        "axis": {"labelExpr": _CLOCK, "grid": False, "labelOverlap": "parity", "labelSeparation": 8},
    }
    return Axis(low, high, channel)


def _named(ticks: list[float], write: Callable[[float], str]) -> dict[str, Any]:
    """Return the ticks at these values, with labels by `write`."""
    return {"values": ticks, "labelExpr": f"{json.dumps([write(at) for at in ticks])}[indexof({ticks}, datum.value)]"}


def _linear(low: float, high: float, axis: dict[str, Any], *, nice: bool = False) -> Axis:
    scale = {"domain": [low, high], "nice": 5 if nice else False, "clamp": True}
    marks = {"grid": True, "tickCount": 5, "domain": False, "ticks": False, **axis}
    return Axis(low, high, {"type": "quantitative", "scale": scale, "axis": marks})


def _log(low: float, high: float, base: int, ticks: list[float], write: Callable[[float], str]) -> Axis:
    scale = {"type": "log", "base": base, "domain": [low, high], "nice": False, "clamp": True}
    axis = {"grid": True, "labelOverlap": "greedy", "labelSeparation": 8, **_named(ticks, write)}
    return Axis(low, high, {"type": "quantitative", "scale": scale, "axis": axis})
