"""Turns: how much of one turn of the event loop the beginning of requests may take, and whose begin first.

Whatever a turn of the loop does, every client waits for.  A turn that has already lasted for `LATE_S` begins no further
request: those wait in a queue, and each later turn begins as many of them as `SHARE_S` allows, fairly by what their
clients cost (`gateway.limits.flows`).  So a flood delays the requests of its own client, and others by about a
millisecond, while the loop is never idle as long as anything waits.

A request that waits has been parsed; its connection keeps it, and reads on up to the usual bound.  Remembered answers
and joins take less than queueing would, and do not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from gateway.aio.clock import SystemClock
from gateway.limits.flows import Flows
from gateway.limits.usage import NetUse

_log = logging.getLogger("gateway.server")

LATE_S: Final = 0.001
"""A turn begins requests at once for this long."""
SHARE_S: Final = 0.001
"""Requests that have waited are begun for this long in each turn."""
_QUANTUM_S: Final = 0.0002
"""What a client may use before another one's turn: about two requests."""


class TurnTaker(Protocol):
    """A connection with requests that wait for their turn."""

    use: NetUse | None
    """Where the connection is counted; None if it belongs to no net."""

    def __hash__(self) -> int:
        """By identity."""

    def take_turn(self) -> None:
        """Begin the next request, if there is still one, and ask about each further one."""


class Turns:
    """Owner of the queue of connections whose requests wait."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        turn: Callable[[], float],
        now: Callable[[], float] = SystemClock.now,
    ) -> None:
        """`call_soon` calls in the loop's next turn; `turn` is the loop's time, which stands still during a turn."""
        self._call_soon = call_soon
        self._get_turn = turn
        self._now = now
        self._flows: Flows[Hashable, TurnTaker] = Flows(_QUANTUM_S)
        self._turn = 0.0
        """The turn that has been asked about last."""
        self._began = 0.0
        """When this turn's first request was asked about."""
        self._is_running = False
        """Whether requests that have waited are being begun."""
        self.waited = 0
        """Requests that have had to wait, so far."""

    def __repr__(self) -> str:
        return f"<Turns {len(self._flows)} waiting, {self.waited} so far>"

    def __len__(self) -> int:
        return len(self._flows)

    def must_wait(self, taker: TurnTaker) -> bool:
        """Whether the connection's next request has to wait; its `take_turn` is called then."""
        flows, turn = self._flows, self._get_turn()
        if turn != self._turn:
            self._turn, self._began = turn, self._now()
            is_late = False
        else:
            is_late = self._now() - self._began > LATE_S
        if not is_late and not flows and not self._is_running:
            return False
        client: Hashable = taker.use or taker
        if not is_late and not self._is_running and not flows.has(client):
            return False
        if not flows and not self._is_running:
            self._call_soon(self._run)
        flows.push(client, taker)
        self.waited += 1
        return True

    def _run(self) -> None:
        """Begin what may be begun in this turn."""
        flows, now = self._flows, self._now
        at = now()
        until = at + SHARE_S
        self._is_running = True
        while flows:
            client, taker = flows.pop()
            try:
                taker.take_turn()
            except Exception:
                _log.exception("unhandled error")
            before, at = at, now()
            flows.charge(client, at - before)
            if at > until:
                break
        self._is_running = False
        if flows:
            self._call_soon(self._run)
