"""Live reads behind a service (forward-auth) outlast its verdict: the service is asked again before the verdict ends.

Reads with equal credentials share the new verdict, as their first requests did.  A read ends when the service refuses,
and when its verdict ends without a new one.
"""

from __future__ import annotations

import random
from typing import Final, Protocol

from gateway.aio.clock import Timer
from gateway.auth.forward import LEAST_LIVE_S, ForwardVerdict
from gateway.auth.permissions import Action
from gateway.auth.questions import Undecided
from gateway.auth.verdicts import Allowed, Renewal
from gateway.upstream.auth_services import AuthServices, WaitingRequest

_AGAIN_S: Final = 1.0
"""Pause after an answer that decides nothing."""


class Renewed(Protocol):
    """A live read whose verdict is renewed."""

    allowed: Allowed

    def revoke(self) -> None:
        """End the read."""


class Renewing:
    """Has the verdict of one live read renewed until `stop_asking`."""

    __slots__ = ("_ends_at", "_inquiry", "_net", "_path", "_read", "_rng", "_services", "_timer", "_waiting")

    def __init__(self, read: Renewed, renewal: Renewal, net: str, services: AuthServices, rng: random.Random) -> None:
        self._read: Renewed | None = read
        self._inquiry, self._path = renewal
        self._net = net
        self._services = services
        self._rng = rng
        self._waiting: WaitingRequest | None = None
        self._ends_at = max(read.allowed.until, services.wall() + LEAST_LIVE_S)
        """Unix seconds."""
        self._timer: Timer
        self._begin_wait()

    def stop_asking(self) -> None:
        """The read has ended."""
        self._read = None
        self._timer.cancel()
        if self._waiting is not None:
            self._waiting.leave_queue()

    def _begin_wait(self) -> None:
        """Ask again in time for an answer, jittered, so that reads that began together do not ask together."""
        left_s = max(0.0, self._ends_at - self._services.wall())
        most_early_s = min(left_s / 2, 2 * self._inquiry.rule.timeout_s)
        early_s = self._rng.uniform(most_early_s / 2, most_early_s)
        self._timer = self._services.clock.call_later(left_s - early_s, self._ask)

    def _ask(self) -> None:
        known = self._services.find_verdict(self._inquiry)
        if known is not None and known.live_until > self._ends_at:
            self._decide(known)
            return
        try:
            self._waiting = self._services.await_answer(self._inquiry, self._net, self._heard)
        except Undecided:
            self._try_again()
        else:
            # No answer may come in time.
            self._timer = self._services.clock.call_later(self._ends_at - self._services.wall(), self._end_read)

    def _heard(self) -> None:
        waiting, self._waiting = self._waiting, None
        self._timer.cancel()
        heard = waiting.heard if waiting is not None else None
        if heard is None or heard.verdict is None:
            self._try_again()
        else:
            self._decide(heard.verdict)

    def _decide(self, verdict: ForwardVerdict) -> None:
        read, principal = self._read, verdict.principal
        if read is None:
            return
        verdicts = self._services.verdicts
        if principal is None or not principal.allows(Action.READ, self._path) or verdicts.is_revoked(principal):
            read.revoke()
            return
        read.allowed = verdicts.allow(principal, read.allowed.renewal)
        self._ends_at = verdict.live_until
        self._begin_wait()

    def _try_again(self) -> None:
        left_s = self._ends_at - self._services.wall()
        if left_s <= 0:
            self._end_read()
        else:
            self._timer = self._services.clock.call_later(min(left_s, _AGAIN_S), self._ask)

    def _end_read(self) -> None:
        if self._read is not None:
            self._read.revoke()
