"""The metric families of usage by tenant.  Each tenant's series begin with its first request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric

from gateway.auth.usage import OTHERS, Usage
from gateway.ops.families import counter

_LABELS = ("tenant", "issuer")


def tenant_families(usages: Iterable[tuple[tuple[str, str], Usage]]) -> Iterator[Metric]:
    """Return the requests, bytes and live-read time of each tenant."""
    known = [(("others", "") if key == OTHERS else (key[1], key[0]), usage) for key, usage in usages]
    yield counter(
        "durable_gateway_tenant_requests",
        "Completed requests, by the tenant of the principal and the issuer that named the tenant. All tenants after "
        "the first 256 share the name others. Excludes refusals, failures, and principals without a tenant.",
        _LABELS,
        ((labels, usage.requests) for labels, usage in known),
    )
    yield counter(
        "durable_gateway_tenant_sent_bytes",
        "Body bytes sent to clients, by tenant. Excludes live reads in progress.",
        _LABELS,
        ((labels, usage.sent_bytes) for labels, usage in known),
    )
    yield counter(
        "durable_gateway_tenant_live_seconds",
        "Duration of completed live reads in seconds, by tenant. Excludes live reads in progress.",
        _LABELS,
        ((labels, usage.live_s) for labels, usage in known),
    )
