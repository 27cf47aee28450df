"""A gateway that presents the streams of an in-memory S2 origin as Durable Streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random

import aiohttp
import pytest
import uvloop

from gateway.aio.clock import Clock, ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import start_s2_origin
from tests.bridge.clients import Bridged, Reader, Writer
from tests.s2.edge.clients import BASIN, Client


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def bridge() -> dict[str, object]:
    """The route's `bridge` table beside the basin; a test may have its own."""
    return {}


@pytest.fixture
def settings() -> dict[str, object]:
    """What the gateway is configured with beside that; a test may have its own."""
    return {}


@pytest.fixture
def clock() -> Clock:
    """The gateway's clock; a test of programs that take their time has the system's."""
    return ManualClock()


@pytest.fixture
async def bridged(bridge: dict[str, object], settings: dict[str, object], clock: Clock) -> AsyncIterator[Bridged]:
    origin = await start_s2_origin()
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            origin.url,
            protocol="s2",
            present="durable-streams",
            bridge={"basin": BASIN, **bridge},
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            shutdown_timeout_s=0.3,
            **settings,
        ),
        clock=clock,
        rng=Random(0),
    )
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http:
        direct = Client(http, origin.url)
        created = await direct.send("POST", "/v1/basins", {"basin": BASIN})
        assert created.status == 201, created
        yield Bridged(origin, gateway, Reader(http, gateway.gateway_url), Writer(direct), clock)
    origin.origin.faults.clear()
    await gateway.stop()
    await origin.stop(grace_s=0)


@pytest.fixture
def uncached() -> dict[str, object]:
    """What the gateway that caches nothing is configured with beside that; a test may have its own."""
    return {}


@pytest.fixture
async def plain(bridged: Bridged, uncached: dict[str, object]) -> AsyncIterator[Reader]:
    """A client of a gateway without a basin in its configuration, that caches nothing, over HTTP/1.1."""
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            bridged.origin.url,
            protocol="s2",
            present="durable-streams",
            listen="127.0.0.1:0",
            admin="127.0.0.1:0",
            cache=False,
            shutdown_timeout_s=0.3,
            **{"long_poll_timeout_s": 1, **uncached},
        ),
        clock=bridged.clock,
    )
    yield Reader(bridged.reader.http, gateway.gateway_url)
    await gateway.stop()
