"""Concealed streams: a refusal looks like the 404 of an absent stream, in form and in time.

Both answers are the gateway's own, so no field of the origin distinguishes them.  A refusal needs no request to the
origin, so it is delayed by a time that the origin has recently needed for a 404.  A read that arrives during the delay
is refused at the same time, as if both shared one fetch.  A later read is refused at once for as long as the 404 of an
absent stream would be repeated from memory.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final

from gateway.limits.memory import evict_oldest

_MOST_TIMES: Final = 64
MOST_NAMES: Final = 4_096
"""Bound on the concealed streams whose recent refusals are remembered."""


class Concealment:
    """Owner of the times of one route's 404s, and of the recently refused names.  `now` is monotonic seconds."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._absent: dict[Hashable, deque[float]] = {}
        """Seconds that 404s have taken, by the kind of request."""
        self._others: deque[float] = deque(maxlen=_MOST_TIMES)
        """Seconds that other answers of the origin have taken."""
        self._refused: OrderedDict[tuple[Hashable, Hashable], tuple[float, float]] = OrderedDict()
        """For each name and kind, the time at which the refusal is sent, and the time until which it is repeated."""

    def __repr__(self) -> str:
        return f"<Concealment {sum(map(len, self._absent.values()))} times, {len(self._refused)} names>"

    def note(self, kind: Hashable, took_s: float, *, is_absent: bool) -> None:
        """Record the time that the origin took to answer a request of this kind, with a 404 if `is_absent`."""
        times = self._absent.setdefault(kind, deque(maxlen=_MOST_TIMES)) if is_absent else self._others
        times.append(took_s)

    def delay_s(self, kind: Hashable) -> float:
        """Seconds that a 404 for a request of this kind might take.  Without an earlier 404 of this kind, the times of
        other kinds or of other answers are used."""
        times = self._absent.get(kind) or next(iter(self._absent.values()), None) or self._others
        return self._rng.choice(times) if times else 0.0

    def given_at(self, name: Hashable, kinds: tuple[Hashable, ...], now: float) -> float | None:
        """The time at which the refusal of an earlier read of one of these kinds is or was sent, if this read shares
        that refusal; None if this read is to be refused by itself."""
        found = (self._refused.get((name, kind), (now, now)) for kind in kinds)
        return min((given_at for given_at, until in found if now < until), default=None)

    def remember(self, name: Hashable, kind: Hashable, given_at: float, until: float) -> None:
        """Repeat the refusal that is sent at `given_at` until that time, or until `until` if that is later."""
        self._refused.pop((name, kind), None)
        self._refused[name, kind] = given_at, max(given_at, until)
        evict_oldest(self._refused, MOST_NAMES)
