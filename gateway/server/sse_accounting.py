"""Accounting of an SSE answer, the same for each version of HTTP: the reader gauge, the request's metrics, and its
access-log line."""

from __future__ import annotations

from typing import Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.clients import Clients
from gateway.server.request import Note
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import Sent


class SseChannel(Protocol):
    """What a channel knows of the SSE answer that it carried."""

    live_bytes: int
    live_first_byte_s: float
    cut_reason: CloseReason | None


class SseAccounting:
    """The accounting of one SSE answer, from its begin to `close`.  `began` is when its request was read, by the
    streams' clock."""

    __slots__ = ("_clients", "_note", "_route", "began")

    def __init__(self, clients: Clients, route: str, began: float, note: Note | None) -> None:
        self._clients = clients
        self._route = route
        self._note = note
        self.began = began
        clients.metrics.subscribers(Mode.SSE, 1, route)

    def close(self, channel: SseChannel, reason: CloseReason, *, in_order: bool) -> None:
        """The answer has ended; `in_order` if it is whole."""
        outcome = Outcome.FOLLOWED if in_order else Outcome.ABORTED
        metrics, route, note = self._clients.metrics, self._route, self._note
        metrics.subscribers(Mode.SSE, -1, route)
        metrics.request(
            Mode.SSE,
            outcome,
            self._clients.now() - self.began,
            route,
            Sent(channel.live_first_byte_s, channel.live_bytes),
            # None would take the trace of the current context, which belongs to another request.
            trace_id=(note.trace_id if note is not None else None) or "",
        )
        if note is not None:
            note.end(outcome, channel.cut_reason or reason if reason is CloseReason.LEFT else reason)
