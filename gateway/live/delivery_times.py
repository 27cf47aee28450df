"""Delivery rounds: the time from the arrival of bytes until every live reader of the stream has been handed them.

A round starts with the first arrival after the previous round, because arrivals of one turn of the loop go out
together.  It ends when the last reader has been handed the bytes.  Arrivals without readers make no round.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.telemetry.metrics import MetricsRecorder


class DeliveryTimes:
    """The rounds of one topic.  `now` gives monotonic seconds."""

    __slots__ = ("_arrived_at", "_metrics", "_now", "_route")

    def __init__(self, metrics: MetricsRecorder, now: Callable[[], float], route: str) -> None:
        self._metrics = metrics
        self._now = now
        self._route = route
        self._arrived_at: float | None = None

    def arrived(self) -> None:
        """Bytes have arrived for the readers."""
        if self._arrived_at is None:
            self._arrived_at = self._now()

    def delivered(self, readers: int) -> None:
        """`readers` live readers were handed everything that had arrived."""
        arrived_at, self._arrived_at = self._arrived_at, None
        if arrived_at is not None and readers:
            self._metrics.delivered(readers, self._now() - arrived_at, self._route)
