"""Admission of requests: the bound on the live reads of one client network, the configured rate limits, and bans.

A live read counts from its admission until its channel (the HTTP/1.1 connection or HTTP/2 stream) is free again, for
whatever reason the read ends.  The request handler asks `Admission` about each request that it parses, and only the
handler refuses requests.  Some requests are answered without being parsed: from a remembered answer, or by joining the
live readers of a stream.  These requests are admitted here too.  If they are not admitted, they go to the handler.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from gateway.config.limits import LimitsConfig
from gateway.errors import TooManyRequests
from gateway.limits.accounts import NO_PARTIES, UNKNOWN, Account, Accounts, Parties
from gateway.limits.rate_limits import UNKNOWN_WAIT_S, Bans, RateLimitFields, RateLimits, retry_after_s
from gateway.live.followed_streams import RelayedLive
from gateway.server.request import Channel, LiveUse
from gateway.telemetry.metrics import MetricsRecorder

_log = logging.getLogger("gateway.server")


class Admission:
    """Decides which requests are answered.  `accounts` owns the counts and the token buckets of clients."""

    def __init__(
        self,
        limits: LimitsConfig,
        accounts: Accounts,
        rates: RateLimits,
        metrics: MetricsRecorder,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self.accounts = accounts
        self.rates = rates
        self._unknown = Account(UNKNOWN)
        """The account that counts the live reads of clients without an address.  No limit applies to this account."""
        self._bans = Bans(limits.client_refusals_per_s)
        self._metrics = metrics
        self._rng = rng
        self.now = now
        self.on_ban: Callable[[Account, float], None] = lambda account, until: None
        """Called for each banned network, with its account and the end of the ban."""
        self.use_limits(limits)

    def __repr__(self) -> str:
        return f"<Admission {self.accounts!r} {self.rates!r} {self._bans!r}>"

    def use_limits(self, limits: LimitsConfig) -> None:
        self.most_live_reads = limits.most_client_live_reads
        self.accounts.may_ban = bool(limits.client_refusals_per_s)
        self._bans.set_rate(limits.client_refusals_per_s, self.accounts)
        self.accounts.forget_full()

    def admit_request(
        self, channel: Channel, account: Account | None, route: str, parties: Parties = NO_PARTIES, *, is_live: bool
    ) -> RateLimitFields | None:
        """Count a request.  Count a live read until the channel's `live_use` ends.

        Returns the RateLimit fields for the answer.  Raises TooManyRequests, and then counts nothing.
        """
        if is_live and account is not None and account.live_reads >= self.most_live_reads:
            self._metrics.client_limited("client_live_reads")
            raise TooManyRequests(retry_after_s(UNKNOWN_WAIT_S, self._rng), "Too many live reads")
        fields = None
        if self.rates.limits:
            now = self.now()
            refusal = self.rates.refusal(account, route, now, parties, is_live=is_live)
            if refusal is None:
                self.rates.take(account, route, now, parties)
            fields = self.rates.fields(account, route, now, parties)
            if refusal is not None:
                self._metrics.rate_limited(refusal.limit, route)
                raise TooManyRequests(retry_after_s(refusal.wait_s, self._rng), fields=fields)
        if is_live:
            self._begin_live(channel, account, route, parties)
        return fields

    def refused(self, account: Account | None) -> bool:
        """Record a refusal that the client caused.  `account` is the connection's account.  Returns whether the
        client's network is banned now.
        """
        if account is None:
            return False
        now = self.now()
        if ban_s := self._bans.refused(account, now):
            # Keep the request buckets empty as well.  Otherwise they would fill during the ban, and the client could
            # then send a whole burst.
            self.rates.suspend(account, now, now + ban_s)
            self.on_ban(account, now + ban_s)
            self._metrics.client_limited("client_refusals_per_s")
            _log.warning(
                "client network %s is banned for %d s: too many of its requests are refused", account.net, ban_s
            )
        return account.is_banned(now)

    def admit_remembered(
        self, account: Account | None, route: str, sent_bytes: int, parties: Parties = NO_PARTIES
    ) -> bool:
        """Count a request for a remembered answer with `sent_bytes` body bytes.  Returns False, and counts nothing, if
        the handler has to refuse the request.
        """
        return self.rates.take_if_admitted(account, route, self.now(), sent_bytes, parties)

    def begin_join(self, channel: Channel, account: Account | None, route: str, parties: Parties = NO_PARTIES) -> bool:
        """Count a live read that was not parsed, until the channel's `live_use` ends.  The caller must call `joined`
        once the read has begun.

        Returns False, and counts nothing, if the handler has to refuse the read.
        """
        rates = self.rates
        if account is not None and account.live_reads >= self.most_live_reads:
            return False
        if not rates.limits and account is not None:
            # The usual case: no rate limit is configured, so the account alone counts the read.
            channel.live_use = account
            account.live_reads += 1
            return True
        if rates.refusal(account, route, self.now(), parties, is_live=True) is not None:
            return False
        self._begin_live(channel, account, route, parties)
        return True

    def joined(self, account: Account | None, route: str, parties: Parties = NO_PARTIES) -> None:
        """Count the request of a live read that `begin_join` has admitted."""
        if self.rates.limits:
            # The read may have ended, and its account may have been forgotten.  Open the account again, because a
            # charge to a forgotten account has no effect.
            current = self.accounts.open_account(account.net) if account is not None else None
            self.rates.take(current, route, self.now(), parties)

    def charge(self, net: str, route: str, sent_bytes: int, parties: Parties = NO_PARTIES) -> None:
        """Charge the body bytes of an answer that is not live."""
        if self.rates.limits:
            self.rates.charge(self.accounts.open_account(net), route, sent_bytes, self.now(), parties)

    def _begin_live(self, channel: Channel, account: Account | None, route: str, parties: Parties) -> None:
        channel.live_use = use = account if account is not None else self._unknown
        use.begin_live()
        if not self.rates.limits:
            return
        if (limited := self.rates.begin_live(account, route, self.now, parties)) is not None:
            channel.live_bytes = 0
            channel.live_use = limited


class RelayedLiveUse:
    """A relayed live read, which counts as a live read of its client and as a live request to the origin."""

    __slots__ = ("_relayed", "_use")

    def __init__(self, use: LiveUse | None, relayed: RelayedLive) -> None:
        self._use = use
        self._relayed = relayed

    def end_live(self, sent_bytes: int) -> None:
        self._relayed.give_back()
        if self._use is not None:
            self._use.end_live(sent_bytes)
