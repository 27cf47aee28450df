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
        "Requests that ended, by the tenant of their principal and the issuer that named it; tenants beyond 256 are "
        "one, others. Excludes refusals, failures, and principals without a tenant.",
        _LABELS,
        ((labels, usage.requests) for labels, usage in known),
    )
    yield counter(
        "durable_gateway_tenant_sent_bytes",
        "Body bytes handed to clients, by tenant. Excludes live reads that go on.",
        _LABELS,
        ((labels, usage.sent_bytes) for labels, usage in known),
    )
    yield counter(
        "durable_gateway_tenant_live_seconds",
        "Seconds of live reads that ended, by tenant. Excludes live reads that go on.",
        _LABELS,
        ((labels, usage.live_s) for labels, usage in known),
    )
