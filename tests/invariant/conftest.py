from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.invariant.world import SseReader, World

Begin = Callable[..., World]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Begins worlds, and checks after the test that each leaves nothing behind."""
    worlds: list[World] = []

    def begin_one(*arguments: Any, **keywords: Any) -> World:
        worlds.append(World(*arguments, **keywords))
        return worlds[-1]

    yield begin_one
    for world in worlds:
        world.end()


def followed(begin: Begin, stall_after: int | None = None) -> tuple[World, str]:
    """A world with a live reader at the tail, and that tail; the origin's one live request may stall."""
    world = begin("application/json")
    world.run(world.create(messages=1))
    if stall_after is not None:
        world.holds.append(world.origin.faults.stall(stall_after, kind="sse", times=1))
    assert world.log.alive is not None
    tail = world.log.alive.tail.token
    SseReader(world, tail)
    engine = world.gateway.engine

    def is_confirmed() -> bool:
        return any(engine.live.confirmed_at(stream, tail) is not None for stream in engine.store)

    world.run(world.until(is_confirmed))
    return world, tail
