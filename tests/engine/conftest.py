"""Engines without a socket, closed when their test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.engine.bench import Start, benches


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with benches() as start_one:
        yield start_one
