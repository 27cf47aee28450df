"""Rates as token buckets, each as one number (the generic cell rate algorithm, ITU-T I.371).

A bucket that refills at `per_s` and holds `burst` tokens is described by the time at which it will be full again.  The
account of its client keeps that time (`gateway.limits.accounts`).  A bucket that is full has nothing to remember.
"""

from __future__ import annotations

from typing import Final

from gateway.limits.accounts import NO_TIMES, Account

_ROUNDING_S: Final = 1e-9
"""Tokens count as there this much earlier: times are sums of fractions."""


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

    def left(self, account: Account, now: float) -> float:
        """Tokens in the bucket; negative if more were taken than it held."""
        full_at = account.full_at.get(self)
        return self.burst if full_at is None or full_at <= now else self.burst - (full_at - now) * self.per_s

    def has_one(self, account: Account, now: float) -> bool:
        """Whether there is a token."""
        full_at = account.full_at.get(self)
        return full_at is None or full_at - now <= self._may_miss_s

    def take_one(self, account: Account, now: float) -> None:
        """Take a token, whether or not it is there."""
        full_at = account.full_at.get(self)
        if account.full_at is NO_TIMES:
            account.full_at = {}
        account.full_at[self] = (now if full_at is None or full_at < now else full_at) + self._one_s

    def wait_s(self, account: Account, now: float, cost: float = 1.0) -> float:
        """Seconds until `cost` tokens are there; 0 if they are.  A cost above `burst` counts as `burst`."""
        missing = min(cost, self.burst) - self.left(account, now)
        wait_s = missing / self.per_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, account: Account, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, whether or not they are there."""
        if account.full_at is NO_TIMES:
            account.full_at = {}
        account.full_at[self] = max(now, account.full_at.get(self, now)) + cost / self.per_s

    def take_left(self, account: Account, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, or as many as there are."""
        self.take(account, now, max(0.0, min(cost, self.left(account, now))))

    def keep_empty(self, account: Account, now: float, until: float) -> None:
        """Take the tokens that are there, and those that come before `until`."""
        self.take(account, now, max(0.0, self.left(account, now) + (until - now) * self.per_s))
