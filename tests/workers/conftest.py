"""The site of the tests of workers, without a setting of its own, and the stage of the tests of reloads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.workers.reload_stage import Stage
from tests.workers.site import Site, made_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with made_site() as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_site() -> AsyncIterator[Site]:
    """One for all tests of a file, each of which has streams and counters of its own.

    To start four processes takes longer than most tests.
    """
    async with made_site() as made:
        yield made


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    made.configurations.open()
    yield made
    made.configurations.end()
