"""Timers, and in whose name they run."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from gateway.aio.clock import Clock, ManualClock, SystemClock
from gateway.aio.wheel import TICK_S, Wheel

whose: ContextVar[str] = ContextVar("whose", default="nobody")


class Noting:
    """An entry that notes in whose name it comes due."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.has_come = asyncio.Event()

    def due(self) -> None:
        self.seen.append(whose.get())
        self.has_come.set()


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
async def test_a_timer_is_not_run_in_the_name_of_who_set_it(clock: Clock) -> None:
    whose.set("somebody")
    wheel, entry, other = Wheel(clock), Noting(), Noting()
    wheel.add(entry, 0.0)
    wheel.add(other, TICK_S)
    if isinstance(clock, ManualClock):
        clock.advance(1.0)
    async with asyncio.timeout(10):
        await entry.has_come.wait()
        await other.has_come.wait()
    assert (entry.seen, other.seen) == (["nobody"], ["nobody"])


class TestWheel:
    def test_nothing_comes_early_or_more_than_a_tick_late(self) -> None:
        clock = ManualClock()
        wheel = Wheel(clock)
        came: dict[float, float] = {}

        class At:
            def __init__(self, delay_s: float) -> None:
                self.delay_s = delay_s

            def due(self) -> None:
                came[self.delay_s] = clock.now() - began

        began = clock.now()
        delays = [0.0, 0.01, TICK_S, 0.1, 0.15, 1.0, 59.99]
        for delay_s in delays:
            wheel.add(At(delay_s), delay_s)
        for _ in range(7_000):
            clock.advance(0.01)
        assert sorted(came) == delays
        assert all(delay_s <= at + 1e-6 and at <= delay_s + TICK_S + 0.01 for delay_s, at in came.items())
        assert clock.pending == len(wheel) == 0

    def test_what_is_taken_off_does_not_come_and_wakes_nobody(self) -> None:
        clock = ManualClock()
        wheel = Wheel(clock)
        entry = Noting()
        tick = wheel.add(entry, 5.0)
        wheel.drop(entry, tick)
        clock.advance(10)
        assert entry.seen == []
        assert clock.pending == 0

    def test_an_entry_that_fails_does_not_keep_others_from_coming(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = ManualClock()
        wheel = Wheel(clock)

        class Failing:
            def due(self) -> None:
                raise RuntimeError

        entries = [Noting() for _ in range(3)]
        wheel.add(entries[0], 1.0)
        wheel.add(Failing(), 1.0)
        for entry in entries[1:]:
            wheel.add(entry, 1.0)
        clock.advance(2)
        assert [len(entry.seen) for entry in entries] == [1, 1, 1]
        assert "a deadline failed" in caplog.text
