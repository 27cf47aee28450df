"""Concealed streams: a refusal looks like the 404 of an absent stream, in form and in time.

Both answers are the gateway's own, so no field of the origin tells them apart.  A refusal costs the origin no request.
It is therefore delayed by a time that the origin has lately needed for a 404.  A repeated read is refused at once for
as long as the 404 of an absent stream would be repeated from memory.
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
        self._refused: OrderedDict[tuple[Hashable, Hashable], float] = OrderedDict()
        """Until when a refusal is repeated at once."""

    def __repr__(self) -> str:
        return f"<Concealment {sum(map(len, self._absent.values()))} times, {len(self._refused)} names>"

    def note(self, kind: Hashable, took_s: float, *, is_absent: bool) -> None:
        """Record the time that the origin took to answer a request of this kind, with a 404 if `is_absent`."""
        times = self._absent.setdefault(kind, deque(maxlen=_MOST_TIMES)) if is_absent else self._others
        times.append(took_s)

    def delay_s(self, kind: Hashable) -> float:
        """Seconds that a 404 for a request of this kind might take; if there was none yet, that of other kinds or other
        answers is used."""
        times = self._absent.get(kind) or next(iter(self._absent.values()), None) or self._others
        return self._rng.choice(times) if times else 0.0

    def is_repeated(self, name: Hashable, kinds: tuple[Hashable, ...], now: float) -> bool:
        """Whether a read of any of these kinds was refused so recently that the 404 would be repeated from memory."""
        return any(now < self._refused.get((name, kind), now) for kind in kinds)

    def remember(self, name: Hashable, kind: Hashable, until: float) -> None:
        """Repeat the refusal without delay until then."""
        self._refused.pop((name, kind), None)
        self._refused[name, kind] = until
        evict_oldest(self._refused, MOST_NAMES)
