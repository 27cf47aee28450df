"""Cursors: query parameters that prevent a cache between client and gateway from giving two live reads the same answer
(section 8.1).

A cursor is the number of 20-second intervals since 2024-10-09T00:00:00Z, as a decimal string.  Requests with different
cursors have different cache keys, and get the same bytes of the stream.  The cursor returned to a client must be
greater than the cursor that the client sent.  A client's cursor that is not a plain decimal number up to 2^53 counts as
absent.

`Cursors` assigns cursors to the live readers of a stream.  Readers that wait together get the same cursor, so that
their next requests have the same URL.  When the stream has new data (news), the shared cursor rises above all cursors
that clients have sent.  The shared cursor then stays until the next news, or until a client that already has this
cursor gets an answer without news.  So all readers get the same cursor, even if some of them send their next requests
before others are answered.  If the shared cursor did not stay, readers with different cursors would never get equal
cursors.

Any client can raise the shared cursor, because a client may send any cursor.  If news comes more often than every 20
seconds, the shared cursor also gets ahead of the clock.  Neither does harm, because the next offset changes the URL of
all readers in any case.  But the shared cursor must not reach the end of the valid cursors.  A client's cursor above
2^52 therefore does not raise the shared cursor, unless the shared cursor is already at least as great.  The answer to
such a client's cursor is the next multiple of 2^20.  If another gateway has raised the cursors of several readers this
far, the readers therefore still get equal cursors.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

EPOCH_S: Final = 1_728_432_000
"""2024-10-09T00:00:00Z in Unix seconds."""

INTERVAL_S: Final = 20
MAX_JITTER_INTERVALS: Final = 3600 // INTERVAL_S
"""The protocol's jitter of 1 to 3600 s in whole intervals: 1 to 180."""

_MAX_CURSOR: Final = 2**53
_MAX_CHARS: Final = len(str(_MAX_CURSOR))
_MOST_NOTED: Final = 2**52
"""A client's cursor above this value does not raise the shared cursor, unless the shared cursor is already at least as
great."""
_STRIDE: Final = 2**20
"""The answer to a cursor that does not raise the shared cursor is a multiple of this number."""


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
    """Return the cursor for one client.  It is the current interval if that is above the client's cursor.  Otherwise it
    is the client's cursor plus 1 to 180.
    """
    current = interval(wall_s)
    theirs = parse_cursor(client_cursor)
    if theirs is None or theirs < current:
        return str(current)
    return str(theirs + rng.randint(1, MAX_JITTER_INTERVALS))


class Cursors:
    """The cursors of one stream.  `wall` gives Unix seconds."""

    __slots__ = ("_floor", "_shared", "_wall")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._shared = 0
        """The latest shared cursor.  The present interval replaces it when the interval is greater."""
        self._floor = 0
        """The greatest cursor that clients have sent."""

    def __repr__(self) -> str:
        return f"<Cursors {self.shared()}>"

    def note(self, cursor: str | None) -> None:
        """Record a client's cursor.  The shared cursor becomes greater than this cursor with the next news."""
        value = parse_cursor(cursor)
        if value is not None and value <= max(_MOST_NOTED, self._shared):
            self._floor = max(self._floor, value)

    def rise(self) -> None:
        """Raise the shared cursor above all cursors that clients have sent.  Called when the stream has news for its
        readers."""
        if self._floor:
            self._shared = max(self._shared, self._floor + 1)

    def shared(self) -> int:
        """Return the present cursor of shared frames (SSE events for several clients).  The cursor never decreases,
        even if the clock is set back.
        """
        self._shared = max(self._shared, interval(self._wall()))
        return self._shared

    def next_for(self, client: str | None) -> str:
        """Return the next cursor for a client that has sent the cursor `client`.

        The result is the shared cursor, which is first raised above `client` if necessary.  If `client` must not raise
        the shared cursor, the result is the next multiple of `_STRIDE`.
        """
        own = parse_cursor(client)
        if own is not None and own >= self.shared():
            self.rise()
        shared = self.shared()
        return str(shared if own is None or own < shared else (own // _STRIDE + 1) * _STRIDE)
