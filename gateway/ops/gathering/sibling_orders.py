"""Exchanges the operator's orders between the workers of one member of a fleet, over their private admin sockets
(`gateway.engine.fleet_orders.Siblings`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import orjson
from aiohttp import web

from gateway.engine.fleet_orders import Affected, FleetOrders, OfSiblings, OrderSender
from gateway.errors import UpstreamUnreachable
from gateway.ops.gathering.peers import Peers
from gateway.protocol.fleet_headers import peer_name
from gateway.protocol.fleet_orders import OrderNews, OutcomeAsk, Since
from gateway.workers.shared_memory import SharedMemory

NEWS: Final = "/worker/orders"
"""The path of a POST whose body is a `Since` in the form of `FLEET_ORDERS`.  The answer is an `OrderNews`."""
OUTCOME: Final = "/worker/order"
"""The path of a POST whose body has the sender, and an `OutcomeAsk` in the form of `FLEET_ORDERS`.  The answer is an
`Affected`."""


class SiblingOrders:
    """Sends requests about orders to the other workers of this member."""

    def __init__(self, peers: Peers, shared: SharedMemory, slot: int, member: str) -> None:
        """`slot` is the slot of this worker, and `member` is the name of this member."""
        self._peers = peers
        self._shared = shared
        self._slot = slot
        self._member = member

    def __repr__(self) -> str:
        return f"<SiblingOrders of worker {self._slot}>"

    def digests(self) -> Iterable[tuple[str, str]]:
        shared = self._shared
        return [(peer_name(self._member, slot), shared.orders(slot)) for slot in shared.owning() if slot != self._slot]

    async def ask(self, worker: int, asked: Since | OutcomeAsk, within_s: float) -> tuple[int, bytes]:
        answer = await self._peers.ask_one(worker, "POST", NEWS, asked.rendered().encode(), within_s)
        if answer.is_late or answer.has_ended:
            raise UpstreamUnreachable(f"worker {worker} does not answer")
        return answer.status, answer.body

    async def have_done(self, sender: OrderSender, asked: OutcomeAsk, within_s: float) -> OfSiblings:
        body = orjson.dumps((*sender, asked.rendered()))
        answers = await self._peers.ask_all("POST", OUTCOME, body, within_s, but=self._slot)
        failed = [one for one in answers if one.status != 200]
        reasons = (f"{one.name} {'does not answer' if one.is_late else 'cannot carry it out'}" for one in failed)
        return OfSiblings(tuple(_affected(one.body) for one in answers if one.status == 200), "; ".join(reasons))


def _affected(body: bytes) -> Affected:
    found = orjson.loads(body)
    return found if isinstance(found, int) else frozenset(found)


async def take_over_orders(orders: FleetOrders, earlier: Peers) -> None:
    """Carry out the orders that the workers of the previous version know.

    If another member could not be reached when an order was given, it later gets the order from a member that knows it.
    After the upgrade, this member may be the only one that knows the order."""
    answers = await earlier.ask_all("POST", NEWS, Since({}, is_new=True).rendered().encode())
    for answer in answers:
        if answer.is_good:
            with suppress(ValueError):
                await orders.learn(OrderNews.parse(answer.body, orders.now()))


def order_routes(orders: FleetOrders, now: Callable[[], float]) -> Sequence[web.RouteDef]:
    """Return the routes at which a worker answers `SiblingOrders`."""

    async def news(request: web.Request) -> web.Response:
        asked = Since.parse(await request.text())
        return web.Response(body=orders.news(asked).rendered(now()))

    async def outcome(request: web.Request) -> web.Response:
        peer, process, digest, asked = orjson.loads(await request.read())
        found = await orders.done(OrderSender(peer, process, digest), OutcomeAsk.parse(asked))
        if found is None:
            return web.Response(status=503)
        return web.Response(body=orjson.dumps(list(found) if isinstance(found, frozenset) else found))

    return [web.post(NEWS, news), web.post(OUTCOME, outcome)]
