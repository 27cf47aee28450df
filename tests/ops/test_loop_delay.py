"""The delay of the loop, on a clock that the test delays."""

from __future__ import annotations

from gateway.aio.clock import ManualClock
from gateway.ops.loop_delay import INTERVAL_S, LoopDelay


class LateClock(ManualClock):
    """A manual clock whose callbacks run `late_s` after their time, like those of a busy loop."""

    late_s = 0.0

    def now(self) -> float:
        return super().now() + self.late_s


def test_a_punctual_loop_has_no_delay_and_a_late_one_counts_it_once() -> None:
    clock = LateClock()
    delay = LoopDelay(clock)
    delay.start()
    clock.advance(INTERVAL_S * 3.5)
    assert delay.delays.count == 3
    assert delay.delays.sum_s < 1e-6
    clock.late_s = 0.25
    clock.advance(INTERVAL_S)
    assert delay.delays.count == 4
    assert 0.2 < delay.delays.sum_s < 0.3


def test_close_leaves_no_timer_behind() -> None:
    clock = ManualClock()
    delay = LoopDelay(clock)
    delay.start()
    assert clock.pending == 1
    delay.close()
    delay.close()
    assert clock.pending == 0
