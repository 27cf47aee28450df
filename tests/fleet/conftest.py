"""A fleet in front of a real origin, all on one manual clock."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from gateway.aio.clock import ManualClock
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.effort import IS_LONG
from tests.fleet.site import Site
from tests.ports import kept_port

collect_ignore = [] if IS_LONG else ["test_changed_crews.py"]
"""The tests that take several seconds of a processor: `make fleet` and `make test-long` play them."""


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], AbstractEventLoop]]:
    """The loop that the programs run on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def origin(clock: ManualClock) -> AsyncIterator[RunningOrigin]:
    with kept_port() as port:
        running = await start_origin(OriginSettings(port=port), clock=clock)
        yield running
        running.origin.faults.clear()
        await running.stop(grace_s=0)


@pytest.fixture
async def apart(origin: RunningOrigin, clock: ManualClock) -> AsyncIterator[Site]:
    """A fleet whose members the test starts."""
    site = Site(origin, clock)
    yield site
    await site.close()


@pytest.fixture
async def site(apart: Site) -> Site:
    """A fleet of three members."""
    await apart.start_all()
    return apart
