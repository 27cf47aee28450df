"""The limits of the configuration's `[[rate_limit]]` tables: requests and bytes a second, and live reads at once.

A request is admitted if every limit that applies to it admits it, and takes a token of each.  Bytes are charged when an
answer has been sent: its length may not be known before, and a part of it would be useless.  A limit on bytes thus goes
into debt, and refuses requests until the debt is paid.

`gateway.server.admission` asks, and answers 429 (RFC 6585 section 4) where a request is not admitted.

A limit keeps an allowance for each value of its key: the client's net, the route, or nothing.  A client without a net
is not bounded by a limit per client.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from gateway.config.rate_limits import RateLimitConfig
from gateway.limits.buckets import Buckets
from gateway.limits.client_net import UNKNOWN
from gateway.limits.retry_after import UNKNOWN_WAIT_S
from gateway.limits.usage import Tally

_MOST_REMEMBERED: Final = 16_384


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
    """One limit and its allowances."""

    def __init__(self, config: RateLimitConfig) -> None:
        self.config = config
        per_s = config.requests_per_s
        self.requests = Buckets(per_s, config.burst or max(1.0, per_s)) if per_s is not None else None
        # One second's worth at once: what is sent in a second may be sent at its beginning.
        self.bytes = Buckets(config.bytes_per_s, config.bytes_per_s) if config.bytes_per_s is not None else None
        self.live = Tally()
        self.counts_live = config.live_reads is not None or self.bytes is not None
        """Whether the limit has to know when a live read ends."""

    def __repr__(self) -> str:
        return f"<RateLimit {self.config.name}: {self.requests}, {self.bytes}, {self.live}>"

    def applies_to(self, route: str) -> bool:
        """Whether requests of the route are limited."""
        return not self.config.routes or route in self.config.routes

    def key(self, net: str, route: str) -> str | None:
        """The key of the request's allowance; None if the limit does not apply to its client."""
        match self.config.per:
            case "client":
                return net if net != UNKNOWN else None
            case "route":
                return route
            case "all":
                return ""

    def wait_s(self, key: str, now: float, *, is_live: bool) -> float:
        """Seconds until a request might be admitted; 0 if it is now."""
        wait_s = self.requests.wait_s(key, now) if self.requests is not None else 0.0
        if self.bytes is not None:
            wait_s = max(wait_s, self.bytes.wait_s(key, now))
        if is_live and self.config.live_reads is not None and self.live[key] >= self.config.live_reads:
            wait_s = max(wait_s, UNKNOWN_WAIT_S)
        return wait_s

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

    def states(self, key: str, now: float) -> list[str]:
        """The members of `RateLimit`: what is left, and in how many seconds all of it is there again."""
        config, found = self.config, []
        for suffix, buckets in (("", self.requests), ("-bytes", self.bytes)):
            if buckets is not None:
                left = buckets.left(key, now)
                full_s = math.ceil((buckets.burst - left) / buckets.per_s)
                found.append(f'"{config.name}{suffix}";r={max(0, math.floor(left + 1e-6))};t={full_s}')
        if config.live_reads is not None:
            found.append(f'"{config.name}-live";r={max(0, config.live_reads - self.live[key])}')
        return found


_Applied = tuple[tuple[RateLimit, str], ...]


class LimitedLive:
    """The allowances that one live read takes, until `end`."""

    __slots__ = ("_applied",)

    def __init__(self, applied: _Applied) -> None:
        self._applied = applied
        for limit, key in applied:
            limit.live.add(key)

    def end(self, sent_bytes: int, now: float) -> None:
        """The live read has ended after `sent_bytes` body bytes."""
        for limit, key in self._applied:
            limit.live.remove(key)
            if limit.bytes is not None:
                limit.bytes.take(key, now, sent_bytes)


class RateLimits:
    """The limits in effect.  Owner of their allowances.  `now` is monotonic seconds."""

    def __init__(self, configs: Sequence[RateLimitConfig] = ()) -> None:
        self.limits: tuple[RateLimit, ...] = ()
        self._of_route: dict[str, tuple[RateLimit, ...]] = {}
        self._of_client: dict[tuple[str, str], _Applied] = {}
        """The limits that apply to a net's requests of a route, and the keys of its allowances."""
        self.replace(configs)

    def __repr__(self) -> str:
        return f"<RateLimits {len(self.limits)} limits>"

    def replace(self, configs: Sequence[RateLimitConfig]) -> None:
        """Put these limits into effect.  A limit that has not changed keeps its allowances; live reads that are open
        count only in the limit under which they began."""
        known = {limit.config: limit for limit in self.limits}
        self.limits = tuple(known.get(config) or RateLimit(config) for config in configs)
        self._of_route = {}
        self._of_client = {}

    def _applied(self, net: str, route: str) -> _Applied:
        applied = self._of_client.get((net, route))
        if applied is not None:
            return applied
        limits = self._of_route.get(route)
        if limits is None:
            limits = self._of_route[route] = tuple(limit for limit in self.limits if limit.applies_to(route))
        found = ((limit, limit.key(net, route)) for limit in limits)
        if len(self._of_client) >= _MOST_REMEMBERED:
            self._of_client.clear()
        applied = self._of_client[net, route] = tuple((limit, key) for limit, key in found if key is not None)
        return applied

    def refusal(self, net: str, route: str, now: float, *, is_live: bool) -> RateRefusal | None:
        """The limit for which the request has to wait longest; None if it may be admitted."""
        refusal = None
        for limit, key in self._applied(net, route):
            wait_s = limit.wait_s(key, now, is_live=is_live)
            if wait_s and (refusal is None or wait_s > refusal.wait_s):
                refusal = RateRefusal(limit.config.name, wait_s)
        return refusal

    def admits(self, net: str, route: str, now: float, *, is_live: bool) -> bool:
        """Whether the request may be admitted: the same as no refusal, for less."""
        for limit, key in self._of_client.get((net, route)) or self._applied(net, route):
            if limit.requests is not None and not limit.requests.has_one(key, now):
                return False
            if (limit.bytes is not None or is_live) and limit.wait_s(key, now, is_live=is_live):
                return False
        return True

    def take(self, net: str, route: str, now: float) -> None:
        """Count a request that has been admitted."""
        for limit, key in self._of_client.get((net, route)) or self._applied(net, route):
            if limit.requests is not None:
                limit.requests.take_one(key, now)

    def take_if_admitted(self, net: str, route: str, now: float, sent_bytes: int) -> bool:
        """Count a request that an answer of `sent_bytes` body bytes answers; False, with nothing counted, if some limit
        refuses it."""
        applied = self._of_client.get((net, route)) or self._applied(net, route)
        for limit, key in applied:
            if (limit.requests is not None and not limit.requests.has_one(key, now)) or (
                limit.bytes is not None and limit.bytes.wait_s(key, now)
            ):
                return False
        for limit, key in applied:
            if limit.requests is not None:
                limit.requests.take_one(key, now)
            if limit.bytes is not None:
                limit.bytes.take(key, now, sent_bytes)
        return True

    def suspend(self, net: str, now: float, until: float) -> None:
        """Let the client have no requests of its own allowances before `until`; they grow from then on."""
        for limit in self.limits:
            if limit.config.per == "client" and limit.requests is not None:
                limit.requests.keep_empty(net, now, until)

    def charge(self, net: str, route: str, sent_bytes: int, now: float) -> None:
        """Count the body bytes of an answer that has been sent."""
        for limit, key in self._applied(net, route):
            if limit.bytes is not None:
                limit.bytes.take(key, now, sent_bytes)

    def begin_live(self, net: str, route: str) -> LimitedLive | None:
        """Count a live read that has been admitted; `LimitedLive.end` must follow.  None if no limit counts it."""
        applied = tuple(one for one in self._applied(net, route) if one[0].counts_live)
        return LimitedLive(applied) if applied else None

    def fields(self, net: str, route: str, now: float) -> RateLimitFields | None:
        """The fields for an answer to a request of the net; None if no limit applies."""
        applied = self._applied(net, route)
        if not applied:
            return None
        return RateLimitFields(
            ", ".join(member for limit, _ in applied for member in limit.policies()),
            ", ".join(member for limit, key in applied for member in limit.states(key, now)),
        )
