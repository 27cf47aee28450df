"""Token buckets by key, as one number each (the generic cell rate algorithm, ITU-T I.371).

A bucket that refills at `per_s` and holds `burst` tokens is described by the time at which it will be full again.  A
bucket that is full has nothing to remember, so it is forgotten without loss.  At the bound on their number, the fullest
of the others are forgotten: their clients gain the few tokens that they had taken, and those that have taken the most
stay bounded.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Final

_MOST_KEYS: Final = 16_384
_ROUNDING_S: Final = 1e-9
"""Tokens count as there this much earlier: times are sums of fractions."""


class Buckets:
    """A token bucket for each key.  `per_s` tokens come a second, and at most `burst` are kept.

    `now` is monotonic seconds in all methods.
    """

    def __init__(self, per_s: float, burst: float, most_keys: int = _MOST_KEYS) -> None:
        self.per_s = per_s
        self.burst = burst
        self._most_keys = most_keys
        self._one_s = 1 / per_s
        self._may_miss_s = (burst - 1) / per_s + _ROUNDING_S
        """A bucket that will be full this much later has one token."""
        self._full_at: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"<Buckets {self.per_s:g} a second, {self.burst:g} at once, {len(self._full_at)} not full>"

    def __len__(self) -> int:
        return len(self._full_at)

    def left(self, key: str, now: float) -> float:
        """Tokens in the bucket; negative if more were taken than it held."""
        full_at = self._full_at.get(key)
        return self.burst if full_at is None or full_at <= now else self.burst - (full_at - now) * self.per_s

    def has_one(self, key: str, now: float) -> bool:
        """Whether there is a token."""
        full_at = self._full_at.get(key)
        return full_at is None or full_at - now <= self._may_miss_s

    def take_one(self, key: str, now: float) -> None:
        """Take a token, whether or not it is there."""
        full_at = self._full_at.get(key)
        if full_at is None:
            self.take(key, now)
        else:
            self._full_at[key] = (max(now, full_at)) + self._one_s

    def wait_s(self, key: str, now: float, cost: float = 1.0) -> float:
        """Seconds until `cost` tokens are there; 0 if they are.  A cost above `burst` counts as `burst`."""
        missing = min(cost, self.burst) - self.left(key, now)
        wait_s = missing / self.per_s
        return wait_s if wait_s > _ROUNDING_S else 0.0

    def take(self, key: str, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, whether or not they are there."""
        full_at = self._full_at.get(key)
        if full_at is None and len(self._full_at) >= self._most_keys:
            self._make_room(now)
        self._full_at[key] = max(now, full_at or now) + cost / self.per_s

    def take_left(self, key: str, now: float, cost: float = 1.0) -> None:
        """Take `cost` tokens, or as many as there are."""
        self.take(key, now, max(0.0, min(cost, self.left(key, now))))

    def keep_empty(self, key: str, now: float, until: float) -> None:
        """Take what is there, and what comes before `until`."""
        self.take(key, now, max(0.0, self.left(key, now) + (until - now) * self.per_s))

    def _make_room(self, now: float) -> None:
        self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        # An eighth at a time: looking at all of them once for each new key would be slow.
        spare = len(self._full_at) - self._most_keys * 7 // 8
        if spare > 0:
            for key in nsmallest(spare, self._full_at, key=self._full_at.__getitem__):
                del self._full_at[key]
