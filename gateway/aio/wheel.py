"""A timer wheel: many coarse deadlines behind one event-loop timer.

A loop timer costs about half a kilobyte, and some microseconds to set and to cancel.  Ten thousand mostly idle
connections would pay that for deadlines that rarely expire.  Here a deadline is an entry in the set of its tick, and
the tick number finds it again.  It fires at most one tick late and never early.

Clients that arrive together have their deadlines together, and ending a connection takes some time.  A turn of the
event loop therefore fires entries for `TURN_S` at most, and later turns the rest.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from math import ceil, floor
from typing import Final, Protocol

from gateway.aio.clock import Clock, SystemClock, Timer

_log = logging.getLogger("gateway.aio.wheel")

TICK_S: Final = 1 / 16

_HAIR: Final = 5e-7

TURN_S: Final = 0.001
"""Entries are fired for this long in one turn of the loop."""

NEVER: Final = -1
"""The tick of an entry that is on no wheel."""


class Entry(Protocol):
    """An object with a deadline."""

    def due(self) -> None:
        """The deadline has passed; the entry is no longer on the wheel."""


class Wheel:
    """Entries by tick.  Owner of one loop timer, which runs while there are entries."""

    def __init__(self, clock: Clock, spent: Callable[[], float] = SystemClock.now) -> None:
        """`spent` measures how long entries have been fired."""
        self._clock = clock
        self._spent = spent
        self._entries: dict[int, set[Entry]] = {}
        self._ticks: list[int] = []
        self._timer: Timer | None = None
        self._armed = NEVER

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def __repr__(self) -> str:
        return f"<Wheel {len(self)} entries>"

    def add(self, entry: Entry, delay_s: float, now: float | None = None) -> int:
        """Call `entry.due` after `delay_s`; return the tick, which `drop` takes.  `now` is the time by the wheel's
        clock, if the caller knows it."""
        if now is None:
            now = self._clock.now()
        # Rounded up, but not for a hair: 1000.1 + 0.15 is a hair above 1000.25.
        tick = ceil((now + delay_s) / TICK_S - _HAIR)
        entries = self._entries.get(tick)
        if entries is None:
            entries = self._entries[tick] = set()
            heapq.heappush(self._ticks, tick)
            if self._timer is None or tick < self._armed:
                self._arm()
        entries.add(entry)
        return tick

    def drop(self, entry: Entry, tick: int) -> None:
        """Remove the entry if it is still on the wheel."""
        entries = self._entries.get(tick)
        if entries is not None:
            entries.discard(entry)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = self._ticks[0]
        self._timer = self._clock.call_later(self._armed * TICK_S - self._clock.now(), self._fire_due)

    def _fire_due(self) -> None:
        self._timer = None
        reached, until = floor(round(self._clock.now() / TICK_S, 6)), self._spent() + TURN_S
        while self._ticks and self._ticks[0] <= reached:
            # An entry that waits for a later turn can still be dropped.
            entries = self._entries[self._ticks[0]]
            while entries:
                try:
                    entries.pop().due()
                except Exception:
                    # An error in one entry must not keep the others from firing.
                    _log.exception("a deadline failed")
                if self._spent() > until:
                    self._arm()
                    return
            del self._entries[heapq.heappop(self._ticks)]
        while self._ticks and not self._entries[self._ticks[0]]:
            # All entries of this tick have been dropped: skip it instead of waking up for nothing.
            del self._entries[heapq.heappop(self._ticks)]
        if self._ticks:
            self._arm()
