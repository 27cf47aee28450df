"""Renews the verdicts of an authorisation service during live reads: the service is asked again before a verdict
expires.

Reads with equal credentials share the new verdict, in the same way as they shared the first verdict.  A read ends if
the service refuses the read, or if the verdict expires and no new verdict has come.
"""

from __future__ import annotations

import random
from typing import Final

from gateway.aio.timers import NEVER
from gateway.auth.forward import LEAST_LIVE_S, ForwardVerdict
from gateway.auth.permissions import Action
from gateway.auth.questions import Undecided
from gateway.auth.verdicts import Renewal
from gateway.server.request import Channel, LiveUse
from gateway.upstream.auth_services import AuthServices, WaitingRequest

_AGAIN_S: Final = 1.0
"""Seconds to wait after an answer that is no verdict."""


class VerdictRenewal:
    """Renews the verdict of a channel's live read until the read ends.  It is the channel's `LiveUse`."""

    __slots__ = ("_channel", "_ends_at", "_inquiry", "_net", "_path", "_rng", "_services", "_tick", "_use", "_waiting")

    def __init__(
        self, channel: Channel, renewal: Renewal, until: float, net: str, services: AuthServices, rng: random.Random
    ) -> None:
        """`until` is the expiry of the present verdict (Unix seconds)."""
        self._channel: Channel | None = channel
        self._use: LiveUse | None = channel.live_use
        self._inquiry, self._path = renewal
        self._net = net
        self._services = services
        self._rng = rng
        self._waiting: WaitingRequest | None = None
        self._tick = NEVER
        self._ends_at = max(until, services.clock.wall() + LEAST_LIVE_S)
        """When the read ends unless the verdict is renewed (Unix seconds)."""
        self._await_renewal()

    def end_live(self, sent_bytes: int) -> None:
        self._channel = None
        self._services.wheel.unlink(self, self._tick)
        if self._waiting is not None:
            self._waiting.leave_queue()
        if self._use is not None:
            self._use.end_live(sent_bytes)

    def due(self) -> None:
        """Ask the service, or end the read because no answer has come in time."""
        self._tick = NEVER
        if self._waiting is not None or self._left_s <= 0:
            self._end_read()
        else:
            self._ask()

    def clock_stepped(self) -> None:
        """Set the next question, or the end of the read, again after a step of the wall clock."""
        if self._waiting is None:
            self._await_renewal()
        else:
            self._call_in(self._left_s)

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
        channel, principal = self._channel, verdict.principal
        if channel is None or channel.verdict is None:
            return
        verdicts = self._services.verdicts
        if principal is None or not principal.allows(Action.READ, self._path) or verdicts.is_revoked(principal):
            self._end_read()
            return
        channel.verdict = verdicts.allow(principal, channel.verdict.renewal, channel.verdict.grounds)
        self._ends_at = verdict.live_until
        self._await_renewal()

    def _end_read(self) -> None:
        if self._channel is not None:
            self._channel.end_early()
