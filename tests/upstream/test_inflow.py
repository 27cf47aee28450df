"""Fetched bodies bring no more than may arrive between two looks at the process's memory."""

from __future__ import annotations

import asyncio

from gateway.upstream.incoming import Inflow
from tests.waiting import pass_turns


async def test_any_number_of_bytes_may_arrive_without_a_bound() -> None:
    inflow = Inflow()
    assert inflow.count_bytes(1 << 40)
    inflow.bound(10)
    assert not inflow.count_bytes(10)
    inflow.bound(None)
    assert inflow.count_bytes(1 << 40)


async def test_arrived_bytes_count_until_the_next_bound() -> None:
    inflow = Inflow()
    inflow.bound(10)
    assert inflow.count_bytes(9)
    looked_for = asyncio.ensure_future(inflow.spent.wait())
    await pass_turns()
    assert not inflow.count_bytes(1)
    await looked_for
    inflow.bound(10)
    assert inflow.count_bytes(9)


async def test_bodies_that_wait_go_on_one_after_the_other() -> None:
    inflow = Inflow()
    inflow.bound(0)
    taken: list[int] = []

    async def bring(number: int) -> None:
        await inflow.renewed()
        taken.append(number)
        inflow.count_bytes(4)

    bringing = [asyncio.ensure_future(bring(number)) for number in range(9)]
    await pass_turns()
    assert taken == []
    inflow.bound(10)
    await pass_turns()
    assert taken == [0, 1, 2]
    # A body that is given up while it waits holds none of the others up.
    bringing[3].cancel()
    inflow.bound(5)
    await pass_turns()
    assert taken == [0, 1, 2, 4, 5]
    inflow.bound(None)
    await asyncio.gather(*bringing, return_exceptions=True)
    assert taken == [0, 1, 2, 4, 5, 6, 7, 8]
