"""Spreads work that many timers start at the same time, such as closing uploads that time out together.

A bound on the work of one iteration of the event loop is not enough, because such work continues in later iterations.
"""

from __future__ import annotations

from gateway.aio.clock import Clock, pause


class Pace:
    """Admits one caller every `every_s` seconds, but lets no caller wait longer than `most_s` seconds."""

    def __init__(self, clock: Clock, every_s: float, most_s: float) -> None:
        self._clock = clock
        self._every_s = every_s
        self._most_s = most_s
        self._free_at = -most_s
        """The time from which the next caller may be admitted."""

    def __repr__(self) -> str:
        return f"<Pace busy for {max(0.0, self._free_at - self._clock.now()):g} s>"

    async def turn(self) -> None:
        """Wait until this caller is admitted.  Return at once if the previous caller was admitted at least `every_s`
        ago."""
        now = self._clock.now()
        at = min(max(now, self._free_at), now + self._most_s)
        self._free_at = at + self._every_s
        if at > now:
            await pause(self._clock, at - now)
