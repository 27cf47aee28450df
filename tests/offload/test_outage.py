"""While an origin is down, only the probes of its circuit breaker reach it, whatever clients request meanwhile."""

from __future__ import annotations

from tests.offload import flapping, outage


async def test_an_origin_that_is_down_under_load_is_tried_a_few_times_and_used_soon_after_it_is_back() -> None:
    figure = await outage.outage(per_s=200)
    assert figure.asked >= 2_000
    assert 1 <= figure.attempts <= 30
    # Three of five requests need the origin, and the breaker opens at once.
    assert 0.5 * figure.asked <= figure.refused <= 0.6 * figure.asked
    assert 0 < figure.back_s <= 2


async def test_an_origin_that_is_away_again_and_again_is_used_soon_after_each_return() -> None:
    course = await flapping.flapping(readers=15, writers=4, outages=3)
    assert len(course.back_s) == 3
    assert max(course.back_s) <= 2
    assert course.refused_late == 0
    # Each client sends three requests a second.  During an outage of a second, some of its requests are refused, and
    # the first request after the outage is answered soon.
    assert course.refused <= 19 * 3 * 5
    assert course.attempts <= 3 * 30
    assert course.writes >= 40
