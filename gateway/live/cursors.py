"""The cursors of one stream's live readers (section 8.1).

The readers that wait together get one cursor, the shared one, so that they return with one request.  It is above every
cursor that a client has shown, unless that is far ahead: such clients share a cursor of their own, which no ordinary
client is drawn up to.  `gateway.protocol.cursor` has the arithmetic; `gateway.engine.live_read` asks.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from gateway.protocol.cursor import interval, next_cursor, parse_cursor, shared_cursor

_REACH: Final = 1_000
"""A client's cursor that is more intervals ahead than this does not raise the shared cursor."""
_HIGH_REACH: Final = 1 << 40
"""A cursor that is more intervals ahead than this does not raise the cursor of far-ahead clients either.  Events can
never advance a cursor this far, and it is far below the largest valid cursor."""


class Cursors:
    """The cursors of one stream.  `wall` gives Unix seconds."""

    __slots__ = ("_floor", "_high_floor", "_wall")

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._floor = 0
        self._high_floor = 0
        """The floor for clients whose cursors are far ahead: each answer advances the clients that read on."""

    def __repr__(self) -> str:
        return f"<Cursors {self.shared()}>"

    def note(self, cursor: str | None, wall: float) -> None:
        """Record a client's cursor, so that shared frames carry a greater one."""
        value = parse_cursor(cursor)
        if value is None:
            return
        ahead = value - interval(wall)
        if ahead <= _REACH:
            self._floor = max(self._floor, value)
        elif ahead <= _HIGH_REACH:
            self._high_floor = max(self._high_floor, value)

    def is_far(self, cursor: int) -> bool:
        """Whether a client that showed this cursor shares the cursor of the far-ahead clients."""
        return interval(self._wall()) + _REACH < cursor <= self._high_floor

    def shared(self) -> int:
        """The cursor that shared frames carry now."""
        return self._shared_at(self._wall())

    def next_for(self, client: str | None, wall: float, rng: random.Random) -> str:
        """The cursor of the next frame for a client that showed `client`: the shared one unless its own is higher."""
        shared = self._shared_at(wall)
        own = parse_cursor(client)
        if own is None or own < shared:
            return str(shared)
        return str(self._high_floor + 1) if self.is_far(own) else next_cursor(wall, client, rng)

    def _shared_at(self, wall: float) -> int:
        return shared_cursor(wall, self._floor) if self._floor else interval(wall)
