"""Members with workers: the origin sees one gateway, whichever worker of whichever member a client reaches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from gateway.engine.fleet_redis import HEAR_S
from gateway.origin.requests import Kind
from tests.fleet.crew_readers import JSON, LOOK_S, PLAIN, Reader, have_read, knows, open_once, read_all, write
from tests.fleet.crews import Crews, crews
from tests.fleet.redis_server import RedisServer, redis_server
from tests.offload.crowd import Client
from tests.waiting import eventually
from tests.workers.process import samples

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(redis: RedisServer) -> AsyncIterator[Crews]:
    """Two members of two workers.  The tail may be repeated for minutes, so only a write lets the owner ask again."""
    async with crews("a", "b", fleet={"redis": redis.url}, tail_fresh_s=600, live_linger_s=0) as made:
        yield made


async def test_bytes_leave_the_origin_once(fleet: Crews) -> None:
    clients = [client for of_member in (await fleet.clients()).values() for client in of_member]
    for number in range(6):
        path, body = f"/once/{number}", b"x" * 50_000
        before = fleet.counters.body_bytes[Kind.CATCHUP]
        assert (await clients[0].send("PUT", path, PLAIN, body)).status == 201
        for client in (*clients, *clients):
            assert (await read_all(client, path))[1] == body
        assert fleet.counters.body_bytes[Kind.CATCHUP] - before == len(body)


async def test_a_write_is_in_the_next_read_at_each_worker_of_its_member(fleet: Crews) -> None:
    clients = await fleet.clients()
    for number in range(4):
        path, written = f"/written/{number}", b""
        assert (await clients["a"][0].send("PUT", path, PLAIN)).status == 201
        for turn in range(2):
            for name, of_member in clients.items():
                for writer in of_member:
                    written += (piece := f"{turn}{name}".encode())
                    assert (await writer.send("POST", path, PLAIN, piece)).status == 204
                    for reader in of_member:
                        assert (await read_all(reader, path))[1] == written


async def test_a_stream_that_was_made_again_is_another_one_at_each_worker_of_the_member(fleet: Crews) -> None:
    clients = await fleet.clients()
    for number in range(4):
        path = f"/again/{number}"
        await clients["a"][0].send("PUT", path, PLAIN, b"first")
        for of_member in clients.values():
            for client in (*of_member, *of_member):
                assert (await read_all(client, path))[1] == b"first"
        for turn, (deletes, reads) in enumerate([clients["a"], reversed(clients["b"])]):
            assert (await deletes.send("DELETE", path)).status == 204
            assert (await read_all(reads, path))[0].status == 404
            await reads.send("PUT", path, PLAIN, body := b"again%d" % turn)
            assert (await read_all(deletes, path))[1] == body


async def test_readers_at_all_workers_cost_the_origin_one_live_request_a_stream(fleet: Crews) -> None:
    paths = [f"/live/{number}" for number in range(4)]
    # The first question after a PUT through a member lets the owner begin again, so create the streams at the origin.
    writer, before = await fleet.members["a"].origin_client(), fleet.live_requests
    for path in paths:
        await writer.send("PUT", path, JSON, b"[1]")
    staying = [Reader(fleet, name, path) for path in paths for name in fleet.members for _ in range(2)]
    await have_read(staying, 1)
    for value in (2, 3):
        passing = [Reader(fleet, name, path) for path in paths for name in fleet.members for _ in range(3)]
        await have_read(passing, value - 1)
        for path in paths:
            assert (await writer.send("POST", path, JSON, b"[%d]" % value)).status == 204
        await have_read(staying + passing, value)
        assert open_once(fleet, paths)
        for one in passing:
            await one.leave()
    assert fleet.live_requests - before == len(paths)
    for one in staying:
        await one.leave()


async def test_readers_go_on_without_workers_that_die(fleet: Crews) -> None:
    paths = [f"/deaths/{number}" for number in range(4)]
    for path in paths:
        await write(fleet, "a", path, 1)
    readers = [Reader(fleet, name, path) for path in paths for name in fleet.members for _ in range(2)]
    await have_read(readers, 1)
    before, value = fleet.live_requests, 1
    for pid in fleet.members["b"].gateway.worker_pids():
        fleet.members["b"].gateway.kill(pid)
        value += 1
        for path in paths:
            await write(fleet, "a", path, value)
        await have_read(readers, value)
        await eventually(fleet.members["b"].gateway.is_well, look_s=LOOK_S, within_s=30)
        await fleet.until_joined()
    # Each death, and each return of a worker, costs one more live request a stream, or two while members disagree.
    assert fleet.live_requests - before <= 2 * 2 * 2 * len(paths)
    for one in readers:
        await one.leave()


async def outdated(fleet: Crews, path: str) -> list[Client]:
    """A connection to each worker of each member.  All of them have a stream that was made again at the origin."""
    origin = await fleet.members["a"].origin_client()
    clients = [client for of_member in (await fleet.clients()).values() for client in of_member]
    await origin.send("PUT", path, PLAIN, b"old")
    for client in (*clients, *clients):
        assert (await read_all(client, path))[1] == b"old"
    await origin.send("DELETE", path)
    await origin.send("PUT", path, PLAIN, b"new")
    return clients


async def test_a_purge_at_any_worker_reaches_every_worker_of_every_member(fleet: Crews) -> None:
    for number, (name, other) in enumerate([("a", "b"), ("b", "a")] * 2):
        clients = await outdated(fleet, path := f"/purged/{number}")
        answer = await fleet.order(name, "/api/purge", {"stream": path})
        (outcome,) = answer["members"]
        assert (outcome["member"], outcome["why_not"]) == (other, "")
        assert answer["purged"] >= 1
        assert outcome["affected"] >= 1
        for client in clients:
            assert (await read_all(client, path))[1] == b"new"


async def test_a_purge_counts_a_stream_once_however_many_workers_have_it(fleet: Crews) -> None:
    clients, path = await fleet.clients(), "/counted"
    await clients["a"][0].send("PUT", path, PLAIN, b"x")
    for of_member in clients.values():
        for client in (*of_member, *of_member):
            assert (await read_all(client, path))[1] == b"x"
    answer = await fleet.order("b", "/api/purge", {"stream": path})
    assert answer == {"purged": 1, "members": [{"member": "a", "affected": 1, "why_not": ""}], "in_redis": True}


async def test_a_revocation_is_confirmed_by_all_workers_of_all_members(fleet: Crews) -> None:
    answer = await fleet.order("a", "/api/revoke", {"subject": "principal", "name": "nobody"})
    assert answer == {"live_reads": 0, "members": [{"member": "b", "affected": 0, "why_not": ""}], "in_redis": True}


async def counted(fleet: Crews, counter: str) -> list[float]:
    """For each member, the sum of a counter over its workers."""
    expositions = [await one.gateway.exposition() for one in fleet.members.values()]
    name = f"durable_gateway_fleet_{counter}"
    return [sum(float(value) for found, _, value in samples(one) if found == name) for one in expositions]


async def test_redis_without_its_data_costs_no_memory_where_all_workers_agree(fleet: Crews, redis: RedisServer) -> None:
    clients = await outdated(fleet, "/agreed")
    stored, losses = await redis.count(), await counted(fleet, "redis_losses_total")
    await redis.client.flushall()

    async def is_stored_again() -> bool:
        return await redis.client.dbsize() > 0 and await redis.count() == stored

    await eventually(is_stored_again, within_s=30, look_s=LOOK_S)
    assert await counted(fleet, "redis_losses_total") == [one + 2 for one in losses]
    judged = fleet.clock.now() + HEAR_S + 1
    await eventually(lambda: fleet.clock.now() > judged, look_s=LOOK_S)
    assert await counted(fleet, "missed_orders_total") == [0, 0]
    for client in clients:
        assert (await read_all(client, "/agreed"))[1] == b"old"


async def test_an_order_that_only_redis_has_reaches_every_worker_of_every_member(
    fleet: Crews, redis: RedisServer
) -> None:
    for name in fleet.members:
        await fleet.members[name].gateway.reload(fleet.config(name, [name]))
    for name in fleet.members:
        await eventually(partial(knows, fleet, name, {}), within_s=30, look_s=LOOK_S)
    clients = await outdated(fleet, "/by/redis")
    assert await fleet.order("a", "/api/purge", {"stream": "/by/redis"}) == {
        "purged": 1, "members": [], "in_redis": True
    }  # fmt: skip

    async def is_purged() -> bool:
        return {(await read_all(client, "/by/redis"))[1] for client in clients} == {b"new"}

    await eventually(is_purged, within_s=5, look_s=LOOK_S)
    for name in fleet.members:
        await fleet.members[name].gateway.reload(fleet.config(name))
    await fleet.until_joined()


async def test_readers_go_on_without_a_member_that_dies(fleet: Crews) -> None:
    paths = [f"/dead/{number}" for number in range(4)]
    for path in paths:
        await write(fleet, "b", path, 1)
    readers = [Reader(fleet, "a", path) for path in paths for _ in range(3)]
    await have_read(readers, 1)
    before = fleet.live_requests
    await fleet.kill("b")
    for path in paths:
        await write(fleet, "a", path, 2)
    await have_read(readers, 2)
    await eventually(lambda: open_once(fleet, paths))
    # No other member is left, and the workers of this one agree.
    assert fleet.live_requests - before <= len(paths)
    for one in readers:
        await one.leave()
