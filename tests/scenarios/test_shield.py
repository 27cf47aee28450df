"""A gateway behind another: the nearer one relays the farther one's headers, not the origin's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, start_origin
from gateway.protocol.names import STREAM_NEXT_OFFSET
from gateway.tape.stream import End

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def chain() -> AsyncIterator[tuple[str, RunningGateway, RunningGateway]]:
    """The origin's URL, the shield in front of it, and the edge in front of the shield."""
    origin = await start_origin(OriginSettings())
    ports = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"}
    shield = await start_gateway(GatewayConfig.for_origin(origin.url, node_name="shield", **ports))
    edge = await start_gateway(GatewayConfig.for_origin(shield.gateway_url, node_name="edge", **ports))
    try:
        yield origin.url, shield, edge
    finally:
        await edge.stop()
        await shield.stop()
        await origin.stop(grace_s=0)


async def test_a_stream_made_at_the_origin_is_read_through_a_shield(
    chain: tuple[str, RunningGateway, RunningGateway],
) -> None:
    origin, _, edge = chain
    async with aiohttp.ClientSession() as session:
        await session.put(f"{origin}/s", data=b"one", headers=TEXT)
        for more in (b"two", b"three"):
            async with session.get(f"{edge.gateway_url}/s?offset=-1") as response:
                assert response.status == 200
                tail = response.headers[STREAM_NEXT_OFFSET]
            await session.post(f"{origin}/s", data=more, headers=TEXT)
            async with session.get(f"{edge.gateway_url}/s?live=long-poll&offset={tail}") as response:
                assert (response.status, await response.read()) == (200, more)


async def test_a_stream_forgotten_by_the_shield_keeps_its_identity(
    chain: tuple[str, RunningGateway, RunningGateway],
) -> None:
    origin, shield, edge = chain
    async with aiohttp.ClientSession() as session:
        await session.put(f"{origin}/s", data=b"one", headers=TEXT)
        async with session.get(f"{edge.gateway_url}/s?offset=-1") as response:
            tag = response.headers["ETag"]
        for stream in list(shield.engine.store):
            shield.engine.live.drop_stream(stream, End.EVICTED)
        async with session.get(f"{edge.gateway_url}/s?offset=-1", headers={"If-None-Match": tag}) as response:
            assert response.status == 304
