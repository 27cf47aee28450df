"""What the sessions of one gateway are counted by: those that are open, and how streams and connections were ended.

Sessions and their connections count here as they go; figures are made of it when somebody looks.  Nothing here knows
what the counts are for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Protocol

from gateway.http.http2.budget import Kind
from gateway.http.http2.frames import ErrorCode


class OpenSession(Protocol):
    """A session, as far as it is counted."""

    @property
    def streams(self) -> Sized:
        """Those that either side may still send on."""


class SessionCounts:
    """Counts over all sessions of one gateway.  Owner of the set of those that are open."""

    def __init__(self) -> None:
        self._open: set[OpenSession] = set()
        self.resets: Counter[ErrorCode] = Counter()
        """RST_STREAM frames that this side has written, by their code (RFC 9113 section 7)."""
        self.goaways: Counter[ErrorCode] = Counter()
        """Connections that this side has sent GOAWAY, by the code.  The two frames of an orderly end count as one."""
        self.floods: Counter[Kind] = Counter()
        """Connections that this side has ended because a kind of frame came too often."""

    def __repr__(self) -> str:
        return f"<SessionCounts {self.connections} connections, {self.streams} streams>"

    @property
    def connections(self) -> int:
        """Sessions that are open."""
        return len(self._open)

    @property
    def streams(self) -> int:
        """Streams of all of them."""
        return sum(len(session.streams) for session in self._open)

    def opened(self, session: OpenSession) -> None:
        """A connection has begun to speak HTTP/2."""
        self._open.add(session)

    def closed(self, session: OpenSession) -> None:
        """It is gone."""
        self._open.discard(session)
