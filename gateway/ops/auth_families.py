"""The metric families of authorisation: key sets of issuers, authorisation services, and requests without a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import Metric

from gateway.ops.families import counter, gauge
from gateway.upstream.auth_services import AuthServices


def auth_families(services: AuthServices | None, routes: Iterable[str]) -> Iterator[Metric]:
    """Return the families with their current values.  `routes` are the routes with rules of authorisation."""
    every = services.key_sets.look() if services is not None else ()
    undecided = services.undecided if services is not None else Counter[str]()
    yield counter(
        "durable_gateway_auth_key_fetches",
        "Fetches of key sets from issuers, by issuer and result. Excludes key files.",
        ("issuer", "result"),
        (
            ((one.source.issuer, result), count)
            for one in every
            for result, count in (("fetched", one.fetches), ("failed", one.failures))
        ),
    )
    yield gauge(
        "durable_gateway_auth_key_set_age_seconds",
        "Seconds since the key set of an issuer was last fetched. Excludes key sets that have never been fetched.",
        ("issuer",),
        (((one.source.issuer,), one.age_s) for one in every if one.ring is not None),
    )
    results: Counter[tuple[str, str]] = Counter()
    for one in services.look() if services is not None else ():
        results.update({(one.rule.route, result): count for result, count in one.results.items()})
    yield counter(
        "durable_gateway_auth_subrequests",
        "Requests to authorisation services (forward-auth), by result: allowed, refused, or undecided (no answer in "
        "time, or an answer with another status). Excludes verdicts that were still cached.",
        ("route", "result"),
        results.items(),
    )
    yield counter(
        "durable_gateway_auth_undecided",
        "Requests answered 503 because a key set or an authorisation service could not be reached. Excludes requests "
        "that waited for a verdict and got one.",
        ("route",),
        (((route,), undecided[route]) for route in routes),
    )
