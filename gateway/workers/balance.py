"""Decides which worker takes a new connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LEAST_EXCESS: Final = 2
"""A smaller excess over the least loaded worker is ordinary, however few connections there are."""
_SHARE: Final = 4
"""A further excess of 1 / `_SHARE` of the mean is ordinary, because the kernel spreads connections at random."""


def lighter_slot(connections: Sequence[int], mine: int, serving: Sequence[int]) -> int | None:
    """Return the slot to which a new connection of the slot `mine` is passed; None if the connection stays.

    `connections` has the number of open connections of each slot, and `serving` has the slots that accept connections.
    A connection is passed if its worker has clearly more connections than the worker with the fewest.
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
"""Seconds between two passed connections, in the long run.  To pass a connection costs more than to accept one, and
connections that last less than a second need no balance."""


class Allowance:
    """The number of connections that a worker may pass: some at once, few in the long run."""

    def __init__(self) -> None:
        self._used_until = 0.0
        """When the whole allowance is available again."""

    def __repr__(self) -> str:
        return f"<Allowance used until {self._used_until:g} s>"

    def has_room(self, now: float) -> bool:
        """Return whether a connection may be passed."""
        return self._used_until - now <= (MOST_AT_ONCE - 1) * EVERY_S

    def use(self, now: float) -> None:
        """Count a passed connection."""
        self._used_until = max(now, self._used_until) + EVERY_S
