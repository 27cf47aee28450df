"""How late the event loop is: a timer that is set again and again, and how long after its time it is called.

What makes it late makes every client wait: a long computation, too many ready connections, a machine without time to
give.  One timer ten times a second costs nothing that could be measured.
"""

from __future__ import annotations

from typing import Final

from gateway.aio.clock import Clock, Timer
from gateway.ops.figures import DELAY_BOUNDS_S, Histogram

INTERVAL_S: Final = 0.1


class LoopDelay:
    """Measures until it is closed.  `clock` is the loop's; `delays` in seconds."""

    def __init__(self, clock: Clock) -> None:
        self.delays = Histogram(DELAY_BOUNDS_S)
        self._clock = clock
        self._due = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Begin to measure; a loop must be running."""
        self._due = self._clock.now() + INTERVAL_S
        self._timer = self._clock.call_later(INTERVAL_S, self._called)

    def _called(self) -> None:
        self.delays.observe(max(0.0, self._clock.now() - self._due))
        self.start()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
