"""Counters of what has reached the origin: a gateway's offload is judged by them, and tests wait for them.

A record counts each time it is sent.  Sessions are requests that stay: SSE reads, read sessions, append sessions.
"""

from __future__ import annotations

from typing import Final

from gateway.origin.counters import Awaited
from gateway.origin.s2.calls import Call

SESSIONS: Final = frozenset({Call.READ_EVENTS, Call.READ_SESSION, Call.APPEND_SESSION})


class S2Counters(Awaited):
    """Requests, bytes and records by call; open sessions; connections."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: dict[Call, int] = dict.fromkeys(Call, 0)
        self.finished: dict[Call, int] = dict.fromkeys(Call, 0)
        """Requests that have ended, with any outcome."""
        self.body_bytes: dict[Call, int] = dict.fromkeys(Call, 0)
        """Bytes of answers' bodies."""
        self.records_sent: dict[Call, int] = dict.fromkeys(Call, 0)
        """Records in answers, as often as they were sent."""
        self.records_appended = 0
        self.heartbeats_sent = 0
        self.sessions: dict[Call, int] = dict.fromkeys(SESSIONS, 0)
        """Sessions in progress."""
        self.sessions_peak: dict[Call, int] = dict.fromkeys(SESSIONS, 0)
        self.parked = 0
        """Reads at a tail that wait for a record."""
        self.connections = 0
        """TCP connections accepted."""

    def __repr__(self) -> str:
        sessions = sum(self.sessions.values())
        return f"<S2Counters {self.total_requests} requests, {sessions} sessions, {self.total_records_sent} records>"

    @property
    def total_requests(self) -> int:
        return sum(self.requests.values())

    @property
    def total_records_sent(self) -> int:
        return sum(self.records_sent.values())

    def reset(self) -> None:
        """Reset the sums; sessions in progress stay counted, and the peaks restart from their number."""
        for counted in (self.requests, self.finished, self.body_bytes, self.records_sent):
            counted.update(dict.fromkeys(Call, 0))
        self.sessions_peak.update(self.sessions)
        self.records_appended = self.heartbeats_sent = self.connections = 0
        self._changed()

    async def reached(self, call: Call | str, count: int) -> None:
        """Wait until at least `count` requests of this kind have arrived."""
        wanted = Call(call)
        await self.until(lambda counters: counters.requests[wanted] >= count)

    async def sessions_are(self, call: Call | str, count: int) -> None:
        """Wait until exactly `count` sessions of this kind are in progress."""
        wanted = Call(call)
        await self.until(lambda counters: counters.sessions[wanted] == count)

    async def parked_is(self, count: int) -> None:
        """Wait until exactly `count` reads wait at a tail."""
        await self.until(lambda counters: counters.parked == count)

    # -- for the handlers

    def began(self, call: Call) -> None:
        """A request arrived."""
        self.requests[call] += 1
        if call in SESSIONS:
            self.sessions[call] += 1
            self.sessions_peak[call] = max(self.sessions_peak[call], self.sessions[call])
        self._changed()

    def ended(self, call: Call) -> None:
        """A request ended."""
        self.finished[call] += 1
        if call in SESSIONS:
            self.sessions[call] -= 1
        self._changed()

    def sent(self, call: Call, size: int) -> None:
        """Bytes of a body were sent."""
        self.body_bytes[call] += size
        self._changed()

    def delivered(self, call: Call, records: int) -> None:
        """A batch of records was sent; one without records is a heartbeat."""
        self.records_sent[call] += records
        self.heartbeats_sent += not records
        self._changed()

    def appended(self, records: int) -> None:
        """Records were stored."""
        self.records_appended += records
        self._changed()

    def parked_by(self, change: int) -> None:
        """A read began (+1) or stopped (-1) to wait at a tail."""
        self.parked += change
        self._changed()

    def connected(self) -> None:
        """A TCP connection was accepted."""
        self.connections += 1
        self._changed()
