"""Limits on rates: token buckets, the bans of clients that ignore refusals, and the configured rate limits.

A `Rate` is a token bucket, kept as one number (the generic cell rate algorithm, ITU-T I.371).  A bucket that refills at
`per_s` and holds `burst` tokens is described by the time at which it will be full again.  The account of its client
keeps that time.  A bucket that is full has nothing to remember.

`Bans` shuts out client nets that go on sending refused requests.  A refusal costs the gateway almost as much as an
answer, so a client that ignores refusals can still take the processor from others.  A net that is refused more than
`per_s` times a second for long is banned: its connections close, and new ones close at once, which costs a tenth of a
refusal.  A burst of ten seconds' refusals is allowed, and a quarter of that after a ban.

The first ban lasts for `BAN_S`.  If a net is banned again within the length of its previous ban after that ban's end,
the new ban is twice as long, up to `LONGEST_S`.  So repeat offenders are admitted less and less often.

`RateLimits` are the configuration's `[[rate_limit]]` tables: requests and bytes a second, and live reads at once.
A request is admitted if every limit that applies to it admits it, and takes a token of each.  Bytes are charged when an
answer has been sent: its length may not be known before, and a part of it would be useless.  A limit on bytes thus goes
into debt, and refuses requests until the debt is paid.

`gateway.server.admission` asks, and answers 429 (RFC 6585 section 4) where a request is not admitted.

A limit has one allowance for each client net, principal, tenant or route, or one for all together.  The first three are
kept in the accounts of `gateway.limits.accounts`, by the name of the net, the principal or the tenant; each of the
others has a separate account.  A limit per client does not bound a client whose net is not known.  A limit per
principal or tenant does not bound a request without one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gateway.config.rate_limits import RateLimitConfig
from gateway.limits.accounts import NO_COUNTS, NO_PARTIES, NO_TIMES, Account, Accounts, Parties

_ROUNDING_S: Final = 1e-9
"""Tokens count as available this much earlier, in seconds, because times are sums of rounded fractions."""


class Rate:
    """A token bucket for each account.  `per_s` tokens come a second, and at most `burst` are kept.

    `now` is monotonic seconds in all methods.
    """

    __slots__ = ("_may_miss_s", "_one_s", "burst", "per_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self.per_s = per_s
        self.burst = burst
        self._one_s = 1 / per_s
        self._may_miss_s = (burst - 1) / per_s + _ROUNDING_S
        """A bucket that will be full this much later has one token."""

    def __repr__(self) -> str:
        return f"<Rate {self.per_s:g} a second, {self.burst:g} at once>"

    def tokens_left(self, account: Account, now: float) -> float:
        """Tokens in the bucket; negative if more were taken than it held."""
        full_at = account.full_at.get(self)
        return self.burst if full_at is None or full_at <= now else self.burst - (full_at - now) * self.per_s

    def has_one(self, account: Account, now: float) -> bool:
        """Whether the bucket has a token."""
        full_at = account.full_at.get(self)
        return full_at is None or full_at - now <= self._may_miss_s

    def took_one(self, account: Account, now: float) -> bool:
        """Take a token; returns False, with nothing taken, if there is none."""
        full_at = account.full_at.get(self)
        if full_at is None or full_at < now:
            full_at = now
        elif full_at - now > self._may_miss_s:
            return False
        if account.full_at is NO_TIMES:
            account.full_at = {}
        account.full_at[self] = full_at + self._one_s
        return True

    def take_one(self, account: Account, now: float) -> None:
        """Take a token, even if the bucket has none."""
        full_at = account.full_at.get(self)
        if account.full_at is NO_TIMES:
            account.full_at = {}
        account.full_at[self] = (now if full_at is None or full_at < now else full_at) + self._one_s

    def wait_s(self, account: Account, now: float, cost: float = 1.0) -> float:
        """Seconds until the bucket has `cost` tokens; 0 if it has them.  A cost above `burst` counts as `burst`."""
        missing = min(cost, self.burst) - self.tokens_left(account, now)
        wait_s = missing / self.per_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, account: Account, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, even if the bucket has fewer."""
        if account.full_at is NO_TIMES:
            account.full_at = {}
        account.full_at[self] = max(now, account.full_at.get(self, now)) + cost / self.per_s

    def take_left(self, account: Account, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, or all tokens if the bucket has fewer."""
        self.take(account, now, max(0.0, min(cost, self.tokens_left(account, now))))

    def keep_empty(self, account: Account, now: float, until: float) -> None:
        """Take all tokens of the bucket, and those that it would gain before `until`."""
        self.take(account, now, max(0.0, self.tokens_left(account, now) + (until - now) * self.per_s))


UNKNOWN_WAIT_S: Final = 5.0
"""The wait for a place whose holder may leave at any time."""
_LONGEST_WAIT_S: Final = 86_400.0
"""The longest wait that is stated, in seconds; longer and infinite waits are stated as this."""


def retry_after_s(wait_s: float, rng: random.Random) -> int:
    """Whole seconds for Retry-After, for a client that has to wait `wait_s`.

    The result is up to twice the wait, and at least one second, so that clients that were refused together do not come
    back together.
    """
    wait_s = min(wait_s, _LONGEST_WAIT_S)
    return math.ceil(wait_s + rng.uniform(0, max(1.0, wait_s)))


BAN_S: Final = 10.0
"""The length of a first ban in seconds."""
LONGEST_S: Final = 320.0
"""The length of the longest ban in seconds."""
_BURST_S: Final = 10.0
"""The refusals of this many seconds may come at once."""
_LEFT_AFTER_BAN: Final = 0.25
"""The share of the burst that a net has after a ban."""


class Bans:
    """The rule by which nets are banned; their accounts have the bans.  `now` is monotonic seconds in all methods."""

    def __init__(self, per_s: float) -> None:
        self._refusals: Rate | None = None
        self.set_rate(per_s)

    def __repr__(self) -> str:
        return f"<Bans {self._refusals}>"

    def set_rate(self, per_s: float, accounts: Iterable[Account] = ()) -> None:
        """Ban nets that are refused more than `per_s` times a second from now on; 0 bans none and ends all bans."""
        if not per_s:
            self._refusals = None
            for account in accounts:
                account.banned_until = account.ban_s = 0.0
        elif self._refusals is None or self._refusals.per_s != per_s:
            self._refusals = Rate(per_s, max(1.0, per_s * _BURST_S))

    def refused(self, account: Account, now: float) -> float:
        """Record that a request of the net was refused.  Returns the length of the ban that this begins; 0 if it begins
        none."""
        refusals = self._refusals
        if refusals is None or account.is_banned(now):
            return 0.0
        if not refusals.wait_s(account, now):
            refusals.take(account, now)
            return 0.0
        length_s = account.ban_s
        is_again = length_s and now < account.banned_until + length_s
        length_s = min(2 * length_s, LONGEST_S) if is_again else BAN_S
        account.banned_until, account.ban_s = now + length_s, length_s
        # Take the tokens that come during the ban, except for a rest.
        refusals.take(account, now, length_s * refusals.per_s - _LEFT_AFTER_BAN * refusals.burst)
        return length_s


class RateRefusal(NamedTuple):
    """The limit that refuses a request."""

    limit: str
    wait_s: float
    """Seconds until the request might be admitted."""


class RateLimitFields(NamedTuple):
    """The values of the fields of an answer (draft-ietf-httpapi-ratelimit-headers-10)."""

    policy: str
    """`RateLimit-Policy`"""
    state: str
    """`RateLimit`"""


class RateLimit:
    """One limit."""

    def __init__(self, config: RateLimitConfig) -> None:
        self.config = config
        per_s = config.requests_per_s
        self.requests = Rate(per_s, config.burst or max(1.0, per_s)) if per_s is not None else None
        # A burst of one second's bytes, because all bytes of a second may be sent at its beginning.
        self.bytes = Rate(config.bytes_per_s, config.bytes_per_s) if config.bytes_per_s is not None else None
        self.counts_live = config.live_reads is not None or self.bytes is not None
        """Whether the limit has to know when a live read ends."""
        self.party = {"principal": 0, "tenant": 1}.get(config.per)
        """The place among `Parties` of the name whose account counts; None for other accounts."""
        self._shared: dict[str, Account] = {}
        """The accounts of routes, or the one of all."""

    def __repr__(self) -> str:
        return f"<RateLimit {self.config.name}: {self.requests}, {self.bytes}>"

    def applies_to(self, route: str) -> bool:
        """Whether requests of the route are limited."""
        return not self.config.routes or route in self.config.routes

    def shared(self, route: str) -> Account | None:
        """The account that all clients of the route have in common; None if each has its own."""
        match self.config.per:
            case "client" | "principal" | "tenant":
                return None
            case "route":
                return self._shared.setdefault(route, Account(route))
            case "all":
                return self._shared.setdefault("", Account(""))

    def admits(self, account: Account, now: float, *, is_live: bool = False) -> bool:
        """Whether a request may be admitted now: the same as no wait, for less."""
        return (
            (self.requests is None or self.requests.has_one(account, now))
            and (self.bytes is None or not self.bytes.wait_s(account, now))
            and not (is_live and self._is_full(account))
        )

    def take(self, account: Account, now: float, sent_bytes: int = 0) -> None:
        """Count a request that has been admitted, and body bytes of its answer."""
        if self.requests is not None:
            self.requests.take_one(account, now)
        if sent_bytes and self.bytes is not None:
            self.bytes.take(account, now, sent_bytes)

    def _is_full(self, account: Account) -> bool:
        most = self.config.live_reads
        return most is not None and account.live.get(self, 0) >= most

    def wait_s(self, account: Account, now: float, *, is_live: bool) -> float:
        """Seconds until a request might be admitted; 0 if it is now."""
        wait_s = self.requests.wait_s(account, now) if self.requests is not None else 0.0
        if self.bytes is not None:
            wait_s = max(wait_s, self.bytes.wait_s(account, now))
        return max(wait_s, UNKNOWN_WAIT_S) if is_live and self._is_full(account) else wait_s

    def policies(self) -> list[str]:
        """The members of `RateLimit-Policy`."""
        config, found = self.config, []
        if self.requests is not None:
            window_s = math.ceil(self.requests.burst / self.requests.per_s)
            found.append(f'"{config.name}";q={int(self.requests.burst)};w={window_s}')
        if self.bytes is not None:
            found.append(f'"{config.name}-bytes";q={int(self.bytes.burst)};w=1;qu="content-bytes"')
        if config.live_reads is not None:
            found.append(f'"{config.name}-live";q={config.live_reads};qu="concurrent-requests"')
        return found

    def states(self, account: Account, now: float) -> list[str]:
        """The members of `RateLimit`: the rest, and the seconds until all of it is there again."""
        config, found = self.config, []
        for suffix, rate in (("", self.requests), ("-bytes", self.bytes)):
            if rate is not None:
                left = rate.tokens_left(account, now)
                full_s = math.ceil((rate.burst - left) / rate.per_s)
                found.append(f'"{config.name}{suffix}";r={max(0, math.floor(left + 1e-6))};t={full_s}')
        if config.live_reads is not None:
            found.append(f'"{config.name}-live";r={max(0, config.live_reads - account.live.get(self, 0))}')
        return found


class LimitedLive:
    """One live read that counts in rate limits, and in its net's account if that is known, until `end_live`."""

    __slots__ = ("_account", "_applied", "_now")

    def __init__(
        self, account: Account | None, applied: Sequence[tuple[RateLimit, Account]], now: Callable[[], float]
    ) -> None:
        self._account = account
        self._applied = applied
        self._now = now
        for limit, counted in applied:
            if counted.live is NO_COUNTS:
                counted.live = {}
            counted.live[limit] = counted.live.get(limit, 0) + 1

    def end_live(self, sent_bytes: int) -> None:
        """The live read has ended after `sent_bytes` body bytes."""
        now = self._now()
        for limit, account in self._applied:
            account.live[limit] -= 1
            if not account.live[limit]:
                del account.live[limit]
            if limit.bytes is not None:
                limit.bytes.take(account, now, sent_bytes)
            if limit.party is not None:
                account.forget_if_unused()
        if self._account is not None:
            self._account.end_live(sent_bytes)


class RateLimits:
    """The limits in effect.  `account` is the client's, or None if its net is not known; `parties` are those of the
    request's credential; `now` is monotonic seconds."""

    def __init__(self, accounts: Accounts, configs: Sequence[RateLimitConfig] = ()) -> None:
        """`accounts` keeps those of principals and tenants."""
        self._accounts = accounts
        self.limits: tuple[RateLimit, ...] = ()
        self._of_route: dict[str, tuple[tuple[RateLimit, Account | None], ...]] = {}
        """The limits that apply to a route, each with the account that all its clients have in common, if they have."""
        self.replace(configs)

    def __repr__(self) -> str:
        return f"<RateLimits {len(self.limits)} limits>"

    def replace(self, configs: Sequence[RateLimitConfig]) -> None:
        """Put these limits into effect.  A limit that has not changed keeps its allowances; live reads that are open
        count only in the limit under which they began."""
        known = {limit.config: limit for limit in self.limits}
        self.limits = tuple(known.get(config) or RateLimit(config) for config in configs)
        self._of_route = {}

    def _applied(self, account: Account | None, route: str, parties: Parties) -> list[tuple[RateLimit, Account]]:
        """The limits that apply to a client's requests of a route, and the accounts of which they take."""
        limits = self._of_route.get(route) or self._find(route)
        if parties is NO_PARTIES:
            return [
                (limit, one)
                for limit, shared in limits
                if limit.party is None and (one := shared or account) is not None
            ]
        return [
            (limit, one)
            for limit, shared in limits
            if (
                one := shared or (account if limit.party is None else self._accounts.open_account(parties[limit.party]))
            )
            is not None
        ]

    def _find(self, route: str) -> tuple[tuple[RateLimit, Account | None], ...]:
        found = tuple((limit, limit.shared(route)) for limit in self.limits if limit.applies_to(route))
        self._of_route[route] = found
        return found

    def refusal(
        self, account: Account | None, route: str, now: float, parties: Parties = NO_PARTIES, *, is_live: bool
    ) -> RateRefusal | None:
        """The limit for which the request has to wait longest; None if it may be admitted."""
        refusal = None
        for limit, one in self._applied(account, route, parties):
            wait_s = 0.0 if limit.admits(one, now, is_live=is_live) else limit.wait_s(one, now, is_live=is_live)
            if wait_s and (refusal is None or wait_s > refusal.wait_s):
                refusal = RateRefusal(limit.config.name, wait_s)
        return refusal

    def take(self, account: Account | None, route: str, now: float, parties: Parties = NO_PARTIES) -> None:
        """Count a request that has been admitted."""
        for limit, one in self._applied(account, route, parties):
            limit.take(one, now)

    def take_if_admitted(
        self, account: Account | None, route: str, now: float, sent_bytes: int, parties: Parties = NO_PARTIES
    ) -> bool:
        """Count a request that an answer of `sent_bytes` body bytes answers; False, with nothing counted, if some limit
        refuses it."""
        if parties is not NO_PARTIES:
            applied = self._applied(account, route, parties)
            if not all(limit.admits(named, now) for limit, named in applied):
                return False
            for limit, named in applied:
                limit.take(named, now, sent_bytes)
            return True
        # Every hit passes here, so no list of the accounts is made.
        limits = self._of_route.get(route) or self._find(route)
        for limit, shared in limits:
            if (one := shared or account) is not None and limit.party is None and not limit.admits(one, now):
                return False
        for limit, shared in limits:
            if (one := shared or account) is not None and limit.party is None:
                limit.take(one, now, sent_bytes)
        return True

    def suspend(self, account: Account, now: float, until: float) -> None:
        """Let the client have no requests of its own allowances before `until`; they grow from then on."""
        for limit in self.limits:
            if limit.config.per == "client" and limit.requests is not None:
                limit.requests.keep_empty(account, now, until)

    def charge(
        self, account: Account | None, route: str, sent_bytes: int, now: float, parties: Parties = NO_PARTIES
    ) -> None:
        """Count the body bytes of an answer that has been sent."""
        for limit, one in self._applied(account, route, parties):
            if limit.bytes is not None:
                limit.bytes.take(one, now, sent_bytes)

    def begin_live(
        self, account: Account | None, route: str, now: Callable[[], float], parties: Parties = NO_PARTIES
    ) -> LimitedLive | None:
        """Count a live read that has been admitted, and that its account counts; `LimitedLive.end_live` must follow.
        None if no limit counts it."""
        applied = [one for one in self._applied(account, route, parties) if one[0].counts_live]
        return LimitedLive(account, applied, now) if applied else None

    def fields(
        self, account: Account | None, route: str, now: float, parties: Parties = NO_PARTIES
    ) -> RateLimitFields | None:
        """The fields for an answer to a request of the client; None if no limit applies."""
        applied = self._applied(account, route, parties)
        if not applied:
            return None
        return RateLimitFields(
            ", ".join(member for limit, _ in applied for member in limit.policies()),
            ", ".join(member for limit, one in applied for member in limit.states(one, now)),
        )
