"""Sends shared requests to the members of the fleet that own their streams."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf
from typing import Final

from gateway.aio.clock import Clock
from gateway.engine.fleet import CONNECT_S, Fleet
from gateway.engine.hop_upstream import HopUpstream, handed, is_lost
from gateway.errors import GatewayError, UpstreamTimeout, UpstreamUnreachable
from gateway.http.outgoing import RenderedHeaders
from gateway.protocol.coding import AcceptedCodings
from gateway.protocol.fleet_headers import FLEET, moved
from gateway.protocol.worker_headers import HopSaid
from gateway.upstream.origin_call import Bounds, OriginCall, Shared
from gateway.upstream.reply import PendingRequest, Reply, Requester, Upstream

_LEAST_BODIES: Final = 64
"""Answers that have ended are forgotten when there are this many, and again at twice the number that was kept."""


@lru_cache(64)
def _bounded(bounds: Bounds) -> Bounds:
    return replace(bounds, connect_s=min(bounds.connect_s, CONNECT_S))


class FleetUpstream(HopUpstream):
    """Sends shared requests to the owner of their stream, another member, instead of to the origin.

    A request that comes from another member always goes to the origin.
    """

    unsettled_s = inf

    def __init__(self, upstream: Upstream, fleet: Fleet, clock: Clock) -> None:
        super().__init__(upstream, fleet.client, fleet.counts, fleet.owners, clock)
        self._fleet = fleet
        self._most_bodies = _LEAST_BODIES
        self._bodies: list[tuple[int, Reply]] = []
        """The answers of other members whose bodies may be on their way."""
        fleet.on_silent = self._cut_bodies

    def _cut_bodies(self, owner: int) -> None:
        """Fail the answers of a member that hangs.  The readers' next requests go to other owners."""
        self._bodies, bodies = [], self._bodies
        for member, reply in bodies:
            if member != owner:
                self._bodies.append((member, reply))
            elif not (reply.has_arrived or reply.is_closed):
                reply.cut()

    def body_begins(self, owner: int, reply: Reply) -> None:
        if (member := self._fleet.members.get(owner)) is not None:
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
        member = fleet.members[owner]
        member.asked += 1
        asked = handed(call, shared, member.url, accepted)
        field = fleet.field._replace(writes=fleet.counts.count(shared.key.group)).rendered()
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
        if (member := self._fleet.members.get(owner)) is not None:
            member.doubt()

    async def close(self) -> None:
        if self._fleet.by_dns is not None:
            await self._fleet.by_dns.close()
        if self._fleet.by_redis is not None:
            await self._fleet.by_redis.close()
        self._fleet.stop()
        await self._fleet.orders.close()
        await super().close()
