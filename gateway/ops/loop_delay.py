"""Measures the delay of the event loop: how late it calls a periodic timer.

A delay of the loop delays every client.  Its causes are long computations, too many ready connections, and a busy
machine.  A timer ten times a second has no measurable cost.
"""

from __future__ import annotations

from typing import Final

from gateway.aio.clock import Clock, Timer
from gateway.ops.figures import DELAY_BOUNDS_S, Histogram

INTERVAL_S: Final = 0.1


class LoopDelay:
    """Measures delays in seconds from `start` to `close`.  `clock` is the loop's clock."""

    def __init__(self, clock: Clock) -> None:
        self.delays = Histogram(DELAY_BOUNDS_S)
        self._clock = clock
        self._due = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to measure.  Needs a running loop."""
        self._due = self._clock.now() + INTERVAL_S
        self._timer = self._clock.call_later(INTERVAL_S, self._called)

    def _called(self) -> None:
        self.delays.observe(max(0.0, self._clock.now() - self._due))
        self.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
