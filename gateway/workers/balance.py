"""Decides which worker serves a new connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LEAST_EXCESS: Final = 2
"""A smaller excess over the least loaded worker is always ignored, even if there are few connections."""
_SHARE: Final = 4
"""A further excess of 1 / `_SHARE` of the mean is ignored, because the kernel spreads connections at random."""


def lighter_slot(connections: Sequence[int], mine: int, serving: Sequence[int]) -> int | None:
    """Return the slot to which the worker of the slot `mine` passes a new connection; None if it keeps the connection.

    `connections` has the number of open connections of each slot, and `serving` has the slots that accept connections.
    A worker passes a connection if it has clearly more connections than the worker with the fewest.
    """
    if len(serving) < 2:
        return None
    serving_connections = [connections[slot] for slot in serving]
    fewest = min(serving_connections)
    excess = connections[mine] - fewest
    if excess < _LEAST_EXCESS + sum(serving_connections) / len(serving) // _SHARE:
        return None
    return serving[serving_connections.index(fewest)]


MOST_AT_ONCE: Final = 16
"""The most connections that a worker passes at once."""
EVERY_S: Final = 0.125
"""Seconds between two passed connections, in the long run.  The rate is low, because passing a connection costs more
than accepting one, and short connections need no balance."""


class Allowance:
    """Limits the connections that a worker passes: `MOST_AT_ONCE` at once, and one in `EVERY_S` in the long run."""

    def __init__(self) -> None:
        self._used_until = 0.0
        """The time at which the whole allowance is available again."""

    def __repr__(self) -> str:
        return f"<Allowance used until {self._used_until:g} s>"

    def has_room(self, now: float) -> bool:
        """Return whether a connection may be passed."""
        return self._used_until - now <= (MOST_AT_ONCE - 1) * EVERY_S

    def use(self, now: float) -> None:
        """Count a passed connection."""
        self._used_until = max(now, self._used_until) + EVERY_S
