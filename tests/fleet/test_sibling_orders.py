"""The orders of the workers of one member: a worker does not speak for the others before it knows their orders."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.aio.clock import ManualClock
from gateway.config.fleet import FleetConfig, MemberConfig
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_orders import FleetOrders, OfSiblings, OrderSender
from gateway.ops.gathering.peers import Peers
from gateway.ops.gathering.sibling_orders import SiblingOrders
from gateway.protocol.fleet_headers import NOT_LISTED, MemberAnswer
from gateway.protocol.fleet_orders import NO_ORDERS, OrderLog, OutcomeAsk, Since
from gateway.upstream.client import MemberClient
from gateway.workers.member_owners import cell_key
from gateway.workers.place import WorkerPlace
from gateway.workers.shared_memory import SharedMemory, SlotState
from tests.fleet.site import Site
from tests.fleet.test_orders import NoActions
from tests.fleet.test_probes import Head, Probes
from tests.waiting import eventually, time_passing


class OneSibling:
    """The worker 1 of this member, whose orders the test gives."""

    def __init__(self) -> None:
        self.log = OrderLog()
        self.answers = True

    def digests(self) -> Iterable[tuple[str, str]]:
        return [("a/1", self.log.digest)]

    async def ask(self, peer: str | int, asked: Since | OutcomeAsk, within_s: float) -> tuple[int, bytes]:
        assert peer in ("a/1", 1)
        news = self.log.since(cast(Since, asked), [])._replace(process="q")
        return (200, news.rendered(0.0)) if self.answers else (503, b"")

    async def have_done(self, sender: OrderSender, asked: OutcomeAsk, within_s: float) -> OfSiblings:
        return OfSiblings()


async def test_no_member_is_believed_while_another_worker_of_this_one_knows_more() -> None:
    sibling = OneSibling()
    orders = FleetOrders("p", lambda: 7.0, sibling.ask, lambda: ["b"], lambda digest: None)
    orders.siblings, orders.actions = cast(Any, sibling), NoActions()
    orders.notice("b/0", "r", NO_ORDERS, is_for_member=True)
    assert orders.agreed(7.0) == {"b": 7.0}
    sibling.log.add("q", "purge", "{}", 0.0)
    sibling.answers = False
    for _ in range(2):
        assert orders.agreed(7.0) == {"b": None}
        await orders.settled()
    sibling.answers = True
    assert orders.agreed(7.0) == {"b": None}
    await orders.settled()
    assert orders.agreed(7.0) == {"b": 7.0}
    assert [one.process for one in orders.log.orders()] == ["q"]
    await orders.close()


async def test_a_worker_that_starts_takes_over_the_orders_of_the_others_before_it_answers() -> None:
    probes, sibling = Probes(), OneSibling()
    # The other member has been cut off, and does not know the order.
    sibling.log.add("q", "purge", "{}", 0.0)
    orders = probes.fleet.orders
    orders.siblings, orders.actions = cast(Any, sibling), NoActions()
    probes.answer()
    await probes.fleet.start()
    assert [one.process for one in orders.log.orders()] == ["q"]
    await orders.close()


@pytest.mark.parametrize("status", [204, NOT_LISTED])
def test_a_worker_that_lacks_orders_of_its_member_does_not_speak_for_it(status: int) -> None:
    probes = Probes()
    for knows_all in (False, True):
        answer = MemberAnswer("b", "0" * 16, probes.fleet.field.config, False, knows_all_orders=knows_all)
        head = Head(answer)
        head.status = status
        probes.client.asked[-1].head_arrived(head)
        agreed = probes.fleet.orders.agreed(probes.clock.now())
        assert agreed == {"b": probes.clock.now() if knows_all else None}
        probes.clock.advance(1.0)


@pytest.mark.parametrize(
    ("serving", "urls"),
    [
        # The other member has not answered a probe, or only with another configuration.
        (None, ["http://0@b:1", "http://1@b:1"]),
        # Its worker 1 serves since the latest answer.
        ((0,), ["http://b:1", "http://1@b:1"]),
        ((1,), ["http://0@b:1", "http://b:1"]),
        ((0, 1), ["http://0@b:1", "http://1@b:1"]),
    ],
)
def test_the_worker_that_knows_an_order_is_asked_for_it(serving: tuple[int, ...] | None, urls: list[str]) -> None:
    member = Probes().member
    if serving is not None:
        member._fleet.owners.set_workers(1, serving)
    assert [member.url_of(worker) for worker in (0, 1)] == urls


def test_the_workers_of_a_member_with_another_configuration_are_known() -> None:
    probes = Probes()
    answer = MemberAnswer("b", "0" * 16, "f" * 16, False, workers=(0, 2))
    probes.client.asked[-1].head_arrived(Head(answer))
    assert (probes.is_reached(), probes.member.workers) == (False, 2)


async def test_a_member_that_has_removed_this_one_does_not_show_its_orders(site: Site) -> None:
    async with time_passing(site.clock, 0.02):
        await eventually(lambda: site.fleet("b").orders.agreed(site.clock.now())["a"] is not None)
        await site.list_members("a", "c", at=("a",))
        # A probe of before may have an answer on its way.
        refused = site.clock.now() + 1
        await eventually(lambda: site.clock.now() > refused)
        heard = site.fleet("b").orders.agreed(site.clock.now())["a"]
        until = site.clock.now() + 2
        await eventually(lambda: site.clock.now() > until)
    assert site.fleet("b").orders.agreed(site.clock.now())["a"] == heard


class DeafSiblings(SiblingOrders):
    """The other workers, which do not answer."""

    async def ask(self, worker: int, asked: Since | OutcomeAsk, within_s: float) -> tuple[int, bytes]:
        return 503, b""


async def test_a_worker_says_whether_it_knows_all_orders_of_its_member() -> None:
    shared = SharedMemory.create(2, cell_key(b"0" * 32))
    fleets: list[Fleet] = []
    for slot in range(2):
        # A process that had the slot before knew other orders.
        shared.set_orders(slot, "9" * 16)
        shared.set_slot(slot, SlotState.SERVING, 1, 1)
        members = tuple(MemberConfig(name=name, url=f"http://{name}:1") for name in "ab")
        config = FleetConfig(name="a", listen="127.0.0.1:1", members=members, secret=cast(Any, "s" * 32))
        place = cast(WorkerPlace, SimpleNamespace(shared=shared, slot=slot))
        fleet = Fleet(config, ManualClock(), Random(1), cast(MemberClient, None), place)
        fleet.orders.siblings, fleet.orders.actions = DeafSiblings(cast(Peers, None), shared, slot, "a"), NoActions()
        fleets.append(fleet)

    def said() -> list[bool]:
        return [fleet.answer(is_leaving=False).knows_all_orders for fleet in fleets]

    assert said() == [True, True]
    # They are one gateway with two records of each stream.
    assert len({fleet.field.instance for fleet in fleets}) == 1
    assert len({fleet.owner_name for fleet in fleets}) == 2
    given = OrderLog()
    given.add("q", "purge", "{}", 0.0)
    await fleets[1].orders.learn(given.since(Since({}, is_new=False), []))
    assert said() == [False, True]
    await fleets[0].orders.learn(given.since(Since({}, is_new=False), []))
    assert said() == [True, True]
    for fleet in fleets:
        await fleet.orders.close()


def test_a_worker_sees_the_orders_of_the_others_that_serve() -> None:
    shared = SharedMemory.create(4)
    for slot, state in enumerate((SlotState.SERVING, SlotState.SERVING, SlotState.DRAINING, SlotState.DEAD)):
        shared.set_slot(slot, state, 1, 1)
        shared.set_orders(slot, f"{slot:016x}")
    siblings = SiblingOrders(cast(Peers, None), shared, 0, "a")
    assert siblings.digests() == [("a/1", f"{1:016x}"), ("a/2", f"{2:016x}")]
