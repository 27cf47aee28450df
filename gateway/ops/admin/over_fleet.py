"""The admin port of a member of a fleet: purges and revocations are carried out by every member.

`gateway.engine.fleet_orders` brings an order to the other members.  This module carries out the orders of other members
like requests to this member's own admin port, and writes them to the audit log.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, Final, cast

from aiohttp import web
from pydantic import ValidationError

from gateway.auth.remembered_verdicts import MOST_REVOCATIONS, Revocation
from gateway.auth.remembered_verdicts import Subject as Revocable
from gateway.engine.fleet_orders import FleetOrders
from gateway.limits.memory import evict_oldest
from gateway.ops.admin.audit import Audit
from gateway.ops.admin.endpoint import ApiRequest, Endpoint, MemberOutcome, Nothing, Refused, adapter_of
from gateway.ops.admin.purge import PurgeAll, PurgeBody, Purged, PurgedOverFleet, PurgedOverRedis
from gateway.ops.admin.revoke import RevokeBody, Revoked, RevokedOverFleet, RevokedOverRedis
from gateway.ops.admin.subject import Subject
from gateway.protocol.fleet_orders import InEffect, Kind, Order

_PATHS: Final[Mapping[str, Kind]] = {"/api/purge": "purge", "/api/revoke": "revoke"}
"""The endpoints whose requests are orders for every member."""
_SAME_S: Final = 1.0
"""Two ends of a revocation that differ by fewer seconds are the same end."""

_log = logging.getLogger("gateway.fleet")


class OverFleet:
    """Gives this member's orders to the fleet, and carries out the orders of the fleet (`fleet_orders.Actions`)."""

    def __init__(self, subject: Subject, orders: FleetOrders, endpoints: Iterable[Endpoint], audit: Audit) -> None:
        self._subject = subject
        self._orders = orders
        self._audit = audit
        self._endpoints = {_PATHS[one.path]: one for one in endpoints if one.path in _PATHS}
        self._given_at: OrderedDict[Revocation, float] = OrderedDict()
        """When the latest order of each revocation was given; absent if the revocation was taken over."""
        self._taken_over_at = -inf
        """When a revocation was last taken over.  Its order was given before that."""
        orders.actions = self

    def __repr__(self) -> str:
        return f"<OverFleet {self._orders!r}>"

    def route(self, endpoint: Endpoint) -> web.RouteDef:
        """Return a route that has every member carry out the request."""
        kind = _PATHS[endpoint.path]

        async def answered(asked: ApiRequest[Any, Any], body: bytes, _: web.Request) -> object:
            given = await self._orders.give(kind, body.decode(), partial(self._act, endpoint, asked))
            answer, members, in_redis = given.result, [MemberOutcome(*one) for one in given.members], given.is_stored
            if isinstance(answer, Purged):
                if in_redis is None:
                    return PurgedOverFleet(answer.purged, members)
                return PurgedOverRedis(answer.purged, members, in_redis)
            assert isinstance(answer, Revoked)
            if in_redis is None:
                return RevokedOverFleet(answer.live_reads, members)
            return RevokedOverRedis(answer.live_reads, members, in_redis)

        return endpoint.route_with(answered)

    async def _act(self, endpoint: Endpoint, asked: ApiRequest[Any, Any], order: Order) -> object:
        if isinstance(asked.body, RevokeBody):
            self._note(_revocation(asked.body), order)
        return await endpoint.handle(asked)

    @staticmethod
    def concerns(endpoint: Endpoint) -> bool:
        """Return whether the endpoint's requests are orders for every member."""
        return endpoint.path in _PATHS

    async def carry_out(self, order: Order, age_s: float) -> int | None:
        endpoint = self._endpoints[order.kind]
        try:
            body: PurgeBody | RevokeBody = adapter_of(endpoint.body).validate_json(order.text)
            if isinstance(body, RevokeBody):
                for_s = self._for_s(_revocation(body), order, max(0.0, body.for_s - age_s))
                if for_s is None:
                    return 0
                body = replace(body, for_s=for_s)
            answer = cast("Purged | Revoked", await endpoint.handle(ApiRequest(Nothing(), body, {})))
        except Refused as error:
            # Every member refuses the order.
            _log.info("an order of another member is refused: %s", error)
            return 0
        except Exception:
            _log.exception("an order of another member has failed")
            return None
        change = endpoint.audited(body, answer) if endpoint.audited is not None else ""
        self._audit.done(endpoint.method, endpoint.path, "another member of the fleet", 200, change)
        return answer.purged if isinstance(answer, Purged) else answer.live_reads

    def _for_s(self, revocation: Revocation, order: Order, left_s: float) -> float | None:
        """Return the seconds for which an order revokes from now on; None if it changes nothing.  `left_s` are the
        seconds until its own end.

        Orders may arrive late.  An order ends an earlier revocation of the same name, but not a later one."""
        remaining_s = self._subject.routes.verdicts.remaining_s(revocation)
        is_later = order.at >= self._given_at.get(revocation, self._taken_over_at)
        if not is_later and (revocation in self._given_at or left_s <= remaining_s):
            return None
        self._note(revocation, order)
        return left_s if left_s or remaining_s else None

    def _note(self, revocation: Revocation, order: Order) -> None:
        self._given_at.pop(revocation, None)
        self._given_at[revocation] = order.at
        evict_oldest(self._given_at, MOST_REVOCATIONS)

    async def start_again(self) -> None:
        await self._endpoints["purge"].handle(ApiRequest(Nothing(), PurgeAll(True), {}))

    def in_effect(self) -> list[InEffect]:
        return [InEffect(*revocation, for_s) for revocation, for_s in self._subject.routes.verdicts.revocations()]

    def take_over(self, revocations: Iterable[InEffect]) -> None:
        verdicts = self._subject.routes.verdicts
        for subject, name, issuer, for_s in revocations:
            revocation = Revocation(cast("Revocable", subject), name, issuer)
            if for_s > verdicts.remaining_s(revocation) + _SAME_S:
                self._given_at.pop(revocation, None)
                self._taken_over_at = self._orders.now()
                verdicts.revoke(revocation, for_s)

    def revocation_of(self, order: Order, age_s: float) -> InEffect | None:
        if order.kind != "revoke":
            return None
        try:
            body: RevokeBody = adapter_of(RevokeBody).validate_json(order.text)
        except ValidationError:
            return None
        if order.at < self._given_at.get(_revocation(body), -inf):
            return None
        return InEffect(body.subject, body.name, body.issuer, body.for_s - age_s)


def _revocation(body: RevokeBody) -> Revocation:
    return Revocation(body.subject, body.name, body.issuer)
