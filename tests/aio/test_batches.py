"""When gathered work is done, and that each item is worked on once."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextvars import ContextVar
from random import Random

import pytest

from gateway.aio.batches import MOST_S, Batch
from gateway.aio.clock import ManualClock
from tests.waiting import pass_turns


async def test_items_are_worked_on_in_order_in_the_next_turn() -> None:
    done: list[int] = []
    batch = Batch(done.append, ManualClock().now)
    for number in range(3):
        batch.add(number)
    assert not done
    await pass_turns(1)
    assert done == [0, 1, 2]


async def test_items_added_by_the_work_wait_for_another_turn() -> None:
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        if number < 2:
            batch.add(number + 1)

    batch = Batch(work)
    batch.add(0)
    for turn in range(3):
        await pass_turns(1)
        assert done == list(range(turn + 1))


async def test_an_item_that_fails_is_logged_and_the_others_are_worked_on(caplog: pytest.LogCaptureFixture) -> None:
    done: list[float] = []
    # A turn ends early once it is late, and a line of the log can take so long.
    batch = Batch[int](lambda number: done.append(1 / number), ManualClock().now)
    for number in (1, 0, 2):
        batch.add(number)
    await pass_turns(1)
    assert done == [1, 0.5]
    assert [record.name for record in caplog.records] == ["gateway.aio.batches"]


async def test_a_turn_works_on_no_further_item_once_it_is_late() -> None:
    clock, done = ManualClock(), list[int]()

    def work(number: int) -> None:
        done.append(number)
        clock.advance(MOST_S * 0.6)

    batch = Batch(work, clock.now)
    for number in range(5):
        batch.add(number)
    await pass_turns(1)
    assert done == [0, 1]
    # A later item waits behind the rest.
    batch.add(5)
    await pass_turns(1)
    assert done == [0, 1, 2, 3]
    await pass_turns(1)
    assert done == [0, 1, 2, 3, 4, 5]


async def test_work_does_not_run_in_the_context_of_the_caller() -> None:
    caller: ContextVar[str] = ContextVar("caller", default="")
    seen: list[str] = []
    batch = Batch[int](lambda _: seen.append(caller.get()))
    caller.set("the first")
    batch.add(1)
    await pass_turns(1)
    assert seen == [""]


@pytest.mark.parametrize("seed", range(20))
async def test_each_item_is_worked_on_once_whatever_the_work_of_others_does(seed: int) -> None:
    """The work takes long, fails, is cancelled, and adds items, at random."""
    rng, clock, done = Random(seed), ManualClock(), list[int]()
    added = 0
    # Errors that are no `Exception` end the turn: the loop reports them.
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def add() -> None:
        nonlocal added
        if added < 60:
            batch.add(added)
            added += 1

    def work(number: int) -> None:
        done.append(number)
        clock.advance(rng.choice((0.0, MOST_S / 3, 2 * MOST_S)))
        for _ in range(rng.choice((0, 0, 1, 3))):
            add()
        match rng.randrange(6):
            case 0:
                raise ValueError
            case 1:
                raise asyncio.CancelledError

    batch = Batch(work, clock.now)
    while added < 60:
        for _ in range(rng.randrange(4)):
            add()
        await pass_turns(1)
    for _ in range(added):
        await pass_turns(1)
    assert Counter(done) == Counter(range(added))
    assert done == sorted(done)
    assert repr(batch) == "<Batch of 0>"
