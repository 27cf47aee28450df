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
        "Fetches of an issuer's key set by its URL, by result. Excludes key files.",
        ("issuer", "result"),
        (
            ((one.source.issuer, result), count)
            for one in every
            for result, count in (("fetched", one.fetches), ("failed", one.failures))
        ),
    )
    yield gauge(
        "durable_gateway_auth_key_set_age_seconds",
        "Time since an issuer's key set was last fetched. Excludes key sets that never were.",
        ("issuer",),
        (((one.source.issuer,), one.age_s) for one in every if one.ring is not None),
    )
    results: Counter[tuple[str, str]] = Counter()
    for one in services.look() if services is not None else ():
        results.update({(one.rule.route, result): count for result, count in one.results.items()})
    yield counter(
        "durable_gateway_auth_subrequests",
        "Requests to authorisation services (forward-auth), by result: allowed, refused, or undecided, when the "
        "service did not answer in time, or with another status. Excludes verdicts that were kept.",
        ("route", "result"),
        results.items(),
    )
    yield counter(
        "durable_gateway_auth_undecided",
        "Requests answered 503 because they could not be authorised: a key set or a service was not reached. Excludes "
        "requests that waited and were decided.",
        ("route",),
        (((route,), undecided[route]) for route in routes),
    )
