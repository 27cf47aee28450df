"""Turns at a pace: the first comes at once, the others one by one."""

from __future__ import annotations

import asyncio

from gateway.aio.clock import ManualClock
from gateway.aio.pace import Pace
from tests.waiting import pass_turns


async def test_turns_that_are_asked_for_together_come_one_by_one() -> None:
    clock = ManualClock()
    pace, had = Pace(clock, 0.5, 60.0), list[int]()

    async def take(number: int) -> None:
        await pace.turn()
        had.append(number)

    tasks = [asyncio.create_task(take(number)) for number in range(4)]
    await pass_turns()
    assert had == [0]
    for count in (2, 3, 4):
        clock.advance(0.49)
        await pass_turns()
        assert len(had) == count - 1
        clock.advance(0.01)
        await pass_turns()
        assert had == list(range(count))
    await asyncio.gather(*tasks)
    clock.advance(0.5)
    await pace.turn()
    assert clock.pending == 0


async def test_nobody_waits_longer_than_the_bound() -> None:
    clock = ManualClock()
    pace = Pace(clock, 0.5, 2.0)
    tasks = [asyncio.create_task(pace.turn()) for _ in range(20)]
    await pass_turns()
    assert sum(task.done() for task in tasks) == 1
    clock.advance(2.0)
    await asyncio.gather(*tasks)
    assert repr(pace) == "<Pace busy for 0.5 s>"
