"""A deadline that moves with every exchange and hardly ever comes.

A timer of the event loop costs some microseconds to set and to take back.  This one is set when there is none that
fires early enough; when it fires too early it is set again, so that a busy connection sets one every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.aio.clock import DETACHED

_RESOLUTION_S = 0.001
"""Timers may fire so much too early: uvloop counts in whole milliseconds."""


class Deadline:
    """One deadline on the running loop's clock.  `close` is owed: it holds its owner."""

    __slots__ = ("_armed_for", "_loop", "_on_due", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, on_due: Callable[[], object]) -> None:
        self.at = inf
        self._loop = loop
        self._on_due = on_due
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = inf

    def move(self, at: float) -> None:
        """Have `on_due` called at this time of the loop's clock and at no other; `inf` is never."""
        self.at = at
        if at < self._armed_for:
            self._arm()

    def clear(self) -> None:
        """Never call, and keep no timer."""
        self.at = inf
        self._armed_for = inf
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Never call again."""
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
    """Whoever was to be called is gone."""
