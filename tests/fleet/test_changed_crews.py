"""Changes of members with workers that take a while: upgrades, restarts, changed lists, writes under way at deaths."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

import pytest
import pytest_asyncio

from gateway.origin.faults import When
from gateway.origin.requests import Kind
from tests.fleet.crew_readers import JSON, LOOK_S, PLAIN, Reader, have_read, knows, open_once, read_all, write
from tests.fleet.crews import Crews, crews
from tests.waiting import eventually, pause

pytestmark = pytest.mark.asyncio(loop_scope="module")

_SELDOM_S: Final = 0.2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[Crews]:
    """Two members of two workers.  The tail may be repeated for minutes, so only a write lets the owner ask again."""
    async with crews("a", "b", tail_fresh_s=600, live_linger_s=0) as made:
        yield made


async def test_writes_under_way_at_workers_that_die_may_be_in_the_next_read(fleet: Crews) -> None:
    a, paths = fleet.members["a"], [f"/unanswered/{number}" for number in range(6)]
    for path in paths:
        client = await a.client()
        await client.send("PUT", path, PLAIN, b"old ")
        assert (await read_all(client, path))[1] == b"old "
        # The owner has this member's count, and the tail may be repeated for minutes.
        assert (await read_all((await a.client_of_each())[0], path))[1] == b"old "
    held = fleet.origin.origin.faults.hold(kind=Kind.APPEND, times=len(paths), when=When.REPLY)
    writing = [asyncio.create_task((await a.client()).send("POST", path, PLAIN, b"new")) for path in paths]
    await held.waiting(len(paths))
    for pid in a.gateway.worker_pids():
        a.gateway.kill(pid)
    await asyncio.gather(*writing, return_exceptions=True)
    held.release()
    await eventually(a.gateway.is_well, look_s=LOOK_S, within_s=30)
    await fleet.until_joined()
    client = await a.client()
    for path in paths:
        assert (await read_all(client, path))[1] == b"old new"


async def test_a_member_that_leaves_the_list_and_comes_back_costs_a_live_request_a_stream(fleet: Crews) -> None:
    paths = [f"/listed/{number}" for number in range(4)]
    for path in paths:
        await write(fleet, "a", path, 1)
    readers = [Reader(fleet, name, path) for path in paths for name in fleet.members for _ in range(2)]
    await have_read(readers, 1)
    before, a = fleet.live_requests, fleet.members["a"].gateway
    await a.reload(fleet.config("a", ["a"]))
    await eventually(partial(knows, fleet, "a", {}), within_s=30, look_s=LOOK_S)
    for path in paths:
        await write(fleet, "a", path, 2)
    await have_read(readers, 2)
    await a.reload(fleet.config("a"))
    await fleet.until_joined()
    for path in paths:
        await write(fleet, "b", path, 3)
    await have_read(readers, 3)
    await eventually(lambda: open_once(fleet, paths))
    assert fleet.live_requests - before <= 2 * 2 * len(paths)
    for one in readers:
        await one.leave()


async def test_an_upgrade_loses_no_byte_and_no_write(fleet: Crews) -> None:
    paths = [f"/upgraded/{number}" for number in range(4)]
    for path in paths:
        await write(fleet, "b", path, 1)
    readers = [Reader(fleet, name, path) for path in paths for name in fleet.members for _ in range(2)]
    await have_read(readers, 1)
    before, value = fleet.live_requests, 1
    upgrading = asyncio.create_task(fleet.members["b"].gateway.upgrade())
    while not upgrading.done():
        # Each request may reach the version before or the next one.
        value += 1
        for path in paths:
            await write(fleet, "b", path, value)
            reader = await fleet.members["b"].client()
            assert json.loads((await read_all(reader, path))[1]) == list(range(1, value + 1))
            reader.close()
        await pause(_SELDOM_S)
    await upgrading
    await fleet.until_joined()
    value += 1
    for path in paths:
        await write(fleet, "a", path, value)
    await have_read(readers, value)
    await eventually(lambda: open_once(fleet, paths))
    # The streams of the member pass to its next version, or to the other member and back.
    assert fleet.live_requests - before <= 2 * 2 * len(paths)
    for one in readers:
        await one.leave()


async def test_an_upgrade_keeps_the_purges_that_only_this_member_knows(fleet: Crews) -> None:
    a, b, path = fleet.members["a"], fleet.members["b"], "/kept/order"
    origin = await a.origin_client()
    await origin.send("PUT", path, PLAIN, b"old")
    clients = await a.client_of_each()
    for client in (*clients, *clients):
        assert (await read_all(client, path))[1] == b"old"
    await a.gateway.reload(fleet.config("a", ["a"]))
    await eventually(partial(knows, fleet, "a", {}), within_s=30, look_s=LOOK_S)
    await origin.send("DELETE", path)
    await origin.send("PUT", path, PLAIN, b"new")
    (outcome,) = (await fleet.order("b", "/api/purge", {"stream": path}))["members"]
    assert (outcome["member"], outcome["affected"]) == ("a", None)
    await b.gateway.upgrade()
    for client in clients:
        assert (await read_all(client, path))[1] == b"old"
    await a.gateway.reload(fleet.config("a"))
    await fleet.until_joined()
    for client in clients:
        assert (await read_all(client, path))[1] == b"new"


async def test_a_member_that_drains_and_starts_again_loses_no_byte_and_no_write(fleet: Crews) -> None:
    paths, kept = [f"/drained/{number}" for number in range(4)], [f"/kept/{number}" for number in range(4)]
    clients = await fleet.clients()
    for path in (*paths, *kept):
        await write(fleet, "b", path, 1)
    for path in kept:
        for of_member in clients.values():
            for client in of_member:
                assert (await read_all(client, path))[1] == b"[1]"
    readers = [Reader(fleet, name, path) for path in paths for name in fleet.members for _ in range(2)]
    await have_read(readers, 1)
    before, at_a = fleet.live_requests, [one for one in readers if one.member == "a"]
    for path in kept:
        # No request tells the owner of these writes before the member ends.
        assert (await clients["b"][0].send("DELETE", path)).status == 204
        assert (await clients["b"][0].send("PUT", path, JSON, b"[7]")).status == 201
    await fleet.stop("b")
    for path in paths:
        await write(fleet, "a", path, 2)
    await have_read(at_a, 2)
    await fleet.start("b")
    client = await fleet.members["b"].client()
    for path in kept:
        assert (await read_all(client, path))[1] == b"[7]"
    await fleet.until_joined()
    for path in paths:
        await write(fleet, "b", path, 3)
    await have_read(readers, 3)
    await eventually(lambda: open_once(fleet, paths))
    assert fleet.live_requests - before <= 2 * 2 * len(paths)
    for one in readers:
        await one.leave()
