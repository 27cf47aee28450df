"""The bound on interim replies, which is one on their rate: an origin may send them for as long as it works."""

from __future__ import annotations

from typing import Final

MOST_INTERIM: Final = 16
"""Interim replies at once before one final reply."""
INTERIM_PER_S: Final = 4.0
"""Interim replies a second after those."""


class InterimRate:
    """The interim replies to one request, bounded by rate.  Owner of their level."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._level = 0.0
        self._at = 0.0

    def count(self, now: float) -> bool:
        """Count one that arrives at `now`, in monotonic seconds; False if there are too many."""
        self._level = max(0.0, self._level - (now - self._at) * INTERIM_PER_S) + 1
        self._at = now
        return self._level <= MOST_INTERIM
