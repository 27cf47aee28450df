"""What a client may do for nothing: frames that cost work and bring no request, within a rate.

Each kind has a bucket that holds so many and runs dry at so many a second.  Honest clients come nowhere near; a flood
fills its bucket within milliseconds, and its connection goes (RFC 9113 section 10.5).
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple


class Kind(Enum):
    """What is counted."""

    RESET = "reset"
    """Requests that the client takes back (CVE-2023-44487), or has taken back by its mistakes (CVE-2025-8671)."""
    REFUSED = "refused"
    """Requests beyond the bound on those that are open at once."""
    PING = "ping"
    SETTINGS = "settings"
    EMPTY = "empty"
    """Frames that carry nothing: DATA, HEADERS and CONTINUATION of no bytes."""
    CONTINUATION = "continuation"
    WINDOW = "window"
    """Windows that grow, beyond those for which something was sent (CVE-2019-9511)."""
    IDLE = "idle"
    """Priorities, frames of unknown types, and what comes for streams that have ended."""


class Allowance(NamedTuple):
    """A bucket."""

    holds: int
    per_s: int


ALLOWANCES: Final = {
    # A page that is left takes back what it has open: a hundred at once, some times in a row.
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
    """The buckets of one connection."""

    __slots__ = ("_levels",)

    def __init__(self) -> None:
        self._levels: dict[Kind, tuple[float, float]] = {}
        """How full each was, and when."""

    def spend(self, kind: Kind, now: float) -> bool:
        """Count one; False where it is one too many.  `now` is in monotonic seconds."""
        holds, per_s = ALLOWANCES[kind]
        level, at = self._levels.get(kind, (0.0, now))
        level = max(0.0, level - (now - at) * per_s) + 1
        self._levels[kind] = level, now
        return level <= holds
