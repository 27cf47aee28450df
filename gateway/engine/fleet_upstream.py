"""Sends shared requests to the processes that own their streams, in a fleet: `FleetUpstream` to other members, and
`FleetHop` to other workers of this member.

A worker first asks the worker of its own member that owns the stream.  This worker asks the member that owns the
stream, and there the worker that owns the stream among that member's workers.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final

from gateway.aio.clock import Clock
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_reachability import CONNECT_S
from gateway.engine.owner_upstream import HopUpstream, StreamOwners, WritesElsewhere, handed, is_lost, worker_url
from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnreachable
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.coding import AcceptedCodings
from gateway.protocol.fleet_headers import FLEET, moved
from gateway.protocol.worker_headers import HopSaid
from gateway.upstream.client import HopClient
from gateway.upstream.origin_call import Bounds, OriginCall, Shared
from gateway.upstream.reply import PendingRequest, Reply, Requester, Upstream
from gateway.workers.shared_memory import MOST_WORKERS

_LEAST_BODIES: Final = 64
"""When this many answers are remembered, the ended ones are forgotten.  This is repeated when twice as many answers are
remembered as were kept, but not below this number."""


@lru_cache(64)
def _bounded(bounds: Bounds) -> Bounds:
    return replace(bounds, connect_s=min(bounds.connect_s, CONNECT_S))


def _address(member: int, worker: int) -> int:
    """Return the number that identifies a worker of a member."""
    return member * MOST_WORKERS + worker


def _member(address: int) -> int:
    return address // MOST_WORKERS


def _worker(address: int) -> int:
    return address % MOST_WORKERS


class FleetUpstream(HopUpstream):
    """Sends shared requests to the owner of their stream, another member, instead of to the origin.

    A request from another member is always sent to the origin.  A request from another worker of this member is sent to
    the member that owns the stream.

    The number of an owner identifies a member and a worker of that member (`_address`).
    """

    unsettled_s = 0.0

    def __init__(self, upstream: Upstream, fleet: Fleet, clock: Clock) -> None:
        super().__init__(upstream, fleet.client, fleet.counts, fleet.owners, clock)
        self._fleet = fleet
        self._most_bodies = _LEAST_BODIES
        self._bodies: list[tuple[int, Reply]] = []
        """The answers of other members whose bodies may not have arrived completely, by the numbers of the owners."""
        fleet.on_silent = self._cut_bodies

    def owner_for(self, shared: Shared) -> int | None:
        fleet = self._fleet
        member = super().owner_for(shared)
        if member is None or shared.key.route in fleet.routes_without_owners:
            return None
        return _address(member, fleet.owners.owning_worker(member, fleet.counts.index_of(shared.key.group)))

    def _cut_bodies(self, owner: int) -> None:
        """End the answers in progress from a member that hangs.  `owner` is the index of the member.  The next requests
        of the readers are sent to other owners."""
        self._bodies, bodies = [], self._bodies
        for address, reply in bodies:
            if _member(address) != owner:
                self._bodies.append((address, reply))
            elif not (reply.has_arrived or reply.is_closed):
                reply.cut()

    def body_begins(self, owner: int, reply: Reply) -> None:
        if (member := self._fleet.members.get(_member(owner))) is not None:
            member.answered()
        if reply.has_arrived:
            return
        if len(self._bodies) >= self._most_bodies:
            self._bodies = [(member, other) for member, other in self._bodies if not other.is_closed]
            self._most_bodies = max(_LEAST_BODIES, 2 * len(self._bodies))
        self._bodies.append((owner, reply))

    def ask_owner(
        self,
        requester: Requester,
        call: OriginCall,
        shared: Shared,
        owner: int,
        accepted: AcceptedCodings | None = None,
    ) -> PendingRequest:
        fleet = self._fleet
        member = fleet.members[_member(owner)]
        member.asked += 1
        asked = handed(call, shared, member.url_of(_worker(owner)), accepted)
        field = fleet.field_for(shared.key.group).rendered()
        headers = asked.headers
        assert isinstance(headers, RenderedHeaders)
        return fleet.client.ask(
            requester, asked._replace(headers=headers.with_field(FLEET, field), bounds=_bounded(call.bounds))
        )

    def said_by(self, reply: Reply, asked_at: float) -> HopSaid | None:
        said = super().said_by(reply, asked_at)
        if said is None:
            raise UpstreamUnreachable("The other member has refused the request")
        clock = self._fleet.clock
        return moved(said, asked_at, clock.wall() - (clock.now() - asked_at))

    def is_lost(self, error: GatewayError) -> bool:
        return is_lost(error) or (isinstance(error, UpstreamTimeout) and error.is_unsent)

    def lost(self, owner: int) -> None:
        if (member := self._fleet.members.get(_member(owner))) is not None:
            member.doubt()

    async def close(self) -> None:
        if self._fleet.found is not None:
            await self._fleet.found.close()
        if self._fleet.by_redis is not None:
            await self._fleet.by_redis.close()
        self._fleet.stop()
        await self._fleet.orders.close()
        await super().close()


class FleetHop(HopUpstream):
    """Sends shared requests to the worker of this member that owns their stream.

    Each request shows which purges the sender knows, so that no worker gets purged bytes from an owner that has not yet
    purged.
    """

    def __init__(
        self,
        upstream: Upstream,
        by_hop: HopClient,
        others: WritesElsewhere,
        owners: StreamOwners,
        clock: Clock,
        fleet: Fleet,
    ) -> None:
        super().__init__(upstream, by_hop, others, owners, clock)
        self._fleet = fleet

    def ask_owner(
        self,
        requester: Requester,
        call: OriginCall,
        shared: Shared,
        owner: int,
        accepted: AcceptedCodings | None = None,
    ) -> PendingRequest:
        asked = handed(call, shared, worker_url(owner), accepted)
        headers = asked.headers
        assert isinstance(headers, RenderedHeaders)
        field = self._fleet.field.rendered()
        return self.by_hop.ask(requester, asked._replace(headers=headers.with_field(FLEET, field)))
