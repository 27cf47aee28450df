"""A connection in time: it never spoke, does not finish a head, is idle for too long, or does not take what is written
to it, and goes.

One deadline serves for all, on a wheel.  What handlers answer has bounds of its own; here is what nobody awaits: heads
that do not come to their end, the pause between two requests, whole answers and live ones that a client leaves unread,
and the last bytes of a connection that is closed already.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Final

from gateway.aio.wheel import NEVER
from gateway.server.clients import Clients
from gateway.telemetry.access_record import CloseReason

_LOOKS: Final = 4
"""A connection that may be idle for so long is looked at so often within that time."""

NOT_SEEN: Final = -1
"""In place of a number of unsent bytes: the next look is the first."""


class Phase(Enum):
    """What happens on a connection."""

    IDLE = "idle"
    """Nothing is being answered; a part of the next head may be here."""
    ANSWERING = "answering"
    """A handler is at work."""
    GIVEN = "given"
    """An answer is given by somebody who is told of room, and of the client's end."""
    LIVE = "live"
    """A live answer is being given, or waited for."""
    LINGERING = "lingering"
    """The last answer is out; what still comes is read and dropped, so that the client gets to read it."""


_UNAWAITED: Final = frozenset({Phase.IDLE, Phase.GIVEN, Phase.LIVE})
"""Where no handler waits for the client to take what is written."""


class TimedConnection(asyncio.Protocol):
    """One client's connection and its deadline; whoever answers on it says what it is doing."""

    __slots__ = (
        "_clients",
        "_is_active",
        "_quiet_looks",
        "_tick",
        "_unsent",
        "has_part",
        "is_full",
        "phase",
        "transport",
        "why_cut",
    )

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.transport: asyncio.Transport | None = None
        self.phase = Phase.IDLE
        self.has_part = False
        """Whether a part of the next head is here: a deadline is set for the rest of it."""
        self.is_full = False
        """Whether the client has left so much unread that nothing more is to be written."""
        self._is_active = False
        """Whether the client has sent anything since the last look at the time."""
        self._quiet_looks = NEVER
        """Looks since then; below zero until the client has sent anything at all."""
        self._unsent = NOT_SEEN
        """What the client had left unread when that was looked at last."""
        self.why_cut: CloseReason | None = None
        """Why the connection is cut from this side, where it is."""
        self._tick = NEVER

    def _unwatch(self) -> None:
        if self._tick != NEVER:
            self._clients.wheel.drop(self, self._tick)
            self._tick = NEVER

    def _watch(self, delay_s: float) -> None:
        self._unwatch()
        self._tick = self._clients.wheel.add(self, delay_s)

    def _watch_idle(self) -> None:
        """Look again after a part of the time that a connection may be idle."""
        self._unsent = NOT_SEEN
        self._watch(self._clients.limits.keepalive_timeout_s / _LOOKS)

    def _watch_head(self) -> None:
        """Give the rest of a head its time, from the first of it on."""
        if not self.has_part:
            self.has_part = True
            self._watch(self._clients.limits.client_header_timeout_s)

    def due(self) -> None:
        """The one deadline: see the module."""
        self._tick = NEVER
        transport, phase = self.transport, self.phase
        if transport is None:
            return
        if transport.is_closing() or (self.is_full and phase in _UNAWAITED):
            self._expect_progress()
        elif phase is Phase.LINGERING:
            self._close()
        elif phase is not Phase.IDLE:
            # Whoever answers keeps the time; idleness begins to count when this looks again.
            self._is_active = True
            limits = self._clients.limits
            self._watch(max(1.0, min(limits.keepalive_timeout_s, limits.client_write_timeout_s)))
        elif self.has_part:
            transport.abort()
        elif self._is_active:
            self._is_active = False
            self._quiet_looks = 0
            self._watch_idle()
        elif self._quiet_looks < 0:
            transport.abort()
        else:
            # An answer from ready bytes leaves no time behind, only that there was one: four quiet looks are enough.
            self._quiet_looks += 1
            if self._quiet_looks < _LOOKS:
                self._watch_idle()
            else:
                self._close()

    def _expect_progress(self) -> None:
        """Look after a while whether the client has taken anything; the second time, let it go if it has not."""
        if self.transport is None:
            return
        unsent, self._unsent = self._unsent, self.transport.get_write_buffer_size()
        if unsent < 0 or self._unsent < unsent:
            self._watch(self._clients.limits.client_write_timeout_s)
        else:
            self._clients.metrics.slow_consumer()
            self.why_cut = CloseReason.SLOW
            self.transport.abort()

    def _close(self) -> None:
        """End the connection when the client has taken what is written, for which there is a bound as well."""
        if self.transport is not None:
            self.transport.close()
            self._unsent = NOT_SEEN
            self._expect_progress()

    def close_if_idle(self) -> None:
        """Used when the gateway leaves: what is being answered is left to end."""
        if self.phase is Phase.IDLE:
            self._close()

    def drop(self) -> None:
        """Used when the gateway's time to leave is over."""
        self.why_cut = CloseReason.DRAINED
        self.abort()

    def abort(self) -> None:
        """End the connection at once: an orderly end would make a part look like the whole."""
        if self.transport is not None:
            self.transport.abort()
