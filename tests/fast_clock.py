"""The machine's clock, sped up: the system's waits end sooner in real time.

A system whose seconds are short would find its times run out where other programs have the processors.  So the time for
which this process was ready to run and had no processor does not count.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from functools import cache
from typing import Final

from gateway.aio.clock import Timer

_EPOCH_S = 1.79e9
_EARLY_S: Final = 1e-4
"""Real seconds by which a timer may be early."""
_LOOK_S: Final = 0.0005
"""Real seconds in which no wait for a processor is looked for."""


class _Timer:
    """A call that is due at a time of a `FastClock`."""

    def __init__(self, clock: FastClock, due: float, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._due = due
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._wait()

    def _wait(self) -> None:
        left_s = max(0.0, self._due - self._clock.now()) / self._clock.speed
        self._handle = self._loop.call_later(left_s, self._call)

    def _call(self) -> None:
        if (self._due - self._clock.now()) / self._clock.speed > _EARLY_S:
            self._wait()
        else:
            self._callback()

    def cancel(self) -> None:
        self._handle.cancel()


class FastClock:
    """A clock that runs `speed` times as fast as the machine's (seconds of the system in one real second)."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._looked_at = time.monotonic()
        self._waited_s = _kept_waiting_s()
        self._began = self.now()

    def now(self) -> float:
        at = time.monotonic()
        if at - self._looked_at > _LOOK_S:
            self._looked_at, self._waited_s = at, _kept_waiting_s()
        return (at - self._waited_s) * self.speed

    def wall(self) -> float:
        return _EPOCH_S + self.now() - self._began

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return _Timer(self, self.now() + delay_s, callback)


class CommonClock(FastClock):
    """A fast clock that several processes share, so that the waits of each for a processor count.

    `began` is the machine's monotonic time (seconds) at which the Unix time is that of the epoch.
    """

    def __init__(self, speed: float, began: float | None = None) -> None:
        super().__init__(speed)
        self.began = time.monotonic() if began is None else began
        self._began = self.began * speed

    def now(self) -> float:
        return time.monotonic() * self.speed


def _kept_waiting_s() -> float:
    """Seconds for which this process has waited for a processor; 0 where the system does not count them.

    Linux, Documentation/scheduler/sched-stats.rst.
    """
    file = _schedule()
    return int(os.pread(file, 64, 0).split()[1]) / 1e9 if file is not None else 0.0


@cache
def _schedule() -> int | None:
    try:
        return os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
