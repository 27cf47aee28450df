from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.invariant.world import World

Begin = Callable[..., World]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Begins worlds; each is seen to leave nothing behind after the test."""
    worlds: list[World] = []

    def begin_one(*arguments: Any, **keywords: Any) -> World:
        worlds.append(World(*arguments, **keywords))
        return worlds[-1]

    yield begin_one
    for world in worlds:
        world.end()
