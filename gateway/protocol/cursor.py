"""Cursors: the numbers that keep caches between client and gateway from answering a live read twice (section 8.1).

A cursor is the count of 20-second intervals since 2024-10-09T00:00:00Z, as a decimal string.  It varies cache keys and
nothing else: no read is ever answered differently because of it.  The one rule is that a client never gets back a
cursor that is not above the one it sent.  What a client sends is untrusted: anything but a plain decimal number up to
2^53 counts as no cursor at all, never as an error.
"""

from __future__ import annotations

import random
from typing import Final

EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00:00Z in Unix seconds."""

INTERVAL_S: Final = 20
MAX_JITTER_INTERVALS: Final = 3600 // INTERVAL_S
"""The protocol's jitter of 1 to 3600 s, in whole intervals: 1 to 180."""

_MAX_CURSOR: Final = 2**53
_MAX_CHARS: Final = len(str(_MAX_CURSOR))


def interval(wall_s: float) -> int:
    """The number of the interval that `wall_s` (Unix seconds) lies in; 0 before the epoch."""
    return max(0, int((wall_s - EPOCH_S) // INTERVAL_S))


def parse_cursor(text: str | None) -> int | None:
    """The client's cursor as a number, or None when there is none worth the name."""
    # The length goes first: int() of thousands of digits is slow, and past 4300 an exception.
    if not text or len(text) > _MAX_CHARS or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= _MAX_CURSOR else None


def next_cursor(wall_s: float, client_cursor: str | None, rng: random.Random) -> str:
    """The cursor for one client: the current interval, or theirs plus 1 to 180 when that is not above it."""
    current = interval(wall_s)
    theirs = parse_cursor(client_cursor)
    if theirs is None or theirs < current:
        return str(current)
    return str(theirs + rng.randint(1, MAX_JITTER_INTERVALS))


def shared_cursor(wall_s: float, floor: int) -> int:
    """The cursor for one frame that many receive: the current interval, and above `floor`, the highest of theirs."""
    return max(interval(wall_s), floor + 1)
