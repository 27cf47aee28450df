"""A deadline fires when it is due, and sets few timers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from math import inf
from typing import cast

from gateway.aio.clock import ManualClock, Timer
from gateway.aio.timers import Deadline


class Loop:
    """The part of an event loop that a deadline needs, on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock(now=0.0)
        self.timers = 0
        self.time = self.clock.now

    def call_at(self, when: float, callback: Callable[[], object], *, context: Context) -> Timer:
        self.timers += 1
        return self.clock.call_later(when - self.clock.now(), callback)


class Bench:
    def __init__(self) -> None:
        self.loop = Loop()
        self.due: list[float] = []
        self.deadline = Deadline(cast(asyncio.AbstractEventLoop, self.loop), lambda: self.due.append(self.loop.time()))


def test_it_fires_once_when_it_is_due() -> None:
    bench = Bench()
    bench.deadline.move(5.0)
    bench.loop.clock.advance(20.0)
    assert bench.due == [5.0]


def test_it_may_be_moved_both_ways_and_cancelled() -> None:
    bench = Bench()
    bench.deadline.move(5.0)
    bench.deadline.move(9.0)
    bench.loop.clock.advance(8.0)
    assert bench.due == []
    bench.deadline.move(8.5)
    bench.loop.clock.advance(0.5)
    assert bench.due == [8.5]
    bench.deadline.move(12.0)
    bench.deadline.at = inf
    bench.loop.clock.advance(10.0)
    bench.deadline.move(30.0)
    bench.deadline.clear()
    bench.loop.clock.advance(60.0)
    assert bench.due == [8.5]
    assert not bench.loop.clock.pending


def test_a_busy_connection_sets_few_timers() -> None:
    bench = Bench()
    for _ in range(10_000):
        bench.deadline.move(bench.loop.time() + 30.0)
        bench.deadline.move(bench.loop.time() + 15.0)
        bench.loop.clock.advance(0.01)
    assert bench.loop.timers <= 20
    assert bench.due == []
