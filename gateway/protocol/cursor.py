"""Cursors: query parameters that keep caches between client and gateway from answering two live reads alike (section
8.1).

A cursor is the number of 20-second intervals since 2024-10-09T00:00:00Z, as a decimal string.  It only varies cache
keys, and never changes the answer to a read.  The cursor returned to a client must be greater than the cursor that the
client sent.  A client's cursor that is not a plain decimal number up to 2^53 counts as absent.  Live readers of a
stream that wait together share a cursor (`gateway.live.topic`).
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
    """Return the number of the interval that contains `wall_s` (Unix seconds); 0 before the epoch."""
    return max(0, int((wall_s - EPOCH_S) // INTERVAL_S))


def parse_cursor(text: str | None) -> int | None:
    """Return the client's cursor as a number; None if it is absent or invalid."""
    # Check the length first: int() is slow for thousands of digits, and raises beyond 4300.
    if not text or len(text) > _MAX_CHARS or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= _MAX_CURSOR else None


def next_cursor(wall_s: float, client_cursor: str | None, rng: random.Random) -> str:
    """Return the cursor for one client: the current interval if that is above the client's cursor, or else the client's
    cursor plus 1 to 180.
    """
    current = interval(wall_s)
    theirs = parse_cursor(client_cursor)
    if theirs is None or theirs < current:
        return str(current)
    return str(theirs + rng.randint(1, MAX_JITTER_INTERVALS))


def shared_cursor(wall_s: float, floor: int) -> int:
    """Return the cursor for a response with many receivers: the current interval, or `floor` + 1 if that is higher.

    `floor` is the highest cursor that one of the clients has sent.
    """
    return max(interval(wall_s), floor + 1)
