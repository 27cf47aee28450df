"""Accounting of an SSE answer, the same for each version of HTTP: the reader gauge, the request's metrics, and its
access-log line."""

from __future__ import annotations

from typing import Final, Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.server.clients import Clients
from gateway.server.request import Note
from gateway.telemetry.access_record import CloseReason
from gateway.telemetry.metrics import Sent

# Enum members are slow to reach in Python 3.11.
_SSE: Final = Mode.SSE
_FOLLOWED, _ABORTED = Outcome.FOLLOWED, Outcome.ABORTED
_LEFT: Final = CloseReason.LEFT


class SseChannel(Protocol):
    """A channel with its SSE answer.  The account is in attributes of the channel: an object of its own for each
    reader costs memory, and time as they come and go."""

    sse_route: str | None
    """The route of the SSE answer in progress; None if there is none."""
    sse_note: Note | None
    sse_began: float
    """When its request was read, by the streams' clock."""
    live_bytes: int
    live_first_byte_s: float
    cut_reason: CloseReason | None


def end_sse(channel: SseChannel, clients: Clients, route: str, reason: CloseReason, *, in_order: bool) -> None:
    """Account for the channel's SSE answer on this route, which has ended; `in_order` if it is whole."""
    outcome = _FOLLOWED if in_order else _ABORTED
    note, channel.sse_note, channel.sse_route = channel.sse_note, None, None
    metrics = clients.metrics
    metrics.subscribers(_SSE, -1, route)
    metrics.request(
        _SSE,
        outcome,
        clients.now() - channel.sse_began,
        route,
        Sent(channel.live_first_byte_s, channel.live_bytes),
        # None would take the trace of the current context, which belongs to another request.
        trace_id=(note.trace_id if note is not None else None) or "",
    )
    if note is not None:
        note.end(outcome, channel.cut_reason or reason if reason is _LEFT else reason)
