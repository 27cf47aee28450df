"""Two routes to one origin are two views of the same streams: a change through one is visible through the other."""

from collections.abc import AsyncIterator

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.routes import RouteConfig
from gateway.config.server import ServerConfig
from gateway.origin.app import RunningOrigin
from tests.scenarios.conftest import Edge


@pytest.fixture(params=[True, False])
async def edge(origin: RunningOrigin, clock: ManualClock, request: pytest.FixtureRequest) -> AsyncIterator[Edge]:
    """Readers use one prefix and writers another, which may itself be cached or not."""
    routes = (
        RouteConfig(name="pub", prefix="/pub", strip_prefix=True, origin=origin.url),
        RouteConfig(name="adm", prefix="/adm", strip_prefix=True, origin=f"{origin.url}/", cache=request.param),
    )
    server = ServerConfig(listen="127.0.0.1:0", admin="127.0.0.1:0")
    edge = Edge(await start_gateway(GatewayConfig(server=server, routes=routes), clock=clock), clock)
    yield edge
    await edge.leave()
    try:
        await edge.until_idle()
    finally:
        await edge.gateway.stop()


async def test_a_write_by_one_route_is_seen_by_the_other(edge: Edge) -> None:
    await edge.put("/adm/s", b"OLD", Stream_Closed="true")
    for _ in range(2):
        assert (await edge.get("/pub/s")).body == b"OLD"
    assert (await edge.send("DELETE", "/adm/s")).status == 204
    assert (await edge.get("/pub/s")).status == 404
    await edge.put("/adm/s", b"NEW")
    read = await edge.get("/pub/s")
    assert (read.body, "Stream-Closed" in read.headers) == (b"NEW", False)
    await edge.post("/adm/s", b"ER")
    assert (await edge.get("/pub/s")).body == b"NEWER"
