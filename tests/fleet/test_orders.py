"""Purges and revocations over the members of a fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from typing import Any

import orjson
import pytest

from gateway.aio.clock import ManualClock
from gateway.auth.remembered_verdicts import Revocation
from gateway.commands.failure import CommandFailed
from gateway.commands.purge import _purge
from gateway.engine.fleet_orders import Affected, FleetOrders, OrderSender
from gateway.ops.admin.endpoint import Refused
from gateway.ops.admin.over_fleet import OverFleet
from gateway.origin.requests import Kind
from gateway.protocol.fleet_orders import NO_ORDERS, InEffect, Order, OrderLog, Since
from gateway.protocol.stored_orders import news_of
from tests.fleet.site import NAMES, Site
from tests.scenarios.wire import Answer
from tests.waiting import eventually, time_passing

PRINCIPAL = {"subject": "principal", "name": "mallory", "for_s": 600}
REVOKED = Revocation("principal", "mallory")


async def give(site: Site, name: str, what: str, body: dict[str, object]) -> Answer:
    """Give an order at a member's admin port."""
    member = site.members[name]
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json"}
    return await member.send_to(member.gateway.admin_url, "POST", f"/api/{what}", headers, orjson.dumps(body))


async def order(site: Site, name: str, what: str, body: dict[str, object]) -> dict[str, Any]:
    """Give an order that is carried out."""
    answer = await give(site, name, what, body)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = orjson.loads(answer.body)
    return found


def revocations(site: Site, name: str) -> list[Revocation]:
    return [one for one, _ in site.members[name].gateway.routes.verdicts.revocations()]


@pytest.fixture
async def site(apart: Site) -> Site:
    """A fleet whose members repeat a tail for minutes, so that only a purge lets them ask the origin."""
    await apart.start_all(tail_fresh_s=600)
    return apart


async def rewrite(site: Site, path: str, body: bytes) -> None:
    """Replace a stream at the origin without the knowledge of the members."""
    member = site.members["a"]
    assert (await member.send_to(site.origin.url, "DELETE", path)).status == 204
    sent = await member.send_to(
        site.origin.url, "PUT", path, {"Content-Type": "text/plain", "Stream-Closed": "true"}, body
    )
    assert sent.status == 201


async def bodies(site: Site, path: str, names: tuple[str, ...] = NAMES) -> set[bytes]:
    return {(await site.members[name].get(f"{path}?offset=-1")).body for name in names}


async def warmed(site: Site, path: str) -> None:
    """Have the stream in the memory of every member, as it is at the origin no more."""
    await site.members["a"].put(path, b"old", Stream_Closed="true")
    for _ in range(2):
        assert await bodies(site, path) == {b"old"}
    await rewrite(site, path, b"new")
    assert await bodies(site, path) == {b"old"}


@pytest.mark.parametrize("at", NAMES)
async def test_a_purge_reaches_every_member_and_each_confirms(site: Site, at: str) -> None:
    path = site.path_of("b")
    await warmed(site, path)
    answer = await order(site, at, "purge", {"stream": path})
    assert answer["purged"] == 1
    others = [name for name in NAMES if name != at]
    assert answer["members"] == [{"member": name, "affected": 1, "why_not": ""} for name in others]
    assert await bodies(site, path) == {b"new"}


async def test_a_purge_by_id_selects_the_stream_at_every_member(site: Site) -> None:
    path = site.path_of("a")
    await warmed(site, path)
    member = site.members["c"]
    listed = await member.send_to(member.gateway.admin_url, "GET", "/api/streams", {"Host": "127.0.0.1"})
    (stream,) = orjson.loads(listed.body)["streams"]
    answer = await order(site, "c", "purge", {"id": stream["id"]})
    assert [one["affected"] for one in answer["members"]] == [1, 1]
    assert await bodies(site, path) == {b"new"}


async def test_a_purge_that_is_refused_concerns_no_member(site: Site) -> None:
    member = site.members["a"]
    headers = {"Host": "127.0.0.1", "Content-Type": "application/json"}
    answer = await member.send_to(member.gateway.admin_url, "POST", "/api/purge", headers, b'{"prefix": "/"}')
    assert answer.status == 422
    answer2 = await order(site, "a", "purge", {"all": True})
    assert [one["why_not"] for one in answer2["members"]] == ["", ""]


async def test_the_commands_purge_of_all_is_taken_for_no_purge_after_a_loss(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each member would put off judging its next loss."""
    await _purge(site.members["a"].gateway.admin_url, {"all": True, "soft": False})
    assert capsys.readouterr().out == "purged 0 streams\n"
    assert [site.fleet(name).orders.all_purged_at for name in NAMES] == [-inf] * len(NAMES)


async def test_the_command_fails_and_names_the_member_that_has_not_confirmed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site.path_of("b")
    await warmed(site, path)
    await site.kill("c")
    with pytest.raises(CommandFailed, match=r"^not confirmed by these members of the fleet: c \("):
        await _purge(site.members["a"].gateway.admin_url, {"stream": path, "soft": False})
    assert capsys.readouterr().out == "purged 1 stream\n"
    assert await bodies(site, path, ("a", "b")) == {b"new"}


async def test_a_revocation_reaches_every_member(site: Site) -> None:
    answer = await order(site, "b", "revoke", PRINCIPAL)
    assert answer["members"] == [{"member": name, "affected": 0, "why_not": ""} for name in "ac"]
    assert {name: revocations(site, name) for name in NAMES} == {name: [REVOKED] for name in NAMES}


async def test_a_member_without_room_for_a_revocation_has_not_confirmed_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.auth.remembered_verdicts.MOST_REVOCATIONS", 2)
    others = [Revocation("token", name) for name in ("x", "y")]
    for one in others:
        site.members["b"].gateway.routes.verdicts.revoke(one, 600)
    answer = await order(site, "a", "revoke", PRINCIPAL)
    assert [(one["member"], one["affected"]) for one in answer["members"]] == [("b", None), ("c", 0)]
    assert revocations(site, "b") == others
    refused = await give(site, "b", "revoke", PRINCIPAL)
    assert (refused.status, orjson.loads(refused.body)) == (
        503,
        {"error": "2 revocations are in effect: this one is refused until one of them ends"},
    )


async def test_a_member_whose_disk_has_not_recorded_a_purge_has_not_confirmed_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = site.fleet("b").orders.actions
    assert isinstance(actions, OverFleet)

    async def purge(_: object) -> None:
        raise Refused(503, "not on disk")

    monkeypatch.setattr(actions._purger, "purge", purge)
    answer = await order(site, "a", "purge", {"all": True})
    assert [(one["member"], one["affected"]) for one in answer["members"]] == [("b", None), ("c", 0)]


class Asked:
    """Counts the requests of members that wait for an owner's purge."""

    def __init__(self, orders: FleetOrders, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by: list[str] = []
        caught_up = orders.caught_up

        async def counted(sender: OrderSender) -> bool:
            self.by.append(sender.peer.partition("/")[0])
            return await caught_up(sender)

        monkeypatch.setattr(orders, "caught_up", counted)


class Held:
    """Holds a member's orders: the member fetches none before `release`."""

    def __init__(self, orders: FleetOrders, monkeypatch: pytest.MonkeyPatch) -> None:
        self._gate = asyncio.Event()
        self.waiting = 0
        fetched = orders._fetched

        async def held(member: str) -> str:
            self.waiting += 1
            await self._gate.wait()
            return await fetched(member)

        monkeypatch.setattr(orders, "_fetched", held)

    def release(self) -> None:
        self._gate.set()


async def test_a_member_that_is_purged_gets_no_old_bytes_from_an_owner_that_is_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = site.path_of("b")
    await warmed(site, path)
    held = Held(site.fleet("b").orders, monkeypatch)
    purging = asyncio.create_task(order(site, "c", "purge", {"stream": path}))
    # Member a is purged, and its reader asks the owner b, which still has the old bytes and has not begun to purge.
    await eventually(lambda: held.waiting > 0 and repr(site.fleet("a").orders.log).startswith("<OrderLog 1"))
    asked = Asked(site.fleet("b").orders, monkeypatch)
    reading = asyncio.create_task(site.members["a"].get(f"{path}?offset=-1"))
    await eventually(lambda: "a" in asked.by or reading.done())
    assert not reading.done()
    assert not purging.done()
    held.release()
    assert (await reading).body == b"new"
    assert [one["affected"] for one in (await purging)["members"]] == [1, 1]
    assert await bodies(site, path) == {b"new"}


async def test_what_a_member_fetches_while_it_purges_is_not_old(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site.path_of("b")
    await warmed(site, path)
    purge, gate = site.members["a"].gateway.engine.purge, asyncio.Event()
    asked = Asked(site.fleet("b").orders, monkeypatch)
    actions = site.fleet("b").orders.actions
    assert actions is not None
    carry_out = actions.carry_out

    async def slowly(*args: Any) -> Affected | None:
        await gate.wait()
        return await carry_out(*args)

    monkeypatch.setattr(actions, "carry_out", slowly)
    act = purge.drop_stream
    readings: list[asyncio.Task[Any]] = []

    def drop(stream: Any) -> bool:
        done = act(stream)
        readings.append(asyncio.create_task(site.members["a"].get(f"{path}?offset=-1")))
        return done

    monkeypatch.setattr(purge, "drop_stream", drop)
    purging = asyncio.create_task(order(site, "a", "purge", {"stream": path}))
    # The read begins within the purge of member a.  The owner has fetched the purge, and has not carried it out yet.
    await eventually(lambda: bool(readings))
    # One request for the purge's outcome, and one for the reader.
    await eventually(lambda: asked.by == ["a", "a"] or readings[0].done())
    assert not readings[0].done()
    gate.set()
    assert (await readings[0]).body == b"new"
    await purging
    assert await bodies(site, path) == {b"new"}


class Parted:
    """Cuts a member off from the others, which go on to serve their clients."""

    def __init__(self, site: Site, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._is_cut = True
        for one in site.members:
            fleet = site.fleet(one)
            self._cut(fleet.client, {name} if one != name else set(site.members) - {name}, site, monkeypatch)

    def _cut(self, client: Any, names: set[str], site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        ask = client.ask
        urls = tuple(f"{site.urls[name]}/" for name in names)

        def cut(requester: Any, call: Any) -> Any:
            if self._is_cut and call.url.startswith(urls):
                call = call._replace(url="http://127.0.0.1:9/")
            return ask(requester, call)

        monkeypatch.setattr(client, "ask", cut)

    def heal(self) -> None:
        self._is_cut = False


async def test_a_member_that_was_away_purges_at_its_return(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    path = site.path_of("c")
    await warmed(site, path)
    parted = Parted(site, "b", monkeypatch)
    async with time_passing(site.clock):
        answer = await order(site, "a", "purge", {"stream": path})
        (confirmed,) = [one for one in answer["members"] if one["affected"] is not None]
        (missing,) = [one for one in answer["members"] if one["affected"] is None]
        assert (confirmed["member"], missing["member"]) == ("c", "b")
        assert missing["why_not"]
        await order(site, "a", "revoke", PRINCIPAL)
        assert await bodies(site, path, ("a", "c")) == {b"new"}
        assert await bodies(site, path, ("b",)) == {b"old"}
        parted.heal()
        await eventually(lambda: revocations(site, "b") == [REVOKED])
    assert await bodies(site, path, ("b",)) == {b"new"}
    assert site.fleet("b").orders.missed == 0


async def test_a_member_that_has_missed_orders_empties_its_memory(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, other = site.path_of("c"), site.path_of("b")
    await warmed(site, path)
    await warmed(site, other)
    for name in "ac":
        monkeypatch.setattr(site.fleet(name).orders, "log", OrderLog(most=2))
    parted = Parted(site, "b", monkeypatch)
    async with time_passing(site.clock):
        await order(site, "a", "revoke", PRINCIPAL)
        await order(site, "a", "purge", {"stream": path})
        for number in range(2):
            await order(site, "a", "purge", {"stream": f"/elsewhere/{number}"})
        parted.heal()
        await eventually(lambda: site.fleet("b").orders.missed == 1)
        await eventually(lambda: revocations(site, "b") == [REVOKED])
    assert await bodies(site, path, ("b",)) == {b"new"}
    assert await bodies(site, other, ("b",)) == {b"new"}
    assert "has missed purges or revocations" in caplog.text


async def test_a_member_that_starts_takes_over_revocations_before_it_answers(site: Site) -> None:
    path = site.path_of("a")
    await site.members["a"].put(path, b"x")
    await order(site, "a", "revoke", PRINCIPAL)
    await order(site, "a", "purge", {"stream": path})
    await site.kill("b")
    async with time_passing(site.clock):
        await site.start("b", tail_fresh_s=600)
        assert revocations(site, "b") == [REVOKED]
    await site.until_joined()
    assert len({site.fleet(name).field.orders for name in NAMES}) == 1
    assert site.fleet("b").orders.missed == 0
    # What the new process knows of another one's orders counts for the others too.
    before = site.counters.requests[Kind.CATCHUP]
    assert await bodies(site, path) == {b"x"}
    assert site.counters.requests[Kind.CATCHUP] - before <= 3


async def test_orders_at_two_members_at_once_reach_all(site: Site) -> None:
    paths = [site.path_of(name) for name in NAMES]
    for path in paths:
        await warmed(site, path)
    answers = await asyncio.gather(
        *(order(site, name, "purge", {"stream": path}) for name, path in zip(NAMES, reversed(paths), strict=True))
    )
    assert all(one["affected"] == 1 for answer in answers for one in answer["members"])
    for path in paths:
        assert await bodies(site, path) == {b"new"}
    assert len({site.fleet(name).field.orders for name in NAMES}) == 1


class Link:
    """The other member, whose answers the test gives."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []

    async def ask(self, *_: object) -> tuple[int, bytes]:
        return self.answers.pop(0)


@pytest.mark.parametrize("answer", [(500, b""), (200, b"{}"), (200, b"")])
async def test_a_member_whose_orders_cannot_be_fetched_is_not_caught_up_with(answer: tuple[int, bytes]) -> None:
    link = Link()
    link.answers = [answer, answer]
    orders = FleetOrders("p", lambda: 0.0, link.ask, lambda: ["b"], lambda digest: None)
    assert not await orders.caught_up(OrderSender("b/0", "q", "1" * 16))
    assert orders.is_behind("b", "1" * 16)
    orders.notice("b/0", "q", "1" * 16)
    await orders.settled()
    await orders.close()


async def test_a_process_shows_nothing_of_the_time_before_this_member_heard_of_it() -> None:
    clock, names = ManualClock(), ["b", "c"]
    orders = FleetOrders("p", clock.now, Link().ask, lambda: names, lambda digest: None)
    start = clock.now()
    for process in "qqr":
        clock.advance(1)
        orders.notice("b/0", process, NO_ORDERS, is_for_member=True)
        orders.notice("c/0", "s", NO_ORDERS, is_for_member=True)
    assert orders.agreed(start) == {"b": None, "c": None}
    assert orders.agreed(start + 2) == {"b": None, "c": start + 3}
    assert orders.agreed(start + 3) == {"b": start + 3, "c": start + 3}
    # A member that has left the list can be asked no more.
    clock.advance(1)
    names.remove("c")
    orders.forget("c")
    assert orders.agreed(start + 3) == {"b": start + 3, "c": None}
    assert orders.agreed(start + 4) == {"b": start + 3}
    # Before this member answers reads, it has nothing to lose.
    clock.advance(1)
    orders.notice("b/0", "t", NO_ORDERS, is_for_member=True)
    orders.begin()
    assert orders.agreed(start) == {"b": start + 5}


async def test_the_other_workers_of_a_member_do_not_show_what_a_replaced_worker_has_known() -> None:
    clock = ManualClock()
    orders = FleetOrders("p", clock.now, Link().ask, lambda: ["b"], lambda digest: None)
    began = clock.now()
    for worker, process in (("b/0", "q"), ("b/1", "r")):
        orders.notice(worker, process, NO_ORDERS, is_for_member=True)
    clock.advance(1)
    # This member hears of a further worker for the first time, which may have been there before.
    orders.notice("b/2", "s", NO_ORDERS, is_for_member=True)
    orders.notice("b/0", "q", NO_ORDERS, is_for_member=True)
    assert orders.agreed(began) == {"b": began + 1}
    clock.advance(1)
    orders.notice("b/1", "t", NO_ORDERS)
    orders.notice("b/0", "q", NO_ORDERS, is_for_member=True)
    assert orders.agreed(began + 1) == {"b": None}
    assert orders.agreed(began + 2) == {"b": began + 2}


class NoActions:
    """Does nothing for an order."""

    async def carry_out(self, order: Order, age_s: float) -> int | None:
        return 0

    async def start_again(self) -> None:
        """Do nothing."""

    def in_effect(self) -> list[InEffect]:
        return []

    def take_over(self, revocations: Iterable[InEffect]) -> None:
        """Do nothing."""

    def revocation_of(self, order: Order, age_s: float) -> InEffect | None:
        return None


class FailingToEmpty(NoActions):
    """Fails to empty the memory so many times."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.emptied = 0
        self.done: list[int] = []
        self.taken_over: list[InEffect] = []

    async def carry_out(self, order: Order, age_s: float) -> int | None:
        self.done.append(order.number)
        return 0

    async def start_again(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not this time")
        self.emptied += 1

    def take_over(self, revocations: Iterable[InEffect]) -> None:
        self.taken_over += revocations


async def test_orders_in_redis_are_carried_out_though_the_memory_cannot_be_emptied_at_first() -> None:
    orders, actions = FleetOrders("p", lambda: 1.0, Link().ask, tuple, lambda digest: None), FailingToEmpty(2)
    orders.actions = actions
    orders.begin()
    news = news_of([Order("q", 5, "purge", "{}", 0.0)], [InEffect("principal", "mallory", None, 60.0)])
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await orders.learn(news)
        assert orders.is_behind("b/0", orders.log.digest)

    # Nothing else marks the missed orders as carried out.
    async def act(_: Order) -> None:
        """Do nothing."""

    await orders.give("purge", "{}", act)
    assert orders.is_behind("b/0", orders.log.digest)
    await orders.learn(news)
    assert (actions.emptied, orders.missed, actions.done) == (1, 1, [5])
    assert {one.name for one in actions.taken_over} == {"mallory"}
    assert not orders.is_behind("b/0", orders.log.digest)
    await orders.close()


async def test_no_member_is_answered_until_the_memory_is_emptied_for_missed_orders() -> None:
    link = Link()
    orders, actions = FleetOrders("p", lambda: 0.0, link.ask, lambda: ["b"], lambda digest: None), FailingToEmpty(1)
    orders.actions = actions
    orders.begin()
    news = news_of([Order("q", 5, "purge", "{}", 0.0)])._replace(process="q")
    link.answers = [(200, news.rendered(0.0))] * 2
    sender = OrderSender("b/0", "q", OrderLog.digest_of(news.known))
    assert [await orders.caught_up(sender) for _ in range(3)] == [False, True, True]
    assert (actions.emptied, actions.done) == (1, [5])
    await orders.close()


async def test_a_doubt_that_cannot_empty_the_memory_leaves_its_order_to_be_carried_out() -> None:
    orders, actions = FleetOrders("p", lambda: 1.0, Link().ask, tuple, lambda digest: None), FailingToEmpty(1)
    orders.actions = actions
    orders.begin()
    with pytest.raises(RuntimeError):
        await orders.doubt(0.0)
    assert orders.is_behind("b/0", orders.log.digest)
    await orders.doubt(0.0)
    assert not orders.is_behind("b/0", orders.log.digest)
    assert (actions.emptied, orders.log.numbers()) == (1, {"p": 1})
    await orders.close()


@pytest.mark.parametrize("first_s", [1, 60])
async def test_an_order_that_arrives_late_ends_no_later_revocation(
    site: Site, monkeypatch: pytest.MonkeyPatch, first_s: int
) -> None:
    parted = Parted(site, "b", monkeypatch)
    async with time_passing(site.clock):
        await eventually(lambda: site.reached("b") == set())
    await order(site, "b", "revoke", {**PRINCIPAL, "for_s": first_s})
    site.clock.advance(2)
    await order(site, "a", "revoke", PRINCIPAL)
    parted.heal()
    await site.until_joined()
    async with time_passing(site.clock):
        await eventually(lambda: len({site.fleet(name).field.orders for name in NAMES}) == 1)
    for name in NAMES:
        [(_, for_s)] = site.members[name].gateway.routes.verdicts.revocations()
        assert for_s == pytest.approx(600, abs=30)


@pytest.mark.parametrize("answering", ["q", "r"])
async def test_only_the_asking_process_itself_can_show_that_its_orders_are_carried_out(answering: str) -> None:
    link = Link()
    orders = FleetOrders("p", lambda: 0.0, link.ask, lambda: ["b"], lambda digest: None)
    orders.actions = NoActions()
    theirs = OrderLog()
    theirs.add("q", "purge", "{}", 0.0)
    asked = theirs.digest
    # Its next order comes before its answer.
    theirs.add("q", "purge", "{}", 0.0)
    news = theirs if answering == "q" else OrderLog()
    link.answers = [(200, news.since(Since({}, is_new=False), [])._replace(process=answering).rendered(0.0))]
    assert await orders.caught_up(OrderSender("b/0", "q", asked)) == (answering == "q")
    await orders.close()


async def test_a_member_without_orders_knows_none_that_others_do_not() -> None:
    orders = FleetOrders("p", lambda: 0.0, Link().ask, tuple, lambda digest: None)

    async def act(_: Order) -> None:
        """Do nothing."""

    await orders.give("purge", "{}", act)
    assert not orders.is_behind("b", NO_ORDERS)
    await orders.close()


async def test_an_order_is_completed_though_its_client_leaves() -> None:
    orders = FleetOrders("p", lambda: 0.0, Link().ask, tuple, lambda digest: None)
    gate, done = asyncio.Event(), []

    async def act(_: Order) -> None:
        await gate.wait()
        done.append(True)

    giving = asyncio.create_task(orders.give("purge", "{}", act))
    await eventually(lambda: "1 orders" in repr(orders))
    giving.cancel()
    await asyncio.gather(giving, return_exceptions=True)
    gate.set()
    await eventually(lambda: done == [True] and not orders.is_behind("b", orders.log.digest))
    await orders.close()
