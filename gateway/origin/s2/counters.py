"""Counters of the requests and records that reached the origin.

Tests wait for them, and use them to measure how much work a gateway saves the origin.  A record counts each time it is
sent.  Sessions are long-lived requests: SSE reads, read sessions, append sessions.
"""

from __future__ import annotations

from typing import Final

from gateway.origin.counters import RequestCounters
from gateway.origin.s2.calls import Call

SESSIONS: Final = frozenset({Call.READ_EVENTS, Call.READ_SESSION, Call.APPEND_SESSION})


class S2Counters(RequestCounters[Call]):
    """The S2 origin's counters: also counts records by call, and open sessions with their peaks."""

    def __init__(self) -> None:
        super().__init__(Call)
        self.records_sent: dict[Call, int] = dict.fromkeys(Call, 0)
        """Records in answers, counted each time they are sent."""
        self.records_appended = 0
        self.heartbeats_sent = 0
        self.sessions: dict[Call, int] = dict.fromkeys(SESSIONS, 0)
        """Sessions in progress."""
        self.sessions_peak: dict[Call, int] = dict.fromkeys(SESSIONS, 0)

    def __repr__(self) -> str:
        sessions = sum(self.sessions.values())
        return f"<S2Counters {self.total_requests} requests, {sessions} sessions, {self.total_records_sent} records>"

    @property
    def total_records_sent(self) -> int:
        return sum(self.records_sent.values())

    def reset(self) -> None:
        """Reset the sums.  Open sessions stay counted, and their numbers become the peaks."""
        self.records_sent.update(dict.fromkeys(Call, 0))
        self.sessions_peak.update(self.sessions)
        self.records_appended = self.heartbeats_sent = 0
        super().reset()

    async def sessions_are(self, call: Call | str, count: int) -> None:
        """Wait until exactly `count` sessions of this kind are in progress."""
        wanted = Call(call)
        await self.until(lambda counters: counters.sessions[wanted] == count)

    def began(self, call: Call) -> None:
        if call in SESSIONS:
            self.sessions[call] += 1
            self.sessions_peak[call] = max(self.sessions_peak[call], self.sessions[call])
        super().began(call)

    def ended(self, call: Call) -> None:
        if call in SESSIONS:
            self.sessions[call] -= 1
        super().ended(call)

    def delivered(self, call: Call, records: int) -> None:
        """Count a batch that was sent.  One without records is a heartbeat."""
        self.records_sent[call] += records
        self.heartbeats_sent += not records
        self._changed()

    def appended(self, records: int) -> None:
        """Count records that were stored."""
        self.records_appended += records
        self._changed()
