"""The list of members changes while the gateways run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine.fleet_reachability import Member
from gateway.origin.requests import Kind
from gateway.protocol.fleet_headers import MemberField
from gateway.protocol.fleet_orders import OrderLog
from tests.fleet.site import NAMES, Site
from tests.fleet.test_members import STEP_S, Verifier
from tests.fleet.test_orders import PRINCIPAL, REVOKED, Held, bodies, order, revocations, warmed
from tests.waiting import eventually, time_passing

FRESH: dict[str, Any] = {"tail_fresh_s": 600}


def member(site: Site, at: str, name: str) -> Member:
    """A member in the view of another one."""
    return next(one for one in site.fleet(at).members.values() if one.name == name)


def open_connections(site: Site, at: str) -> int:
    """The connections of other members."""
    members = site.members[at].gateway.listeners.members
    assert members is not None
    return len(members)


async def test_a_member_that_comes_into_the_list_gets_its_streams_gradually(apart: Site) -> None:
    apart.listed = ("a", "b")
    for name in "ab":
        await apart.start(name)
    await apart.until_joined()
    epoch = apart.fleet("a").owners.epoch
    apart.listed = NAMES
    await apart.start("c")
    assert apart.fleet("a").owners.epoch == epoch
    await apart.list_members(*NAMES, at=("a", "b"))
    weights = set()

    def has_all() -> bool:
        apart.clock.advance(0.1)
        if not (c := member(apart, "a", "c")).why_not:
            weights.add(c.weight)
        return 1.0 in weights

    await eventually(has_all)
    assert {0.1, 0.5, 1.0} <= weights
    await apart.until_joined()
    path = apart.path_of("c")
    await apart.members["a"].put(path, b"x", Stream_Closed="true")
    for name in NAMES:
        assert (await apart.members[name].get(f"{path}?offset=-1")).body == b"x"
    assert member(apart, "a", "c").asked == 1
    # One fetch, and a question for the first request of each other member.
    assert apart.counters.requests[Kind.CATCHUP] <= 3


async def test_readers_go_on_without_a_member_that_leaves_the_list(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"0 ")
    readers = [Verifier(await site.members[name].begin(f"{path}?offset=-1&live=sse")) for name in "abc"]
    await eventually(lambda: {reader.body for reader in readers} == {"0 "})
    assert open_connections(site, "b") > 0
    async with time_passing(site.clock, STEP_S):
        await site.list_members("a", "c", at=("a", "c"))
        assert (await site.members["a"].post(path, b"1 ")).status == 204
        await eventually(lambda: {reader.body for reader in readers} == {"0 1 "})
        # Member b has the whole list.  It is not answered, and asks the origin itself.
        await eventually(lambda: not site.reached("b"))
        assert {one.why_not for one in site.fleet("b").members.values()} == {"this member is not in its list"}
        # It is not shown which orders they know.
        asked_until, now = site.clock.now() + 1, site.clock.now()
        await eventually(lambda: site.clock.now() > asked_until)
        assert all(at is None or at <= now for at in site.fleet("b").orders.agreed(now).values())
        await eventually(lambda: open_connections(site, "b") == 0, state=lambda: open_connections(site, "b"))
        await eventually(lambda: site.counters.parked == 2)
        assert (await site.members["b"].post(path, b"2 ")).status == 204
        await eventually(lambda: {reader.body for reader in readers} == {"0 1 2 "})
        assert (site.reached("a"), site.reached("c")) == ({"c"}, {"a"})
        await site.list_members(*NAMES, at=("a", "c"))
        await eventually(site.have_joined)
        await eventually(lambda: site.counters.parked == 1)
        assert (await site.members["c"].post(path, b"3 ")).status == 204
        await eventually(lambda: {reader.body for reader in readers} == {"0 1 2 3 "})
    assert not any(reader.is_over for reader in readers)
    for reader in readers:
        await reader.leave()


async def test_an_answer_that_begins_after_its_member_has_left_the_list_is_used(site: Site) -> None:
    path = site.path_of("c")
    await site.members["a"].put(path, b"x", Stream_Closed="true")
    gate = site.origin.origin.faults.hold(kind="catchup")
    reading = site.members["a"].asking(f"{path}?offset=-1")
    await gate.waiting(1)
    # No time passes, so the request is not sent to another owner.
    await site.list_members("a", "b", at=("a",))
    gate.release()
    assert (await reading).body == b"x"
    assert site.counters.requests[Kind.CATCHUP] == 1


async def test_a_request_that_fails_after_its_member_has_left_the_list_does_no_harm(site: Site) -> None:
    fleet, by_fleet = site.fleet("a"), site.members["a"].gateway.engine.by_fleet
    assert by_fleet is not None
    index = next(index for index, one in fleet.members.items() if one.name == "c")
    await site.list_members("a", "b", at=("a",))
    by_fleet.lost(index)
    assert repr(fleet) == "<Fleet a: [<Member b reached>]>"


async def test_more_members_may_have_more_connections(site: Site) -> None:
    members = site.members["a"].gateway.listeners.members
    assert members is not None
    before = members.limits.max_connections
    await site.list_members("a", "b", at=("a",))
    assert members.limits.max_connections < before
    assert members.limits.client_connections == members.limits.max_connections
    await site.list_members(*NAMES, at=("a",))
    assert members.limits.max_connections == before


@pytest.mark.parametrize(("gone", "at"), [("c", "a"), ("a", "c")], ids=["of the member", "for the member"])
async def test_answers_under_way_are_completed_after_a_change_of_the_list(site: Site, gone: str, at: str) -> None:
    path, body = site.path_of("c"), b"x" * 300_000
    await site.members["a"].put(path, body)
    gate = site.origin.origin.faults.stall(100_000, kind="catchup")
    reading = site.members["a"].asking(f"{path}?offset=-1")
    await gate.waiting(1)
    before = member(site, gone, at)
    async with time_passing(site.clock, STEP_S):
        await site.list_members(*[name for name in NAMES if name != gone], at=(at,))
        await eventually(lambda: before.why_not == "this member is not in its list")
        assert not reading.done()
        gate.release()
        assert (await reading).body == body
    assert site.counters.requests[Kind.CATCHUP] == 1


async def test_a_member_whose_address_changes_is_asked_at_the_new_one(site: Site) -> None:
    await site.kill("b")
    b, c = site.urls["b"], site.urls["c"]
    await site.stop("c")
    site.urls["b"] = c
    site.listed = ("a", "b")
    await site.start("b")
    async with time_passing(site.clock, STEP_S):
        await site.list_members("a", "b", at=("a",))
        await eventually(site.have_joined)
    assert member(site, "a", "b").url == c != b
    path = site.path_of("b")
    await site.members["a"].put(path, b"x")
    assert (await site.members["a"].get(f"{path}?offset=-1")).body == b"x"
    assert member(site, "a", "b").asked == 1


async def test_a_list_that_is_the_same_changes_nothing(site: Site) -> None:
    fleet = site.fleet("a")
    before, epoch = dict(fleet.members), fleet.owners.epoch
    site.reloaded = {"trust_s": 7.0}
    assert (await site.members["a"].gateway.reload()).changed == ("route.default.trust_s",)
    assert (dict(fleet.members), fleet.owners.epoch) == (before, epoch)


async def test_a_write_through_a_member_without_a_list_is_in_the_next_read_through_it(apart: Site) -> None:
    await apart.start_all(**FRESH)
    paths = [apart.path_of(name) for name in NAMES]
    for path in paths:
        await apart.members["c"].put(path, b"0")
    written = dict.fromkeys(paths, b"0")

    async def write(name: str, piece: bytes) -> None:
        for path in paths:
            assert (await apart.members[name].post(path, piece)).status == 204
            written[path] += piece
            answer = await apart.members[name].get(f"{path}?offset=-1")
            assert (answer.body, answer.is_up_to_date) == (written[path], True)

    for name in NAMES:
        await write(name, name.encode())
    async with time_passing(apart.clock, STEP_S):
        await apart.list_members("a", "c", at=("a",))
        for name in "bacb":
            await write(name, name.encode())
        await eventually(lambda: apart.reached("b") == {"c"})
        for name in "bacb":
            await write(name, name.encode())
        await apart.list_members(*NAMES, at=("a",))
        for name in "bacb":
            await write(name, name.encode())
        await eventually(apart.have_joined)
        for name in "bacb":
            await write(name, name.encode())


@pytest.mark.parametrize("is_missed", [False, True])
async def test_a_member_that_comes_back_into_the_list_catches_up_on_orders(
    apart: Site, monkeypatch: pytest.MonkeyPatch, is_missed: bool
) -> None:
    await apart.start_all(**FRESH)
    path = apart.path_of("a")
    await warmed(apart, path)
    if is_missed:
        for name in "ac":
            monkeypatch.setattr(apart.fleet(name).orders, "log", OrderLog(most=1))
    async with time_passing(apart.clock, STEP_S):
        await apart.list_members("a", "c", at=("a", "c"))
        await eventually(lambda: not apart.reached("b"))
        answer = await order(apart, "a", "purge", {"stream": path})
        assert [(one["member"], one["affected"]) for one in answer["members"]] == [("c", 1)]
        await order(apart, "c", "revoke", PRINCIPAL)
        answer = await order(apart, "b", "purge", {"stream": "/elsewhere"})
        assert {(one["member"], one["affected"]) for one in answer["members"]} == {("a", None), ("c", None)}
        assert await bodies(apart, path, ("a", "c")) == {b"new"}
        assert await bodies(apart, path, ("b",)) == {b"old"}
        assert revocations(apart, "b") == []
        await apart.list_members(*NAMES, at=("a", "c"))
        await eventually(lambda: len({apart.fleet(name).field.orders for name in NAMES}) == 1)
        await eventually(lambda: revocations(apart, "b") == [REVOKED])
        assert await bodies(apart, path) == {b"new"}
        assert apart.fleet("b").orders.missed == is_missed
        await eventually(apart.have_joined)
        answer = await order(apart, "a", "purge", {"stream": path})
        assert {(one["member"], one["affected"]) for one in answer["members"]} == {("b", 1), ("c", 1)}


async def test_a_member_that_comes_into_the_list_has_the_orders_before_it_is_listed(apart: Site) -> None:
    apart.listed = ("a", "b")
    for name in "ab":
        await apart.start(name)
    await apart.until_joined()
    await order(apart, "a", "revoke", PRINCIPAL)
    apart.listed = NAMES
    await apart.start("c")
    assert revocations(apart, "c") == [REVOKED]


async def test_a_member_that_leaves_the_list_within_a_purge_has_not_confirmed(
    apart: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apart.start_all(**FRESH)
    path = apart.path_of("c")
    await warmed(apart, path)
    held = Held(apart.fleet("b").orders, monkeypatch)
    purging = asyncio.create_task(order(apart, "a", "purge", {"stream": path}))
    await eventually(lambda: held.waiting > 0)
    async with time_passing(apart.clock, STEP_S):
        await apart.list_members("a", "c", at=("a",))
        held.release()
        outcomes = {one["member"]: one for one in (await purging)["members"]}
    assert outcomes["c"]["affected"] == 1
    assert (outcomes["b"]["affected"], outcomes["b"]["why_not"]) == (None, "it cannot carry it out")


async def test_a_member_with_the_name_of_one_that_has_left_is_another_one(site: Site) -> None:
    await site.list_members("a", "c", at=("a", "c"))
    await site.kill("b")
    site.listed = NAMES
    async with time_passing(site.clock, STEP_S):
        # Lists may reach members later than a new member its own.
        await site.start("b")
        await eventually(lambda: site.reached("b") == {"a", "c"})
    assert site.reached("a") == {"c"}


async def test_members_that_have_removed_each_other_join_again(site: Site) -> None:
    async with time_passing(site.clock, STEP_S):
        await site.list_members("b", "c", at=("b",))
        await site.list_members("a", "c", at=("a",))
        await site.list_members(*NAMES, at=("a", "b"))
        await eventually(site.have_joined)


async def test_each_member_that_comes_or_goes_has_one_line(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    await site.list_members("a", "b", at=("a",))
    await site.list_members("a", "b", "c", at=("a",))
    where = site.urls["c"]
    assert [record.message for record in caplog.records if "the list" in record.message] == [
        f"member c at {where} has left the list",
        f"member c at {where} has come into the list",
    ]


@pytest.mark.parametrize("reloads", [1, 2])
async def test_the_purge_of_a_process_that_was_replaced_is_not_undone(apart: Site, reloads: int) -> None:
    await apart.start_all(**FRESH)
    path = apart.path_of("a")
    await warmed(apart, path)
    await apart.stop("c")
    before, apart.urls["b"] = apart.members.pop("b"), apart.urls["c"]
    apart.listed = ("a", "b")
    await apart.start("b", **FRESH)
    apart.members["earlier b"] = before
    async with time_passing(apart.clock, STEP_S):
        if reloads == 2:
            await apart.list_members("a", at=("a",))
        await apart.list_members("a", "b", at=("a",))
        await eventually(lambda: apart.fleet("a").has_left(sender(apart, "earlier b")))
        await eventually(lambda: apart.reached("a") == {"b"} and apart.reached("b") == {"a"})
        answer = await order(apart, "earlier b", "purge", {"stream": path})
        assert {one["affected"] for one in answer["members"]} == {None}
        assert await bodies(apart, path, ("earlier b",)) == {b"new"}
    assert not apart.fleet("a").has_left(sender(apart, "b"))


def sender(site: Site, name: str) -> MemberField:
    """What a member says of itself in its requests."""
    return site.fleet(name).field


async def test_a_gateway_that_is_not_listed_and_has_orders_of_its_own_is_refused_without_warnings(
    apart: Site, caplog: pytest.LogCaptureFixture
) -> None:
    apart.listed = ("a", "b")
    for name in "ab":
        await apart.start(name, **FRESH)
    await apart.until_joined()
    await order(apart, "a", "purge", {"stream": "/before"})
    apart.listed = NAMES
    await apart.start("c", **FRESH)
    async with time_passing(apart.clock, STEP_S):
        await eventually(lambda: apart.reached("c") == {"a", "b"})
        await order(apart, "c", "purge", {"stream": "/own"})
        await eventually(lambda: not apart.reached("c"))
        losses = [one.losses for one in apart.fleet("c").members.values()]
        assert {one.why_not for one in apart.fleet("c").members.values()} == {"this member is not in its list"}
        # The gateway learns of the purges of the others.
        await order(apart, "a", "purge", {"stream": "/later"})
        await eventually(lambda: "3 orders" in repr(apart.fleet("c").orders.log))
        began = apart.clock.now()
        await eventually(lambda: apart.clock.now() > began + 5)
        assert [one.losses for one in apart.fleet("c").members.values()] == losses
        assert "cannot be fetched" not in caplog.text
        assert caplog.text.count("a gateway named c asks that is not in the list of members") == 2
        await apart.list_members(*NAMES, at=("a", "b"))
        await eventually(apart.have_joined)
    assert len({apart.fleet(name).field.orders for name in NAMES}) == 1


async def test_a_member_that_leaves_the_list_while_its_request_waits_for_orders_is_refused(
    apart: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apart.start_all(**FRESH)
    path = apart.path_of("b")
    await warmed(apart, path)
    gate, waiting = asyncio.Event(), []

    async def catch_up(*asked: str) -> bool:
        waiting.append(asked)
        await gate.wait()
        return True

    monkeypatch.setattr(apart.fleet("b").orders, "caught_up", catch_up)
    purging = asyncio.create_task(order(apart, "a", "purge", {"stream": path}))
    await eventually(lambda: len(waiting) == 1)
    reading = asyncio.create_task(bodies(apart, path, ("a",)))
    await eventually(lambda: len(waiting) == 2)
    await apart.list_members("b", "c", at=("b",))
    gate.set()
    async with time_passing(apart.clock, STEP_S):
        assert await reading == {b"new"}
        await purging
