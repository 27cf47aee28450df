"""Turns: how much of one turn of the event loop may be spent on beginning requests, and whose requests come first.

Every client waits while a turn of the loop works for others.  A turn that has lasted for `REQUESTS_S` begins no further
request.  Later requests wait in a queue, and each later turn begins as many of them as fit into `REQUESTS_S`, sharing
fairly by the cost of their clients (`gateway.limits.queues`).  So a flood delays mostly the requests of its own client,
and those of others by a millisecond or two.  The loop is never idle while anything waits.

Beginning a request means all work before its first wait, some 50 to 150 us.  A read of bytes in memory is finished in
that time, and a miss has come to its fetch.  The share of a turn is about a dozen requests, because fewer would cost
more each: the loop asks the kernel once a turn, and equal steps in a row are quicker.  Turns are shorter during a
flood.  The requests of the flood are late in any case, and the work in progress for other clients takes several turns.

Later work for a request, such as its fetch and the parts of its answer, is not queued.  The time since waiting requests
were last begun counts against the share.  So the more work there is for requests in progress, the fewer are begun.
Waiting requests get at least a quarter of that time, up to the whole share.  So work that does not wait, such as a
flood of hits, cannot starve them.

Other input than requests, such as bodies and frames, is read in small parts, and a turn that has lasted for `PARTS_S`
reads no further part.  Otherwise the tiny chunks, frames or TLS records of one read of a socket would keep the loop
busy for a second.  A fetch from the origin takes six turns of the loop, so long turns delay it six times.  Parts get
less time than requests, because short turns cost an upload little: it goes on at once in the next turn.

A request that waits has been parsed; its connection keeps it, and reads on up to the usual bound.  Remembered answers
and joins take less than queueing would, and do not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Final, Protocol

from gateway.aio.clock import SystemClock
from gateway.limits.accounts import Account
from gateway.limits.queues import Flows

_log = logging.getLogger("gateway.server")

REQUESTS_S: Final = 0.0015
"""A turn begins requests for this long.  The other work of the loop counts against the time for waiting requests."""
_FLOOD: Final = 64
"""If more requests than this wait, they are a flood."""
FLOOD_S: Final = 0.0005
"""A turn begins requests for this long during a flood, in place of `REQUESTS_S`."""
PARTS_S: Final = 0.0001
"""Each turn reads input other than requests for this long, after the first part."""
_LEAST: Final = 0.25
"""The least time for waiting requests, as a fraction of the time that the loop has spent on other work."""
_QUANTUM_S: Final = 0.0002
"""The time that a client may use before it is another client's turn: about two requests."""


class TurnTaker(Protocol):
    """A connection with requests or other input that wait for their turn."""

    use: Account | None
    """The account in which the connection is counted; None if it belongs to no net."""

    def __hash__(self) -> int:
        """By identity."""

    def take_turn(self) -> None:
        """Begin the next request or read the next part, if there still is one.  Call `must_wait` for each further
        one."""


class Turns:
    """Owner of the queues of connections whose requests, or other input, wait."""

    def __init__(
        self, call_soon: Callable[[Callable[[], None]], object], now: Callable[[], float] = SystemClock.now
    ) -> None:
        """`call_soon` calls in the loop's next turn."""
        self._call_soon = call_soon
        self._now = now
        self._requests: Flows[Hashable, TurnTaker] = Flows(_QUANTUM_S)
        self._parts: Flows[Hashable, TurnTaker] = Flows(_QUANTUM_S)
        self.has_begun = False
        """Whether `must_wait` was called in this turn, or any request waits; `_next` is then called in the next
        turn."""
        self._began = 0.0
        """When `must_wait` was first called in this turn, or when waiting requests were last begun."""
        self._is_running = False
        """Whether requests that have waited are being begun."""
        self.waited = 0
        """Requests and parts that have had to wait, so far."""

    def __repr__(self) -> str:
        return f"<Turns {len(self)} waiting, {self.waited} so far>"

    def __len__(self) -> int:
        return self._requests.waiting + self._parts.waiting

    def must_wait(self, taker: TurnTaker, *, is_request: bool = True) -> bool:
        """Whether the next request, or the next part of other input, has to wait.  If so, `taker.take_turn` is called
        when its turn has come."""
        flows = self._requests if is_request else self._parts
        if not self._is_running:
            is_late = self._is_late(self._requests_s() if is_request else PARTS_S)
            if not is_late and not (flows.waiting and flows.has(taker.use or taker)):
                return False
        flows.push(taker.use or taker, taker)
        self.waited += 1
        return True

    def count_begun(self) -> None:
        """Count something that was begun in this turn without asking `must_wait`."""
        if not self.has_begun:
            self.has_begun, self._began = True, self._now()
            # The loop has no number for its turns, and updates its time within them.
            self._call_soon(self._next)

    def _is_late(self, late_s: float) -> bool:
        """Whether this turn has spent this long on beginning requests and reading parts."""
        if self.has_begun:
            return self._now() - self._began > late_s
        self.count_begun()
        return False

    def _requests_s(self) -> float:
        return REQUESTS_S if self._requests.waiting <= _FLOOD else FLOOD_S

    def _next(self) -> None:
        """Begin waiting requests and read waiting parts, as many as this turn allows."""
        self.has_begun = False
        if not (self._requests.waiting or self._parts.waiting):
            return
        at = self._now()
        besides = at - self._began
        self._is_running = True
        share_s = self._requests_s()
        at = self._take(self._requests, at, min(share_s, max(share_s - besides, besides * _LEAST)))
        at = self._take(self._parts, at, PARTS_S)
        self._is_running = False
        if (self._requests.waiting or self._parts.waiting) and not self.has_begun:
            self.has_begun, self._began = True, at
            self._call_soon(self._next)

    def _take(self, flows: Flows[Hashable, TurnTaker], at: float, share_s: float) -> float:
        """Give connections of this queue their turns until `share_s` seconds after `at`.  Returns the time after it."""
        until = at + share_s
        while flows.waiting and at <= until:
            client, taker = flows.pop()
            try:
                taker.take_turn()
            except Exception:
                _log.exception("unhandled error")
            before, at = at, self._now()
            flows.charge(client, at - before)
        return at
