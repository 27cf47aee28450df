"""Answers the requests of other members of the fleet at the listener for members, and the requests of this member's
other workers.

A member must first prove that it knows the fleet's secret.  Its requests are then answered like the requests of another
worker (`gateway.server.hop`).  All other requests are refused.  Requests from members with another configuration are
also refused, because the same path may belong to another route there.  Such a refusal contains no statement about a
stream, so the other member asks the next owner.

A request from a member causes no request to a third member.  It may join a request that this member has already sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from multidict import CIMultiDict

from gateway.config.limits import LimitsConfig
from gateway.engine.core import Engine
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_orders import FleetOrders, OrderSender
from gateway.engine.fleet_writes import SeenWrites
from gateway.engine.route import Route
from gateway.errors import UpstreamUnavailable
from gateway.protocol.cache_status import Outcome
from gateway.protocol.fleet_headers import FLEET, NOT_LISTED, PROBE, MemberField
from gateway.protocol.fleet_orders import FLEET_ORDERS, NO_ORDERS, OutcomeAsk, Since
from gateway.protocol.sharing import Group
from gateway.server.authorising import Authoriser
from gateway.server.context import RequestContext
from gateway.server.hop import HopHandler, hop_clients
from gateway.server.member_connection import MOST_UNPROVED, MemberClients, MemberConnection
from gateway.server.request import Answered, Request, Work
from gateway.server.request_admission import Admission

_FURTHER: Final = 1_024
"""The most connections of each member in addition to one for each followed stream."""
_REFUSED: Final = b"Only members of the fleet are answered here\n"
_LEFT: Final = b"The asking process has left this member's list\n"
_UNLISTED: Final = b"the asking member is not in its list\n"
_DIFFERS: Final = b"The configurations of the two members differ\n"
_BEHIND: Final = b"This member cannot fetch the purges that the other one knows\n"
_MALFORMED: Final = b"The request is malformed\n"


class FleetHandler(HopHandler):
    """Answers the requests of other members."""

    def __init__(
        self,
        node: str,
        engine: Engine,
        routes: Callable[[str], Route | None],
        admission: Admission,
        authoriser: Authoriser,
        fleet: Fleet,
    ) -> None:
        super().__init__(node, engine, routes, admission, authoriser, fleet.owner_name, is_relative=True)
        self._fleet = fleet
        self.seen: Final = SeenWrites(lambda: engine.writes, engine.clock.now)

    def _begin(self, context: RequestContext, undecided: object = None) -> Answered | Work | None:
        request, fleet = context.request, self._fleet
        sender, channel = MemberField.parse(request.headers.get(FLEET, "")), request.channel
        session = channel.session if isinstance(channel, MemberConnection) else None
        if sender is None or session is None or session.peer != sender.name:
            request.keeps_alive = False
            return self._refuse(context, 403, CIMultiDict(), _REFUSED)
        if fleet.has_left(sender):
            request.keeps_alive = False
            return self._refuse_left(context)
        self.seen.hear(sender)
        if fleet.is_replaced:
            # The sender's next connection reaches the new version of the gateway, which stays.
            request.keeps_alive = False
        if request.method == PROBE:
            context.outcome = Outcome.HIT
            fleet.probed(sender)
            if (asked := request.headers.get(FLEET_ORDERS)) is not None:
                return self._about_orders(context, sender, asked)
            if self._has_other_orders(sender):
                return self._refuse(context, NOT_LISTED, self._state(), _UNLISTED)
            fleet.told(sender.name, is_leaving=self._is_leaving)
            fleet.orders.notice(sender.peer, sender.process, sender.orders)
            return context.delivery.text(204, self._state(), b"")
        if sender.config != fleet.field.config:
            return self._refuse(context, 421, self._state(), _DIFFERS)
        if self._has_other_orders(sender):
            return self._refuse(context, NOT_LISTED, self._state(), _UNLISTED)
        if fleet.orders.is_behind(sender.peer, sender.orders):
            return self._after_orders(context, sender)
        return super()._begin(context, undecided)

    @property
    def _is_leaving(self) -> bool:
        return self._engine.drain.is_set and not self._fleet.is_replaced

    def _state(self, *, shows_orders: bool = True) -> CIMultiDict[str]:
        """Return the header field with the state of this member."""
        answer = self._fleet.answer(is_leaving=self._is_leaving)
        if not shows_orders:
            answer = answer._replace(orders=NO_ORDERS, knows_all_orders=False)
        return CIMultiDict({FLEET: answer.rendered()})

    def _has_other_orders(self, sender: MemberField) -> bool:
        """Return whether the sender is not in the list of members, but may know orders that this member does not know.
        This member cannot fetch such orders."""
        fleet = self._fleet
        return fleet.orders.is_behind(sender.peer, sender.orders) and not fleet.is_listed(sender.name)

    async def _after_orders(self, context: RequestContext, sender: MemberField) -> Answered | None:
        """Answer the request of a member that knows purges which this member may not have executed yet.  Execute these
        purges first."""
        fleet = self._fleet
        has_caught_up = await fleet.orders.caught_up(_order_sender(sender))
        if fleet.has_left(sender):
            return self._refuse_left(context)
        if not has_caught_up:
            return self._refuse(context, 421, CIMultiDict(), _BEHIND)
        found = super()._begin(context)
        return found if found is None or isinstance(found, Answered) else await found

    def _refuse_left(self, context: RequestContext) -> Answered:
        """Refuse a process that has left the list.

        The refusal identifies this process, because the other process may have removed this one from its list, too.
        The refusal does not say which orders exist, because the other process cannot fetch them.
        """
        return self._refuse(context, NOT_LISTED, self._state(shows_orders=False), _LEFT)

    def _about_orders(self, context: RequestContext, sender: MemberField, asked: str) -> Answered | Work:
        """Answer a request for orders, or a request for the outcome of an order."""
        orders, now = self._fleet.orders, self._engine.clock.now
        try:
            if not asked.startswith("done"):
                text = orders.news(Since.parse(asked)).rendered(now())
                return context.delivery.text(200, CIMultiDict({"Content-Type": "application/json"}), text)
            done = OutcomeAsk.parse(asked)
        except ValueError:
            return self._refuse(context, 400, CIMultiDict(), _MALFORMED)
        if self._has_other_orders(sender):
            return self._refuse(context, NOT_LISTED, CIMultiDict(), _UNLISTED)
        return self._outcome(context, sender, done)

    async def _outcome(self, context: RequestContext, sender: MemberField, done: OutcomeAsk) -> Answered:
        count, why_not = await self._fleet.orders.done_by_member(_order_sender(sender), done)
        if why_not:
            return self._refuse(context, 503, CIMultiDict(), f"{why_not}\n".encode())
        return context.delivery.text(200, CIMultiDict(), b"%d" % count)

    def _refuse(self, context: RequestContext, status: int, headers: CIMultiDict[str], body: bytes) -> Answered:
        context.outcome = Outcome.REFUSED
        headers["Content-Type"] = "text/plain; charset=utf-8"
        return context.delivery.text(status, headers, body)

    def _look(self, request: Request, group: Group) -> None:
        super()._look(request, group)
        sender = MemberField.parse(request.headers.get(FLEET, ""))
        assert sender is not None
        self.seen.look(sender, group, self._fleet.met(sender.name, sender.instance))


class MemberHopHandler(HopHandler):
    """Answers the requests of other workers of the same member of a fleet.

    If the other worker knows purges that this worker has not executed yet, this worker executes them first."""

    def _begin(self, context: RequestContext, undecided: object = None) -> Answered | Work | None:
        fleet, sender = self._engine.fleet, MemberField.parse(context.request.headers.get(FLEET, ""))
        assert fleet is not None
        if sender is not None and fleet.orders.is_behind(sender.peer, sender.orders):
            return self._after_orders(context, fleet.orders, _order_sender(sender))
        return super()._begin(context, undecided)

    async def _after_orders(self, context: RequestContext, orders: FleetOrders, sender: OrderSender) -> Answered | None:
        if not await orders.caught_up(sender):
            return self._recorder.refuse(context, UpstreamUnavailable())
        found = super()._begin(context)
        return found if found is None or isinstance(found, Answered) else await found


def _order_sender(sender: MemberField) -> OrderSender:
    return OrderSender(sender.peer, sender.process, sender.orders)


def member_clients(
    node: str,
    limits: LimitsConfig,
    engine: Engine,
    routes: Callable[[str], Route | None],
    authoriser: Authoriser,
) -> MemberClients | None:
    """Make the registry of the connections of other members; None without a fleet."""
    fleet = engine.fleet
    if fleet is None:
        return None

    def make_handler(admission: Admission) -> FleetHandler:
        return FleetHandler(node, engine, routes, admission, authoriser, fleet)

    def most() -> int:
        return (limits.followed_streams + _FURTHER) * max(1, len(fleet.members)) + MOST_UNPROVED

    clients = hop_clients(limits, engine, make_handler, most(), MemberClients)
    clients.key, clients.worker = fleet.key, fleet.worker
    fleet.on_members = lambda: clients.allow(most())
    return clients
