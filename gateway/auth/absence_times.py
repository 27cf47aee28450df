"""The delays of refusals that look like the 404 for an absent stream.  `gateway.auth.guard` selects these refusals.

The gateway writes the 404 and the refusal itself, so their fields are equal.  Their response times are also similar.  A
client therefore cannot distinguish the two.  The gateway can refuse without a request to the origin, so it delays the
refusal.  The delay is a time that the origin has recently taken for a 404.  A read that arrives during the delay is
refused at the same moment, as if both reads shared one fetch.  Later reads are refused without a delay, for as long as
a remembered 404 would answer them if the stream were absent.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final

from gateway.limits.memory import evict_oldest

_MOST_TIMES: Final = 64
MOST_NAMES: Final = 4_096
"""The most refusals that are remembered.  The oldest are forgotten first."""


class AbsenceTimes:
    """The times of one route's 404s, and the recently refused streams.  `now` is monotonic seconds."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        self._absent: dict[Hashable, deque[float]] = {}
        """The seconds that the origin has taken for 404s, by the kind of request."""
        self._others: deque[float] = deque(maxlen=_MOST_TIMES)
        """The seconds that the origin has taken for other answers."""
        self._refused: OrderedDict[tuple[Hashable, Hashable], tuple[float, float]] = OrderedDict()
        """The key is a stream's name and a kind of request.  The value is the time at which the refusal is sent, and
        the time until which the refusal is repeated.
        """

    def __repr__(self) -> str:
        return f"<AbsenceTimes {sum(map(len, self._absent.values()))} times, {len(self._refused)} names>"

    def note(self, kind: Hashable, took_s: float, *, is_absent: bool) -> None:
        """Record the seconds that the origin took for a request of this kind.  `is_absent` means that the answer was
        404.
        """
        times = self._absent.setdefault(kind, deque(maxlen=_MOST_TIMES)) if is_absent else self._others
        times.append(took_s)

    def delay_s(self, kind: Hashable) -> float:
        """Return the seconds by which to delay a refusal of a request of this kind.

        The delay is chosen at random from the recorded times of 404s for this kind of request.  If no such time is
        recorded, the delay comes from the times of 404s for another kind of request.  If no 404 is recorded, the delay
        comes from the times of other answers.
        """
        times = self._absent.get(kind) or next(iter(self._absent.values()), None) or self._others
        return self._rng.choice(times) if times else 0.0

    def given_at(self, name: Hashable, kinds: tuple[Hashable, ...], now: float) -> float | None:
        """Return the time of an earlier refusal that this read shares; None if there is none.

        The time may be in the future.  `kinds` are the kinds of reads whose refusals this read may share.
        """
        found = (self._refused.get((name, kind), (now, now)) for kind in kinds)
        return min((given_at for given_at, until in found if now < until), default=None)

    def remember(self, name: Hashable, kind: Hashable, given_at: float, until: float) -> None:
        """Record a refusal that is sent at `given_at`.  Reads that arrive before the later of `given_at` and `until`
        share it.
        """
        self._refused.pop((name, kind), None)
        self._refused[name, kind] = given_at, max(given_at, until)
        evict_oldest(self._refused, MOST_NAMES)
