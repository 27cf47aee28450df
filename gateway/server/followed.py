"""How an SSE answer is counted and noted, over whichever version of HTTP: a reader more when it begins, one less and a
request when it ends."""

from __future__ import annotations

from typing import Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.clients import Clients
from gateway.server.request import Note
from gateway.telemetry.access_record import CloseReason


class Sent(Protocol):
    """What a channel knows of the answer that it was given."""

    live_bytes: int
    live_first_byte_s: float
    why_cut: CloseReason | None


class Followed:
    """The account of one SSE answer; `close` is owed.  `began` is when its request was read, by the streams' clock."""

    __slots__ = ("_clients", "_note", "_route", "began")

    def __init__(self, clients: Clients, route: str, began: float, note: Note | None) -> None:
        self._clients = clients
        self._route = route
        self._note = note
        self.began = began
        clients.metrics.subscribers(Mode.SSE, 1, route)

    def close(self, channel: Sent, reason: CloseReason, *, in_order: bool) -> None:
        """The answer that was given to the channel is whole, or never will be."""
        outcome = Outcome.FOLLOWED if in_order else Outcome.ABORTED
        metrics, route, note = self._clients.metrics, self._route, self._note
        metrics.subscribers(Mode.SSE, -1, route)
        metrics.request(
            Mode.SSE,
            outcome,
            self._clients.now() - self.began,
            route,
            first_byte_s=channel.live_first_byte_s,
            sent_bytes=channel.live_bytes,
            # None would mean the trace of the request that is being answered here, which is another one.
            trace_id=(note.trace_id if note is not None else None) or "",
        )
        if note is not None:
            note.end(outcome, channel.why_cut or reason if reason is CloseReason.LEFT else reason)
