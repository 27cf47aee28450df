"""Purges and revocations by a real Redis: what it adds to the way between members, and what its faults do."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Final

import orjson
import pytest
from redis.asyncio.client import Pipeline

from gateway.aio.clock import ManualClock
from gateway.config.errors import ConfigError
from gateway.config.gateway import GatewayConfig
from gateway.config.redis_place import parse_redis_url
from gateway.engine import fleet_redis
from gateway.engine.fleet import Fleet
from gateway.engine.fleet_redis import REST_S, OrdersByRedis
from gateway.origin.app import RunningOrigin
from gateway.protocol.fleet_orders import NO_ORDERS, PURGE_ALL, InEffect, Order, OrderLog
from gateway.protocol.stored_orders import Moment, Seal, StoredEntry, news_of
from gateway.upstream import redis_database, redis_orders
from gateway.upstream.redis_database import RedisDatabase
from gateway.upstream.redis_members import RedisMembers
from gateway.upstream.redis_orders import RedisOrders
from tests.certificates import Authority
from tests.fleet.redis_server import RedisServer, gate, redis_server
from tests.fleet.site import NAMES, SECRET, Site
from tests.fleet.test_orders import PRINCIPAL, REVOKED, Parted, bodies, order, revocations, warmed
from tests.ports import kept_port
from tests.waiting import eventually, pass_turns, time_passing

ROOT: Final = Path(__file__).parents[2]
GUIDE: Final = ROOT / "docs/guides/fleet.md"
RIGHTS: Final = re.compile(r"^ACL SETUSER (.*)$", re.MULTILINE)
STEP_S: Final = 0.02
LOSS_STEP_S: Final = 0.005
"""Slower: members have a second and a half to show that they agree."""


class RedisSite(Site):
    """A fleet with Redis."""

    def __init__(self, origin: RunningOrigin, clock: ManualClock, redis: RedisServer) -> None:
        super().__init__(origin, clock)
        self.redis = redis
        self.redis_url = redis.url

    def config(self, name: str, fleet: dict[str, Any] | None = None, **more: Any) -> GatewayConfig:
        return super().config(name, {"redis": self.redis_url, **(fleet or {})}, **{"tail_fresh_s": 600, **more})

    def by_redis(self, name: str) -> OrdersByRedis:
        found = self.fleet(name).by_redis
        assert found is not None
        return found

    async def lines(self, name: str) -> list[str]:
        """The lines of `/readyz?verbose` about Redis."""
        edge = self.members[name]
        answer = await edge.send_to(edge.gateway.admin_url, "GET", "/readyz?verbose", {"Host": "127.0.0.1"})
        return [line for line in answer.body.decode().splitlines() if "Redis" in line]

    async def metrics(self, name: str) -> dict[str, float]:
        """The metrics of Redis."""
        edge = self.members[name]
        answer = await edge.send_to(edge.gateway.admin_url, "GET", "/metrics", {"Host": "127.0.0.1"})
        prefix = "durable_gateway_fleet_redis_"
        lines = [line.removeprefix(prefix) for line in answer.body.decode().splitlines() if line.startswith(prefix)]
        return {line.partition(" ")[0]: float(line.partition(" ")[2]) for line in lines}

    async def until_problem(self, problem: str) -> None:
        """Wait until all members report this problem, or none."""
        async with time_passing(self.clock, STEP_S):
            await eventually(lambda: {self.by_redis(name).problem for name in self.members} == {problem})


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path) as server:
        yield server


@pytest.fixture
async def site(origin: RunningOrigin, clock: ManualClock, redis: RedisServer) -> AsyncIterator[RedisSite]:
    """A fleet whose members the test starts."""
    found = RedisSite(origin, clock, redis)
    yield found
    await found.close()


async def test_an_order_is_in_redis_when_its_answer_says_so(site: RedisSite) -> None:
    await site.start_all()
    path = site.path_of("b")
    await warmed(site, path)
    answer = await order(site, "a", "purge", {"stream": path})
    others = [{"member": name, "affected": 1, "why_not": ""} for name in "bc"]
    assert answer == {"purged": 1, "members": others, "in_redis": True}
    assert await site.redis.count() == 1
    answer = await order(site, "c", "revoke", PRINCIPAL)
    assert (answer["in_redis"], await site.redis.count()) == (True, 2)
    # What each member learns of twice, it carries out once, and no member adds it again.
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: all(repr(site.by_redis(name)).endswith(": 2 orders>") for name in NAMES))
        looked_until = site.clock.now() + 2
        await eventually(lambda: site.clock.now() > looked_until)
    assert await site.redis.count() == 2
    assert len({site.fleet(name).field.orders for name in NAMES}) == 1
    assert [len(revocations(site, name)) for name in NAMES] == [1, 1, 1]
    assert await site.lines("b") == [f"[+] purges and revocations in Redis at 127.0.0.1:{site.redis.port}"]
    assert await site.metrics("b") == {"answered": 1.0, "losses_total": 0.0, "refused_entries_total": 0.0}


async def test_a_member_that_only_redis_reaches_carries_out_orders_within_a_second(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start_all()
    path = site.path_of("c")
    await warmed(site, path)
    Parted(site, "b", monkeypatch)
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.reached("b") == set())
    answer = await order(site, "a", "purge", {"stream": path})
    (missing,) = [one["member"] for one in answer["members"] if one["affected"] is None]
    assert (missing, answer["in_redis"]) == ("b", True)
    await order(site, "a", "revoke", PRINCIPAL)
    before = site.clock.now()
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: revocations(site, "b") == [REVOKED])
    assert site.clock.now() - before <= 1
    assert await bodies(site, path, ("b",)) == {b"new"}
    assert site.fleet("b").orders.missed == 0


async def test_revocations_outlast_a_restart_of_the_whole_fleet(site: RedisSite) -> None:
    await site.start_all()
    path = site.path_of("a")
    await warmed(site, path)
    await order(site, "b", "revoke", PRINCIPAL)
    await order(site, "b", "purge", {"stream": path})
    for name in NAMES:
        await site.kill(name)
    site.clock.advance(300)
    # Only one of its members is there, before which no other one can answer.
    await site.start("a")
    assert revocations(site, "a") == [REVOKED]
    [(_, for_s)] = site.members["a"].gateway.routes.verdicts.revocations()
    assert for_s == pytest.approx(300, abs=1)
    await site.start("b")
    await site.start("c")
    await site.until_joined()
    assert {name: revocations(site, name) for name in NAMES} == {name: [REVOKED] for name in NAMES}
    assert await bodies(site, path) == {b"new"}
    assert [site.fleet(name).orders.missed for name in NAMES] == [0, 0, 0]
    assert len({site.fleet(name).field.orders for name in NAMES}) == 1


async def test_a_revocation_outlasts_the_orders_after_it(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_orders, "MOST_ENTRIES", 2)
    await site.start("a")
    await order(site, "a", "revoke", PRINCIPAL)
    for number in range(3):
        await order(site, "a", "purge", {"stream": f"/elsewhere/{number}"})
    assert await site.redis.count() == 2
    await site.kill("a")
    await site.start("a")
    assert revocations(site, "a") == [REVOKED]


async def test_redis_keeps_the_revocations_that_end_last(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_redis, "MOST_REVOCATIONS", 8)
    await site.start("a")
    for number in range(9):
        await order(site, "a", "revoke", {**PRINCIPAL, "name": f"p{number}", "for_s": 100 * (9 - number)})
    key = await site.redis.key("revocations")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: not site.by_redis("a").problem and not site.by_redis("a").is_looking)
    assert await site.redis.client.hlen(key) == 7
    await site.redis.client.delete(await site.redis.key("orders"))
    await site.kill("a")
    await site.start("a")
    assert {one.name for one in revocations(site, "a")} == {f"p{number}" for number in range(7)}


async def test_many_revocations_do_not_hold_up_the_loop(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    seal, moment = Seal(SECRET.encode()), Moment(site.clock.now(), site.clock.wall())
    many = [InEffect("principal", f"p{number}", None, 600.0) for number in range(2_000)]
    store = redis_orders.RedisOrders(parse_redis_url(site.redis.url), seal.fleet)
    await store.add([], dict(seal.revocation(one, moment) for one in many))
    await store.close()
    running, in_turn, most = asyncio.get_running_loop(), 0, 0
    read = Seal.read_revocation

    def new_turn() -> None:
        nonlocal in_turn
        in_turn = 0

    def counted(seal: Seal, entry: bytes, moment: Moment) -> InEffect:
        nonlocal in_turn, most
        if not in_turn:
            running.call_soon(new_turn)
        in_turn += 1
        most = max(most, in_turn)
        return read(seal, entry, moment)

    monkeypatch.setattr(Seal, "read_revocation", counted)
    await site.start("a")
    assert len(revocations(site, "a")) == len(many)
    assert most < len(many) // 2


async def test_foreign_entries_hide_no_revocation(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_redis, "MOST_REVOCATIONS", 8)
    monkeypatch.setattr(redis_orders, "_MOST_PAGES", 2)
    await site.start("a")
    for number in range(8):
        await order(site, "a", "revoke", {**PRINCIPAL, "name": f"p{number}"})
    await site.kill("a")
    await site.redis.client.delete(await site.redis.key("orders"))
    key = await site.redis.key("revocations")
    await site.redis.client.hset(key, mapping={f"x{number}": b"x" * 100 for number in range(2_000)})
    await site.start("a")

    async def is_rid_of_them() -> bool:
        return bool(await site.redis.client.hlen(key) == 8)

    async with time_passing(site.clock, STEP_S):
        await eventually(is_rid_of_them)
        await eventually(lambda: len(revocations(site, "a")) == 8)


async def test_a_revocation_that_was_replaced_is_not_dropped(redis: RedisServer) -> None:
    store = redis_orders.RedisOrders(parse_redis_url(redis.url), "f" * 16)
    assert await store.add([], {b"x": b"1", b"y": b"2"}) == 2
    await store.drop({b"x": b"1", b"y": b"0", b"z": b"3"})
    assert [page async for page in store.revocations()] == [{b"y": b"2"}]
    # It is replaced between the look and the change.
    present = Pipeline.hmget

    async def replacing(client: Any, *args: Any) -> Any:
        found = await present(client, *args)
        await redis.client.hset(await redis.key("revocations"), "y", "4")
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Pipeline, "hmget", replacing)
        await store.drop({b"y": b"2"})
    assert [page async for page in store.revocations()] == [{b"y": b"4"}]
    await store.close()


async def test_a_later_shorter_revocation_holds_over_restarts(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_orders, "MOST_ENTRIES", 3)
    await site.start_all()
    await order(site, "a", "revoke", PRINCIPAL)
    await order(site, "b", "revoke", {**PRINCIPAL, "for_s": 1})
    site.clock.advance(2)
    await site.until_joined()
    assert [revocations(site, name) for name in NAMES] == [[], [], []]
    # A member that starts learns of both, from others or from Redis alone.
    await site.kill("c")
    await site.start("c")
    assert revocations(site, "c") == []
    for name in NAMES:
        await site.kill(name)
    await site.start("a")
    assert revocations(site, "a") == []
    for number in range(3):
        await order(site, "a", "purge", {"stream": f"/elsewhere/{number}"})
    await site.kill("a")
    await site.start("b")
    assert revocations(site, "b") == []


async def test_an_order_that_redis_gets_late_ends_no_later_revocation(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(site.redis.port) as door:
        await site.start("a", {"redis": door.url})
        await site.start("b")
        await site.until_joined()
        Parted(site, "a", monkeypatch)
        door.hold()
        await order(site, "a", "revoke", {**PRINCIPAL, "for_s": 1})
        site.clock.advance(2)
        assert (await order(site, "b", "revoke", PRINCIPAL))["in_redis"]
        door.release()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: all(repr(site.by_redis(name)).endswith(": 2 orders>") for name in "ab"))
        assert {name: revocations(site, name) for name in "ab"} == {"a": [REVOKED], "b": [REVOKED]}
        for name in "ab":
            await site.kill(name)
        await site.start("c")
        assert revocations(site, "c") == [REVOKED]
        # It is not in the hash either.
        await site.kill("c")
        await site.redis.client.delete(await site.redis.key("orders"))
        await site.start("c")
        assert revocations(site, "c") == [REVOKED]
        await site.close()


async def test_a_gateway_that_is_in_no_list_yet_gets_orders(site: RedisSite) -> None:
    site.listed = ("a", "b")
    await site.start("a")
    await site.start("b")
    site.listed = NAMES
    await site.start("c")
    await order(site, "a", "revoke", PRINCIPAL)
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: revocations(site, "c") == [REVOKED])


async def test_while_redis_is_away_orders_go_between_members_and_reach_redis_later(
    site: RedisSite, caplog: pytest.LogCaptureFixture
) -> None:
    await site.start_all()
    path = site.path_of("b")
    await order(site, "a", "purge", {"all": True})
    site.redis.kill()
    await site.until_problem("it cannot be reached")
    await warmed(site, path)
    answer = await order(site, "a", "purge", {"stream": path})
    assert (answer["in_redis"], [one["affected"] for one in answer["members"]]) == (False, [1, 1])
    await order(site, "b", "revoke", PRINCIPAL)
    assert {name: revocations(site, name) for name in NAMES} == {name: [REVOKED] for name in NAMES}
    assert await bodies(site, path) == {b"new"}
    assert await site.lines("c") == [
        f"[-] purges and revocations in Redis at 127.0.0.1:{site.redis.port}: it cannot be reached"
    ]
    assert (await site.metrics("c"))["answered"] == 0.0
    lines = [one.message for one in caplog.records if one.message.startswith("fleet.redis")]
    line = f"fleet.redis at 127.0.0.1:{site.redis.port}: "
    assert lines[-3:] == [f"{line}it cannot be reached; purges and revocations go between members only"] * 3
    await site.redis.start()
    await site.until_problem("")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: all(repr(site.by_redis(name)).endswith(": 3 orders>") for name in NAMES))
    assert await site.redis.count() == 3
    assert [site.by_redis(name).losses + site.fleet(name).orders.missed for name in NAMES] == [0, 0, 0]
    assert caplog.records[-1].message == f"{line}it can be used"


async def test_what_redis_has_lost_is_there_again_though_its_giver_has_ended(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start_all()
    for name in NAMES:
        monkeypatch.setattr(site.fleet(name).orders, "log", OrderLog(most=1))
    for principal in ("mallory", "eve"):
        # The first order is forgotten after the second one.  Only its effect is left.
        await order(site, "c", "revoke", {**PRINCIPAL, "name": principal})
    await site.kill("c")
    site.redis.kill(keeps_data=False)
    await site.until_problem("it cannot be reached")
    await site.redis.start()

    async def has_both() -> bool:
        keys = await site.redis.client.keys("durable-gateway:*:revocations")
        return sum([await site.redis.client.hlen(key) for key in keys]) == 2

    async with time_passing(site.clock, STEP_S):
        await eventually(has_both)
    for name in "ab":
        await site.kill(name)
    await site.start("c")
    assert {one.name for one in revocations(site, "c")} == {"mallory", "eve"}


async def test_an_order_that_is_lost_before_any_member_reads_it_is_added_again(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that lags has become the primary."""
    await site.start("a")
    add, client = redis_orders.RedisOrders.add, site.redis.client

    async def losing(store: redis_orders.RedisOrders, *args: Any) -> int:
        count = await add(store, *args)
        monkeypatch.undo()
        [(one, _)] = await site.redis.orders()
        await client.xdel(await site.redis.key("orders"), one)
        await client.delete(await site.redis.key("revocations"))
        return count

    monkeypatch.setattr(redis_orders.RedisOrders, "add", losing)
    await order(site, "a", "revoke", PRINCIPAL)
    assert await site.redis.count() == 0
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.by_redis("a").losses == 1 and not site.by_redis("a").is_looking)
    assert await site.redis.count() == 1
    await site.kill("a")
    await site.start("b")
    assert revocations(site, "b") == [REVOKED]


async def test_redis_without_its_data_costs_no_memory_where_the_members_agree(site: RedisSite) -> None:
    await site.start_all()
    path = site.path_of("b")
    await site.members["a"].put(path, b"x", Stream_Closed="true")
    assert await bodies(site, path) == {b"x"}
    for number in range(3):
        await order(site, "a", "purge", {"stream": f"/elsewhere/{number}"})
    await site.redis.client.flushall()
    asked = sum(site.counters.requests.values())
    async with time_passing(site.clock, LOSS_STEP_S):
        await eventually(lambda: [site.by_redis(name).losses for name in NAMES] == [1, 1, 1])
        until = site.clock.now() + 2
        await eventually(lambda: site.clock.now() > until)
    assert [site.fleet(name).orders.missed for name in NAMES] == [0, 0, 0]
    # The giver knows that its orders are lost, and adds them again at once.
    assert await site.redis.count() == 3
    assert await bodies(site, path) == {b"x"}
    assert sum(site.counters.requests.values()) == asked


@pytest.mark.parametrize("loss", ["flushed", "the first order", "trimmed", "replaced"])
async def test_a_member_that_is_cut_off_asks_the_origin_after_redis_has_lost_orders(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    monkeypatch.setattr(redis_orders, "MOST_ENTRIES", 2)
    async with gate(site.redis.port) as door:
        await site.start("a")
        await site.start("b", {"redis": door.url})
        await site.start("c")
        await site.until_joined()
        path = site.path_of("c")
        await warmed(site, path)
        if loss != "the first order":
            await order(site, "c", "purge", {"stream": "/elsewhere"})
            async with time_passing(site.clock, STEP_S):
                await eventually(lambda: repr(site.by_redis("b")).endswith(": 1 orders>"))
        Parted(site, "b", monkeypatch)
        door.hold()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: site.reached("b") == set())
        await order(site, "a", "purge", {"stream": path})
        match loss:
            case "flushed" | "the first order":
                await site.redis.client.flushall()
            case "trimmed":
                for number in range(2):
                    await order(site, "c", "purge", {"stream": f"/elsewhere/{number}"})
            case _:
                [(first, _), (_, data)] = await site.redis.orders()
                key = await site.redis.key("orders")
                await site.redis.client.delete(key)
                await site.redis.client.xadd(key, {b"order": data}, id=first)
        for name in "ac":
            await site.kill(name)
        assert await bodies(site, path, ("b",)) == {b"old"}
        door.release()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: site.fleet("b").orders.missed > 0)
        assert await bodies(site, path, ("b",)) == {b"new"}
        assert site.by_redis("b").losses == 1


async def test_processes_that_have_started_since_do_not_show_that_nothing_was_missed(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(site.redis.port) as door:
        await site.start("a")
        await site.start("b", {"redis": door.url})
        await site.start("c")
        await site.until_joined()
        path = site.path_of("b")
        await warmed(site, path)
        parted = Parted(site, "b", monkeypatch)
        door.hold()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: site.reached("b") == set())
        await order(site, "a", "purge", {"stream": path})
        for name in "ac":
            await site.kill(name)
        await site.redis.client.flushall()
        for name in "ac":
            await site.start(name)
        parted.heal()
        await site.until_joined()
        assert {site.fleet(name).orders.log.digest for name in NAMES} == {NO_ORDERS}
        assert await bodies(site, path, ("b",)) == {b"old"}
        door.release()
        async with time_passing(site.clock, LOSS_STEP_S):
            await eventually(lambda: site.by_redis("b").losses > 0)
            until = site.clock.now() + 2
            await eventually(lambda: site.clock.now() > until)
        assert await bodies(site, path, ("b",)) == {b"new"}


async def test_a_member_that_may_have_missed_orders_takes_no_bytes_that_its_owner_should_have_dropped(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gate(site.redis.port) as first, gate(site.redis.port) as second:
        await site.start("a")
        await site.start("b", {"redis": first.url})
        await site.start("c", {"redis": second.url})
        await site.until_joined()
        path = site.path_of("c")
        await warmed(site, path)
        Parted(site, "a", monkeypatch)
        first.hold()
        second.hold()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: site.reached("a") == set())
        assert (await order(site, "a", "purge", {"stream": path}))["in_redis"]
        await site.redis.client.flushall()
        await site.kill("a")
        first.release()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: site.fleet("b").orders.missed > 0)
        assert site.by_redis("c").losses == 0
        # Member c still owns the stream, and has not heard of the loss.
        assert "c" in site.reached("b")
        assert await bodies(site, path, ("b",)) == {b"new"}
        second.release()
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: site.by_redis("c").losses > 0)
        assert await bodies(site, path, ("b", "c")) == {b"new"}


async def test_a_loss_counts_though_redis_vanishes_again_as_all_is_read(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start_all()
    path = site.path_of("b")
    await warmed(site, path)
    for name in "ac":
        await site.kill(name)
    revocations_in = redis_orders.RedisOrders.revocations

    def vanishing(store: redis_orders.RedisOrders) -> AsyncIterator[dict[bytes, bytes]]:
        site.redis.kill()
        return revocations_in(store)

    monkeypatch.setattr(redis_orders.RedisOrders, "revocations", vanishing)
    await site.redis.client.flushall()
    async with time_passing(site.clock, LOSS_STEP_S):
        await eventually(lambda: site.by_redis("b").losses > 0)
        until = site.clock.now() + 3
        await eventually(lambda: site.clock.now() > until)
    assert site.by_redis("b").problem == "it cannot be reached"
    assert await bodies(site, path, ("b",)) == {b"new"}


async def test_a_member_that_fails_to_empty_its_memory_tries_again(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await site.start_all()
    path = site.path_of("b")
    await warmed(site, path)
    for name in "ac":
        await site.kill(name)
    actions = site.fleet("b").orders.actions
    assert actions is not None
    start_again, failures = actions.start_again, [RuntimeError("not this time"), RuntimeError("nor this time")]

    async def failing() -> None:
        if failures:
            raise failures.pop()
        await start_again()

    monkeypatch.setattr(actions, "start_again", failing)
    await site.redis.client.flushall()
    async with time_passing(site.clock, LOSS_STEP_S):
        await eventually(lambda: not failures and not site.by_redis("b").problem)
        until = site.clock.now() + 3
        await eventually(lambda: site.clock.now() > until)
    assert await bodies(site, path, ("b",)) == {b"new"}
    assert "the memory cannot be emptied (RuntimeError)" in caplog.text
    # The others are asked to do the same only once.
    assert await site.redis.count() == 1


async def test_revocations_of_missed_orders_are_read_though_the_memory_cannot_be_emptied_at_first(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("a")
    actions, seal = site.fleet("a").orders.actions, Seal(SECRET.encode())
    assert actions is not None
    start_again, failures = actions.start_again, [RuntimeError("not this time")]

    async def failing() -> None:
        if failures:
            raise failures.pop()
        await start_again()

    monkeypatch.setattr(actions, "start_again", failing)
    moment = Moment(site.clock.now(), site.clock.wall())
    revoked = seal.revocation(InEffect("principal", "mallory", None, 600.0), moment)
    purge = seal.order(Order("q", 5, "purge", '{"stream":"/elsewhere"}', moment.now), moment)
    # The member reads Redis by a connection of its own meanwhile.
    store = RedisOrders(parse_redis_url(site.redis.url), seal.fleet)
    await store.add([purge], dict([revoked]))
    await store.close()
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: revocations(site, "a") == [REVOKED])
    assert (failures, site.fleet("a").orders.missed) == ([], 1)


async def test_losses_again_and_again_empty_the_memory_only_now_and_then(site: RedisSite) -> None:
    await site.start("b")
    orders = site.fleet("b").orders
    await site.redis.client.flushall()
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: orders.missed == 1)
    began = site.clock.now()
    while site.by_redis("b").losses < 4:
        async with time_passing(site.clock, STEP_S):
            look = site.clock.now() + 1
            await eventually(lambda look=look: site.clock.now() > look)
        await site.redis.client.flushall()
    assert site.clock.now() < began + REST_S
    assert orders.missed == 1
    # The latest loss has its effect in the end.
    async with time_passing(site.clock, 10 * STEP_S):
        await eventually(lambda: site.clock.now() > began + REST_S + 2)
    assert orders.missed == 2


@pytest.mark.parametrize("by_operator", [True, False])
async def test_an_operators_purge_of_all_puts_off_no_judgement_of_a_loss(site: RedisSite, by_operator: bool) -> None:
    """It says nothing of how often Redis loses data."""
    await site.start("b")
    orders = site.fleet("b").orders
    text = '{"all":true}' if by_operator else PURGE_ALL
    await orders.learn(news_of([Order("another", 1, "purge", text, site.clock.now())]))
    site.clock.advance(1)
    began = site.clock.now()
    await site.redis.client.flushall()
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: orders.missed == 1)
    assert (site.clock.now() < began + REST_S / 2) == by_operator


async def test_another_members_purge_of_all_that_fails_here_does_not_stand_for_ones_own(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("b")
    orders = site.fleet("b").orders
    assert orders.actions is not None

    async def failing(order: Order, age_s: float) -> None:
        return None

    monkeypatch.setattr(orders.actions, "carry_out", failing)
    lost_at = site.clock.now()
    site.clock.advance(1)
    await orders.learn(news_of([Order("another", 1, "purge", PURGE_ALL, site.clock.now())]))
    await orders.doubt(lost_at)
    assert orders.missed == 1


async def test_a_loss_is_judged_while_redis_is_slow(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.start_all()
    for name in "ac":
        await site.kill(name)
    emptied_after: list[float] = []

    async def slow(store: redis_orders.RedisOrders) -> AsyncIterator[dict[bytes, bytes]]:
        began = site.clock.now()
        while site.clock.now() < began + 60 and not site.fleet("b").orders.missed:
            await pass_turns()
            site.clock.advance(0.5)
            yield {}
        emptied_after.append(site.clock.now() - began)

    monkeypatch.setattr(redis_orders.RedisOrders, "revocations", slow)
    await site.redis.client.flushall()
    async with time_passing(site.clock, LOSS_STEP_S):
        await eventually(lambda: bool(emptied_after))
    assert emptied_after[0] < 3
    assert site.fleet("b").orders.missed == 1


async def test_redis_gets_the_revocations_whose_orders_were_forgotten_while_it_was_away(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start_all()
    for name in NAMES:
        monkeypatch.setattr(site.fleet(name).orders, "log", OrderLog(most=1))
    Parted(site, "b", monkeypatch)
    site.redis.kill()
    await site.until_problem("it cannot be reached")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.reached("b") == set())
    for principal in ("mallory", "eve"):
        await order(site, "a", "revoke", {**PRINCIPAL, "name": principal})
    await site.redis.start()
    await site.until_problem("")

    def has_both(name: str) -> bool:
        return {one.name for one in revocations(site, name)} == {"mallory", "eve"}

    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: has_both("b"))
    for name in NAMES:
        await site.kill(name)
    await site.start("a")
    assert has_both("a")


async def test_a_loss_while_lost_orders_are_added_again_is_noticed(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("a")
    await site.start("b")
    await site.until_joined()
    await order(site, "a", "purge", {"stream": "/elsewhere"})
    await site.kill("a")
    revocations_in, scans = redis_orders.RedisOrders.revocations, 0

    async def losing(store: redis_orders.RedisOrders) -> AsyncIterator[dict[bytes, bytes]]:
        nonlocal scans
        scans += 1
        if scans == 2:
            # The first one was after the first loss.
            await site.redis.client.flushall()
        async for page in revocations_in(store):
            yield page

    monkeypatch.setattr(redis_orders.RedisOrders, "revocations", losing)
    await site.redis.client.flushall()
    async with time_passing(site.clock, LOSS_STEP_S):
        await eventually(lambda: scans > 2)
        await eventually(lambda: repr(site.by_redis("b")).endswith(": 1 orders>"))
    assert site.by_redis("b").losses == 2
    assert await site.redis.count() == 1


async def test_losses_again_and_again_do_not_put_off_asking_the_origin(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("a")
    await site.start("b")
    await site.until_joined()
    Parted(site, "b", monkeypatch)
    since = redis_orders.RedisOrders.since
    previous: dict[redis_orders.RedisOrders, str] = {}

    async def losing(store: redis_orders.RedisOrders, entry_id: str) -> list[StoredEntry]:
        # A member that reads everything is not disturbed.
        if "-" not in (entry_id, previous.get(store)):
            await site.redis.client.flushall()
        previous[store] = entry_id
        return await since(store, entry_id)

    monkeypatch.setattr(redis_orders.RedisOrders, "since", losing)
    async with time_passing(site.clock, LOSS_STEP_S):
        await eventually(lambda: site.fleet("b").orders.missed > 0)
    assert site.by_redis("b").losses > 1


async def test_entries_that_no_member_has_made_have_no_effect(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await site.start_all()
    path = site.path_of("b")
    await site.members["a"].put(path, b"x", Stream_Closed="true")
    assert await bodies(site, path) == {b"x"}
    await order(site, "a", "revoke", {**PRINCIPAL, "for_s": 60})
    await order(site, "b", "revoke", PRINCIPAL)
    client, key, other = site.redis.client, await site.redis.key("orders"), await site.redis.key("revocations")
    [(_, first), (_, second)] = await site.redis.orders()
    stranger, moment = Seal(b"another secret"), Moment(site.clock.now(), site.clock.wall())
    forged = Order("f" * 16, 1, "purge", '{"all":true}', site.clock.now())
    shorter = Order("f" * 16, 2, "revoke", '{"subject":"principal","name":"mallory","for_s":1}', site.clock.now())
    [revoked] = (await client.hgetall(other)).values()
    foreign: list[dict[Any, Any]] = [
        {b"order": stranger.order(forged, moment)},
        {b"order": stranger.order(shorter, moment)},
        {b"order": second[:-3] + b"99]"},
        {b"order": revoked},
        {b"order": b""},
        {b"order": b"\xff" * 40},
        {b"another field": b"x"},
    ]
    for fields in foreign:
        await client.xadd(key, fields)
    # One of an earlier, shorter revocation is right, and is known.
    await client.xadd(key, {b"order": first})
    await client.hset(other, mapping={b"x": b"x" * 50, b"y": first, b"z": revoked})
    await order(site, "c", "revoke", {**PRINCIPAL, "name": "eve"})
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: [site.by_redis(name).foreign.count for name in NAMES] == [len(foreign)] * 3)
    lines = [one.message for one in caplog.records if "are ignored" in one.message]
    line = f"fleet.redis at 127.0.0.1:{site.redis.port}: entries there are ignored, because "
    assert lines == [f"{line}no member of this fleet has made them"] * len(NAMES)
    assert (await site.metrics("a"))["refused_entries_total"] == len(foreign)
    assert await bodies(site, path) == {b"x"}
    # A gateway that starts reads everything.
    for name in NAMES:
        await site.kill(name)
    await site.start("a")
    ends = {one.name: end for one, end in site.members["a"].gateway.routes.verdicts.revocations()}
    assert ends == pytest.approx({"mallory": 600, "eve": 600}, abs=20)
    assert site.by_redis("a").foreign.count == len(foreign) + 3
    assert {site.by_redis("a").problem, *[site.fleet("a").orders.missed]} == {"", 0}


@pytest.mark.parametrize(
    ("fleet", "problem"),
    [
        ({"redis_password": "the right password"}, ""),
        ({"redis_password": "a wrong password"}, "it has refused the user or the password"),
        ({}, "it has refused the user or the password"),
    ],
)
async def test_a_password_is_sent_and_never_shown(
    site: RedisSite, fleet: dict[str, str], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    await site.redis.client.config_set("requirepass", "the right password")
    site.redis.client.connection_pool.connection_kwargs["password"] = "the right password"
    await site.start("a", fleet)
    assert site.by_redis("a").problem == problem
    assert (await order(site, "a", "revoke", PRINCIPAL))["in_redis"] == (not problem)
    shown = f"{caplog.text} {await site.lines('a')} {site.members['a'].gateway.config!r}"
    assert "right password" not in shown
    assert "wrong password" not in shown


async def test_a_user_needs_few_rights(site: RedisSite) -> None:
    rights = RIGHTS.search(GUIDE.read_text(encoding="utf-8"))
    assert rights is not None
    await site.redis.client.execute_command("ACL", "SETUSER", *rights[1].split())  # type: ignore[no-untyped-call]
    site.redis_url = site.redis.url.replace("//", "//gateway@")
    await site.start("a", {"redis_password": "PASSWORD"})
    assert (await order(site, "a", "revoke", PRINCIPAL))["in_redis"]
    assert await site.lines("a") == [f"[+] purges and revocations in Redis at 127.0.0.1:{site.redis.port}"]


async def test_an_answer_of_redis_that_is_too_large_is_not_read(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_database, "_MOST_ANSWER_BYTES", 10_000)
    place, key, large = parse_redis_url(redis.url), "durable-gateway:{f}:", b"x" * 6_000
    orders, members = RedisOrders(place, "f"), RedisMembers(place, "f")
    looks = partial(orders.since, "-"), lambda: anext(orders.revocations()), members.entries
    for count in (1, 2):
        await redis.client.xadd(f"{key}orders", {"order": large})
        await redis.client.hset(f"{key}revocations", f"{count}", large)
        await redis.client.zadd(f"{key}members", {f"{count}": count})
        await redis.client.set(f"{key}member:{count}", large)
        for look in looks:
            if count == 1:
                assert len(await look()) == 1
            else:
                with pytest.raises(OSError, match=r"^its answer is too large$"):
                    await look()
    # Nothing of an answer is left over for the next command.
    await redis.client.flushall()
    assert (await orders.since("-"), await anext(orders.revocations()), await members.entries()) == ([], {}, [])
    await orders.close()
    await members.close()


async def test_orders_are_read_though_a_page_of_them_is_too_large(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_database, "_MOST_ANSWER_BYTES", 10_000)
    monkeypatch.setattr(redis_orders, "_SMALL_PAGE_BYTES", 2_500)
    store, sizes = RedisOrders(parse_redis_url(redis.url), "f"), [3_000] * 7 + [10] * 20
    await store.add([b"%d" % number + b"x" * size for number, size in enumerate(sizes)], {})
    pages, last = [await store.since("-")], ""
    while last != (last := pages[-1][-1].id):
        pages.append(await store.since(last))
    found = [one.data.rstrip(b"x") for page in pages for one in page[page is not pages[0] :]]
    assert found == [b"%d" % number for number in range(len(sizes))]
    # Small orders come in larger pages again.
    assert len(pages) < len(sizes) / 2
    await store.close()


async def test_fewer_orders_are_asked_for_after_an_answer_that_has_taken_too_long(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisOrders(parse_redis_url(redis.url), "f")
    await store.add([b"x"] * 100, {})
    within = RedisDatabase.within

    async def slow(database: RedisDatabase, command: Coroutine[Any, Any, Any]) -> object:
        if store._page > 16:
            command.close()
            raise OSError("no answer within 1 s")
        return await within(database, command)

    monkeypatch.setattr(RedisDatabase, "within", slow)
    for _ in range(4):
        with pytest.raises(OSError, match="no answer"):
            await store.since("-")
    assert len(await store.since("-")) == 16
    await store.close()


async def test_a_member_that_starts_knows_the_largest_orders_by_redis(site: RedisSite) -> None:
    await site.start("a")
    wide = "\N{GREEK SMALL LETTER ALPHA}"
    text = orjson.dumps({"id": wide * 32_700}).decode()
    assert 65_000 < len(text.encode()) <= 64 << 10, "the admin API takes no larger body"
    moment, seal = Moment(site.clock.now(), site.clock.wall()), Seal(SECRET.encode())
    # The member reads Redis by a connection of its own meanwhile.
    store = RedisOrders(parse_redis_url(site.redis.url), seal.fleet)
    for first in range(1, 129, 16):
        numbers = range(first, first + 16)
        await store.add([seal.order(Order("q", one, "purge", text, moment.now), moment) for one in numbers], {})
    await store.close()
    await order(site, "a", "revoke", PRINCIPAL)
    await site.kill("a")
    await site.start("b")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: site.fleet("b").orders.log.numbers().get("q") == 128)
        await eventually(lambda: not site.by_redis("b").problem)
    assert revocations(site, "b") == [REVOKED]


async def test_one_look_reads_all_orders_though_they_come_in_small_pages(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_orders, "_PAGE", 4)
    await site.start("a")
    moment, seal = Moment(site.clock.now(), site.clock.wall()), Seal(SECRET.encode())
    orders = [Order("q", one, "purge", '{"stream":"/elsewhere"}', moment.now) for one in range(1, 101)]
    # The member reads Redis by a connection of its own meanwhile.
    store = RedisOrders(parse_redis_url(site.redis.url), seal.fleet)
    await store.add([seal.order(one, moment) for one in orders], {})
    await store.close()
    await site.start("b")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: not site.by_redis("b").problem)
    assert site.fleet("b").orders.log.numbers().get("q") == 100


async def test_redis_that_hangs_holds_up_nothing(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_database, "_COMMAND_S", 0.1)
    monkeypatch.setattr(fleet_redis, "_STORE_S", 0.05)
    async with gate(site.redis.port) as door:
        site.redis_url = door.url
        await site.start_all()
        door.hold()
        await site.until_problem("it has not answered in time")
        path = site.path_of("b")
        await warmed(site, path)
        answer = await order(site, "a", "purge", {"stream": path})
        assert (answer["in_redis"], [one["affected"] for one in answer["members"]]) == (False, [1, 1])
        assert await bodies(site, path) == {b"new"}
        door.release()
        await site.until_problem("")
        async with time_passing(site.clock, STEP_S):
            await eventually(lambda: all(repr(site.by_redis(name)).endswith(": 1 orders>") for name in NAMES))
        # Each member has one connection, and makes another one only after a failure.
        connections = door.connections
        async with time_passing(site.clock, STEP_S):
            until = site.clock.now() + 2
            await eventually(lambda: site.clock.now() > until)
        assert door.connections == connections
        await site.close()


async def test_the_start_does_not_wait_long_for_redis(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engine.fleet._FIRST_S", 0.05)
    async with gate(site.redis.port) as door:
        site.redis_url = door.url
        door.hold()
        await asyncio.wait_for(site.start("a"), 5)
        path = "/s/1"
        await site.members["a"].put(path, b"x", Stream_Closed="true")
        assert await bodies(site, path, ("a",)) == {b"x"}
        door.release()
        await site.until_problem("")
        await site.close()


async def test_the_start_waits_for_the_first_look_at_redis(
    site: RedisSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.start("a")
    await order(site, "a", "revoke", PRINCIPAL)
    await site.kill("a")
    start, has_joined = Fleet.start, asyncio.Event()

    async def noted(fleet: Fleet) -> None:
        await start(fleet)
        has_joined.set()

    monkeypatch.setattr(Fleet, "start", noted)
    async with gate(site.redis.port) as door:
        door.hold()
        caplog.clear()
        starting = asyncio.create_task(site.start("b", {"redis": door.url}))
        # No other member can be reached.
        await eventually(lambda: caplog.text.count("it cannot be reached") == 2)
        await pass_turns(20)
        assert not has_joined.is_set()
        door.release()
        await starting
        assert revocations(site, "b") == [REVOKED]
        await site.close()


async def test_redis_that_takes_no_more_is_told(site: RedisSite) -> None:
    await site.start("a")
    assert (await order(site, "a", "revoke", PRINCIPAL))["in_redis"]
    await site.redis.client.config_set("maxmemory", "1")
    assert not (await order(site, "a", "purge", {"all": True}))["in_redis"]
    await site.until_problem("it is out of memory")
    await site.redis.client.config_set("maxmemory", "0")
    await site.until_problem("")
    assert await site.redis.count() == 2
    key = await site.redis.key("orders")
    await site.redis.client.set(key, b"x")
    await site.until_problem("it has refused a command (WRONGTYPE)")
    await site.redis.client.delete(key)
    await site.until_problem("")


async def test_a_name_that_does_not_resolve_in_time_takes_one_thread(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_database, "_COMMAND_S", 0.05)
    look_up, released, asked = socket.getaddrinfo, Event(), []

    def hanging(host: str, *args: Any, **more: Any) -> Any:
        if host == "redis.test":
            asked.append(host)
            released.wait(60)
            host = "127.0.0.1"
        return look_up(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    looks, read = [], redis_orders.RedisOrders.revocations

    def counted(store: redis_orders.RedisOrders) -> AsyncIterator[dict[bytes, bytes]]:
        looks.append(store)
        return read(store)

    monkeypatch.setattr(redis_orders.RedisOrders, "revocations", counted)
    site.redis_url = site.redis.url.replace("127.0.0.1", "redis.test")
    await site.start("a")
    async with time_passing(site.clock, STEP_S):
        await eventually(lambda: len(looks) > 3)
    assert site.by_redis("a").problem
    assert len(asked) == 1
    released.set()
    await site.until_problem("")


@pytest.mark.parametrize("is_known", [True, False])
async def test_the_certificate_of_redis_is_verified(
    site: RedisSite, tmp_path: Path, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    # The authorities of the system are not those of the file.
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    pair = authority.issue("127.0.0.1")
    site.redis.kill()
    with kept_port() as port:
        site.redis.options = [
            "--tls-port", str(port), "--tls-auth-clients", "no", "--tls-ca-cert-file", str(authority.file),
            "--tls-cert-file", str(pair.certificate), "--tls-key-file", str(pair.key),
        ]  # fmt: skip
        await site.redis.start()
        site.redis_url = f"rediss://127.0.0.1:{port}"
        await site.start("a", {"redis_ca_file": str((authority if is_known else other).file)})
        assert (await order(site, "a", "revoke", PRINCIPAL))["in_redis"] == is_known
        assert site.by_redis("a").problem == ("" if is_known else "it cannot be reached")


async def test_a_file_without_authorities_fails_the_start(site: RedisSite, tmp_path: Path) -> None:
    site.redis_url = "rediss://127.0.0.1:1"
    (tmp_path / "empty.pem").write_text("")
    for file, why in (
        ("empty.pem", "holds no certificates"),
        ("absent.pem", "cannot be read: No such file or directory"),
    ):
        with pytest.raises(ConfigError, match=f"^fleet.redis_ca_file: .*{file}: {why}"):
            await site.start("a", {"redis_ca_file": str(tmp_path / file)})


async def test_the_start_says_that_the_extra_is_missing(site: RedisSite, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("redis_database", "redis_members", "redis_orders"):
        monkeypatch.delitem(sys.modules, f"gateway.upstream.{module}")
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"^fleet.redis is set and redis is not installed: pip install .*\[redis\]"):
        await site.start("a")


async def test_without_redis_in_the_configuration_the_client_is_not_imported(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("redis_database", "redis_members", "redis_orders"):
        monkeypatch.delitem(sys.modules, f"gateway.upstream.{module}")
    monkeypatch.setitem(sys.modules, "redis", None)
    site.redis_url = ""
    await site.start("a")
    assert site.fleet("a").by_redis is None
    assert set(await order(site, "a", "revoke", PRINCIPAL)) == {"live_reads", "members"}
    assert await site.lines("a") == []
    assert await site.metrics("a") == {}


async def test_an_order_after_the_end_causes_no_further_look(site: RedisSite) -> None:
    await site.start("a")
    by_redis = site.by_redis("a")
    await by_redis.close()
    by_redis.wake()
    assert not by_redis.is_looking


async def test_an_address_of_redis_that_does_not_answer_leaves_time_for_the_next_one(
    site: RedisSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_database, "_COMMAND_S", 0.5)
    look_up, connect = socket.getaddrinfo, asyncio.open_connection

    def two_addresses(host: str, *args: Any, **more: Any) -> Any:
        found = look_up("127.0.0.1" if host == "redis.test" else host, *args, **more)
        if host == "redis.test":
            return [(*one[:4], (address, one[4][1])) for one in found for address in ("127.0.0.1", "10.255.255.1")]
        return found

    async def silent(host: str, *args: Any, **more: Any) -> Any:
        if host == "10.255.255.1":
            await asyncio.Event().wait()
        return await connect(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
    monkeypatch.setattr(asyncio, "open_connection", silent)
    site.redis_url = site.redis.url.replace("127.0.0.1", "redis.test")
    await site.start("a")
    assert site.by_redis("a").problem == ""


def test_few_modules_import_the_client_and_no_other_one_imports_these_at_its_own_import() -> None:
    importing = re.compile(r"^(?:from|import) (?:redis\b|gateway\.upstream\.redis_\w+)", re.MULTILINE)
    found = {one.name for one in ROOT.joinpath("gateway").rglob("*.py") if importing.search(one.read_text())}
    assert found == {"redis_database.py", "redis_members.py", "redis_orders.py"}
