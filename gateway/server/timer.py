"""A one-shot timer on the wheel, for owners that have several deadlines."""

from __future__ import annotations

from collections.abc import Callable

from gateway.aio.wheel import NEVER, Wheel


class WheelTimer:
    """Calls `callback` once its time has passed, unless it is cleared or set again before."""

    __slots__ = ("_callback", "_tick", "_wheel")

    def __init__(self, wheel: Wheel, callback: Callable[[], None]) -> None:
        self._wheel = wheel
        self._callback = callback
        self._tick = NEVER

    @property
    def is_set(self) -> bool:
        return self._tick != NEVER

    def set(self, delay_s: float) -> None:
        self.clear()
        self._tick = self._wheel.add(self, delay_s)

    def clear(self) -> None:
        if self._tick != NEVER:
            self._wheel.drop(self, self._tick)
            self._tick = NEVER

    def end(self) -> None:
        """Clear it for good, and drop the callback, which refers to the timer's owner."""
        self.clear()
        self._callback = _no_op

    def due(self) -> None:
        """Called by the wheel."""
        self._tick = NEVER
        self._callback()


def _no_op() -> None:
    """The callback of a timer whose owner is gone."""
