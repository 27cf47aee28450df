"""Which worker takes a new connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_LEAST_EXCESS: Final = 2
"""With this many connections more than the least loaded worker has, few connections are spread unevenly."""
_SHARE: Final = 4
"""An excess of one part in this many of the mean is ordinary: the kernel spreads connections at random."""


def lighter_slot(connections: Sequence[int], mine: int, serving: Sequence[int]) -> int | None:
    """Return the slot that a new connection of the slot `mine` is passed to; None if it stays.

    `connections` has the number of each slot's open connections, and `serving` the slots that take some.  A connection
    is passed if its worker has clearly more connections than the worker with the fewest.
    """
    if len(serving) < 2:
        return None
    least = min(serving, key=lambda slot: connections[slot])
    mean = sum(connections[slot] for slot in serving) / len(serving)
    excess = connections[mine] - connections[least]
    return least if least != mine and excess >= _LEAST_EXCESS + mean // _SHARE else None
