"""One host has one route, however a client spells it; text that names no host is refused."""

from __future__ import annotations

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from tests.scenarios.conftest import Edge, Start
from tests.scenarios.http2_wire import Http2Wire

pytestmark = pytest.mark.http_2


@pytest.fixture
async def edge(start: Start, origin: RunningOrigin) -> Edge:
    return await start(origin.url, host="events.example.org")


@pytest.mark.parametrize(
    "host", ["events.example.org", "events.example.org.", "EVENTS.example.ORG.:443", "events.example.org:80"]
)
async def test_each_spelling_of_a_host_has_its_route(edge: Edge, host: str) -> None:
    put = await edge.send("PUT", "/s", {"Host": host, "Content-Type": "text/plain"}, b"abc")
    assert put.status == 201
    assert (await edge.get("/s", {"Host": "events.example.org"})).body == b"abc"
    if not isinstance(await edge.wire(), Http2Wire):
        assert (await edge.get(f"http://{host}/s", {"Host": "other.test"})).body == b"abc"


@pytest.mark.parametrize("host", ["other.example.org", "events.example.org.other", "[::1]"])
async def test_another_host_has_no_route(edge: Edge, host: str) -> None:
    assert (await edge.get("/s", {"Host": host})).status == 404


@pytest.mark.parametrize("host", ["events.example.org..", ".events.example.org", "events..org", "a,b", "[::1]a", "a:b"])
async def test_text_that_is_no_host_is_a_400(
    start: Start, origin: RunningOrigin, counters: Counters, host: str
) -> None:
    edge = await start(origin.url)
    refused = await edge.get("/s", {"Host": host})
    assert (refused.status, refused.is_one_line_of_text) == (400, True)
    assert not counters.total_requests


@pytest.mark.parametrize("method", ["delete", "Delete", "get", "pUT"])
async def test_a_method_is_known_by_its_case(
    start: Start, origin: RunningOrigin, counters: Counters, method: str
) -> None:
    edge = await start(origin.url)
    await edge.put("/s", b"abc")
    asked = counters.total_requests
    assert (await edge.send(method, "/s")).status == 400
    assert counters.total_requests == asked
    assert (await edge.get("/s")).body == b"abc"
