"""Timers, the context they run in, and the timer wheel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar

import pytest

from gateway.aio.clock import Clock, ManualClock, SystemClock, Timer
from gateway.aio.timers import TICK_S, TURN_S, Wheel

context_name: ContextVar[str] = ContextVar("context_name", default="detached")


class Recording:
    """An entry that records the context in which it falls due."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.has_fired = asyncio.Event()

    def due(self) -> None:
        self.seen.append(context_name.get())
        self.has_fired.set()


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock()], ids=["system", "manual"])
async def test_a_timer_does_not_run_in_the_context_that_set_it(clock: Clock) -> None:
    context_name.set("a request")
    wheel, entry, other = Wheel(clock), Recording(), Recording()
    wheel.add(entry, 0.0)
    wheel.add(other, TICK_S)
    if isinstance(clock, ManualClock):
        clock.advance(1.0)
    async with asyncio.timeout(10):
        await entry.has_fired.wait()
        await other.has_fired.wait()
    assert (entry.seen, other.seen) == (["detached"], ["detached"])


class TestWheel:
    def test_an_entry_fires_never_early_and_one_tick_late_at_most_or_one_second_if_it_is_far(self) -> None:
        clock = ManualClock()
        wheel = Wheel(clock)
        came: dict[float, float] = {}

        class At:
            def __init__(self, delay_s: float) -> None:
                self.delay_s = delay_s

            def due(self) -> None:
                came[self.delay_s] = clock.now() - began

        began = clock.now()
        delays = [0.0, 0.01, TICK_S, 0.1, 0.15, 1.0, 59.99, 60.0, 60.01, 65.3, 66.0]
        for delay_s in delays:
            wheel.add(At(delay_s), delay_s)
        for _ in range(7_000):
            clock.advance(0.01)
        assert sorted(came) == delays
        for delay_s, at in came.items():
            assert delay_s <= at + 1e-6
            assert at <= delay_s + (TICK_S if delay_s <= 60 else 1.0) + 0.01
        assert clock.pending == len(wheel) == 0

    def test_a_dropped_entry_does_not_fire_and_leaves_no_timer(self) -> None:
        clock = ManualClock()
        wheel = Wheel(clock)
        entry = Recording()
        tick = wheel.add(entry, 5.0)
        assert repr(wheel) == "<Wheel 1 entries>"
        wheel.unlink(entry, tick)
        clock.advance(10)
        assert entry.seen == []
        assert clock.pending == 0

    def test_an_entry_that_raises_does_not_keep_the_others_from_firing(self, caplog: pytest.LogCaptureFixture) -> None:
        clock = ManualClock()
        wheel = Wheel(clock)

        class Failing:
            def due(self) -> None:
                raise RuntimeError

        entries = [Recording() for _ in range(3)]
        wheel.add(entries[0], 1.0)
        wheel.add(Failing(), 1.0)
        for entry in entries[1:]:
            wheel.add(entry, 1.0)
        clock.advance(2)
        assert [len(entry.seen) for entry in entries] == [1, 1, 1]
        assert "a deadline failed" in caplog.text

    def test_many_entries_of_one_tick_are_fired_in_several_turns(self) -> None:
        class Noting(ManualClock):
            def call_later(self, delay_s: float, callback: Callable[[], object]) -> Timer:
                noted[len(fired)] = None
                return super().call_later(delay_s, callback)

        class Costly:
            def __init__(self, number: int) -> None:
                self.number = number
                self.tick = wheel.add(self, 1.0)

            def due(self) -> None:
                fired.append(self.number)
                if len(fired) == 4:
                    # What waits for a later turn can still be dropped, and others can be added meanwhile.
                    late = next(one for one in entries if one.number not in fired)
                    wheel.unlink(late, late.tick)
                    dropped.append(late.number)
                    wheel.add(more, 1.0)

        clock, more = Noting(), Recording()
        wheel = Wheel(clock, lambda: 0.3 * TURN_S * len(fired))
        fired: list[int] = []
        dropped: list[int] = []
        noted: dict[int, None] = {}
        entries = [Costly(number) for number in range(20)]
        clock.advance(1.1)
        assert sorted(fired + dropped) == list(range(20))
        assert list(noted) == [0, 4, 8, 12, 16, 19], "how many had been fired whenever a turn was asked for"
        assert not more.seen
        clock.advance(1.1)
        assert more.seen
        assert clock.pending == len(wheel) == 0
