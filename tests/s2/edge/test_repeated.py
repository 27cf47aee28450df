"""Answers that are repeated for a request's bytes are repeated for no other request, and only while they hold."""

from __future__ import annotations

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from tests.s2.edge.clients import BASIN, STREAM, Answer, Client, Edge
from tests.s2.edge.test_trims import trim

RANGE = "seq_num=0&count=2"


async def read(client: Client, **headers: str) -> Answer:
    return await client.read(RANGE, **headers)


@pytest.fixture
async def repeated(edge: Edge) -> Edge:
    """A range that has been read often enough to be repeated."""
    await edge.client.append("a", "b", timestamp=1)
    for accept in ("*/*", "application/json"):
        for _ in range(4):
            assert (await read(edge.client, Accept=accept)).texts == ["a", "b"]
    edge.counters.reset()
    assert (await read(edge.client)).texts == ["a", "b"]
    assert edge.counters.total_requests == 0
    return edge


async def test_other_headers_of_s2s_are_not_overlooked(repeated: Edge) -> None:
    edge = repeated
    assert (await read(edge.client, s2_format="base64")).texts == ["YQ==", "Yg=="]
    body = (await read(edge.client, Accept="application/protobuf")).body
    assert [record.body for record in protobuf.decode_read_batch(body).records] == [b"a", b"b"]
    assert edge.counters.total_requests == 0
    for name in ("s2_encryption_key", "S2_Encryption_Key", "s2_unknown"):
        await read(edge.client, **{name: "a2V5"})
    assert edge.counters.requests[Call.READ] == 3
    assert (await read(edge.client, s2_basin="another-basin")).status == 404
    session = await edge.client.session(RANGE)
    assert await session.texts(2) == ["a", "b"]
    assert await session.next() is None
    assert (await edge.as_("another token").read(RANGE)).texts == ["a", "b"]
    assert edge.counters.requests[Call.READ] == 5


@pytest.mark.parametrize(
    "how", ["delete", "delete of the basin", "create", "404 on a read", "tail moved back", "delete without an answer"]
)
async def test_it_ends_with_the_stream(repeated: Edge, how: str) -> None:
    edge = repeated
    path = f"/v1/streams/{STREAM}"
    match how:
        case "delete":
            await edge.client.send("DELETE", path)
        case "delete of the basin":
            await edge.client.send("DELETE", f"/v1/basins/{BASIN}")
            await edge.direct.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
        case "create":
            await edge.direct.send("DELETE", path)
            assert (await edge.client.send("PUT", path, {})).status == 201
        case "404 on a read":
            await edge.direct.send("DELETE", path)
            assert (await edge.client.read("seq_num=2")).status == 404
        case "tail moved back":
            await edge.direct.send("DELETE", path)
            await edge.direct.append("c", timestamp=1)
            await edge.client.tail()
            await edge.direct.append("d", timestamp=1)
            assert (await read(edge.client)).texts == ["c", "d"]
            return
        case _:
            edge.faults.refuse(kind=Call.CONTROL, method="DELETE", times=1)
            await edge.client.send("DELETE", path)
            await edge.direct.send("DELETE", path)
    await edge.direct.append("c", "d", timestamp=1)
    assert (await read(edge.client)).texts == ["c", "d"]


async def test_it_ends_with_a_trim(repeated: Edge) -> None:
    edge = repeated
    await edge.direct.append("c", timestamp=1)
    await trim(edge.direct, 2, 1)
    # This shows the gateway that the first two are gone.
    assert (await edge.client.read("seq_num=2&count=2")).status == 200
    assert (await read(edge.client)).texts[0] == "c"


async def test_it_ends_with_a_purge(repeated: Edge) -> None:
    edge = repeated
    async with edge.client.http.post(edge.gateway.admin_url + "/api/purge", json={"all": True}) as purged:
        assert purged.status == 200
    assert (await read(edge.client)).texts == ["a", "b"]
    assert edge.counters.requests[Call.READ] == 1
