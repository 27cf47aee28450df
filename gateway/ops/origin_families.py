"""The metric families of origins: whether each origin is up, and the requests sent and not sent to each origin.

The label `origin` has the scheme, host and port of an origin of a route, so its values are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge
from gateway.upstream.breaker import BreakerState
from gateway.upstream.origin_pool import OriginState


def origin_families(origins: Sequence[OriginState]) -> Iterator[Metric]:
    """Gauges and counters of the origins."""
    gauges: tuple[tuple[str, str, Callable[[OriginState], float]], ...] = (
        (
            "durable_gateway_origin_up",
            (
                "1 while requests are sent to the origin as usual: the circuit breaker is closed, and no health check "
                "has ejected the origin. Excludes whether the origin's answers are correct."
            ),
            lambda origin: float(origin.is_up),
        ),
        (
            "durable_gateway_origin_ejected",
            "1 while health checks consider the origin to be down, else 0. Excludes the origin's circuit breaker.",
            lambda origin: float(origin.is_ejected),
        ),
        (
            "durable_gateway_origin_in_flight",
            "Requests to the origin in progress, including live requests. Excludes health checks.",
            lambda origin: origin.in_flight,
        ),
        (
            "durable_gateway_origin_waiting",
            "Requests that wait for a connection or for the head of the reply. Excludes live requests.",
            lambda origin: origin.waiting,
        ),
    )
    for name, text, value in gauges:
        yield gauge(name, text, ("origin",), (((origin.origin,), value(origin)) for origin in origins))
    yield gauge(
        "durable_gateway_origin_breaker_state",
        "1 for the present state of the origin's circuit breaker, 0 for the other states. Excludes ejection by health "
        "checks.",
        ("origin", "state"),
        (((origin.origin, state.value), float(origin.state is state)) for origin in origins for state in BreakerState),
    )
    yield counter(
        "durable_gateway_origin_breaker_transitions",
        "How often the origin's circuit breaker has entered each state. Excludes the first state.",
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
            "Requests to the origin, including requests that failed to connect. Excludes health checks.",
            lambda origin: origin.requests,
        ),
        (
            "durable_gateway_origin_failures",
            (
                "Requests that count as failures of the origin: no connection, timeout, no valid reply, truncated "
                "reply, 502, 503, 504. Excludes 500, 4xx, and requests whose clients left."
            ),
            lambda origin: origin.failures,
        ),
        (
            "durable_gateway_origin_refused",
            (
                "Requests refused because the origin's circuit breaker was open. Excludes requests that went to "
                "another origin of the route instead."
            ),
            lambda origin: origin.refused,
        ),
        (
            "durable_gateway_origin_overflows",
            "Requests refused because waiting_requests requests were waiting already. Excludes live requests.",
            lambda origin: origin.overflows,
        ),
        (
            "durable_gateway_origin_redirects",
            (
                "Requests that another origin redirected to this origin, the leader of the stream. Excludes requests "
                "sent directly to a leader that is known from an earlier redirect."
            ),
            lambda origin: origin.redirects,
        ),
        (
            "durable_gateway_origin_ejections",
            "How often health checks have ejected the origin. Excludes openings of the origin's circuit breaker.",
            lambda origin: origin.ejections,
        ),
    )
    for name, text, value in counters:
        yield counter(name, text, ("origin",), (((origin.origin,), value(origin)) for origin in origins))
    yield counter(
        "durable_gateway_origin_health_checks",
        "Health checks of the origin, by result. Excludes clients' requests.",
        ("origin", "result"),
        (
            ((origin.origin, "good" if is_good else "bad"), float(count))
            for origin in origins
            for is_good, count in origin.checks.items()
        ),
    )
