"""A gateway with several workers is one gateway from outside: its admin port, its limits, its log, its breakers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.offload.crowd import Client
from tests.ops.log_reading import lines_of
from tests.waiting import eventually
from tests.workers import checks
from tests.workers.process import GatewayProcess, samples
from tests.workers.site import JSON, Site, followed, made_site, read_all

PATH = "/s"


async def api(gateway: GatewayProcess, target: str, body: dict[str, Any] | None = None) -> Any:
    answer = await gateway.admin(target, body)
    assert answer.status in (200, 202), answer.body
    return json.loads(answer.body)


async def metric(gateway: GatewayProcess, name: str, *labels: str) -> float:
    """The sum of the series with these labels."""
    found = samples(await gateway.exposition())
    return sum(float(value) for one, text, value in found if one == name and all(label in text for label in labels))


async def until_all_serve(gateway: GatewayProcess) -> None:
    async def is_well() -> bool:
        return await gateway.is_well()

    await eventually(is_well, state=gateway.said)


async def is_accepted(client: Client) -> bool:
    """Whether a new connection is served and not closed at once."""
    try:
        return (await client.send("GET", "/absent")).status == 404
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


# -- the admin port


async def test_the_admin_port_shows_and_purges_the_streams_of_all_workers(site: Site) -> None:
    clients = await site.client_of_each()
    assert (await clients[0].send("PUT", PATH, JSON, b"[1]")).status == 201
    async with followed(await site.client_of_each(), PATH):
        for client in clients:
            assert (await read_all(client, PATH))[1] == b"[1]"
        (row,) = (await api(site.gateway, "/api/streams"))["streams"]
        assert (row["path"], row["readers"], row["is_followed"]) == (PATH, 3, True)
        (busiest,) = (await api(site.gateway, "/api/top?by=subscribers"))["streams"]
        detail = await api(site.gateway, f"/api/streams/{row['id']}")
        assert busiest["id"] == detail["id"] == row["id"]
        assert (await api(site.gateway, "/api/tails"))["tails"] == {PATH: row["tail"]}
        overview = await api(site.gateway, "/api/overview")
        assert sum(overview["requests"]["catchup"].values()) == len(clients)
        assert overview["subscribers"] == {"longpoll": 0, "sse": 3}
        assert overview["connections"] == len(site.clients)
        assert await metric(site.gateway, "durable_gateway_connections") == len(site.clients)
        assert await metric(site.gateway, "durable_gateway_worker_connections", "worker=") == len(site.clients)
        assert await metric(site.gateway, "durable_gateway_worker_up", "worker=") == 3
    for number in range(3):
        assert (await clients[0].send("PUT", f"/purged/{number}", JSON, b"[1]")).status == 201
        for client in clients:
            assert (await read_all(client, f"/purged/{number}"))[1] == b"[1]"
    # Three workers have copies of three streams.
    assert await api(site.gateway, "/api/purge", {"prefix": "/purged/"}) == {"purged": 3}
    # Streams that are read so often may be followed, but nothing of them is in memory.
    rows = (await api(site.gateway, "/api/streams"))["streams"]
    assert [row["path"] for row in rows if row["bytes"]] == [PATH]
    assert await metric(site.gateway, "durable_gateway_purges_total") == 1


async def test_no_counter_falls_when_a_worker_dies(site: Site) -> None:
    clients = await site.client_of_each()
    for client in clients:
        assert (await client.send("GET", "/absent")).status == 404
    assert await metric(site.gateway, "durable_gateway_requests_total", 'mode="catchup"') == 3
    site.gateway.kill(site.gateway.worker_pids()[0])
    await until_all_serve(site.gateway)
    assert await metric(site.gateway, "durable_gateway_requests_total", 'mode="catchup"') == 3
    assert await metric(site.gateway, "durable_gateway_worker_starts_total") == 4
    for client in await site.client_of_each():
        assert (await client.send("GET", "/absent")).status == 404
    assert await metric(site.gateway, "durable_gateway_requests_total", 'mode="catchup"') == 6


async def test_a_worker_that_starts_again_drains_with_the_others(site: Site) -> None:
    assert await api(site.gateway, "/api/drain", {"within_s": 0}) == {"is_draining": True}
    answer = await site.gateway.admin("/readyz?verbose")
    assert (answer.status, answer.body.count(b"[-] worker")) == (503, 3)
    site.gateway.kill(site.gateway.worker_pids()[0])

    async def has_started_again() -> bool:
        return await metric(site.gateway, "durable_gateway_worker_starts_total") == 4 and (
            await metric(site.gateway, "durable_gateway_worker_up") == 3
        )

    await eventually(has_started_again)
    assert (await site.gateway.admin("/readyz?verbose")).body.count(b"[-] worker") == 3
    assert await api(site.gateway, "/api/drain", {"undo": True}) == {"is_draining": False}
    assert (await site.gateway.admin("/readyz")).status == 200


async def test_a_revocation_holds_at_every_worker_even_after_it_has_died(tmp_path: Path) -> None:
    async with made_site(keys=tmp_path) as site:
        await checks.check_revocations(site)
        site.gateway.kill(site.gateway.worker_pids()[0])
        await until_all_serve(site.gateway)
        for client in await site.client_of_each():
            assert (await client.send("GET", "/revoked?offset=-1", site.credential)).status == 401


# -- limits


async def test_the_limits_of_a_client_hold_over_all_workers_exactly() -> None:
    limits: list[dict[str, Any]] = [{"name": "few", "per": "client", "requests_per_s": 0.001, "burst": 40}]
    async with made_site(client_connections=12, client_live_reads=2, rate_limits=limits) as site:
        opened = [await site.client() for _ in range(30)]
        accepted = await asyncio.gather(*map(is_accepted, opened))
        assert sum(accepted) == 12
        kept = [client for client, is_kept in zip(opened, accepted, strict=True) if is_kept]
        kept.pop().close()

        async def has_room() -> bool:
            client = await site.client()
            if found := await is_accepted(client):
                kept.append(client)
            return found

        await eventually(has_room)
        assert not await is_accepted(await site.client())
        assert await metric(site.gateway, "durable_gateway_connections") == 12
        # Each of the 13 connections has made a request.
        statuses = [(await kept[number % 12].send("GET", "/absent")).status for number in range(60)]
        assert statuses == [404] * 27 + [429] * 33


async def test_the_live_reads_of_a_client_are_limited_over_all_workers() -> None:
    async with made_site(client_live_reads=4) as site:
        assert (await (await site.client()).send("PUT", PATH, JSON, b"[1]")).status == 201
        readers = await site.client_of_each() + [await site.client() for _ in range(5)]
        async with followed(readers, PATH):
            assert await metric(site.gateway, "durable_gateway_subscribers") == 4
            # The reads of a worker that dies no longer count.
            site.gateway.kill(site.gateway.worker_pids()[0])
            await until_all_serve(site.gateway)
            async with followed([await site.client() for _ in range(5)], PATH):
                assert await metric(site.gateway, "durable_gateway_subscribers") == 4


# -- the access log and the breakers


async def test_all_workers_write_one_access_log_in_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    async with made_site(sink="file", path=str(log), rotate_bytes=10_000, batch_s=0.01) as site:
        clients = await site.client_of_each()
        for number in range(90):
            await clients[number % 3].send("GET", f"/absent/{number}")
    files = sorted(log.parent.glob("access.log*"))
    assert len(files) > 1
    lines = [line for file in files for line in lines_of(file)]
    # A line without a status is an owner's request to the origin on behalf of another worker.
    # `/` was requested to find each worker.
    paths = [line["stream"] for line in lines if "status" in line and line["stream"] != "/"]
    assert sorted(paths) == sorted(f"/absent/{number}" for number in range(90))


async def test_an_origin_that_is_away_fails_once_for_all_workers() -> None:
    async with made_site() as site:
        await checks.check_breaker(site)
        assert (await site.gateway.admin("/readyz")).status == 200
