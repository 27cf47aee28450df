"""The drain of live readers: whether there is one, and when each reader ends."""

from __future__ import annotations

import math
from random import Random


class Drain:
    """Whether the gateway is draining.

    Live readers end spread over `spread_s` seconds, so that they do not all reconnect at once, and the last of them
    within `within_s`.  Readers that begin meanwhile end late, so that none reconnects again and again.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.spread_s = 0.0
        self._within_s = math.inf
        self._ends_at = 0.0
        self._gone_at = math.inf

    def begin_drain(self, now: float, spread_s: float, within_s: float = math.inf) -> None:
        self.is_set = True
        self.spread_s = spread_s
        self._within_s = within_s
        self._ends_at = now + spread_s
        self._gone_at = now + within_s

    def undo(self) -> None:
        self.is_set = False

    def delay_s(self, now: float, rng: Random) -> float:
        """Seconds until the end of a reader that begins now."""
        left_s = self._ends_at - now
        return rng.uniform(left_s / 2, left_s) if left_s > 0 else rng.uniform(0, self.spread_s)

    def within_s(self, now: float) -> float:
        """Seconds within which a reader that begins now must end: by the end of the drain or, if the gateway still
        serves after that, within the length of the drain."""
        left_s = self._gone_at - now
        return left_s if left_s > 0 else self._within_s
