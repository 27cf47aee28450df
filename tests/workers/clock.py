"""A manual clock for several processes: a test moves it, and the timers of all processes that are due then run."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import mmap
import os
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gateway.aio.clock import DETACHED

_NOW_S: Final = 1_000.0
_WALL_S: Final = 1_790_000_000.0
_LOOK_S: Final = 0.002
"""Real seconds between two looks at the clock, in a process that has timers."""


class _Timer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SharedClock:
    """The clock of all processes that open the same file, which has eight bytes."""

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._shared = mmap.mmap(descriptor, 8)
        finally:
            os.close(descriptor)
        self._timers: list[tuple[float, int, _Timer]] = []
        self._ids = itertools.count()
        self._looking: asyncio.TimerHandle | None = None

    @classmethod
    def create(cls) -> SharedClock:
        """One of a new file; `close` is owed."""
        descriptor, path = tempfile.mkstemp(prefix="clock-")
        os.ftruncate(descriptor, 8)
        os.close(descriptor)
        return cls(path)

    @property
    def _passed_s(self) -> float:
        passed: float = struct.unpack("d", self._shared[:8])[0]
        return passed

    def now(self) -> float:
        return _NOW_S + self._passed_s

    def wall(self) -> float:
        return _WALL_S + self._passed_s

    def advance(self, seconds: float) -> None:
        """Move the clock of all processes.  Timers that are due run in the next turns of their loops."""
        self._shared[:8] = struct.pack("d", self._passed_s + seconds)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (self.now() + max(0.0, delay_s), next(self._ids), timer))
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look, context=DETACHED)
        return timer

    def _look(self) -> None:
        self._looking = None
        now = self.now()
        while self._timers and (self._timers[0][0] <= now or self._timers[0][2].cancelled):
            _, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                DETACHED.copy().run(timer.callback)
        if self._timers and self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_LOOK_S, self._look, context=DETACHED)

    def close(self) -> None:
        """Remove the file.  Timers that are still to come do not run."""
        if self._looking is not None:
            self._looking.cancel()
        self._shared.close()
        Path(self.path).unlink()
