"""The counts of refusals by limits per client and by rate limits, and their metric families.  Every series starts at
0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.metrics_core import Metric

from gateway.config.rate_limits import RateLimitConfig
from gateway.ops.families import counter

_CLIENT_LIMITS: Final = (
    "absent_per_s",
    "client_body_timeout_s",
    "client_followed_streams",
    "client_header_timeout_s",
    "client_idle_timeout_s",
    "client_live_reads",
    "client_min_rate",
    "client_new_streams_per_s",
    "client_refusals_per_s",
    "followed_streams",
    "max_request_bytes",
)


class LimitFigures:
    """Refusals by limit.  Refusals by `client_connections` are counted with the refused connections."""

    def __init__(self) -> None:
        self.client_limited: Counter[str] = Counter(dict.fromkeys(_CLIENT_LIMITS, 0))
        """Refusals by the limit's key in the section `limits`."""
        self.rate_limited: Counter[tuple[str, str]] = Counter()
        """Refusals by the limit's name and the route."""

    def configure(self, limits: Iterable[RateLimitConfig], routes: Iterable[str]) -> None:
        """Keep a series for each of these limits on each of its routes, and none for removed limits."""
        every = tuple(routes)
        wanted = [(limit.name, route) for limit in limits for route in limit.routes or every]
        self.rate_limited = Counter({key: self.rate_limited[key] for key in wanted})

    def families(self) -> Iterator[Metric]:
        """Return the families with their current values."""
        yield counter(
            "durable_gateway_client_limited",
            "Requests refused, connections cut and client networks banned, by the configuration key of the limit: a "
            "client exceeded its share, sent too much or too slowly, or all clients together reached a limit. "
            "Excludes refused connections (durable_gateway_connections_refused), requests that had to wait, and "
            "configured rate limits.",
            ("limit",),
            (((limit,), n) for limit, n in self.client_limited.items()),
        )
        yield counter(
            "durable_gateway_rate_limited",
            "Requests answered 429 because of a configured rate limit, by the limit's name. Excludes the limits per "
            "client that always apply.",
            ("limit", "route"),
            self.rate_limited.items(),
        )
