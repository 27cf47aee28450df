"""The capacity of a process: its memory, and its open files.

`MemoryGuard` decides which measures to take when the process comes close to its memory limit.  The first measure is to
shrink the cache, which affects no response.  The second is to drop the clients that use the most memory.  The third is
to refuse new connections.  Envoy's overload manager has the same order.  Each measure has a mark, which is a share of
the limit.  The guard takes the measure when memory is above the mark.  A measure ends only when memory is clearly below
its mark, so that measures do not switch on and off.  The guard is a pure state machine.  Its owner measures the memory
periodically and carries out the measures.

`Charges` computes how many bytes each client is charged for.  A body that is sent to many clients is in memory once.
While the body is in the cache too, no client is charged.  After the cache has dropped the body, its bytes are charged
to the clients that have not received the whole body, in proportion to the parts that they still refer to.  The reason
is that a dropped body stays in memory while a connection refers to it.

No counter is updated when bytes are written to a client.  Instead, `gateway.server.shedding` periodically examines the
bytes that connections refer to.

`fit` divides the process's open files among client connections, live requests, connections to origins and other uses.
If the process may open fewer files than the configured bounds need, `fit` lowers the bounds.  Clients therefore cannot
use up the files for connections to origins and for the admin port.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

_STEP: Final = 0.05
"""After a shortage of memory, each check lets the cache grow by at most this share of its configured budget."""

_LEAST_CACHE: Final = 0.1
"""The cache always keeps this share of its budget or of the memory limit, whichever is lower.  Popular streams then
stay in memory, and clients are dropped instead."""


class Pressure(IntEnum):
    """The level of the shortage of memory.  Each level includes the measures of the lower levels."""

    NONE = 0
    CACHE = 1
    """The cache is shrunk."""
    CLIENTS = 2
    """The clients that use the most memory are dropped.  No fetch and no live request starts."""
    CONNECTIONS = 3
    """New connections are refused."""


MARKS: Final = {Pressure.CACHE: 0.85, Pressure.CLIENTS: 0.92, Pressure.CONNECTIONS: 0.97}
"""The share of the limit above which each level begins."""
HYSTERESIS: Final = 0.03
"""The distance below its mark at which a level ends, as a share of the limit."""
_RISE: Final = 0.01
"""From the level `CLIENTS` on, a rise of memory by this share of the limit causes an immediate check.  Above the mark
of this level, fetched bodies may add at most half of this share between two checks."""


_OF_BODIES: Final = 0.5
"""The share of the free memory that fetched bodies may fill.  The rest is for copies when a body's pieces are joined,
and for freed memory that stays resident.
"""


class Measures(NamedTuple):
    """The measures to take now."""

    pressure: Pressure
    cache_share: float
    """The share of the configured cache budget that may be used, 0 to 1."""
    shed_bytes: int
    """The number of bytes to free by dropping clients."""


class MemoryGuard:
    """Keeps the current level, and the share of the cache budget that may be used."""

    def __init__(self) -> None:
        self.pressure = Pressure.NONE
        self.cache_share = 1.0
        self._used = 0.0
        """The share of the limit that was in use at the latest check."""

    def __repr__(self) -> str:
        return f"<MemoryGuard {self.pressure.name.lower()}, cache at {self.cache_share:.0%}>"

    def calls_for_look(self, resident: int, limit: int) -> bool:
        """Return whether the next check must be made now, because memory has risen much since the latest check."""
        used = resident / limit
        if self.pressure >= Pressure.CLIENTS and used > self._used + _RISE:
            return True
        return _level(self.pressure, used) > self.pressure

    def may_add(self, resident: int, limit: int) -> int:
        """Return the bytes that fetched bodies may add until the next check."""
        room = max(
            MARKS[Pressure.CLIENTS] * limit - resident,
            min(_RISE * limit, MARKS[Pressure.CONNECTIONS] * limit - resident),
        )
        return max(0, int(room * _OF_BODIES))

    def look(self, resident: int, limit: int, cache_bytes: int, budget_bytes: int) -> Measures:
        """Check the process's resident bytes; return the measures to take.

        The cache holds `cache_bytes` of its configured `budget_bytes`.
        """
        self._used = used = resident / limit
        self.pressure = pressure = _level(self.pressure, used)
        room = MARKS[Pressure.CACHE] * limit - resident
        # Even a full cache must leave memory below the first mark.  If `room` is negative, the cache must shrink by
        # that many bytes.
        least = min(budget_bytes, limit) * _LEAST_CACHE
        fitting = max(least, cache_bytes + room) / budget_bytes if budget_bytes else 0.0
        self.cache_share = min(1.0, self.cache_share + _STEP, fitting)
        shed_bytes = int(-room) if pressure >= Pressure.CLIENTS else 0
        return Measures(pressure, self.cache_share, max(0, shed_bytes))


def _level(now: Pressure, used: float) -> Pressure:
    reached = max((level for level, mark in MARKS.items() if used > mark), default=Pressure.NONE)
    kept = max((level for level, mark in MARKS.items() if level <= now and used > mark - HYSTERESIS), default=reached)
    return max(reached, kept)


def victims(costs: Iterable[tuple[int, T]], excess: int, cost_now: Callable[[T], int] | None = None) -> dict[T, int]:
    """Choose the holders to drop, the costliest first, until at least `excess` bytes are freed.

    Returns the chosen holders with their costs.  Without `cost_now`, `costs` are exact.  With `cost_now`, `costs` are
    upper bounds, and `cost_now` returns the exact cost of a holder.  This function is called only for the costliest
    holders.
    """
    found: dict[T, int] = {}
    left = [(-cost, number, one, cost_now is None) for number, (cost, one) in enumerate(costs)]
    heapify(left)
    while left and excess > 0 and left[0][0] < 0:
        minus_cost, number, one, is_current = heappop(left)
        if cost_now is not None and not is_current:
            heappush(left, (max(minus_cost, -cost_now(one)), number, one, True))
            continue
        found[one] = -minus_cost
        excess += minus_cost
    return found


class SharedBytes:
    """Bytes in memory that several holders refer to."""

    __slots__ = ("in_cache", "size")

    def __init__(self, size: int, *, in_cache: bool = False) -> None:
        self.size = size
        """An upper bound for the number of bytes."""
        self.in_cache = in_cache
        """Whether the cache budget is charged for the bytes."""

    def __repr__(self) -> str:
        return f"<SharedBytes {self.size}{' in the cache' * self.in_cache}>"


class Holding(NamedTuple):
    """A holder's part of shared bytes."""

    shared: SharedBytes
    size: int
    """The number of bytes that the holder refers to."""


NOTHING: tuple[Holding, ...] = ()


class Charges:
    """Divides shared bytes among the holders that refer to them, in proportion.

    `add_holdings` must be called for every holder before the first call of `charge_of`.
    """

    __slots__ = ("_totals",)

    def __init__(self) -> None:
        self._totals: dict[SharedBytes, int] = {}
        """For each `SharedBytes`, the sum of all holdings.  Bytes in the cache have no entry, because no holder is
        charged for them."""

    def add_holdings(self, holdings: Iterable[Holding]) -> None:
        """Add the holdings of one holder."""
        totals = self._totals
        for shared, size in holdings:
            if not shared.in_cache:
                totals[shared] = totals.get(shared, 0) + size

    def charge_of(self, holdings: Iterable[Holding]) -> int:
        """Return the bytes that a holder with these holdings is charged for."""
        charge = 0
        for shared, size in holdings:
            total = self._totals.get(shared, 0)
            if total > shared.size:
                charge += size * shared.size // total
            elif total:
                charge += size
        return charge


SPARE: Final = 64
"""The number of open files reserved for uses other than connections.  These uses are listeners, logs, plans and
certificates that are being read, name resolution, and the event loop."""
_UPSTREAM_SHARE: Final = 8
_FOLLOWED_SHARE: Final = 4
_FIXED_SHARE: Final = 4
"""The shares by which `fit` divides the open files if there are too few.  At most one file in `_FIXED_SHARE` is for the
admin port and other uses.  Of the rest, one file in `_UPSTREAM_SHARE` is for connections to origins, and one file in
`_FOLLOWED_SHARE` is for live requests."""


class Descriptors(NamedTuple):
    """Bounds on each kind of connection.  Every connection is an open file."""

    max_connections: int
    upstream_connections: int
    followed_streams: int
    admin_connections: int


def fit(wanted: Descriptors, open_files: int) -> Descriptors:
    """Return the `wanted` bounds, or lower bounds if the process may not open enough files.

    Each lowered bound is at least 1.  At most a quarter of the files are for the admin port and other uses, and the
    admin port may use at least half of these files.  Of the remaining files, clients get five eighths, live requests a
    quarter, and other connections to origins an eighth.
    """
    if sum(wanted) + SPARE <= open_files:
        return wanted
    kept = min(wanted.admin_connections + SPARE, open_files // _FIXED_SHARE)
    left = open_files - kept
    admin = kept - min(SPARE, kept // 2)
    upstream, followed = left // _UPSTREAM_SHARE, left // _FOLLOWED_SHARE
    shares = Descriptors(left - upstream - followed, upstream, followed, admin)
    return Descriptors(*(max(1, min(pair)) for pair in zip(wanted, shares, strict=True)))


Key = TypeVar("Key")
Value = TypeVar("Value")


def evict_oldest(table: OrderedDict[Key, Value], most: int) -> list[tuple[Key, Value]]:
    """Remove the oldest entries until `most` are left; return the removed entries.

    The table must be an OrderedDict.  In a plain dictionary, finding the oldest entry becomes slow after many removals
    at the front.
    """
    return [table.popitem(last=False) for _ in range(len(table) - most)]
