import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector

from gateway.aio.clock import Clock
from gateway.origin.app import Origin, OriginSettings, RunningOrigin, start_origin

Start = Callable[..., Awaitable[RunningOrigin]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts origins and stops them after the test."""
    running: list[RunningOrigin] = []

    async def start_one(
        settings: OriginSettings | None = None, *, origin: Origin | None = None, clock: Clock | None = None
    ) -> RunningOrigin:
        running.append(await start_origin(settings, origin=origin, clock=clock))
        return running[-1]

    yield start_one
    for one in running:
        one.origin.faults.clear()
        await one.stop(grace_s=1.0)


@pytest.fixture
async def http() -> AsyncIterator[ClientSession]:
    """A client that adds no headers of its own and opens as many connections as a test needs."""
    async with ClientSession(
        connector=TCPConnector(limit=0),
        auto_decompress=False,
        skip_auto_headers=["Content-Type"],
        timeout=ClientTimeout(total=30),
    ) as session:
        yield session


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops: programs use uvloop; projects that test against the origin mostly do not."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}
