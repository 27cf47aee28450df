"""A connection in time: it never spoke, is idle for too long, or does not take what is written to it, and goes.

One deadline serves for all, on a wheel.  What is being answered by others has bounds of its own; here is what nobody
awaits: the pause between two requests, ready answers and live ones that a client leaves unread, and the last bytes of a
connection that is closed already.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from gateway.journal import CloseReason
from gateway.wheel import NEVER

if TYPE_CHECKING:
    from gateway.server.doorkeeper import Doorkeeper

_LOOKS: Final = 4
"""A connection that may be idle for so long is looked at so often within that time."""

NOT_SEEN: Final = -1
"""In place of a number of unsent bytes: the next look is the first."""


class TimedConnection(asyncio.Protocol, ABC):
    """One client's connection and its deadline; whoever answers on it says what it is doing."""

    __slots__ = (
        "_is_active",
        "_keeper",
        "_quiet_looks",
        "_tick",
        "_unsent",
        "_why_cut",
        "is_full",
        "transport",
    )

    def __init__(self, keeper: Doorkeeper) -> None:
        self._keeper = keeper
        self.transport: asyncio.Transport | None = None
        self.is_full = False
        """Whether the client has left so much unread that nothing more is to be written."""
        self._is_active = False
        """Whether the client has sent anything since the last look at the time."""
        self._quiet_looks = NEVER
        """Looks since then; below zero until the client has sent anything at all."""
        self._unsent = NOT_SEEN
        """What the client had left unread when that was looked at last."""
        self._why_cut: CloseReason | None = None
        """Why the connection is cut from this side, where it is."""
        self._tick = NEVER

    @property
    @abstractmethod
    def is_live(self) -> bool:
        """Whether a live answer is being given."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether nothing is being answered."""

    def _unwatch(self) -> None:
        if self._tick != NEVER:
            self._keeper.wheel.drop(self, self._tick)
            self._tick = NEVER

    def _watch(self, delay_s: float) -> None:
        self._unwatch()
        self._tick = self._keeper.wheel.add(self, delay_s)

    def _watch_idle(self) -> None:
        """Look again after a part of the time that a connection may be idle."""
        self._unsent = NOT_SEEN
        self._watch(self._keeper.limits.keepalive_timeout_s / _LOOKS)

    def due(self) -> None:
        """The one deadline: a connection that never spoke, is idle for too long, or does not take its answer, goes."""
        self._tick = NEVER
        keeper, transport = self._keeper, self.transport
        if transport is None:
            return
        if transport.is_closing() or (self.is_full and (self.is_live or self.is_idle)):
            self._expect_progress()
        elif self.is_live:
            return
        elif not self.is_idle:
            # Whoever is answering keeps the time; idleness begins to count when this looks again.
            self._is_active = True
            limits = keeper.limits
            self._watch(max(1.0, min(limits.keepalive_timeout_s, limits.client_write_timeout_s)))
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
            self._watch(self._keeper.limits.client_write_timeout_s)
        else:
            self._keeper.recorder.slow_consumer()
            self._why_cut = CloseReason.SLOW
            self.transport.abort()

    def _close(self) -> None:
        """End the connection when the client has taken what is written, for which there is a bound as well."""
        if self.transport is not None:
            self.transport.close()
            self._unsent = NOT_SEEN
            self._expect_progress()

    def close_if_idle(self) -> None:
        """Used when the gateway leaves: what is being answered is left to end."""
        if self.is_idle:
            self._close()

    def abort(self) -> None:
        """Used when the gateway's time to leave is over."""
        self._why_cut = CloseReason.DRAINED
        if self.transport is not None:
            self.transport.abort()
