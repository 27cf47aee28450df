"""The site of the tests of workers, without a setting of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.workers.site import Site, made_site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with made_site() as made:
        yield made
