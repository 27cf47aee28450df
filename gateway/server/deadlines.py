"""Connection deadlines: first request, rest of a head, idle, stalled write, linger.

Each connection has one entry on the wheel, which serves for whichever deadline applies in its phase.  Handlers bound
their own waits.  This module bounds what no handler waits for: an unfinished head, the pause between two requests, an
answer without a task that the client leaves unread, and the last bytes of a closing connection.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from gateway.aio.wheel import NEVER
from gateway.server.clients import Clients
from gateway.telemetry.access_record import CloseReason

_IDLE_CHECKS: Final = 4
"""Checks of an idle connection per keep-alive timeout; this many quiet ones in a row close it."""

UNMEASURED: Final = -1
"""In place of a count of unsent bytes: the next check is the first."""


class Phase(Enum):
    """What a connection is doing."""

    IDLE = "idle"
    """No request is being answered; a part of the next head may have arrived."""
    ANSWERING = "answering"
    """A handler is running."""
    RELAYED = "relayed"
    """An answer is written without a handler that waits for room; a `LiveAnswer` is called when there is room, and when
    the client leaves."""
    LIVE = "live"
    """A live answer is being written or awaited."""
    LINGERING = "lingering"
    """The last answer is written; further input is read and dropped, so that the client can read the answer."""


_UNAWAITED: Final = frozenset({Phase.IDLE, Phase.RELAYED, Phase.LIVE})
"""The phases in which no handler waits for the client to take what is written."""


class TimedConnection(asyncio.Protocol):
    """One client's connection and its deadline.  Subclasses set `phase`."""

    __slots__ = (
        "_clients",
        "_is_active",
        "_quiet_checks",
        "_shared_bytes",
        "_tick",
        "_unsent",
        "cut_reason",
        "has_partial_head",
        "is_full",
        "phase",
        "transport",
    )

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.transport: asyncio.Transport | None = None
        self.phase = Phase.IDLE
        self.has_partial_head = False
        """Whether a part of the next head has arrived; the deadline is then that of the rest."""
        self.is_full = False
        """Whether the client has left so much unread that nothing more may be written."""
        self._is_active = False
        """Whether the client has sent anything since the last check."""
        self._quiet_checks = NEVER
        """Checks since then; negative until the client has sent anything at all."""
        self._unsent = UNMEASURED
        """The number of unsent bytes at the last check."""
        self.cut_reason: CloseReason | None = None
        """Why this side cuts the connection, if it does."""
        self._shared_bytes = 0
        """Bytes of the latest large answer, which it shares with others: they are not this client's own."""
        self._tick = NEVER

    def _clear_deadline(self) -> None:
        if self._tick != NEVER:
            self._clients.wheel.drop(self, self._tick)
            self._tick = NEVER

    def _set_deadline(self, delay_s: float) -> None:
        self._clear_deadline()
        self._tick = self._clients.wheel.add(self, delay_s)

    def _set_idle_deadline(self) -> None:
        """Check again after a fraction of the keep-alive timeout."""
        self._unsent = UNMEASURED
        self._set_deadline(self._clients.limits.keepalive_timeout_s / _IDLE_CHECKS)

    def _set_head_deadline(self) -> None:
        """Set the deadline for the rest of a head, counted from its first byte."""
        if not self.has_partial_head:
            self.has_partial_head = True
            self._set_deadline(self._clients.limits.client_header_timeout_s)

    def due(self) -> None:
        """The deadline has passed: act by phase."""
        self._tick = NEVER
        transport, phase = self.transport, self.phase
        if transport is None:
            return
        if transport.is_closing() or (self.is_full and phase in _UNAWAITED):
            self._expect_progress()
        elif phase is Phase.LINGERING:
            self._close()
        elif phase is not Phase.IDLE:
            # The handler or the live answer has deadlines of its own; idle time counts from the next check on.
            self._is_active = True
            limits = self._clients.limits
            self._set_deadline(max(1.0, min(limits.keepalive_timeout_s, limits.client_write_timeout_s)))
        elif self.has_partial_head:
            transport.abort()
        elif self._is_active:
            self._is_active = False
            self._quiet_checks = 0
            self._set_idle_deadline()
        elif self._quiet_checks < 0:
            transport.abort()
        else:
            # A remembered answer stores no time, only that there was activity: close after four quiet checks.
            self._quiet_checks += 1
            if self._quiet_checks < _IDLE_CHECKS:
                self._set_idle_deadline()
            else:
                self._close()

    def _expect_progress(self) -> None:
        """Measure what is unsent: if it has not shrunk since the last measurement, one write timeout ago, abort; else
        measure again after that time."""
        if self.transport is None:
            return
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if unsent < 0 or self._unsent < unsent:
            self._set_deadline(self._clients.limits.client_write_timeout_s)
        else:
            self._clients.metrics.slow_consumer()
            self.cut_reason = CloseReason.SLOW
            self.transport.abort()

    def _close(self) -> None:
        """Close once the client has taken what is written; that is bounded by the write timeout as well."""
        if self.transport is not None:
            self.transport.close()
            self._unsent = UNMEASURED
            self._expect_progress()

    def close_if_idle(self) -> None:
        """Close the connection at the start of a drain; an answer in progress is allowed to end."""
        if self.phase is Phase.IDLE:
            self._close()

    def drop(self) -> None:
        """Close the connection at the end of a drain."""
        self.cut_reason = CloseReason.DRAINED
        self.abort()

    def shed(self) -> None:
        """Close the connection because too much memory is held."""
        self.cut_reason = CloseReason.SLOW
        self.abort()

    def abort(self) -> None:
        """Close the connection at once: after an orderly end a truncated body would look complete."""
        if self.transport is not None:
            self.transport.abort()
