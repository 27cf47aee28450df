"""The machine's clock, sped up: the system's waits end sooner in real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.aio.clock import Timer

_EPOCH_S = 1.79e9


class FastClock:
    """A clock that runs `speed` times as fast as the machine's (seconds of the system in one real second)."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._began = time.time()

    def now(self) -> float:
        return time.monotonic() * self.speed

    def wall(self) -> float:
        return _EPOCH_S + (time.time() - self._began) * self.speed

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
        return asyncio.get_running_loop().call_later(max(0.0, delay_s) / self.speed, callback)
