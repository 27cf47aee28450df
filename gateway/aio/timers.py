"""Cheap timers: a timer wheel for many deadlines, and a deadline that moves often.

A timer of the event loop needs about half a kilobyte of memory.  To set and cancel it takes some microseconds.  Such
timers cost too much for ten thousand idle connections, whose deadlines are rarely reached.  A `Wheel` divides time into
ticks, and keeps the deadlines of each tick in a dictionary.  It has one loop timer for all deadlines.  A deadline fires
up to one tick late, but not early.

Live readers have widely spread deadlines, so that their clients do not reconnect at the same time.  A separate
dictionary for each of these deadlines would cost too much memory.  Deadlines more than a minute away are therefore
rounded up to full seconds.

Many deadlines may be due at the same time, and each may close a connection.  One iteration of the event loop fires
entries for at most `TURN_S`; later iterations fire the rest.

A `Deadline` is for one connection.  It moves with each exchange and is rarely reached.  If it moves to a later time, it
keeps its loop timer.  The timer then fires too early, and the `Deadline` sets a new timer.  A busy connection therefore
sets a timer only every few seconds.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable
from math import ceil, floor, inf
from typing import Final, Protocol

from gateway.aio.clock import DETACHED, Clock, SystemClock, Timer

_log = logging.getLogger("gateway.aio.timers")

TICK_S: Final = 1 / 16

_HAIR: Final = 5e-7

_FAR_S: Final = 60.0
_FAR_TICKS: Final = 16

TURN_S: Final = 0.001
"""The maximum number of seconds for which one iteration of the loop fires entries."""

NEVER: Final = -1
"""The tick of an entry that is not on a wheel."""


class Entry(Protocol):
    """An object with a deadline."""

    def due(self) -> None:
        """Handle the deadline.  The wheel has already removed the entry."""


class Wheel:
    """Entries by tick.  The wheel owns one timer of the clock, which is set while the wheel has entries."""

    def __init__(self, clock: Clock, spent: Callable[[], float] = SystemClock.now) -> None:
        """`spent` returns the seconds of a clock that measures how long one iteration of the loop fires entries."""
        self._clock = clock
        self._spent = spent
        # A small `dict` takes half the memory of a small `set`.  The first item is the tick: all entries of a tick
        # share this integer object.
        self._entries: dict[int, tuple[int, dict[Entry, None]]] = {}
        self._ticks: list[int] = []
        self._timer: Timer | None = None
        self._armed = NEVER

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self._entries.values())

    def __repr__(self) -> str:
        return f"<Wheel {len(self)} entries>"

    def add(self, entry: Entry, delay_s: float, now: float | None = None) -> int:
        """Call `entry.due` after `delay_s` seconds; return the entry's tick, for `unlink`.

        `now` is the current time of the wheel's clock.  With None, the wheel reads its clock.
        """
        if now is None:
            now = self._clock.now()
        # Round up, but ignore rounding errors.  For example, 1000.0 increased five times by 0.1 is slightly more than
        # 1000.5.
        tick = ceil((now + delay_s) / TICK_S - _HAIR)
        if delay_s > _FAR_S:
            tick += -tick % _FAR_TICKS
        found = self._entries.get(tick)
        if found is None:
            found = self._entries[tick] = tick, {}
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._armed:
                self._arm()
        tick, entries = found
        entries[entry] = None
        return tick

    def unlink(self, entry: Entry, tick: int) -> None:
        """Remove the entry if it is still on the wheel."""
        found = self._entries.get(tick)
        if found is not None:
            found[1].pop(entry, None)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self._ticks[0]
        self._timer = self._clock.call_later(self._armed * TICK_S - self._clock.now(), self._fire_due)

    def _fire_due(self) -> None:
        self._timer = None
        reached, until = floor(round(self._clock.now() / TICK_S, 6)), self._spent() + TURN_S
        while self._ticks and self._ticks[0] <= reached:
            # Pop entries one by one, so that `unlink` still works for the entries that are left to a later iteration.
            _, entries = self._entries[self._ticks[0]]
            while entries:
                try:
                    entries.popitem()[0].due()
                except Exception:
                    # An error in one entry must not prevent others from firing.
                    _log.exception("a deadline failed")
                if self._spent() > until:
                    self._arm()
                    return
            del self._entries[heapq.heappop(self._ticks)]
        while self._ticks and not self._entries[self._ticks[0]][1]:
            # Skip ticks whose entries have all been unlinked.
            del self._entries[heapq.heappop(self._ticks)]
        if self._ticks:
            self._arm()


_RESOLUTION_S = 0.001
"""The seconds by which a timer may fire early, because uvloop counts whole milliseconds."""


class Deadline:
    """One deadline on the running loop's clock.  The owner must call `close`, which breaks the reference cycle."""

    __slots__ = ("_armed_for", "_loop", "_on_due", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], object]) -> None:
        self.at = inf
        self._loop = loop
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = inf

    def move(self, at: float) -> None:
        """Set the time at which `on_due` is called (the loop's clock).  `inf` means never."""
        self.at = at
        if at < self._armed_for:
            self._arm()

    def clear(self) -> None:
        """Cancel the deadline and its timer."""
        self.at = inf
        self._armed_for = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Cancel the deadline for good, and drop the reference to the owner."""
        self.clear()
        self._on_due = _nothing

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = self.at
        self._timer = self._loop.call_at(self.at, self._fired, context=DETACHED)

    def _fired(self) -> None:
        self._timer = None
        self._armed_for = inf
        if self.at <= self._loop.time() + _RESOLUTION_S:
            self.at = inf
            self._on_due()
        elif self.at < inf:
            self._arm()


def _nothing() -> None:
    """Replace the owner's callback after `close`."""
