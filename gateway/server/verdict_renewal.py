"""Renews the verdicts of an authorisation service during live reads: the service is asked again before a verdict
expires.

All live reads that one remembered verdict allows share one renewal.  A long-poll client begins a read after each
message, so a renewal for each read would cost more than the read.  Verdicts on equal credentials share the service's
new answer, in the same way as they shared the first.  The reads end if the service refuses them, or if the verdict
expires and no new verdict has come.

A renewal without reads is idle or rests.  An idle renewal keeps its timer, because the next read of a long-poll client
may come at once.  Only renewals of verdicts that later requests find are idle, and `ScheduledRenewals` bounds them.
All other renewals rest: they have no timer, and nothing but their verdict refers to them.

`ScheduledRenewals` charges a renewal from its first read until it rests, with and without reads.  An answer and the
client's next read therefore change no state that renewals share.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, cast

from gateway.aio.timers import NEVER
from gateway.auth.forward_auth import LEAST_LIVE_S, ForwardVerdict
from gateway.auth.permissions import Action
from gateway.auth.questions import Undecided
from gateway.auth.remembered_verdicts import Allowed, Renewal
from gateway.server.request import Channel
from gateway.upstream.auth_services import AuthServices, WaitingRequest

_AGAIN_S: Final = 1.0
"""Seconds to wait after an answer that is no verdict."""


MOST_SCHEDULED_BYTES: Final = 1 << 23
"""The most bytes of all idle renewals, as much as the header sections that the verdicts are remembered with."""
_COST: Final = 1_500
"""Bytes of a renewal, and of its table of reads, in addition to its inquiry."""


class ScheduledRenewals:
    """The renewals with a timer whose verdicts are remembered.

    While they exceed the bound, each renewal rests as soon as it has no reads.  The idle renewals are therefore always
    within the bound.  The bounds on live reads bound the renewals that have reads.
    """

    __slots__ = ("_renewals", "cost")

    def __init__(self) -> None:
        self._renewals: dict[VerdictRenewal, None] = {}
        self.cost = 0
        """Bytes of these renewals."""

    def __repr__(self) -> str:
        return f"<ScheduledRenewals {len(self._renewals)} renewals, {self.cost} bytes>"

    def add(self, renewal: VerdictRenewal) -> None:
        """Charge a renewal that is scheduled now."""
        if renewal not in self._renewals:
            self._renewals[renewal] = None
            self.cost += renewal.cost

    def remove(self, renewal: VerdictRenewal) -> None:
        """Stop charging a renewal, because it rests now."""
        if renewal in self._renewals:
            del self._renewals[renewal]
            self.cost -= renewal.cost

    def rest_idle(self) -> None:
        """Have all renewals without reads rest."""
        for renewal in list(self._renewals):
            if not renewal.has_reads:
                renewal.rest()


class VerdictRenewal:
    """Renews one verdict while live reads have it.  Implements `gateway.auth.remembered_verdicts.LiveRenewal`.

    It is in `ScheduledRenewals` exactly while it has a verdict and a cost.
    """

    __slots__ = (
        "_end_read",
        "_ends_at",
        "_inquiry",
        "_path",
        "_reads",
        "_rng",
        "_scheduled",
        "_services",
        "_tick",
        "_waiting",
        "cost",
        "verdict",
    )

    def __init__(
        self,
        renewal: Renewal,
        services: AuthServices,
        scheduled: ScheduledRenewals,
        rng: random.Random,
        end_read: Callable[[Channel], None],
    ) -> None:
        """`end_read` ends a live read."""
        self._inquiry, self._path = renewal
        self._services = services
        self._scheduled = scheduled
        self._rng = rng
        self._end_read = end_read
        self._reads: dict[object, str] = {}
        """The channels of the reads, with the networks of their clients."""
        self.verdict: Allowed | None = None
        """The present verdict; None while the renewal rests."""
        self.cost = 0
        """Bytes of the renewal while it is scheduled; 0 if the verdict is not remembered, so that it must not be
        idle."""
        self._ends_at = 0.0
        """When the reads end unless the verdict is renewed (Unix seconds)."""
        self._waiting: WaitingRequest | None = None
        self._tick = NEVER

    def __repr__(self) -> str:
        state = "resting" if self.verdict is None else "asking" if self._waiting is not None else "scheduled"
        return f"<VerdictRenewal {len(self._reads)} reads, {state}>"

    def begin_read(self, channel: object, allowed: Allowed, net: str, is_remembered: bool = False) -> Allowed:
        """Add a read whose verdict this object renews.  `net` is the read's client network.

        Returns the present verdict, which may be newer than `allowed`.
        """
        self._reads[channel] = net
        if is_remembered and not self.cost:
            self.cost = _COST + self._inquiry.size
            if self.verdict is not None:
                self._scheduled.add(self)
        if (verdict := self.verdict) is not None:
            return verdict
        self.verdict = allowed
        if self.cost:
            self._scheduled.add(self)
        self._ends_at = max(allowed.until, self._services.clock.wall() + LEAST_LIVE_S)
        self._await_renewal()
        return allowed

    def end_read(self, channel: object) -> None:
        if self._reads.pop(channel, None) is None or self._reads or self.verdict is None:
            return
        if not self.cost or self._waiting is not None or self._scheduled.cost > MOST_SCHEDULED_BYTES:
            self.rest()

    @property
    def has_reads(self) -> bool:
        """Whether live reads have the verdict."""
        return bool(self._reads)

    def rest(self) -> None:
        """Stop renewing, until another read begins."""
        self._scheduled.remove(self)
        self._services.wheel.unlink(self, self._tick)
        self._tick, self.verdict = NEVER, None
        if self._waiting is not None:
            self._waiting.leave_queue()
            self._waiting = None

    def due(self) -> None:
        """Ask the service, or end the reads because no answer has come in time."""
        self._tick = NEVER
        if not self._reads:
            self.rest()
        elif self._waiting is not None or self._left_s <= 0:
            self._end_reads()
        else:
            self._ask()

    def clock_stepped(self) -> None:
        """Set the next question, or the end of the reads, again after a step of the wall clock."""
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
        """Schedule the next question, early enough for an answer.  The delay is random, so that verdicts that were
        given at the same time are not renewed at the same time.
        """
        left_s = self._left_s
        most_early_s = min(left_s / 2, 2 * self._inquiry.rule.timeout_s)
        self._call_in(left_s - self._rng.uniform(most_early_s / 2, most_early_s))

    def _ask(self) -> None:
        known = self._services.find_verdict(self._inquiry)
        if known is not None and known.live_until > self._ends_at:
            self._decide(known)
            return
        # Ask for the network with the fewest waiting requests, so that no network whose requests wait can end the reads
        # of others.
        net = min(dict.fromkeys(self._reads.values()), key=self._services.waiting_of)
        try:
            self._waiting = self._services.await_answer(self._inquiry, net, self._heard)
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
        principal, verdicts = verdict.principal, self._services.verdicts
        if self.verdict is None:
            return
        if principal is None or not principal.allows(Action.READ, self._path) or verdicts.is_revoked(principal):
            self._end_reads()
            return
        self.verdict = allowed = verdicts.allow(principal, self.verdict.renewal, self.verdict.grounds)
        allowed.renewing = self
        for channel in self._channels():
            channel.verdict = allowed
        self._ends_at = verdict.live_until
        self._await_renewal()

    def _end_reads(self) -> None:
        """End all reads, and rest until another read begins.  The remembered verdict may still allow another read."""
        for channel in self._channels():
            self._end_read(channel)
        self.rest()

    def _channels(self) -> list[Channel]:
        return cast("list[Channel]", list(self._reads))
