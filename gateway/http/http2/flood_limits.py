"""Rate limits on frames that cost work and bring no request.

Each kind of frame has a bucket with a size and a drain rate.  Regular clients stay far below the limits; a flood fills
its bucket within milliseconds, and `gateway.http.http2.reading` ends its connection (RFC 9113 section 10.5).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """The kinds of frames that are limited."""

    RESET = "reset"
    """Streams reset by the client soon after they began and before their answer did (CVE-2023-44487), or by this side
    for an error of the client's (CVE-2025-8671)."""
    REFUSED = "refused"
    """Requests beyond the bound on concurrent streams."""
    PING = "ping"
    SETTINGS = "settings"
    EMPTY = "empty"
    """DATA, HEADERS and CONTINUATION frames without content."""
    CONTINUATION = "continuation"
    WINDOW = "window"
    """Window updates beyond what sent data accounts for (CVE-2019-9511)."""
    IDLE = "idle"
    """Priorities, frames of unknown types, and frames for streams that have ended, resets included."""


class Allowance(NamedTuple):
    """The size of a bucket and its drain rate, in frames and frames per second."""

    holds: int
    per_s: int


ALLOWANCES: Final = {
    # Leaving a page resets its open requests: a hundred at once, several times in a row.  A stream whose answer has
    # begun may be reset at any rate (RFC 9113 section 5.4.2).
    Kind.RESET: Allowance(400, 20),
    Kind.REFUSED: Allowance(200, 20),
    Kind.PING: Allowance(60, 5),
    Kind.SETTINGS: Allowance(20, 1),
    Kind.EMPTY: Allowance(100, 10),
    Kind.CONTINUATION: Allowance(200, 20),
    Kind.WINDOW: Allowance(2_000, 500),
    Kind.IDLE: Allowance(2_000, 200),
}


class Budget:
    """The buckets of one connection.  Owner of their levels."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[Kind, tuple[float, float]] = {}
        """The level of each bucket, and the time of that level."""

    def __repr__(self) -> str:
        levels = ", ".join(f"{kind.value} {level:g}" for kind, (level, _) in self._levels.items())
        return f"<Budget {levels or 'unused'}>"

    def spend(self, kind: Kind, now: float) -> bool:
        """Count one frame; False if it exceeds the limit.  `now` is in monotonic seconds."""
        holds, per_s = ALLOWANCES[kind]
        level, at = self._levels.get(kind, (0.0, now))
        level = max(0.0, level - (now - at) * per_s) + 1
        self._levels[kind] = level, now
        return level <= holds
