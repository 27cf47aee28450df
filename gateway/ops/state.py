"""The gateway's state at one moment, read at each collection of the metrics.

Reading costs a few microseconds for each open connection.  Between collections there is no cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gateway.engine.core import Engine
from gateway.engine.fleet_discovery import FoundMembers
from gateway.engine.fleet_reachability import Member
from gateway.engine.fleet_redis import OrdersByRedis
from gateway.tape.costs import RouteUsage
from gateway.upstream.connection_pool import Connections
from gateway.upstream.failures import Refusal
from gateway.upstream.origin_pool import OriginState
from gateway.upstream.slots import Purpose, SlotUse


class Unsent(NamedTuple):
    """Bytes in this process's buffers that clients have not accepted: in total, and of the client with the most."""

    total: int = 0
    most: int = 0


_NONE: Final = Unsent()
_NO_SLOTS: Final = SlotUse(dict.fromkeys(Purpose, 0), dict.fromkeys(Purpose, 0), dict.fromkeys(Refusal, 0))


@dataclass(frozen=True, slots=True)
class State:
    """The state of a gateway at one moment."""

    is_ready: bool = False
    connections: int = 0
    """Client connections."""
    unsent: Unsent = _NONE
    flights: dict[str, int] = field(default_factory=dict)
    """Shared fetches under way, by route."""
    waiters: dict[str, int] = field(default_factory=dict)
    """Requests that wait for these shared fetches or read their bodies, by route."""
    followed: int = 0
    """Streams with a live request to their origin."""
    cache_bytes: int = 0
    """The bytes in use of the cache's budget: the tapes (the bytes of streams in memory), and everything that is made
    from them.
    """
    holdings: dict[str, RouteUsage] = field(default_factory=dict)
    """The contents of the tapes, by route."""
    upstream: dict[str, Connections] = field(default_factory=dict)
    """Connections to origins, by pool: one for live requests, and one for all other requests."""
    slots: SlotUse = _NO_SLOTS
    """The use of slots, by purpose.  A slot is the right to use one connection to an origin."""
    background_tasks: int = 0
    origins: tuple[OriginState, ...] = ()
    members: tuple[Member, ...] = ()
    """The other members of the fleet."""
    found: FoundMembers | None = None
    """The look-ups of members in DNS or in Redis; None if there are none."""
    by_redis: OrdersByRedis | None = None
    """The purges and revocations in Redis; None without Redis."""
    missed_orders: int | None = None
    """The number of times that this member has missed purges or revocations; None without a fleet."""

    def routes(self) -> set[str]:
        """Routes with tapes or flights."""
        held = {route for route, holding in self.holdings.items() if holding.tapes}
        return held | {route for route, flights in self.flights.items() if flights}


def look_at(
    engine: Engine, connections: Callable[[], int], unsent: Callable[[], Unsent], is_ready: Callable[[], bool]
) -> State:
    """Read the state of the engine, and of the server's client connections."""
    flights: Counter[str] = Counter()
    waiters: Counter[str] = Counter()
    for stream, flight in engine.fetches.flights():
        flights[stream.key.route] += 1
        waiters[stream.key.route] += flight.readers
    return State(
        is_ready=is_ready(),
        connections=connections(),
        unsent=unsent(),
        flights=flights,
        waiters=waiters,
        followed=_followed(engine),
        cache_bytes=engine.store.cost + engine.store.lent,
        holdings=dict(engine.store.holdings),
        upstream=engine.client.connections(),
        slots=engine.client.slot_use(),
        background_tasks=len(engine.tasks),
        origins=engine.origins.snapshot(),
        members=() if engine.fleet is None else tuple(engine.fleet.members.values()),
        found=None if engine.fleet is None else engine.fleet.found,
        by_redis=None if engine.fleet is None else engine.fleet.by_redis,
        missed_orders=None if engine.fleet is None else engine.fleet.orders.missed,
    )


def _followed(engine: Engine) -> int:
    """Return the number of streams that this process follows at the origin, and not at another worker or member."""
    hop, live, s2 = engine.hop or engine.by_fleet, engine.live, engine.s2.streams
    if hop is None:
        return len(live) + s2.followed
    keys = (topic.stream.key for topics in (live.topics(), s2.topics()) for topic in topics)
    return sum(not hop.follows_elsewhere(key) for key in keys)
