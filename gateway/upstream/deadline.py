"""A deadline that moves with every exchange and rarely passes.

Setting and cancelling a timer of the event loop costs some microseconds.  A deadline therefore keeps its timer when it
moves to a later time and sets it again when it fires too early.  A busy connection sets one every few seconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.aio.clock import DETACHED

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
