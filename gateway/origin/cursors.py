"""Cursors: numbers that change with time, so that no cache repeats an empty live reply forever (section 8.1)."""

from __future__ import annotations

from random import Random
from typing import Final

EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00:00Z in Unix seconds."""

INTERVAL_S: Final = 20
MAX_JITTER_S: Final = 3600


def next_cursor(client_cursor: str | None, wall_s: float, random: Random) -> str:
    """Return the number of the current interval.  If the client's cursor is not lower than this number, return the
    client's cursor plus 1 to 3600 s, counted in intervals."""
    current = max(0, int(wall_s - EPOCH_S) // INTERVAL_S)
    if client_cursor and client_cursor.isascii() and client_cursor.isdigit() and len(client_cursor) <= 18:
        seen = int(client_cursor)
        if seen >= current:
            return str(seen + random.randint(1, MAX_JITTER_S // INTERVAL_S))
    return str(current)
