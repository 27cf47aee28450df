"""The metric families of origins: whether each origin is up, and the requests sent and not sent to each origin.

The label `origin` has the scheme, host and port of an origin of a route, so its values are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_state import OriginState


def origin_families(origins: Sequence[OriginState]) -> Iterator[Metric]:
    """Gauges and counters of the origins."""
    gauges: tuple[tuple[str, str, Callable[[OriginState], float]], ...] = (
        (
            "durable_gateway_origin_up",
            (
                "1 while requests are sent to the origin as usual: its circuit breaker is closed and no health check "
                "has ejected it. Excludes whether its answers are correct."
            ),
            lambda origin: float(origin.is_up),
        ),
        (
            "durable_gateway_origin_ejected",
            "1 while health checks consider the origin down. Excludes its circuit breaker.",
            lambda origin: float(origin.is_ejected),
        ),
        (
            "durable_gateway_origin_in_flight",
            "Unfinished requests to the origin, live ones included. Excludes health checks.",
            lambda origin: origin.in_flight,
        ),
        (
            "durable_gateway_origin_waiting",
            "Requests that wait for the head of the origin's answer, or for a connection. Excludes live ones.",
            lambda origin: origin.waiting,
        ),
    )
    for name, text, value in gauges:
        yield gauge(name, text, ("origin",), (((origin.origin,), value(origin)) for origin in origins))
    yield gauge(
        "durable_gateway_origin_breaker_state",
        "1 for the state of the origin's circuit breaker, 0 for the others. Excludes ejection.",
        ("origin", "state"),
        (((origin.origin, state.value), float(origin.state is state)) for origin in origins for state in BreakerState),
    )
    yield counter(
        "durable_gateway_origin_breaker_transitions",
        "Times that the origin's circuit breaker entered a state. Excludes its first state.",
        ("origin", "state"),
        (
            ((origin.origin, state.value), float(count))
            for origin in origins
            for state, count in origin.transitions.items()
        ),
    )
    counters: tuple[tuple[str, str, Callable[[OriginState], float]], ...] = (
        (
            "durable_gateway_origin_requests",
            "Requests sent to the origin, those that could not connect included. Excludes health checks.",
            lambda origin: origin.requests,
        ),
        (
            "durable_gateway_origin_failures",
            (
                "Requests to the origin that count as failures: no connection, timeout, no valid answer, 502, 503, "
                "504. Excludes 500, 4xx and requests whose clients left."
            ),
            lambda origin: origin.failures,
        ),
        (
            "durable_gateway_origin_refused",
            (
                "Requests that were not sent because the origin's circuit breaker was open. Excludes those that "
                "another origin of the route took."
            ),
            lambda origin: origin.refused,
        ),
        (
            "durable_gateway_origin_overflows",
            "Requests that were not sent because waiting_requests waited for the origin. Excludes live ones.",
            lambda origin: origin.overflows,
        ),
        (
            "durable_gateway_origin_redirects",
            (
                "Requests that were sent to the origin because another named it as the stream's leader. Excludes those "
                "that went there directly because of an earlier redirect."
            ),
            lambda origin: origin.redirects,
        ),
        (
            "durable_gateway_origin_ejections",
            "Times that health checks ejected the origin. Excludes openings of its circuit breaker.",
            lambda origin: origin.ejections,
        ),
    )
    for name, text, value in counters:
        yield counter(name, text, ("origin",), (((origin.origin,), value(origin)) for origin in origins))
    yield counter(
        "durable_gateway_origin_health_checks",
        "Health checks of the origin, by result. Excludes the results of requests.",
        ("origin", "result"),
        (
            ((origin.origin, "good" if is_good else "bad"), float(count))
            for origin in origins
            for is_good, count in origin.checks.items()
        ),
    )
