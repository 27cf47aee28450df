"""Renews the verdicts of an authorisation service during live reads: the service is asked again before a verdict
expires.

Reads with equal credentials share the new verdict, in the same way as they shared the first verdict.  A read ends if
the service refuses the read, or if the verdict expires and no new verdict has come.
"""

from __future__ import annotations

import random
from typing import Final, Protocol

from gateway.aio.timers import NEVER
from gateway.auth.forward import LEAST_LIVE_S, ForwardVerdict
from gateway.auth.permissions import Action
from gateway.auth.questions import Undecided
from gateway.auth.verdicts import Allowed, Renewal
from gateway.upstream.auth_services import AuthServices, WaitingRequest

_AGAIN_S: Final = 1.0
"""Seconds to wait after an answer that is no verdict."""


class Renewed(Protocol):
    """A live read whose verdict is renewed."""

    allowed: Allowed

    def revoke(self) -> None:
        """End the read."""


class VerdictRenewal:
    """Renews the verdict of one live read until `stop_asking`."""

    __slots__ = ("_ends_at", "_inquiry", "_net", "_path", "_read", "_rng", "_services", "_tick", "_waiting")

    def __init__(self, read: Renewed, renewal: Renewal, net: str, services: AuthServices, rng: random.Random) -> None:
        self._read: Renewed | None = read
        self._inquiry, self._path = renewal
        self._net = net
        self._services = services
        self._rng = rng
        self._waiting: WaitingRequest | None = None
        self._tick = NEVER
        self._ends_at = max(read.allowed.until, services.clock.wall() + LEAST_LIVE_S)
        """In Unix seconds."""
        self._await_renewal()

    def stop_asking(self) -> None:
        """Stop, because the read has ended."""
        self._read = None
        self._services.wheel.unlink(self, self._tick)
        if self._waiting is not None:
            self._waiting.leave_queue()

    def due(self) -> None:
        """Ask the service, or end the read because no answer has come in time."""
        self._tick = NEVER
        if self._waiting is not None or self._left_s <= 0:
            self._end_read()
        else:
            self._ask()

    @property
    def _left_s(self) -> float:
        return self._ends_at - self._services.clock.wall()

    def _call_in(self, delay_s: float) -> None:
        """Schedule a call of `due` after this delay.  The call replaces any call that was scheduled earlier."""
        wheel = self._services.wheel
        wheel.unlink(self, self._tick)
        self._tick = wheel.add(self, max(0.0, delay_s))

    def _await_renewal(self) -> None:
        """Schedule the next question, early enough for an answer.  The delay is random, so that reads that began at the
        same time do not ask at the same time.
        """
        left_s = self._left_s
        most_early_s = min(left_s / 2, 2 * self._inquiry.rule.timeout_s)
        self._call_in(left_s - self._rng.uniform(most_early_s / 2, most_early_s))

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
            self._call_in(self._left_s)

    def _heard(self) -> None:
        waiting, self._waiting = self._waiting, None
        heard = waiting.heard if waiting is not None else None
        if heard is None or heard.verdict is None:
            self._try_again()
        else:
            self._decide(heard.verdict)

    def _try_again(self) -> None:
        self._call_in(min(self._left_s, _AGAIN_S))

    def _decide(self, verdict: ForwardVerdict) -> None:
        read, principal = self._read, verdict.principal
        if read is None:
            return
        verdicts = self._services.verdicts
        if principal is None or not principal.allows(Action.READ, self._path) or verdicts.is_revoked(principal):
            self._end_read()
            return
        read.allowed = verdicts.allow(principal, read.allowed.renewal, read.allowed.grounds)
        self._ends_at = verdict.live_until
        self._await_renewal()

    def _end_read(self) -> None:
        if self._read is not None:
            self._read.revoke()
