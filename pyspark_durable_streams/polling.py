"""Pauses between looks for new messages that find none.

Without a trigger interval Spark asks for the end of the next batch a hundred times a second.  Each look costs a request
for each stream, which an origin without a gateway would answer itself.  After a look that finds nothing, the next one
waits `FIRST_S`, then twice as long each time up to a bound.  News end the pauses, so a busy query is not delayed.
"""

from __future__ import annotations

from typing import Final

FIRST_S: Final = 0.02


class Polling:
    """When the next look for new messages is due.  `most_s` bounds a pause, in seconds."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._pause_s = 0.0
        self._due_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether to look now."""
        return not self._pause_s or now >= self._due_at

    def found(self, now: float, *, has_news: bool) -> None:
        """Record a look that ended now."""
        self._pause_s = 0.0 if has_news else min(max(2 * self._pause_s, FIRST_S), self._most_s)
        self._due_at = now + self._pause_s
