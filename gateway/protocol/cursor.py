"""Cursors: they stop caches between client and gateway from answering a live read twice (section 8.1).

A cursor is the count of 20-second intervals since 2024-10-09T00:00:00Z, as a decimal string.  It varies cache keys and
nothing else: it never changes the answer to a read.  The one rule is that the cursor returned to a client is above the
one it sent.  Client input is untrusted: anything but a plain decimal number up to 2^53 counts as an absent cursor,
never as an error.  The live readers of a stream that wait together share a cursor: `gateway.live.topic`.
"""

from __future__ import annotations

import random
from typing import Final

EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00:00Z in Unix seconds."""

INTERVAL_S: Final = 20
MAX_JITTER_INTERVALS: Final = 3600 // INTERVAL_S
"""The protocol's jitter of 1 to 3600 s in whole intervals: 1 to 180."""

_MAX_CURSOR: Final = 2**53
_MAX_CHARS: Final = len(str(_MAX_CURSOR))


def interval(wall_s: float) -> int:
    """The number of the interval that contains `wall_s` (Unix seconds); 0 before the epoch."""
    return max(0, int((wall_s - EPOCH_S) // INTERVAL_S))


def parse_cursor(text: str | None) -> int | None:
    """The client's cursor as a number; None if it is absent or not a valid cursor."""
    # Check the length first: int() of thousands of digits is slow, and beyond 4300 digits it raises.
    if not text or len(text) > _MAX_CHARS or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= _MAX_CURSOR else None


def next_cursor(wall_s: float, client_cursor: str | None, rng: random.Random) -> str:
    """The cursor for one client: the current interval, or the client's plus 1 to 180 if that is not below it."""
    current = interval(wall_s)
    theirs = parse_cursor(client_cursor)
    if theirs is None or theirs < current:
        return str(current)
    return str(theirs + rng.randint(1, MAX_JITTER_INTERVALS))


def shared_cursor(wall_s: float, floor: int) -> int:
    """The cursor for a frame with many receivers: the current interval, but above `floor`, the highest cursor that a
    client has shown."""
    return max(interval(wall_s), floor + 1)
