"""The series of origins, beside those of a gateway that has none of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.ops.families import counter, gauge

_ORIGIN: Final = "http://origin"


class _Origins(Collector):
    def collect(self) -> Iterable[Metric]:
        """One origin, which answers."""
        states = (("closed", 1), ("open", 0), ("half_open", 0))
        yield gauge("gateway_origin_up", "1 while it answers.", ("origin",), [((_ORIGIN,), 1)])
        yield gauge(
            "gateway_origin_breaker_state",
            "1 for the state that it is in.",
            ("origin", "state"),
            [((_ORIGIN, state), value) for state, value in states],
        )
        yield counter("gateway_origin_refused", "Not sent while it was open.", ("origin",), [((_ORIGIN,), 0)])


def with_origins(registry: CollectorRegistry) -> CollectorRegistry:
    """The registry, with series of one origin where it has none."""
    if all(family.name != "gateway_origin_up" for family in registry.collect()):
        registry.register(_Origins())
    return registry
