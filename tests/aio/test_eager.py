"""Coroutines that begin at once: when they become tasks, and that they end like tasks."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from gateway.aio.tasks import begin, in_task

_place: ContextVar[str] = ContextVar("place", default="outside")


async def test_work_that_does_not_wait_has_ended_at_once_and_is_no_task() -> None:
    ends: list[str] = []

    async def work() -> None:
        _place.set("inside")
        ends.append(_place.get())

    asyncio.get_running_loop().call_soon(lambda: ends.append(repr(begin(asyncio.get_running_loop(), work()))))
    await asyncio.sleep(0)
    assert (ends, _place.get()) == (["inside", "None"], "outside")


async def test_work_that_waits_goes_on_in_a_task_with_the_context_that_it_began_in() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[str] = loop.create_future()
    tasks: list[asyncio.Task[str]] = []

    async def work() -> str:
        _place.set("inside")
        await in_task()
        async with asyncio.timeout(60):
            found = await gate
        return f"{found} {_place.get()}"

    def begin_it() -> None:
        task = begin(loop, work())
        assert task is not None
        tasks.append(task)

    loop.call_soon(begin_it)
    await asyncio.sleep(0)
    gate.set_result("found")
    assert await tasks[0] == "found inside"


@pytest.mark.parametrize("turns", [0, 1], ids=["before the task has begun", "once it waits"])
async def test_a_cancelled_task_ends_the_work_that_had_begun_without_it(turns: int) -> None:
    loop, ends, tasks = asyncio.get_running_loop(), list[str](), list[asyncio.Task[None]]()

    async def work() -> None:
        try:
            await loop.create_future()
        except asyncio.CancelledError:
            ends.append("cancelled")
            raise

    def begin_it() -> None:
        task = begin(loop, work())
        assert task is not None
        tasks.append(task)
        if not turns:
            task.cancel()

    loop.call_soon(begin_it)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert ends == ["cancelled"]


async def test_all_works_that_await_one_future_in_the_turn_in_which_they_begin_get_its_result() -> None:
    loop = asyncio.get_running_loop()
    gate: asyncio.Future[str] = loop.create_future()
    tasks: list[asyncio.Task[str]] = []

    async def work() -> str:
        return await gate

    def begin_them() -> None:
        tasks.extend(task for task in (begin(loop, work()), begin(loop, work())) if task is not None)

    loop.call_soon(begin_them)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set_result("found")
    assert await asyncio.gather(*tasks) == ["found", "found"]


async def test_work_that_is_cancelled_before_its_task_has_begun_cancels_the_future_that_it_awaits() -> None:
    loop, awaited, tasks = asyncio.get_running_loop(), list[asyncio.Task[bool]](), list[asyncio.Task[None]]()

    async def work() -> None:
        awaited.append(loop.create_task(asyncio.Event().wait()))
        await awaited[0]

    def begin_it() -> None:
        task = begin(loop, work())
        assert task is not None
        tasks.append(task)
        task.cancel()

    loop.call_soon(begin_it)
    await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    with pytest.raises(asyncio.CancelledError):
        await awaited[0]


async def test_work_that_another_task_begins_is_a_task_of_its_own() -> None:
    async def work() -> bool:
        await in_task()
        return asyncio.current_task() is not parent

    parent = asyncio.current_task()
    task = begin(asyncio.get_running_loop(), work())
    assert task is not None
    assert await task
