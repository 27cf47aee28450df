"""Renews the verdicts of an authorisation service during live reads: the service is asked again before a verdict
expires.

All live reads that one remembered verdict allows share one renewal.  A long-poll client begins a read after each
message, so a renewal for each read would cost more than the read.  Verdicts on equal credentials share the service's
new answer, in the same way as they shared the first.  The reads end if the service refuses them, or if the verdict
expires and no new verdict has come.
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


class VerdictRenewal:
    """Renews one verdict while live reads have it.  Implements `gateway.auth.remembered_verdicts.LiveRenewal`.

    The renewal rests while there are no reads.  If all reads end while the renewal is scheduled, it begins to rest when
    it is due.
    """

    __slots__ = (
        "_end_read",
        "_ends_at",
        "_inquiry",
        "_net",
        "_path",
        "_reads",
        "_rng",
        "_services",
        "_tick",
        "_verdict",
        "_waiting",
    )

    def __init__(
        self,
        renewal: Renewal,
        net: str,
        services: AuthServices,
        rng: random.Random,
        end_read: Callable[[Channel], None],
    ) -> None:
        """`net` is the client network for which the service is asked.  `end_read` ends a live read."""
        self._inquiry, self._path = renewal
        self._net = net
        self._services = services
        self._rng = rng
        self._end_read = end_read
        self._reads: dict[object, None] = {}
        """The channels of the reads."""
        self._verdict: Allowed | None = None
        """The present verdict; None while the renewal rests."""
        self._ends_at = 0.0
        """When the reads end unless the verdict is renewed (Unix seconds)."""
        self._waiting: WaitingRequest | None = None
        self._tick = NEVER

    def __repr__(self) -> str:
        state = "resting" if self._verdict is None else "asking" if self._waiting is not None else "scheduled"
        return f"<VerdictRenewal {len(self._reads)} reads, {state}>"

    def begin_read(self, channel: object, allowed: Allowed) -> Allowed:
        """Renew the verdict for a further read.  Returns the present verdict, which may be newer than `allowed`."""
        self._reads[channel] = None
        if (verdict := self._verdict) is not None:
            return verdict
        self._verdict = allowed
        self._ends_at = max(allowed.until, self._services.clock.wall() + LEAST_LIVE_S)
        self._await_renewal()
        return allowed

    def end_read(self, channel: object) -> None:
        self._reads.pop(channel, None)
        if self._waiting is not None and not self._reads:
            self._rest()

    def _rest(self) -> None:
        """Stop renewing."""
        self._services.wheel.unlink(self, self._tick)
        self._tick, self._verdict = NEVER, None
        if self._waiting is not None:
            self._waiting.leave_queue()
            self._waiting = None

    def due(self) -> None:
        """Ask the service, or end the reads because no answer has come in time."""
        self._tick = NEVER
        if not self._reads:
            self._rest()
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
        principal, verdicts = verdict.principal, self._services.verdicts
        if self._verdict is None:
            return
        if principal is None or not principal.allows(Action.READ, self._path) or verdicts.is_revoked(principal):
            self._end_reads()
            return
        self._verdict = allowed = verdicts.allow(principal, self._verdict.renewal, self._verdict.grounds)
        allowed.renewing = self
        for channel in self._channels():
            channel.verdict = allowed
        self._ends_at = verdict.live_until
        self._await_renewal()

    def _end_reads(self) -> None:
        """End all reads, and rest until another read begins.  The remembered verdict may still allow another read."""
        for channel in self._channels():
            self._end_read(channel)
        self._rest()

    def _channels(self) -> list[Channel]:
        return cast("list[Channel]", list(self._reads))
