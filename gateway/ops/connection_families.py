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
        "Connections to origins, in the pool of live requests or the pool of all others, in use or idle. Excludes "
        "those being opened.",
        ("pool", "state"),
        [
            *(((pool, "busy"), float(seen.busy)) for pool, seen in pools.items()),
            *(((pool, "idle"), float(seen.idle)) for pool, seen in pools.items()),
        ],
    )
    yield gauge(
        "durable_gateway_upstream_connection_oldest_seconds",
        "Age of the oldest of those connections, 0 where there is none. Excludes what "
        "durable_gateway_upstream_connections excludes.",
        ("pool",),
        (((pool,), seen.oldest_s) for pool, seen in pools.items()),
    )
    yield gauge(
        "durable_gateway_upstream_connection_mean_seconds",
        "Mean age of those connections, 0 where there is none. Excludes what "
        "durable_gateway_upstream_connections excludes.",
        ("pool",),
        (((pool,), seen.mean_s) for pool, seen in pools.items()),
    )
    yield gauge(
        "durable_gateway_upstream_slots",
        "Connections to origins, or streams of HTTP/2 connections, taken by requests, by what they are for: one is "
        "taken before it is opened. Excludes idle ones.",
        ("purpose",),
        (((purpose.value,), taken) for purpose, taken in slots.taken.items()),
    )
    yield gauge(
        "durable_gateway_upstream_queue",
        "Requests that wait for a connection to an origin, by what they are for. Excludes live ones, which never wait.",
        ("purpose",),
        (((purpose.value,), waiting) for purpose, waiting in slots.waiting.items()),
    )
    yield counter(
        "durable_gateway_upstream_refused",
        "Requests that got no connection to an origin: queue, because upstream_queue waited; client, because too many "
        "of their client waited; time, because they had waited for upstream_wait_s. Excludes requests that an open "
        "circuit breaker refused.",
        ("reason",),
        (((reason.value,), count) for reason, count in slots.refused.items()),
    )
    yield counter(
        "durable_gateway_upstream_waited",
        "Requests that had to wait for a connection to an origin: connections, because upstream_connections or a share "
        "of them were taken; client, because their client network had client_upstream_requests under way. Excludes "
        "requests that were refused at once.",
        ("reason",),
        (((reason.value,), count) for reason, count in slots.waited.items()),
    )
