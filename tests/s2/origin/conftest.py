"""A running S2 origin under a manual clock, and clients of both versions of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
import uvloop

from gateway.aio.clock import ManualClock
from gateway.origin.s2.app import RunningS2Origin, S2OriginSettings, start_s2_origin
from gateway.origin.s2.reads import Heartbeats
from tests.s2.origin.appends import BASIN

BOUND_S = 20.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops: programs use uvloop; projects that test against the origin mostly do not."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def origin(clock: ManualClock) -> AsyncIterator[RunningS2Origin]:
    running = await start_s2_origin(S2OriginSettings(heartbeats=Heartbeats(10.0, 10.0)), clock=clock)
    running.origin.account.create_basin(BASIN, {"create_stream_on_append": True}, clock.wall())
    yield running
    running.origin.faults.clear()
    await running.stop(grace_s=1.0)


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def http(origin: RunningS2Origin, version: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of one version; of HTTP/2 with prior knowledge."""
    is_2 = version == "HTTP/2"
    headers = {"s2-basin": BASIN, "accept-encoding": "identity"}
    async with httpx.AsyncClient(
        base_url=f"{origin.url}/v1",
        headers=headers,
        http1=not is_2,
        http2=is_2,
        timeout=BOUND_S,
        trust_env=False,
        verify=False,
    ) as client:
        yield client
