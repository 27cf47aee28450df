"""A pace for work that many timers begin at the same time, such as the failures of uploads that are late together.

Such work goes on in later turns of the event loop, so a bound on the calls of one turn is not enough.
"""

from __future__ import annotations

from gateway.aio.clock import Clock, pause


class Pace:
    """Turns that are `every_s` seconds apart.  No wait is longer than `most_s` seconds, however many wait."""

    def __init__(self, clock: Clock, every_s: float, most_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._most_s = most_s
        self._free_at = -most_s
        """When the next turn may be."""

    def __repr__(self) -> str:
        return f"<Pace busy for {max(0.0, self._free_at - self._clock.now()):g} s>"

    async def turn(self) -> None:
        """Wait for the next turn; not at all if the last one is long enough ago."""
        now = self._clock.now()
        at = min(max(now, self._free_at), now + self._most_s)
        self._free_at = at + self._every_s
        if at > now:
            await pause(self._clock, at - now)
