"""Maps values to positions on an axis, and chooses the values that get a mark.

A scale maps values to 0..1, and values outside its range to the nearer end, so every point is inside the plot.  Marks
are round in the unit of the axis: powers of ten for counts, of two for bytes, 1-2-5 for seconds, whole minutes, hours
and days of UTC for time.  Marks for which a narrow chart has no room are `roomy`.

All pure: no page, no colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gateway.pipeline.report import wording

_MOST_TICKS: Final = 8
_MOST_NARROW: Final = 4
_DECIMAL: Final = (1.0, 2.0, 5.0, 10.0)
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
STEPS_S: Final = tuple(
    [minutes * MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)]
    + [hours * HOUR_S for hours in (1, 2, 3, 6, 12)]
    + [days * DAY_S for days in (1, 2, 7, 14, 28, 56, 91, 182, 364)]
)
"""Round steps of time."""


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis from `low` to `high`, with low < high; `is_log` requires 0 < low."""

    low: float
    high: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """The position of `value` on the axis: 0 at the low end, 1 at the high end, never outside."""
        if self.is_log:
            if value <= self.low:
                return 0.0
            return min(math.log(value / self.low) / math.log(self.high / self.low), 1.0)
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on an axis: its position, its label, and whether a narrow chart leaves it out."""

    place: float
    label: str
    is_roomy: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A scale and its marks."""

    scale: Scale
    ticks: tuple[Tick, ...]

    def place(self, value: float) -> float:
        """The position of `value` on the scale."""
        return self.scale.place(value)


def amounts(values: Iterable[float | None], *, is_bytes: bool = False) -> Axis:
    """An axis from 0 for counts or bytes, with a little room above the largest value."""
    most = max((value for value in values if value is not None), default=0.0)
    if is_bytes:
        step = 2.0 ** max(math.ceil(math.log2(max(most, 1.0) / 5)), 0)
        if step == 256:  # 512, 768, 1024: round in no unit
            step = 512.0
        write: Callable[[float], str] = wording.size
    else:
        step = max(_round_up(max(most, 1.0) / 5), 1.0)
        write = wording.count
    high = step * max(math.ceil(most / step * 1.02), 1)
    return _linear(0.0, high, step, write)


def shares(values: Iterable[float | None], *, least: float = 0.0) -> Axis:
    """An axis up to 100 %, from 0 or from the round share below the lowest value; `least` is a multiple of one half."""
    lowest = min((value for value in values if value is not None), default=0.0)
    step = 0.25 if lowest >= -0.5 else 0.5
    low = 0.0 if lowest >= 0 else max(math.floor(lowest / step) * step, min(least, 0.0))
    return _linear(low, 1.0, step, wording.share)


def parts(values: Iterable[float | None]) -> Axis:
    """An axis of shares from 0 to a round one above the largest, 100 % at the most."""
    most = min(max((value for value in values if value is not None), default=1.0), 1.0)
    step = max(_round_up(max(most, 0.01) / 5), 0.01)
    return _linear(0.0, min(step * max(math.ceil(most / step - 1e-9), 1), 1.0), step, wording.share)


def spans(values: Iterable[float | None]) -> Axis:
    """A logarithmic axis of seconds, of at least two decades."""
    known = [value for value in values if value is not None and value > 0 and math.isfinite(value)]
    first = math.floor(math.log10(min(known)) + 1e-9) if known else -3
    last = math.ceil(math.log10(max(known)) - 1e-9) if known else -1
    last = max(last, first + 2)
    scale = Scale(10.0**first, 10.0**last, is_log=True)
    stride = math.ceil((last - first) / 5)
    marks = [10.0**power for power in range(first, last + 1, stride)]
    return Axis(scale, tuple(Tick(scale.place(mark), wording.span(mark)) for mark in marks))


def sizes(values: Sequence[float]) -> Axis:
    """A logarithmic axis of bytes, marked at powers of two."""
    known = [value for value in values if value > 0]
    low, high = (min(known), max(known)) if known else (1.0, 1024.0)
    if high < low * 4:
        low, high = low / 2, high * 2
    scale = Scale(float(low), float(high), is_log=True)
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    stride = max(math.ceil((last - first + 1) / _MOST_TICKS), 1)
    marks = [2.0**power for power in range(first, last + 1) if power % stride == 0]
    return Axis(scale, _thinned([(scale.place(mark), wording.size(mark)) for mark in marks]))


def times(first: int, last: int) -> Axis:
    """An axis of time from `first` to `last` (Unix seconds), marked at whole minutes, hours or days of UTC."""
    last = max(last, first + MINUTE_S)
    scale = Scale(float(first), float(last))
    step = next((one for one in STEPS_S if (last - first) / one <= _MOST_TICKS), None)
    if step is None:
        step = DAY_S * math.ceil((last - first) / DAY_S / _MOST_TICKS)
    marks = range(-(-first // step) * step, last + 1, step)
    return Axis(scale, _thinned([(scale.place(mark), _clock(mark, step)) for mark in marks]))


def step_for(first: int, last: int, most: int) -> int:
    """The smallest step of time (seconds) that divides `first`..`last` into at most `most` pieces."""
    reach = max(last - first, 0) + 1
    # The range may touch one more piece at either end.
    fitting = (step for step in STEPS_S if reach / step + 1 <= most)
    return next(fitting, DAY_S * math.ceil(reach / DAY_S / max(most - 1, 1)))


def _linear(low: float, high: float, step: float, write: Callable[[float], str]) -> Axis:
    scale = Scale(low, high)
    number = round((high - low) / step)
    marks = [low + step * at for at in range(number + 1) if low + step * at <= high + step * 1e-9]
    return Axis(scale, tuple(Tick(scale.place(mark), write(round(mark, 9))) for mark in marks))


def _thinned(marks: Sequence[tuple[float, str]]) -> tuple[Tick, ...]:
    """All marks for a wide chart; every second, third, … of them for a narrow one."""
    stride = max(math.ceil(len(marks) / _MOST_NARROW), 1)
    return tuple(Tick(place, label, is_roomy=at % stride != 0) for at, (place, label) in enumerate(marks))


def _round_up(value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, … that is not less."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next((unit * one for one in _DECIMAL if unit * one >= value * (1 - 1e-9)), unit * 10)


def _clock(at: int, step: int) -> str:
    """The time of day; the date if a day begins there or steps are days."""
    when = datetime.fromtimestamp(at, UTC)
    return f"{when:%b} {when.day}" if step >= DAY_S or at % DAY_S == 0 else f"{when:%H:%M}"
