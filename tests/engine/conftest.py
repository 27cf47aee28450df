"""Engines without a socket, closed when their test is over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.engine.bench import EngineBench, Start
from tests.memory_upstream import Asked


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    benches: list[EngineBench] = []

    def start_one(script: Callable[[Asked], None] = lambda asked: None, **settings: Any) -> EngineBench:
        benches.append(EngineBench(script, **settings))
        return benches[-1]

    yield start_one
    for bench in benches:
        await bench.close()
