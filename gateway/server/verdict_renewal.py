"""Renews the verdicts of an authorisation service during live reads: the service is asked again before a verdict
expires.

All live reads that one remembered verdict allows share one renewal.  A long-poll client begins a read after each
message, so a renewal for each read would cost more than the read.  The service's new answer applies to all verdicts on
equal credentials, like its first answer.  The reads end if the service refuses them, or if the verdict expires before a
new verdict arrives.

A renewal without reads is either idle or at rest.  An idle renewal keeps its timer, because the next read of a
long-poll client may come at once.  A renewal may be idle only if later requests find its verdict.  `KeptRenewals`
bounds the memory of these renewals.  A renewal at rest has no timer.

A renewal that may be idle is called a kept renewal.  The HTTP/1.1 connection of its read keeps the renewal until one of
three events: the renewal rests, the connection closes, or the connection begins a read with another kept verdict.
Further reads of this connection therefore change no state of the renewal.  A renewal looks for reads in progress only
when it has to act on them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from gateway.aio.timers import NEVER
from gateway.auth.forward_auth import LEAST_LIVE_S, ForwardVerdict
from gateway.auth.permissions import Action
from gateway.auth.questions import Undecided
from gateway.auth.remembered_verdicts import Allowed, Renewal, RenewedChannel
from gateway.upstream.auth_services import AuthServices, WaitingRequest

_AGAIN_S: Final = 1.0
"""Seconds to wait after an answer that is no verdict."""


MOST_KEPT_BYTES: Final = 1 << 23
"""The most bytes of all kept renewals.  The header sections with which verdicts are remembered may take as many bytes
again."""
_COST: Final = 1_500
"""Bytes of a renewal, and of its table of reads, in addition to its inquiry."""


class KeptRenewals:
    """The renewals that may be idle: the renewals of remembered verdicts, up to a bound.

    A renewal is kept until it rests.  Any renewal beyond the bound rests as soon as it has no reads.
    """

    __slots__ = ("_renewals", "cost")

    def __init__(self) -> None:
        self._renewals: dict[VerdictRenewal, int] = {}
        """Bytes of each renewal."""
        self.cost = 0
        """Bytes of these renewals."""

    def __repr__(self) -> str:
        return f"<KeptRenewals {len(self._renewals)} renewals, {self.cost} bytes>"

    def keep(self, renewal: VerdictRenewal, cost: int) -> bool:
        """Keep a renewal of `cost` bytes.  Returns whether it is kept."""
        if renewal not in self._renewals:
            if self.cost + cost > MOST_KEPT_BYTES:
                return False
            self._renewals[renewal] = cost
            self.cost += cost
        return True

    def drop(self, renewal: VerdictRenewal) -> None:
        """Do not keep a renewal any longer, because it rests now."""
        self.cost -= self._renewals.pop(renewal, 0)

    def rest_idle(self) -> None:
        """Put all renewals without reads to rest."""
        for renewal in list(self._renewals):
            if not renewal.has_reads:
                renewal.rest()


class VerdictRenewal:
    """Renews one verdict while live reads use it.  Implements `gateway.auth.remembered_verdicts.LiveRenewal`."""

    __slots__ = (
        "_channels",
        "_end_read",
        "_ends_at",
        "_inquiry",
        "_is_kept",
        "_kept",
        "_path",
        "_rng",
        "_services",
        "_tick",
        "_waiting",
        "verdict",
    )

    def __init__(
        self,
        renewal: Renewal,
        services: AuthServices,
        kept: KeptRenewals,
        rng: random.Random,
        end_read: Callable[[RenewedChannel], None],
    ) -> None:
        """`end_read` ends a live read."""
        self._inquiry, self._path = renewal
        self._services = services
        self._kept = kept
        self._rng = rng
        self._end_read = end_read
        self._channels: dict[RenewedChannel, str] = {}
        """The client network of each channel that has a read in progress or keeps the renewal."""
        self.verdict: Allowed | None = None
        """The present verdict; None while the renewal rests."""
        self._is_kept = False
        """Whether the renewal may be idle."""
        self._ends_at = 0.0
        """The time at which the reads end unless the verdict is renewed (Unix seconds)."""
        self._waiting: WaitingRequest | None = None
        self._tick = NEVER

    def __repr__(self) -> str:
        state = "resting" if self.verdict is None else "asking" if self._waiting is not None else "scheduled"
        return f"<VerdictRenewal {len(self._reading())} reads, {state}>"

    def begin_read(self, channel: RenewedChannel, allowed: Allowed, net: str) -> None:
        """Give a channel's read the present verdict, which may be newer than `allowed`.  Renew this verdict from now
        on.  `net` is the read's client network.
        """
        self._channels[channel] = net
        if self.verdict is None:
            self.verdict = allowed
            self._ends_at = max(allowed.until, self._services.clock.wall() + LEAST_LIVE_S)
            self._await_renewal()
        channel.verdict = self.verdict

    def stay(self, channel: RenewedChannel, allowed: Allowed, net: str) -> None:
        """Begin a read like `begin_read`, but make the verdict available to later requests.  The channel may keep this
        renewal between its reads."""
        self.begin_read(channel, allowed, net)
        self._is_kept = self._kept.keep(self, _COST + self._inquiry.size)
        if channel.outlasts_reads and (before := channel.renewing) is not self:
            if before is not None:
                before.end_read(channel)
            channel.renewing = self if self._is_kept else None

    def end_read(self, channel: RenewedChannel) -> None:
        if self._channels.pop(channel, None) is None or self._is_kept or self._channels or self.verdict is None:
            return
        self.rest()

    @property
    def has_reads(self) -> bool:
        """Whether live reads use the verdict."""
        return any(_reads_by(channel, self) for channel in self._channels)

    def rest(self) -> None:
        """Stop renewing, until another read begins."""
        self._kept.drop(self)
        self._is_kept = False
        for channel in self._channels:
            if channel.renewing is self:
                channel.renewing = None
        self._channels.clear()
        self._services.wheel.unlink(self, self._tick)
        self._tick, self.verdict = NEVER, None
        if self._waiting is not None:
            self._waiting.leave_queue()
            self._waiting = None

    def due(self) -> None:
        """Ask the service, or end the reads because no answer has come in time."""
        self._tick = NEVER
        if not self.has_reads:
            self.rest()
        elif self._waiting is not None or self._left_s <= 0:
            self._end_reads()
        else:
            self._ask()

    def clock_stepped(self) -> None:
        """After a step of the wall clock, schedule the next question or the end of the reads again."""
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
        # Ask on behalf of the network with the fewest waiting requests.  Otherwise a network whose requests wait too
        # long could end the reads of other networks.
        nets = dict.fromkeys(self._channels[channel] for channel in self._reading())
        net = min(nets, key=self._services.waiting_of)
        try:
            self._waiting = self._services.await_answer(self._inquiry, net, self._heard)
        except Undecided:
            self._try_again()
        else:
            self._call_in(self._left_s)

    def _heard(self) -> None:
        waiting, self._waiting = self._waiting, None
        heard = waiting.heard if waiting is not None else None
        if not self.has_reads:
            self.rest()
        elif heard is None or heard.verdict is None:
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
        reading = self._reading()
        self.verdict = allowed = verdicts.allow(principal, self.verdict.renewal, self.verdict.grounds)
        allowed.renewing = self
        for channel in reading:
            channel.verdict = allowed
        self._ends_at = verdict.live_until
        self._await_renewal()

    def _end_reads(self) -> None:
        """End all reads, and rest until another read begins.  The remembered verdict may still allow another read."""
        for channel in self._reading():
            self._end_read(channel)
        self.rest()

    def _reading(self) -> list[RenewedChannel]:
        """Return the channels with a read in progress that uses the verdict."""
        return [channel for channel in self._channels if _reads_by(channel, self)]


def _reads_by(channel: RenewedChannel, renewal: VerdictRenewal) -> bool:
    return (verdict := channel.verdict) is not None and verdict.renewing is renewal
