"""The drain of live readers, which spreads the ends of their responses over time."""

from __future__ import annotations

import math
from random import Random


class Drain:
    """The state of the drain.

    Live readers end at random times within `spread_s` seconds, so that they do not all reconnect at once.  All have
    ended after `within_s` seconds.  A reader that begins during the drain ends late in the drain, so that its client
    does not reconnect to the same gateway several times.
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
        """Return the seconds after which a reader that begins now should end."""
        left_s = self._ends_at - now
        return rng.uniform(left_s / 2, left_s) if left_s > 0 else rng.uniform(0, self.spread_s)

    def within_s(self, now: float) -> float:
        """Return the seconds within which a reader that begins now must end.

        The result is the rest of the drain.  If the drain is over and the gateway still serves, the result is the whole
        length of the drain.
        """
        left_s = self._gone_at - now
        return left_s if left_s > 0 else self._within_s
