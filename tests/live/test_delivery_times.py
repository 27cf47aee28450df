"""Delivery rounds on a manual clock."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from gateway.aio.clock import ManualClock
from gateway.live.topic import DeliveryTimes
from gateway.ops.metrics import Metrics


class Bench:
    """DeliveryTimes with real metrics on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics(CollectorRegistry(), routes=("a",))
        self.rounds = DeliveryTimes(self.metrics, self.clock.now, "a")

    def value(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"route": "a"})


def test_a_round_lasts_from_the_first_arrival_to_the_last_reader() -> None:
    bench = Bench()
    bench.rounds.arrived()
    bench.clock.advance(0.25)
    bench.rounds.arrived()
    bench.rounds.begin()
    bench.clock.advance(0.25)
    bench.rounds.delivered(40)
    assert bench.value("durable_gateway_deliveries_total") == 40
    assert bench.value("durable_gateway_delivery_delay_seconds_count") == 1
    assert bench.value("durable_gateway_delivery_delay_seconds_sum") == 0.5


def test_neither_a_delivery_without_bytes_nor_bytes_without_readers_make_a_round() -> None:
    bench = Bench()
    bench.rounds.begin()
    bench.rounds.delivered(40)
    bench.rounds.arrived()
    bench.rounds.begin()
    bench.rounds.delivered(0)
    bench.clock.advance(60.0)
    bench.rounds.arrived()
    bench.rounds.begin()
    bench.rounds.delivered(1)
    assert bench.value("durable_gateway_deliveries_total") == 1
    assert bench.value("durable_gateway_delivery_delay_seconds_sum") == 0


def test_bytes_that_arrive_during_a_round_count_for_the_next_round() -> None:
    bench = Bench()
    bench.rounds.arrived()
    bench.rounds.begin()
    bench.clock.advance(1.0)
    bench.rounds.arrived()
    bench.rounds.delivered(10)
    bench.rounds.begin()
    bench.clock.advance(0.5)
    bench.rounds.delivered(10)
    assert bench.value("durable_gateway_deliveries_total") == 20
    assert bench.value("durable_gateway_delivery_delay_seconds_sum") == 1.5
