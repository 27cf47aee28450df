"""An S2 origin sees one gateway, however many workers that has, and every worker shows acknowledged writes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
import pytest

from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import RunningS2Origin, start_s2_origin
from gateway.origin.s2.calls import Call
from tests.s2.edge.clients import BASIN, STREAM, Client
from tests.waiting import eventually
from tests.workers.process import GatewayProcess
from tests.workers.site import WORKERS

SESSIONS: Final = 20


@dataclass
class S2Site:
    """The origin, the gateway, and a client of each worker."""

    origin: RunningS2Origin
    gateway: GatewayProcess
    direct: Client
    clients: list[Client]


class Sockets:
    """The sockets of a client's connections."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []

    def make(self, info: aiohttp.AddrInfoType) -> socket.socket:
        self.sockets.append(made := socket.socket(*info[:3]))
        made.setblocking(False)
        return made

    def workers(self, gateway: GatewayProcess) -> set[int | None]:
        """The workers that have accepted the connections."""
        return {gateway.worker_at(one.getsockname()[1]) for one in self.sockets}


async def _client(gateway: GatewayProcess, stack: AsyncExitStack, connections: int) -> tuple[Client, Sockets]:
    sockets = Sockets()
    connector = aiohttp.TCPConnector(limit=connections, socket_factory=sockets.make)
    http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, auto_decompress=False))
    return Client(http, gateway.url), sockets


async def _client_of_each(gateway: GatewayProcess, stack: AsyncExitStack) -> list[Client]:
    found: dict[int | None, Client] = {}
    while len(found) < WORKERS:
        client, sockets = await _client(gateway, stack, 1)
        assert (await client.tail("none")).status == 404
        (pid,) = sockets.workers(gateway)
        found.setdefault(pid, client)
    return list(found.values())


@asynccontextmanager
async def _site(**more: object) -> AsyncIterator[S2Site]:
    """Run a site with these further settings of the gateway."""
    async with AsyncExitStack() as stack:
        origin = await start_s2_origin()
        stack.push_async_callback(origin.stop, grace_s=0)
        config = GatewayConfig.for_origin(
            origin.url,
            protocol="s2",
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            shutdown_timeout_s=0.5,
            client_new_streams_per_s=0,
            **more,
        )
        gateway = await GatewayProcess.start(config, WORKERS)
        stack.push_async_callback(gateway.stop)
        http = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        direct = Client(http, origin.url)
        await direct.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
        yield S2Site(origin, gateway, direct, await _client_of_each(gateway, stack))


@pytest.fixture
async def s2_site() -> AsyncIterator[S2Site]:
    async with _site() as site:
        yield site


async def test_sessions_at_all_workers_are_one_session_at_the_origin(s2_site: S2Site) -> None:
    counters, direct = s2_site.origin.origin.counters, s2_site.direct
    await direct.append("a", "b")
    async with AsyncExitStack() as stack:
        client, sockets = await _client(s2_site.gateway, stack, 0)
        sessions = [await client.session("seq_num=0") for _ in range(SESSIONS)]
        for session in sessions:
            assert await session.texts(2) == ["a", "b"]
        assert len(sockets.workers(s2_site.gateway)) == WORKERS
        await counters.sessions_are(Call.READ_SESSION, 1)
        await direct.append("c")
        for session in sessions:
            assert await session.texts(1) == ["c"]
        assert counters.requests[Call.READ_SESSION] == 1
        client.close()


async def test_every_worker_shows_an_acknowledged_append_whether_or_not_it_follows(s2_site: S2Site) -> None:
    clients, texts = s2_site.clients, list[str]()
    for number, writer in enumerate(clients * 2):
        await writer.append(text := f"{number}")
        texts.append(text)
        for client in clients:
            assert (await client.read()).texts == texts
            assert (await client.tail()).json["tail"]["seq_num"] == len(texts)  # type: ignore[index]


async def test_no_worker_shows_records_of_a_deleted_stream(s2_site: S2Site) -> None:
    clients = s2_site.clients
    for life, writer in enumerate(clients):
        await writer.append(f"{life}")
        for client in clients:
            assert (await client.read()).texts == [f"{life}"]
        deleted = await writer.send("DELETE", f"/v1/streams/{STREAM}")
        assert deleted.status in (200, 202, 204)
        for client in clients:
            assert (await client.read()).status in (404, 409)
        await eventually(lambda: _is_gone(s2_site.direct))


@pytest.mark.parametrize("is_recreated", [True, False])
async def test_all_workers_learn_what_one_has_learned_of_a_stream_that_ended_at_the_origin(
    s2_site: S2Site, *, is_recreated: bool
) -> None:
    clients, direct = s2_site.clients, s2_site.direct
    await direct.append(*"abcd")
    for client in clients:
        assert (await client.read("seq_num=0&count=2")).texts == ["a", "b"]
    await direct.send("DELETE", f"/v1/streams/{STREAM}")
    await eventually(lambda: _is_gone(direct))
    if is_recreated:
        await direct.append(*"xy")
    assert (await clients[0].tail()).status == (200 if is_recreated else 404)
    for client in clients:
        read = await client.read("seq_num=0&count=2")
        assert read.texts == ["x", "y"] if is_recreated else read.status == 404


async def test_a_tail_that_the_owner_remembers_proves_no_other_stream() -> None:
    """The owner trusts the tail that its session has stated, although the workers have passed on a later record."""
    async with _site(consistency="bounded-staleness", tail_heard_s=60.0) as site, AsyncExitStack() as stack:
        counters, direct = site.origin.origin.counters, site.direct
        # The session stops amid a record that is longer than this.
        stall = site.origin.origin.faults.stall(4_000, kind=Call.READ_SESSION)
        await direct.append("0", "1", "2", timestamp=1000)
        client, sockets = await _client(site.gateway, stack, 0)
        sessions = [await client.session("seq_num=0") for _ in range(SESSIONS)]
        for session in sessions:
            assert await session.texts(3) == ["0", "1", "2"]
        assert len(sockets.workers(site.gateway)) == WORKERS
        await counters.sessions_are(Call.READ_SESSION, 1)
        await direct.append(long := "3" * 9_000)
        for reader in site.clients:
            assert (await reader.read("timestamp=5000&count=5")).texts == [long]
            assert (await reader.tail()).json["tail"]["seq_num"] in (3, 4)  # type: ignore[index]
            assert (await reader.read("seq_num=3&count=5")).status in (200, 416)
        stall.release()
        for session in sessions:
            assert await session.texts(1) == [long]
        client.close()


async def _is_gone(client: Client) -> bool:
    return (await client.tail()).status == 404


async def test_a_session_goes_on_when_the_streams_owner_dies_and_comes_back(s2_site: S2Site) -> None:
    counters, direct, gateway = s2_site.origin.origin.counters, s2_site.direct, s2_site.gateway
    await direct.append("0")
    async with AsyncExitStack() as stack:
        client, sockets = await _client(gateway, stack, 0)
        session = await client.session("seq_num=0")
        assert await session.texts(1) == ["0"]
        (own,) = sockets.workers(gateway)
        for number, pid in enumerate(pid for pid in gateway.worker_pids() if pid != own):
            await counters.sessions_are(Call.READ_SESSION, 1)
            gateway.kill(pid)
            await direct.append(f"{number + 1}")
            assert await session.texts(1) == [f"{number + 1}"]
            await eventually(gateway.is_well)
        client.close()
