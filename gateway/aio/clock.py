"""Clocks that are passed as arguments.

Code that needs the time or a timer takes a `Clock`.  `SystemClock` uses the machine's clocks and the running loop.
`ManualClock` moves only when a test advances it, so tests need not sleep.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

DETACHED: Final = contextvars.Context()
"""An empty context for timer callbacks and shared work.  They must not run in the context of the request that scheduled
them."""


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A source of time and timers."""

    def now(self) -> float:
        """Return monotonic seconds, for durations."""

    def wall(self) -> float:
        """Return Unix seconds, for times in messages."""

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        """Call `callback` after `delay_s` seconds."""


class SystemClock:
    """The machine's clocks and the running loop's timers."""

    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, delay_s), callback, context=DETACHED)


class _ManualTimer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock for tests.  `advance` moves it, and runs the timers that are due, in order."""

    def __init__(self, now: float = 1_000.0, wall: float = 1_790_000_000.0) -> None:
        self._now = now
        self._wall = wall
        self._timers: list[tuple[float, int, _ManualTimer]] = []
        self._ids = itertools.count()

    def __repr__(self) -> str:
        return f"<ManualClock {self._now:g} s, {self.pending} pending>"

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._wall

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + max(0.0, delay_s), next(self._ids), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Move both clocks forward, and run all timers that become due, the earliest first."""
        target = self._now + seconds
        while self._timers and self._timers[0][0] <= target:
            due, _, timer = heapq.heappop(self._timers)
            self._wall += due - self._now
            self._now = due
            if not timer.cancelled:
                DETACHED.copy().run(timer.callback)
        self._wall += target - self._now
        self._now = target

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward (or back), as a time server does.  The monotonic clock stays as it is."""
        self._wall += seconds

    @property
    def pending(self) -> int:
        """The number of timers that are neither due nor cancelled."""
        return sum(not timer.cancelled for _, _, timer in self._timers)


async def wait_until(future: asyncio.Future[Any], clock: Clock, delay_s: float) -> bool:
    """Wait for `future` for at most `delay_s` seconds; return whether it is done.  Does not cancel the future."""
    if future.done():
        return True
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[None] = loop.create_future()

    def open_gate(_: object = None) -> None:
        if not gate.done():
            gate.set_result(None)

    timer = clock.call_later(delay_s, open_gate)
    future.add_done_callback(open_gate)
    try:
        await gate
    finally:
        timer.cancel()
        future.remove_done_callback(open_gate)
    return future.done()


async def pause(clock: Clock, delay_s: float) -> None:
    """Sleep for `delay_s` seconds of `clock`."""
    await wait_until(asyncio.get_running_loop().create_future(), clock, delay_s)
