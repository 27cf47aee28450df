"""Timers that cost little: a wheel for many deadlines, and a deadline that moves.

A `Wheel` keeps many coarse deadlines behind one event-loop timer.  A loop timer costs about half a kilobyte, and some
microseconds to set and to cancel.  Ten thousand mostly idle connections would pay that for deadlines that rarely
expire.  Here a deadline is an entry in the dictionary of its tick, and the tick number finds it again.  It fires at
most one tick late and never early.

Live readers end far apart, so that they do not come back together.  With a tick of its own, each would pay for a
dictionary.  A deadline more than a minute away shares its tick with others, and is at most a second late.

Clients that arrive together have their deadlines together, and ending a connection takes some time.  A turn of the
event loop therefore fires entries for `TURN_S` at most, and later turns the rest.

A `Deadline` moves with every exchange and rarely passes.  It keeps its timer when it moves to a later time and sets it
again when it fires too early.  A busy connection sets one every few seconds.
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
        # Dictionaries, because sets of few entries take twice as many bytes.  Entries of one tick share its number.
        self._entries: dict[int, tuple[int, dict[Entry, None]]] = {}
        self._ticks: list[int] = []
        self._timer: Timer | None = None
        self._armed = NEVER

    def __len__(self) -> int:
        return sum(len(entries) for _, entries in self._entries.values())

    def __repr__(self) -> str:
        return f"<Wheel {len(self)} entries>"

    def add(self, entry: Entry, delay_s: float, now: float | None = None) -> int:
        """Call `entry.due` after `delay_s`; return the tick, which `unlink` takes.  `now` is the time by the wheel's
        clock, if the caller knows it."""
        if now is None:
            now = self._clock.now()
        # Rounded up, but not for a hair: 1000.1 + 0.15 is a hair above 1000.25.
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
            # An entry that waits for a later turn can still be dropped.
            _, entries = self._entries[self._ticks[0]]
            while entries:
                try:
                    entries.popitem()[0].due()
                except Exception:
                    # An error in one entry must not keep the others from firing.
                    _log.exception("a deadline failed")
                if self._spent() > until:
                    self._arm()
                    return
            del self._entries[heapq.heappop(self._ticks)]
        while self._ticks and not self._entries[self._ticks[0]][1]:
            # All entries of this tick have been dropped: skip it instead of waking up for nothing.
            del self._entries[heapq.heappop(self._ticks)]
        if self._ticks:
            self._arm()


_RESOLUTION_S = 0.001
"""Timers may fire this much early: uvloop counts in whole milliseconds."""


class Deadline:
    """One deadline on the running loop's clock.  `close` must be called, because it refers to its owner."""

    __slots__ = ("_armed_for", "_loop", "_on_due", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], object]) -> None:
        self.at = inf
        self._loop = loop
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = inf

    def move(self, at: float) -> None:
        """Call `on_due` at this time of the loop's clock instead of at the previous one; `inf` means never."""
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
        """Cancel the deadline for good and release the owner."""
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
    """The callback after `close`."""
