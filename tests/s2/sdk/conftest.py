"""The real SDKs of S2, and an in-memory S2 origin for them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop
from s2_sdk import S2, BasinConfig, Compression, Endpoints, S2Stream

from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import RunningS2Origin, S2OriginSettings, start_s2_origin
from tests.ports import kept_port
from tests.workers.edge import start_edge

ROWS = ("python_rows", "python_control_rows", "selection_rows", "selection_read_rows", "selection_control_rows")
pytest.register_assert_rewrite(*(f"tests.s2.sdk.{name}" for name in ROWS))

BASIN = "basin-of-tests"
BOUND_S = 30.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def origin() -> AsyncIterator[RunningS2Origin]:
    with kept_port() as port:
        running = await start_s2_origin(S2OriginSettings(port=port))
        yield running
        running.origin.faults.clear()
        await running.stop(grace_s=1.0)


@pytest.fixture
async def url(origin: RunningS2Origin, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    """Where the SDKs are pointed to: the origin, or by the parameter `gateway` a gateway in front of it."""
    if getattr(request, "param", "origin") == "origin":
        yield origin.url
        return
    config = GatewayConfig.for_origin(
        origin.url, protocol="s2", origin_http="2", listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=0.3
    )
    gateway = await start_edge(config)
    yield gateway.gateway_url
    await gateway.stop()


BOTH_WAYS = pytest.mark.parametrize("url", ["origin", "gateway"], indirect=True)
"""Runs a test at the origin itself and through a gateway."""


@pytest.fixture(params=list(Compression), ids=lambda compression: compression.value)
def compression(request: pytest.FixtureRequest) -> Compression:
    found: Compression = request.param
    return found


@pytest.fixture
async def s2(url: str, compression: Compression, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[S2]:
    """The client, with a basin that creates streams."""
    # Each client reads the machine's list of authorities, which takes longer than most calls; here is no TLS.
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    async with S2("token", endpoints=Endpoints(account=url, basin=url), compression=compression) as client:
        config = BasinConfig(create_stream_on_append=True, create_stream_on_read=True)
        await client.create_basin(BASIN, config=config)
        yield client


@pytest.fixture
def stream(s2: S2) -> S2Stream:
    found: S2Stream = s2.basin(BASIN).stream("a stream/with 100 %")
    return found
