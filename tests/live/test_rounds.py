"""Rounds of deliveries on a manual clock."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.aio.clock import ManualClock
from gateway.live.rounds import Rounds
from gateway.ops.metrics import Metrics


class Bench:
    """Rounds that are recorded, and the clock they go by."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics(CollectorRegistry(), routes=("a",))
        self.rounds = Rounds(self.metrics, self.clock.now, "a")

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"route": "a"})


def test_a_round_lasts_from_the_first_news_to_the_last_reader() -> None:
    bench = Bench()
    bench.rounds.came()
    bench.clock.advance(0.25)
    bench.rounds.came()
    bench.clock.advance(0.25)
    bench.rounds.handed(40)
    assert bench.value("durable_gateway_deliveries_total") == 40
    assert bench.value("durable_gateway_delivery_delay_seconds_count") == 1
    assert bench.value("durable_gateway_delivery_delay_seconds_sum") == 0.5


def test_a_look_without_news_is_no_round_nor_is_news_that_nobody_hears() -> None:
    bench = Bench()
    bench.rounds.handed(40)
    bench.rounds.came()
    bench.rounds.handed(0)
    bench.clock.advance(60.0)
    bench.rounds.came()
    bench.rounds.handed(1)
    assert bench.value("durable_gateway_deliveries_total") == 1
    assert bench.value("durable_gateway_delivery_delay_seconds_sum") == 0
