"""Rate limits on frames that cause work although they make no request, and the counters of sessions.

Each kind of frame has a leaky bucket with a size and a drain rate.  Regular clients stay far below the limits.  A flood
fills its bucket within milliseconds, and `gateway.http.http2.reading` then ends the connection (RFC 9113 section 10.5).

`SessionCounts` has the counters of all HTTP/2 sessions of one gateway: the open sessions, and the ends of streams and
connections by reason.  Sessions and connections update these counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from enum import Enum
from typing import Final, NamedTuple, Protocol

from gateway.http.http2.frames import ErrorCode


class Kind(Enum):
    """The limited kinds of frames."""

    RESET = "reset"
    """Streams that the client resets soon after it began them, before the answer has begun (CVE-2023-44487).  Also
    streams that this side resets for an error of the client's (CVE-2025-8671)."""
    REFUSED = "refused"
    """Requests beyond the bound on concurrent streams."""
    PING = "ping"
    SETTINGS = "settings"
    EMPTY = "empty"
    """DATA, HEADERS and CONTINUATION frames without content."""
    CONTINUATION = "continuation"
    WINDOW = "window"
    """More window updates than the sent data justifies (CVE-2019-9511)."""
    IDLE = "idle"
    """Priorities, frames of unknown types, and frames for ended streams, including resets."""


class Allowance(NamedTuple):
    """A bucket's size in frames, and its drain rate in frames per second."""

    holds: int
    per_s: int


ALLOWANCES: Final = {
    # A browser that leaves a page resets its open requests: a hundred at once, several times in a row.  Streams whose
    # answer has begun may be reset at any rate (RFC 9113 section 5.4.2).
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
        """The level of each bucket, and the time of that level."""

    def __repr__(self) -> str:
        levels = ", ".join(f"{kind.value} {level:g}" for kind, (level, _) in self._levels.items())
        return f"<Budget {levels or 'unused'}>"

    def spend(self, kind: Kind, now: float) -> bool:
        """Count one frame at `now`, in monotonic seconds.  Returns False if it exceeds the limit."""
        holds, per_s = ALLOWANCES[kind]
        level, at = self._levels.get(kind, (0.0, now))
        level = max(0.0, level - (now - at) * per_s) + 1
        self._levels[kind] = level, now
        return level <= holds


class OpenSession(Protocol):
    """The part of a session that `SessionCounts` reads."""

    @property
    def streams(self) -> Sized:
        """The streams on which either side may still send."""


class SessionCounts:
    """The counters of all sessions of one gateway.  It owns the set of open sessions."""

    def __init__(self) -> None:
        self._open: set[OpenSession] = set()
        self.resets: Counter[ErrorCode] = Counter()
        """RST_STREAM frames sent by this side, by error code (RFC 9113 section 7)."""
        self.goaways: Counter[ErrorCode] = Counter()
        """Connections on which this side has sent GOAWAY, by error code.  The two GOAWAY frames of an orderly end count
        as one.
        """
        self.floods: Counter[Kind] = Counter()
        """Connections that this side has ended because of too many frames of one kind."""

    def __repr__(self) -> str:
        return f"<SessionCounts {self.connections} connections, {self.streams} streams>"

    @property
    def connections(self) -> int:
        """Open sessions."""
        return len(self._open)

    @property
    def streams(self) -> int:
        """Open streams of all sessions."""
        return sum(len(session.streams) for session in self._open)

    def opened(self, session: OpenSession) -> None:
        """Add a session whose connection has begun."""
        self._open.add(session)

    def closed(self, session: OpenSession) -> None:
        """Remove a session whose connection has ended."""
        self._open.discard(session)
