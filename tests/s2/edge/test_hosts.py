"""The basin in the host: S2's SDKs name it there by default, as `{basin}.zone`."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from gateway.origin.s2.calls import Call
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Answer, Edge, SessionReader

OTHER = "another-basin"
ZONE = "b.example.test"
PATH = f"/v1/streams/{STREAM}"


@pytest.fixture
def settings() -> dict[str, object]:
    return {"host": f"*.{ZONE}"}


async def send(
    edge: Edge,
    host: str,
    method: str = "GET",
    path: str = f"{PATH}/records?seq_num=0",
    body: object = None,
    **more: str,
) -> Answer:
    """One request to a host, without the header that names the basin."""
    headers = {"Host": host, "Authorization": "Bearer token", "Accept-Encoding": "identity"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    data = None if body is None else orjson.dumps(body)
    async with (
        asyncio.timeout(BOUND_S),
        edge.client.http.request(method, edge.client.url + path, data=data, headers=headers) as reply,
    ):
        return Answer(reply.status, reply.headers.copy(), await reply.read())


@pytest.fixture
async def two(edge: Edge) -> Edge:
    """Two basins, each with a stream of the same name."""
    created = {"basin": OTHER, "config": {"create_stream_on_append": True}}
    assert (await edge.direct.send("POST", "/v1/basins", created)).status in (200, 201)
    for basin in (BASIN, OTHER):
        records = {"records": [{"body": f"of {basin}"}]}
        assert (await send(edge, f"{basin}.{ZONE}", "POST", f"{PATH}/records", records)).status == 200
    return edge


@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=0&count=1", "tail_offset=1"])
async def test_each_host_of_a_zone_reads_the_streams_of_its_basin(two: Edge, query: str) -> None:
    for _ in range(3):
        for basin in (BASIN, OTHER):
            host = f"{basin.upper()}.{ZONE}:80"
            assert (await send(two, host, path=f"{PATH}/records?{query}")).texts == [f"of {basin}"]


@pytest.mark.parametrize("path", [f"{PATH}/records?seq_num=0&count=1", f"{PATH}/records/tail", PATH, "/v1/streams"])
@pytest.mark.parametrize("more", [OTHER, BASIN.upper(), ""])
async def test_a_header_that_names_another_basin_than_the_host_is_refused(two: Edge, path: str, more: str) -> None:
    two.counters.reset()
    for _ in range(2):
        refused = await send(two, f"{BASIN}.{ZONE}", path=path, s2_basin=more)
        assert (refused.status, refused.json["code"]) == (400, "other"), refused
    assert two.counters.total_requests == 0
    assert (await send(two, f"{BASIN}.{ZONE}", path=path, s2_basin=BASIN)).status == 200


@pytest.mark.parametrize("host", [f"a.b.{ZONE}", f"a_b.{ZONE}"])
async def test_a_host_that_names_no_basin_is_refused(two: Edge, host: str) -> None:
    refused = await send(two, host)
    assert (refused.status, refused.json["code"]) == (400, "other"), refused


async def test_a_delete_in_one_basin_leaves_the_other(two: Edge) -> None:
    for basin in (BASIN, OTHER):
        await send(two, f"{basin}.{ZONE}", path=f"{PATH}/records?seq_num=0&count=1")
    assert (await send(two, f"{OTHER}.{ZONE}", "DELETE", PATH)).status == 202
    two.counters.reset()
    assert (await send(two, f"{BASIN}.{ZONE}", path=f"{PATH}/records?seq_num=0&count=1")).texts == [f"of {BASIN}"]
    assert two.counters.total_requests == 0
    assert (await send(two, f"{OTHER}.{ZONE}")).status == 404


async def test_sessions_of_two_hosts_follow_two_streams(two: Edge) -> None:
    sessions = []
    for basin in (BASIN, OTHER):
        headers = {"Host": f"{basin}.{ZONE}", "Authorization": "Bearer token", "Content-Type": "s2s/proto"}
        async with asyncio.timeout(BOUND_S):
            reply = await two.client.http.get(f"{two.client.url}{PATH}/records?seq_num=0", headers=headers)
        sessions.append(SessionReader(reply))
    for session, basin in zip(sessions, (BASIN, OTHER), strict=True):
        assert await session.texts(1) == [f"of {basin}"]
        session.close()
    assert two.counters.requests[Call.READ_SESSION] <= 2


async def test_requests_to_the_account_need_no_basin(two: Edge) -> None:
    listed = await send(two, f"{BASIN}.{ZONE}", path="/v1/basins")
    assert listed.status == 200
    assert (await send(two, f"{BASIN}.{ZONE}", "DELETE", f"/v1/basins/{OTHER}")).status == 202
    assert (await send(two, f"{OTHER}.{ZONE}")).status == 404
