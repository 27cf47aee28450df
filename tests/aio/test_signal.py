"""Which waiters a firing wakes, and that leaving costs the same however many stay."""

from __future__ import annotations

import asyncio

import pytest

from gateway.aio.clock import ManualClock
from gateway.aio.signal import Signal
from tests.waiting import pass_turns


async def begun(*tasks: asyncio.Task[object]) -> None:
    """Let the tasks run up to their first wait."""
    await pass_turns(1)
    assert not any(task.done() for task in tasks)


async def test_a_firing_wakes_every_waiter_and_none_that_comes_later() -> None:
    signal, clock = Signal(), ManualClock()
    early = [asyncio.create_task(signal.wait_within(clock, 10)) for _ in range(3)]
    await begun(*early)
    signal.fire()
    late = asyncio.create_task(signal.wait_within(clock, 10))
    assert await asyncio.gather(*early) == [True] * 3
    await begun(late)
    clock.advance(10)
    assert await late is False
    assert clock.pending == len(signal) == 0


async def test_a_single_firing_wakes_the_first_waiter() -> None:
    signal, clock = Signal(), ManualClock()
    leaves = asyncio.create_task(signal.wait_within(clock, 1))
    first, second = (asyncio.create_task(signal.wait_within(clock, 10)) for _ in range(2))
    await begun(leaves, first, second)
    clock.advance(1)
    signal.fire_one()
    assert (await leaves, await first) == (False, True)
    await begun(second)
    signal.fire_one()
    assert await second is True
    signal.fire_one()
    assert len(signal) == 0


async def test_a_gate_calls_back_in_a_later_turn_unless_it_was_left() -> None:
    signal, passed = Signal(), list[asyncio.Future[bool]]()
    left, kept = signal.gate(passed.append), signal.gate(passed.append)
    signal.leave_gate(left)
    assert len(signal) == 1
    signal.fire()
    assert passed == []
    await pass_turns(1)
    assert passed == [kept]


async def test_a_cancelled_waiter_does_not_affect_the_others() -> None:
    signal, clock = Signal(), ManualClock()
    leaves, stays = asyncio.create_task(signal.wait()), asyncio.create_task(signal.wait_within(clock, 10))
    await begun(leaves, stays)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    assert len(signal) == 1
    assert repr(signal) == "<Signal 1 waiting>"
    signal.fire()
    assert await stays is True


async def test_a_firing_at_the_moment_of_a_timeout_gives_one_result() -> None:
    signal, clock = Signal(), ManualClock()
    first = asyncio.create_task(signal.wait_within(clock, 1))
    await begun(first)
    clock.advance(1)
    signal.fire()
    assert await first is False
    second = asyncio.create_task(signal.wait_within(clock, 1))
    await begun(second)
    signal.fire()
    clock.advance(1)
    assert await second is True


class _Compared(asyncio.Future[bool]):
    """A future that counts how often one like it is searched for among others."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        _Compared.comparisons += 1
        return self is other

    __hash__ = asyncio.Future.__hash__


async def test_leaving_does_not_search_the_other_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    signal, clock = Signal(), ManualClock()
    gates: list[_Compared] = []

    def create_future() -> _Compared:
        gates.append(_Compared())
        return gates[-1]

    monkeypatch.setattr(asyncio.get_running_loop(), "create_future", create_future)
    staying = [asyncio.create_task(signal.wait_within(clock, 30)) for _ in range(50)]
    leaving = [asyncio.create_task(signal.wait_within(clock, 15)) for _ in range(50)]
    await begun(*staying, *leaving)
    # Each waiter has a future of its own: a shared one would hold a callback per waiter.
    assert len(gates) == 100
    clock.advance(15)
    assert await asyncio.gather(*leaving) == [False] * 50
    assert len(signal) == 50
    assert _Compared.comparisons == 0
    signal.fire()
    assert await asyncio.gather(*staying) == [True] * 50
