"""Rate limits: token buckets, the configured limits, and bans of clients that ignore refusals.

A `Rate` is a token bucket that refills at `per_s` tokens a second and holds at most `burst`.  The state of a bucket is
one number, the time at which the bucket will be full (the generic cell rate algorithm, ITU-T I.371).  The account of
the client keeps this number.  A full bucket has no entry in the account.

`RateLimits` are the `[[rate_limit]]` tables of the configuration: requests and bytes a second, and concurrent live
reads.  A request is admitted if all limits that apply admit it.  It then takes a token from each of these limits.
Bytes are charged after an answer has been sent, because its length may not be known earlier.  A bucket of bytes can
therefore become negative.  The limit then refuses requests until the bucket is no longer empty.
`gateway.server.request_admission` answers refused requests with 429 (RFC 6585 section 4).

A limit has separate buckets for each client network, principal (authenticated user), tenant or route, or one bucket for
all requests.  The buckets of networks, principals and tenants are in `gateway.limits.accounts`.  A limit per client
does not apply to clients without a network.  A limit per principal or tenant does not apply to requests without a
principal or tenant.

`Bans` excludes client networks that keep sending refused requests.  A refusal costs almost as much processor time as an
answer, so such clients would still slow down other clients.  Each network has a token bucket for its refusals.  The
bucket refills at the configured number of refusals a second, and holds ten times this number (the burst).  A network
whose bucket has no token left for a refusal is banned.  The connections of a banned network are closed.  New
connections of this network are closed at once, which costs a tenth of a refusal.  The first ban lasts for `BAN_S`.  If
the network has had no ban for at least the length of its last ban, its next ban lasts for `BAN_S` again.  Otherwise the
next ban is twice as long as the last ban, up to `LONGEST_S`.  After a ban the bucket has only a quarter of the burst.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from gateway.config.rate_limits import RateLimitConfig
from gateway.limits.accounts import NO_COUNTS, NO_PARTIES, NO_TIMES, Account, Accounts, Parties

_ROUNDING_S: Final = 1e-9
"""A token may be taken this many seconds early, because rounding errors add up."""


class Rate:
    """A token bucket for each account, with `per_s` new tokens a second and at most `burst` tokens.

    `now` is monotonic seconds in all methods.
    """

    __slots__ = ("_may_miss_s", "_one_s", "burst", "name", "per_s")

    def __init__(self, per_s: float, burst: float, name: str = "") -> None:
        self.name = name
        """The name under which the workers share the buckets; empty if they do not share them."""
        self.per_s = per_s
        self.burst = burst
        self._one_s = 1 / per_s
        self._may_miss_s = (burst - 1) / per_s + _ROUNDING_S
        """The seconds until a bucket with just one token is full.  A bucket that will be full sooner has more than one
        token."""

    def __repr__(self) -> str:
        return f"<Rate {self.per_s:g} a second, {self.burst:g} at once>"

    def tokens_left(self, account: Account, now: float) -> float:
        """Return the number of tokens in the bucket; negative if more tokens were taken than it had."""
        full_at = account.full_at.get(self)
        return self.burst if full_at is None or full_at <= now else self.burst - (full_at - now) * self.per_s

    def has_one(self, account: Account, now: float) -> bool:
        """Return whether the bucket has a token."""
        full_at = account.full_at.get(self)
        return full_at is None or full_at - now <= self._may_miss_s

    def took_one(self, account: Account, now: float) -> bool:
        """Take a token and return True, or return False if the bucket has none."""
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
        """Return the seconds until the bucket has `cost` tokens; 0 if it has them now.  If `cost` exceeds `burst`,
        return the seconds until the bucket is full."""
        missing = min(cost, self.burst) - self.tokens_left(account, now)
        wait_s = missing / self.per_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, account: Account, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, even if the bucket has fewer tokens."""
        if account.full_at is NO_TIMES:
            account.full_at = {}
        account.full_at[self] = max(now, account.full_at.get(self, now)) + cost / self.per_s

    def take_left(self, account: Account, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, or all tokens if the bucket has fewer tokens."""
        self.take(account, now, max(0.0, min(cost, self.tokens_left(account, now))))

    def keep_empty(self, account: Account, now: float, until: float) -> None:
        """Empty the bucket, and keep it empty until `until`."""
        self.take(account, now, max(0.0, self.tokens_left(account, now) + (until - now) * self.per_s))


UNKNOWN_WAIT_S: Final = 5.0
"""The seconds that a refusal states if the request must wait until some live read ends.  This time is unknown."""
_LONGEST_WAIT_S: Final = 86_400.0
"""The maximum wait from which Retry-After is computed, in seconds."""


def retry_after_s(wait_s: float, rng: random.Random) -> int:
    """Return whole seconds for Retry-After, for a client that must wait `wait_s`.

    The result is random: at least `wait_s`, and at most about twice `wait_s`.  Clients that were refused at the same
    time then do not return at the same time.
    """
    wait_s = min(wait_s, _LONGEST_WAIT_S)
    return math.ceil(wait_s + rng.uniform(0, max(1.0, wait_s)))


BAN_S: Final = 10.0
"""The length of a first ban in seconds."""
LONGEST_S: Final = 320.0
"""The length of the longest ban in seconds."""
_BURST_S: Final = 10.0
"""The seconds in which an empty bucket of refusals becomes full.  This time determines its burst."""
_LEFT_AFTER_BAN: Final = 0.25
"""The share of the burst that is in the bucket after a ban."""


class Bans:
    """Decides which client networks are banned.  Their accounts record the bans.

    `now` is monotonic seconds in all methods.
    """

    def __init__(self, per_s: float) -> None:
        self._refusals: Rate | None = None
        self.set_rate(per_s)

    def __repr__(self) -> str:
        return f"<Bans {self._refusals}>"

    def set_rate(self, per_s: float, accounts: Iterable[Account] = ()) -> None:
        """Set the allowed refusals a second.  0 disables bans, and ends the bans of `accounts`."""
        if not per_s:
            self._refusals = None
            for account in accounts:
                account.banned_until = account.ban_s = 0.0
        elif self._refusals is None or self._refusals.per_s != per_s:
            self._refusals = Rate(per_s, max(1.0, per_s * _BURST_S), "refusals")

    def refused(self, account: Account, now: float) -> float:
        """Record a refused request; return the length of the ban that the refusal causes, or 0."""
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
        # The bucket refills during the ban.  Take the tokens of the whole ban in advance, minus a share of the burst.
        # The bucket then has only this share when the ban ends.
        refusals.take(account, now, length_s * refusals.per_s - _LEFT_AFTER_BAN * refusals.burst)
        return length_s


class RateRefusal(NamedTuple):
    """The limit that refuses a request."""

    limit: str
    wait_s: float
    """The seconds until the request may be admitted."""


class RateLimitFields(NamedTuple):
    """The values of the RateLimit header fields (draft-ietf-httpapi-ratelimit-headers-10)."""

    policy: str
    """The value of `RateLimit-Policy`."""
    state: str
    """The value of `RateLimit`."""


class RateLimit:
    """One configured limit."""

    def __init__(self, config: RateLimitConfig, accounts: Accounts) -> None:
        self.config = config
        self._accounts = accounts
        per_s, name = config.requests_per_s, f"limit {config.name}"
        self.requests = Rate(per_s, config.burst or max(1.0, per_s), name) if per_s is not None else None
        # The burst is the bytes of one second.
        most = config.bytes_per_s
        self.bytes = Rate(most, most, f"{name} bytes") if most is not None else None
        self.counts_live = config.live_reads is not None or self.bytes is not None
        """Whether the limit counts live reads, or charges their bytes when they end."""
        self.party = {"principal": 0, "tenant": 1}.get(config.per)
        """For a limit per principal or tenant, the index of its name in `Parties`; otherwise None."""
        self._shared: dict[str, Account] = {}
        """For a limit per route, the account of each route.  For a limit on all requests, its one account."""

    def __repr__(self) -> str:
        return f"<RateLimit {self.config.name}: {self.requests}, {self.bytes}>"

    def applies_to(self, route: str) -> bool:
        """Return whether the limit applies to requests of the route."""
        return not self.config.routes or route in self.config.routes

    def shared(self, route: str) -> Account | None:
        """Return the account that all requests of the route share; None if each client, principal or tenant has its own
        account."""
        match self.config.per:
            case "client" | "principal" | "tenant":
                return None
            case "route":
                return self._separate(route)
            case "all":
                return self._separate("")

    def _separate(self, name: str) -> Account:
        found = self._shared.get(name)
        if found is None:
            found = self._shared[name] = self._accounts.separate(name)
        return found

    def admits(self, account: Account, now: float, *, is_live: bool = False) -> bool:
        """Return whether a request is admitted now.  Same as `wait_s` == 0, but faster."""
        return (
            (self.requests is None or self.requests.has_one(account, now))
            and (self.bytes is None or not self.bytes.wait_s(account, now))
            and not (is_live and self._is_full(account))
        )

    def take(self, account: Account, now: float, sent_bytes: int = 0) -> None:
        """Count an admitted request, and `sent_bytes` body bytes of its answer."""
        if self.requests is not None:
            self.requests.take_one(account, now)
        if sent_bytes and self.bytes is not None:
            self.bytes.take(account, now, sent_bytes)

    def _is_full(self, account: Account) -> bool:
        most = self.config.live_reads
        return most is not None and account.live.get(self, 0) >= most

    def wait_s(self, account: Account, now: float, *, is_live: bool) -> float:
        """Return the seconds until a request may be admitted; 0 if it is admitted now."""
        wait_s = self.requests.wait_s(account, now) if self.requests is not None else 0.0
        if self.bytes is not None:
            wait_s = max(wait_s, self.bytes.wait_s(account, now))
        return max(wait_s, UNKNOWN_WAIT_S) if is_live and self._is_full(account) else wait_s

    def policies(self) -> list[str]:
        """Return the members of the `RateLimit-Policy` field."""
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
        """Return the members of the `RateLimit` field.  They state the tokens left, and the seconds until the bucket is
        full."""
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
    """A live read that counts in rate limits and in the account of its client network, until `end_live`."""

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
        """Stop counting the live read, and charge its `sent_bytes` body bytes."""
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
    """All configured limits.

    In all methods, `account` is the client's account, or None if the client's network is unknown.  `parties` are the
    principal and tenant of the request.  `now` is monotonic seconds.
    """

    def __init__(self, accounts: Accounts, configs: Sequence[RateLimitConfig] = ()) -> None:
        """`accounts` has the accounts of principals and tenants."""
        self._accounts = accounts
        self.limits: tuple[RateLimit, ...] = ()
        self._of_route: dict[str, tuple[tuple[RateLimit, Account | None], ...]] = {}
        """The limits that apply to each route, each with its shared account (`RateLimit.shared`)."""
        self.replace(configs)

    def __repr__(self) -> str:
        return f"<RateLimits {len(self.limits)} limits>"

    def replace(self, configs: Sequence[RateLimitConfig]) -> None:
        """Replace the configured limits.

        A limit that has not changed keeps its buckets.  Open live reads count only in the limits that they began with.
        """
        known = {limit.config: limit for limit in self.limits}
        self.limits = tuple(known.get(config) or RateLimit(config, self._accounts) for config in configs)
        self._of_route = {}

    def _applied(self, account: Account | None, route: str, parties: Parties) -> list[tuple[RateLimit, Account]]:
        """Return the limits that apply to a request, each with the account whose buckets it uses."""
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
        """Return the refusal by the limit with the longest wait; None if the request is admitted."""
        refusal = None
        for limit, one in self._applied(account, route, parties):
            wait_s = 0.0 if limit.admits(one, now, is_live=is_live) else limit.wait_s(one, now, is_live=is_live)
            if wait_s and (refusal is None or wait_s > refusal.wait_s):
                refusal = RateRefusal(limit.config.name, wait_s)
        return refusal

    def take(self, account: Account | None, route: str, now: float, parties: Parties = NO_PARTIES) -> None:
        """Count an admitted request."""
        for limit, one in self._applied(account, route, parties):
            limit.take(one, now)

    def take_if_admitted(
        self, account: Account | None, route: str, now: float, sent_bytes: int, parties: Parties = NO_PARTIES
    ) -> bool:
        """Count a request and the `sent_bytes` body bytes of its answer, and return True.  If a limit refuses the
        request, only return False."""
        if parties is not NO_PARTIES:
            applied = self._applied(account, route, parties)
            if not all(limit.admits(named, now) for limit, named in applied):
                return False
            for limit, named in applied:
                limit.take(named, now, sent_bytes)
            return True
        # Hot path: do not build a list of the accounts.
        limits = self._of_route.get(route) or self._find(route)
        for limit, shared in limits:
            if (one := shared or account) is not None and limit.party is None and not limit.admits(one, now):
                return False
        for limit, shared in limits:
            if (one := shared or account) is not None and limit.party is None:
                limit.take(one, now, sent_bytes)
        return True

    def suspend(self, account: Account, now: float, until: float) -> None:
        """Empty the client's own request buckets, and keep them empty until `until`."""
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
        """Count an admitted live read in the limits; return None if no limit must record it.

        The caller must have counted the read in `account` already.  When the read ends, the caller must call `end_live`
        of the result, which stops the counts in the limits and in `account`.
        """
        applied = [one for one in self._applied(account, route, parties) if one[0].counts_live]
        return LimitedLive(account, applied, now) if applied else None

    def fields(
        self, account: Account | None, route: str, now: float, parties: Parties = NO_PARTIES
    ) -> RateLimitFields | None:
        """Return the RateLimit fields for an answer; None if no limit applies."""
        applied = self._applied(account, route, parties)
        if not applied:
            return None
        return RateLimitFields(
            ", ".join(member for limit, _ in applied for member in limit.policies()),
            ", ".join(member for limit, one in applied for member in limit.states(one, now)),
        )
