"""Rounds of deliveries: how long after something came it had been handed to every live reader of its stream.

A round begins with the first news since the last one, because news of one turn of the loop goes out together, and ends
when the last reader was handed it.  News that nobody was there to hear is no round.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.telemetry.metrics import MetricsRecorder


class Rounds:
    """The rounds of one topic.  `now` gives monotonic seconds."""

    __slots__ = ("_came_at", "_metrics", "_now", "_route")

    def __init__(self, metrics: MetricsRecorder, now: Callable[[], float], route: str) -> None:
        self._metrics = metrics
        self._now = now
        self._route = route
        self._came_at: float | None = None

    def came(self) -> None:
        """There is news to hand over."""
        if self._came_at is None:
            self._came_at = self._now()

    def handed(self, readers: int) -> None:
        """So many readers have been handed what had come, if anything had."""
        came_at, self._came_at = self._came_at, None
        if came_at is not None and readers:
            self._metrics.delivered(readers, self._now() - came_at, self._route)
