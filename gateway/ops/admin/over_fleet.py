"""The admin port of a member of a fleet.  Every member executes each purge and each revocation.

A purge or revocation for all members is called an order.  `gateway.engine.fleet_orders` sends an order to the other
members.  This module executes the orders of other members like requests to this member's own admin port, and writes
them to the audit log.
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
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_orders import Affected, affected_by_all
from gateway.limits.memory import evict_oldest
from gateway.ops.admin.audit import Audit
from gateway.ops.admin.endpoint import ApiRequest, Endpoint, MemberOutcome, Nothing, Refused, adapter_of
from gateway.ops.admin.purge import (
    PurgeAll,
    PurgeBody,
    Purged,
    PurgedOverFleet,
    PurgedOverRedis,
    Purger,
    name_hash,
)
from gateway.ops.admin.revoke import RevokeBody, Revoked, RevokedOverFleet, RevokedOverRedis
from gateway.ops.admin.subject import Subject
from gateway.protocol.fleet_orders import InEffect, Kind, Order

_PATHS: Final[Mapping[str, Kind]] = {"/api/purge": "purge", "/api/revoke": "revoke"}
"""The endpoints whose requests are orders for every member."""

_log = logging.getLogger("gateway.fleet")


def _order_text(body: PurgeBody | RevokeBody, sent: bytes) -> str:
    """Return the text of an operator's order.  `sent` is the body of the operator's request.

    A client may also send default values, so the body of a purge of all streams may equal `PURGE_ALL`.  But an order
    with the text `PURGE_ALL` means that a member may have missed orders.  An operator's purge of all streams therefore
    gets another text."""
    is_of_all = isinstance(body, PurgeAll) and not body.soft
    return '{"all":true}' if is_of_all else sent.decode()


class OverFleet:
    """Gives this member's orders to the fleet, and executes the orders of the fleet (`fleet_orders.Actions`)."""

    def __init__(
        self, subject: Subject, fleet: Fleet, endpoints: Iterable[Endpoint], purger: Purger, audit: Audit
    ) -> None:
        self._subject = subject
        self._fleet = fleet
        self._orders = orders = fleet.orders
        self._purger = purger
        self._audit = audit
        self._endpoints = {_PATHS[one.path]: one for one in endpoints if one.path in _PATHS}
        self._given_at: OrderedDict[Revocation, float] = OrderedDict()
        """The time of the latest order for each revocation.  A revocation that was taken over from another member has
        no entry."""
        self._taken_over_at = -inf
        """The time at which a revocation was last taken over.  The order of this revocation was given earlier."""
        orders.actions = self

    def __repr__(self) -> str:
        return f"<OverFleet {self._orders!r}>"

    def route(self, endpoint: Endpoint) -> web.RouteDef:
        """Return a route that makes every member execute the request."""
        kind = _PATHS[endpoint.path]

        async def answered(asked: ApiRequest[Any, Any], body: bytes, _: web.Request) -> object:
            text = _order_text(asked.body, body)
            given = await self._orders.give(kind, text, partial(self._give, endpoint, asked.body))
            siblings, in_redis = given.siblings, given.is_stored
            members = [MemberOutcome(*one) for one in given.members]
            unknown = self._fleet.found.why_unknown if self._fleet.found is not None else ""
            if why_not := "; ".join(filter(None, (siblings.why_not, unknown))):
                members.append(MemberOutcome(self._fleet.field.name, None, why_not))
            affected = affected_by_all((given.result, *siblings.affected))
            if in_redis is None:
                return (PurgedOverFleet if kind == "purge" else RevokedOverFleet)(affected, members)
            return (PurgedOverRedis if kind == "purge" else RevokedOverRedis)(affected, members, in_redis)

        return endpoint.route_with(answered)

    async def _give(self, endpoint: Endpoint, body: PurgeBody | RevokeBody, order: Order) -> Affected:
        if isinstance(body, RevokeBody):
            self._note(_revocation(body), order)
        return await self._act(endpoint, body)

    async def _act(self, endpoint: Endpoint, body: PurgeBody | RevokeBody) -> Affected:
        """Execute a change at this worker.  Raises Refused."""
        if isinstance(body, RevokeBody):
            return cast("Revoked", await endpoint.handle(ApiRequest(Nothing(), body, {}))).live_reads
        names = await self._purger.purge(body)
        if self._fleet.is_first_worker:
            self._subject.metrics.operations.purge(is_soft=body.soft)
        return frozenset(map(name_hash, names))

    @staticmethod
    def concerns(endpoint: Endpoint) -> bool:
        """Return whether the endpoint's requests are orders for every member."""
        return endpoint.path in _PATHS

    async def carry_out(self, order: Order, age_s: float) -> Affected | None:
        endpoint = self._endpoints[order.kind]
        try:
            body: PurgeBody | RevokeBody = adapter_of(endpoint.body).validate_json(order.text)
            if isinstance(body, RevokeBody):
                for_s = self._for_s(_revocation(body), order, max(0.0, body.for_s - age_s))
                if for_s is None:
                    return 0
                body = replace(body, for_s=for_s)
            affected = await self._act(endpoint, body)
        except Refused as error:
            _log.info("an order of another member is refused: %s", error)
            # Every member refuses a wrong order.  But another member may be able to carry out what this one cannot.
            return 0 if error.status < 500 else None
        except Exception:
            _log.exception("an order of another member has failed")
            return None
        count = affected_by_all([affected])
        answer = Revoked(count) if isinstance(body, RevokeBody) else Purged(count)
        change = endpoint.audited(body, answer) if endpoint.audited is not None else ""
        self._audit.done(endpoint.method, endpoint.path, "another member of the fleet", 200, change)
        return affected

    def _for_s(self, revocation: Revocation, order: Order, left_s: float) -> float | None:
        """Return the seconds for which an order revokes from now on; None if the order changes nothing.  `left_s` is
        the number of seconds until the end that the order itself states.

        Orders may arrive late.  An order ends an earlier revocation of the same name, but not a later revocation."""
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
            if verdicts.take_over(revocation, for_s):
                self._given_at.pop(revocation, None)
                self._taken_over_at = self._orders.now()

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
