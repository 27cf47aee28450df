"""Repeated reads and missing streams cost the origin few requests, by its own counters.

Every case checks all bytes of all clients before it returns its figure; `make offload` runs them at full length.
"""

from __future__ import annotations

import pytest

from tests.offload import mixed, spared
from tests.offload.stage import BINARY, JSON, use_workers


@pytest.mark.parametrize("content_type", [JSON, BINARY])
async def test_clients_that_arrive_one_after_another_share_the_firsts_requests(content_type: str) -> None:
    figure = await spared.newcomers(content_type, clients=250)
    assert figure.asked >= 2 * 250
    assert figure.live_requests == 1
    assert figure.reads <= 5


async def test_a_hot_tail_costs_the_origin_a_few_requests_and_then_one_live_one() -> None:
    figure = await spared.hot_tail()
    assert figure.asked == 10_000
    assert figure.live_requests == 1
    assert figure.reads <= 15


async def test_missing_streams_cost_about_one_request_each() -> None:
    figure = await spared.unknown_names()
    assert figure.asked == 1_000
    assert figure.reads <= 110


async def test_a_cold_read_is_one_request() -> None:
    figure = await spared.cold_streams(streams=300)
    assert figure.asked == figure.reads == 300
    assert figure.live_requests == 0


async def test_two_percent_of_mixed_live_load_reaches_the_origin() -> None:
    figure = await mixed.mixed(seconds=15)
    assert figure.live_peak == 12
    assert figure.asked >= 2_000
    assert figure.reads <= 0.02 * figure.asked


async def test_readers_who_come_together_cost_four_workers_hardly_more_than_one_process() -> None:
    workers, streams = 4, 6
    use_workers(workers)
    try:
        figure = await mixed.mixed(readers=90, streams=streams, seconds=mixed.STEP_S)
    finally:
        use_workers(0)
    assert figure.live_requests == streams
    assert figure.fetches <= 2 * streams + workers, "the bytes of each stream, and a HEAD for its live request"
