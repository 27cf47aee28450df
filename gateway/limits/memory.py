"""Bounds on what a process can bear: its memory, shared bytes in it, and open files.

`MemoryGuard` decides which memory is given up close to the limit, in which order, and when to stop.  The order is that
of Envoy's overload manager: first the cache, which costs no client an answer, then the clients that hold most, then new
connections.  Above each mark one more measure is taken.  A measure ends only once memory is clearly below its mark, so
that it is not switched on and off.  The cache's budget is always what fits below the first mark.  Pure: the owner looks
from time to time and acts on the answer.

`charged` divides bytes that several clients hold at once.  A body that many clients are sent is in memory once.  While
the cache holds it too, its budget is charged for it, and no client is.  Once the cache has dropped it, it belongs to
the clients that have not taken it yet, in proportion to what they hold: evicting a tape or an answer frees nothing as
long as a connection refers to its bytes.

Nothing is counted where bytes are written.  `gateway.server.shedding` looks from time to time at what connections
refer to.

`fit` shares the open files among client connections, live requests, connections to origins and the rest.  Every
connection is an open file.  If the process may have fewer open files than the configured bounds need together, the
bounds are lowered: otherwise clients would take the files of the origins' connections, and the operator's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

_STEP: Final = 0.05
"""The largest part of the configured cache budget that one look restores."""

_LEAST_CACHE: Final = 0.1
"""The part of the cache's budget, or of the limit if that is lower, which the cache always keeps.  So streams that are
read all the time stay, and clients have to give way."""


class Pressure(IntEnum):
    """How close to the limit the process is.  Each level includes the measures of those before it."""

    NONE = 0
    CACHE = 1
    """The cache gives bytes back."""
    CLIENTS = 2
    """The costliest clients are dropped, and no fetch and no live request begins."""
    CONNECTIONS = 3
    """New connections are refused."""


MARKS: Final = {Pressure.CACHE: 0.85, Pressure.CLIENTS: 0.92, Pressure.CONNECTIONS: 0.97}
"""The part of the limit above which each level begins."""
HYSTERESIS: Final = 0.03
"""How far below its mark, in parts of the limit, a level ends."""
_RISE: Final = 0.01
"""While clients are dropped, memory that has risen by this part of the limit is not left to the next look, and fetched
bodies may not add more between two looks."""


_OF_BODIES: Final = 0.5
"""Bytes of bodies may take this part of the room that is left: pieces are joined, and freed memory stays resident."""


class Measures(NamedTuple):
    """The measures to take now."""

    pressure: Pressure
    cache_share: float
    """The part of the configured cache budget that may be used, 0 to 1."""
    shed_bytes: int
    """The bytes that clients should hold less."""


class MemoryGuard:
    """The level that holds and the share of the cache; owner of nothing else."""

    def __init__(self) -> None:
        self.pressure = Pressure.NONE
        self.cache_share = 1.0
        self._used = 0.0
        """The part of the limit that was in use at the latest look."""

    def __repr__(self) -> str:
        return f"<MemoryGuard {self.pressure.name.lower()}, cache at {self.cache_share:.0%}>"

    def calls_for_look(self, resident: int, limit: int) -> bool:
        """Whether memory has risen so far since the latest look that the next has to come at once."""
        used = resident / limit
        if self.pressure >= Pressure.CLIENTS and used > self._used + _RISE:
            return True
        return _level(self.pressure, used) > self.pressure

    def may_add(self, resident: int, limit: int) -> int:
        """The bytes that fetched bodies may add until memory is looked at again."""
        room = max(
            MARKS[Pressure.CLIENTS] * limit - resident,
            min(_RISE * limit, MARKS[Pressure.CONNECTIONS] * limit - resident),
        )
        return max(0, int(room * _OF_BODIES))

    def look(self, resident: int, limit: int, cache_bytes: int, budget_bytes: int) -> Measures:
        """Decide by the process's resident bytes.  The cache holds `cache_bytes` of its configured `budget_bytes`."""
        self._used = used = resident / limit
        self.pressure = pressure = _level(self.pressure, used)
        room = MARKS[Pressure.CACHE] * limit - resident
        # A cache that fills up before the next look must not reach the mark, and above the mark it gives back the
        # excess.
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
    """The holders to drop so that at least `excess` bytes are freed, with the cost of each: the costliest first, and no
    more than needed.

    If `cost_now` is given, a holder costs at most its result; it is called only for holders that may have to go.
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
        """How many bytes there are, at most."""
        self.in_cache = in_cache
        """Whether the cache's budget is charged for them."""

    def __repr__(self) -> str:
        return f"<SharedBytes {self.size}{' in the cache' * self.in_cache}>"


class Holding(NamedTuple):
    """A holder's part of shared bytes."""

    shared: SharedBytes
    size: int
    """The number of the bytes that the holder refers to."""


NOTHING: tuple[Holding, ...] = ()


def charged(holdings: Iterable[tuple[int, Holding]], holders: int) -> Iterator[int]:
    """The bytes that each of `holders` is charged for, in their order.

    `holdings` are the bytes that they refer to, by the holder's number.  Bytes that several refer to are divided among
    them by how many each refers to.
    """
    charges = [0] * holders
    by_shared: dict[SharedBytes, list[tuple[int, int]]] = {}
    for number, (shared, size) in holdings:
        if size and not shared.in_cache:
            by_shared.setdefault(shared, []).append((number, size))
    for shared, parts in by_shared.items():
        total = sum(size for _, size in parts)
        for number, size in parts:
            charges[number] += size if total <= shared.size else size * shared.size // total
    yield from charges


SPARE: Final = 64
"""Open files other than connections: listeners and their further descriptors, logs, plans and certificates being read,
name resolution, the loop."""
_UPSTREAM_SHARE: Final = 8
_FOLLOWED_SHARE: Final = 4
_FIXED_SHARE: Final = 4
"""Of too few open files, one in so many is kept for connections to origins, for live requests, and for the admin port
with what is spare."""


class Descriptors(NamedTuple):
    """Bounds on the kinds of open files."""

    max_connections: int
    upstream_connections: int
    followed_streams: int
    admin_connections: int


def fit(wanted: Descriptors, open_files: int) -> Descriptors:
    """The bounds that a process with this limit of open files can keep: the `wanted` ones, or lower ones.

    If files are short, each bound is at least 1.  The admin port gets half of the files that are kept for it and for
    other uses.  Of the remaining files, clients get five eighths, live requests a quarter, and other connections to
    origins an eighth.
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
    """Remove and return the oldest entries beyond `most`.

    The table is an OrderedDict, because a plain dictionary looks for its oldest entry behind the places of all that
    were evicted.
    """
    return [table.popitem(last=False) for _ in range(len(table) - most)]
