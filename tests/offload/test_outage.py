"""Only the probes of its circuit breaker reach an origin that is down, whatever clients request meanwhile."""

from __future__ import annotations

from tests.offload import outage


async def test_an_origin_that_is_down_under_load_is_tried_a_few_times() -> None:
    figure = await outage.outage(per_s=200)
    assert figure.asked >= 2_000
    assert 1 <= figure.attempts <= 30
