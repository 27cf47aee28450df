"""Counters over all HTTP/2 sessions of one gateway: open sessions, and how streams and connections were ended.

Sessions and their connections update them; figures are computed when they are read.  This module does not know what the
counts are used for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Protocol

from gateway.http.http2.flood_limits import Kind
from gateway.http.http2.frames import ErrorCode


class OpenSession(Protocol):
    """A session as far as it is counted."""

    @property
    def streams(self) -> Sized:
        """The streams on which either side may still send."""


class SessionCounts:
    """Counters over all sessions of one gateway.  Owner of the set of open sessions."""

    def __init__(self) -> None:
        self._open: set[OpenSession] = set()
        self.resets: Counter[ErrorCode] = Counter()
        """RST_STREAM frames sent by this side, by error code (RFC 9113 section 7)."""
        self.goaways: Counter[ErrorCode] = Counter()
        """Connections on which this side has sent GOAWAY, by error code.  The two frames of an orderly end count as
        one."""
        self.floods: Counter[Kind] = Counter()
        """Connections that this side has ended because of too many frames of a kind."""

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
