"""A gateway in front of the in-memory S2 origin."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from random import Random

import aiohttp
import pytest
import uvloop

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import RunningS2Origin, S2OriginSettings, start_s2_origin
from tests.ports import kept_port
from tests.s2.edge.clients import BASIN, Client, Edge


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def settings() -> dict[str, object]:
    """What the gateway is configured with beside the defaults; a test module may have its own."""
    return {}


@pytest.fixture
def origin_settings() -> S2OriginSettings:
    return S2OriginSettings()


@pytest.fixture
async def origin(origin_settings: S2OriginSettings) -> AsyncIterator[RunningS2Origin]:
    with kept_port() as port:
        running = await start_s2_origin(replace(origin_settings, port=port))
        yield running
        await running.stop(grace_s=0)


@pytest.fixture
async def edge(settings: dict[str, object], origin: RunningS2Origin) -> AsyncIterator[Edge]:
    clock = ManualClock()
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            origin.url, protocol="s2", listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=0.4, **settings
        ),
        clock=clock,
        rng=Random(0),
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
        client = Client(http, gateway.gateway_url)
        direct = Client(http, origin.url)
        created = await direct.send(
            "POST",
            "/v1/basins",
            {"basin": BASIN, "config": {"create_stream_on_append": True}},
        )
        assert created.status in (200, 201), created
        yield Edge(origin, gateway, client, direct, clock)
        client.close()
        direct.close()
    origin.origin.faults.clear()
    await gateway.stop()


@pytest.fixture
async def slow_client(edge: Edge) -> AsyncIterator[Client]:
    """A client whose connections have room for little that it has not read."""

    def socket_factory(info: aiohttp.AddrInfoType) -> socket.socket:
        family, type_, proto, _, _ = info
        found = socket.socket(family, type_, proto)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        return found

    connector = aiohttp.TCPConnector(socket_factory=socket_factory)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as http:
        client = Client(http, edge.client.url)
        yield client
        client.close()
