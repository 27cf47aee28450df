"""The turns of calm: they end when the machine itself has caused trouble."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.chaos.operators import undisturbed


async def test_a_calm_is_over_once_the_process_was_stopped() -> None:
    waiting = asyncio.ensure_future(undisturbed(60.0))
    await asyncio.sleep(0)
    time.sleep(0.6)  # noqa: ASYNC251
    assert not await asyncio.wait_for(waiting, 20.0)


async def test_a_calm_lasts_until_its_time_is_over() -> None:
    for _ in range(20):
        # A busy machine may stop this process, too.
        if await undisturbed(0.06):
            return
    pytest.fail("no calm lasts")
