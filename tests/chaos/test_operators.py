"""The turns of calm: they end when the machine itself has caused trouble."""

from __future__ import annotations

import pytest

from gateway.aio.clock import ManualClock
from tests.chaos.operators import undisturbed


@pytest.mark.parametrize(("late_s", "is_calm"), [(0.0, True), (0.3, True), (0.5, False)])
async def test_a_calm_lasts_until_its_time_is_over_or_the_process_was_stopped(late_s: float, is_calm: bool) -> None:
    clock = ManualClock()
    began = clock.now()
    pauses = 0

    async def pause(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        # The machine goes on with this process late, once.
        clock.advance(seconds + late_s * (pauses == 3))

    assert await undisturbed(1.0, clock.now, pause) == is_calm
    # It ends in time, or at once.
    assert is_calm == (1.0 <= clock.now() - began < 1.1)
