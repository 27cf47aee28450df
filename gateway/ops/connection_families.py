"""The metric families of connections to origins: the number of connections by purpose, and the requests that wait for a
connection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge
from gateway.upstream.connection_pool import Connections
from gateway.upstream.slots import SlotUse


def connection_families(pools: Mapping[str, Connections], slots: SlotUse) -> Iterator[Metric]:
    """Gauges of connections by pool, and gauges and counters of slots by purpose.  A slot is the right to use one
    connection.
    """
    yield gauge(
        "durable_gateway_upstream_connections",
        "Connections to origins, by pool (live requests, or all other requests) and state (busy or idle). Excludes "
        "connections that are being made.",
        ("pool", "state"),
        [
            *(((pool, "busy"), float(seen.busy)) for pool, seen in pools.items()),
            *(((pool, "idle"), float(seen.idle)) for pool, seen in pools.items()),
        ],
    )
    yield gauge(
        "durable_gateway_upstream_connection_oldest_seconds",
        "Age of the oldest connection in a pool, in seconds; 0 for an empty pool. Excludes connections that are being "
        "made.",
        ("pool",),
        (((pool,), seen.oldest_s) for pool, seen in pools.items()),
    )
    yield gauge(
        "durable_gateway_upstream_connection_mean_seconds",
        "Mean age of the connections in a pool, in seconds; 0 for an empty pool. Excludes connections that are being "
        "made.",
        ("pool",),
        (((pool,), seen.mean_s) for pool, seen in pools.items()),
    )
    yield gauge(
        "durable_gateway_upstream_slots",
        "Requests that hold a connection to an origin, or a stream of an HTTP/2 connection, by purpose. Includes "
        "requests whose connection is being made. Excludes idle connections.",
        ("purpose",),
        (((purpose.value,), taken) for purpose, taken in slots.taken.items()),
    )
    yield gauge(
        "durable_gateway_upstream_queue",
        "Requests that wait for a connection to an origin, by purpose. Excludes live requests, which never wait.",
        ("purpose",),
        (((purpose.value,), waiting) for purpose, waiting in slots.waiting.items()),
    )
    yield counter(
        "durable_gateway_upstream_refused",
        "Requests that got no connection to an origin, by reason: queue (upstream_queue requests were waiting), "
        "client (too many requests of the same client were waiting), time (the request had waited for "
        "upstream_wait_s). Excludes requests refused because of an open circuit breaker.",
        ("reason",),
        (((reason.value,), count) for reason, count in slots.refused.items()),
    )
    yield counter(
        "durable_gateway_upstream_waited",
        "Requests that had to wait for a connection to an origin, by reason: connections (all upstream_connections, "
        "or a share of them, were in use), client (the client network had client_upstream_requests in progress). "
        "Excludes requests refused at once.",
        ("reason",),
        (((reason.value,), count) for reason, count in slots.waited.items()),
    )
