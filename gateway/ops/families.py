"""The metric families for Prometheus: their names, labels, and help texts, which state what they include and exclude.

The values of labels are modes, outcomes, routes, codings, status classes and names of errors.  Clients cannot make new
values.

`rate()` and `increase()` compare two scrapes, so they miss every event before the first scrape of a series.  A ratio of
two series has no value if one of them is missing.  Every series that a dashboard or an alert reads therefore exists
from the start at 0, for each configured route.  Other series begin with their first event.  For histograms, `_TIMED`,
`_FIRST_BYTES` and `_UPSTREAM_FIRST_BYTES` list the modes that exist from the start.  The counters of body bytes exist
from the start for modes whose answers have bodies.  `NO_ROUTE` is the route label of requests without a route.  Most
series of `NO_ROUTE` begin with their first event.  Only the series of requests that cannot be parsed begins at 0 from
the start.  If all series existed from the start, an idle gateway with one route would export 900 more series, which no
dashboard reads.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Final

import aiohttp
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar as SampleExemplar

from gateway.ops.figures import READS, Count, Histogram, RouteFigures
from gateway.ops.state import State
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.tape.costs import RouteUsage
from gateway.telemetry.metrics import NO_ROUTE

Routes = Mapping[str, RouteFigures]
_NOTHING: Final = RouteUsage()
_Children = Iterable[tuple[tuple[str, ...], float]]

_WRITES: Final = (Mode.CREATE, Mode.APPEND, Mode.DELETE)
_TIMED: Final = frozenset({*READS, *_WRITES})
"""The modes whose durations the dashboards show."""
_FIRST_BYTES: Final = frozenset({Mode.CATCHUP})
"""The modes whose time to the first byte the dashboards show."""
_UPSTREAM_FIRST_BYTES: Final = frozenset({Mode.CATCHUP, Mode.HEAD, *_WRITES})
"""The modes whose time to the origin's first byte a dashboard or an alert shows."""
_CODED: Final = frozenset({Mode.CATCHUP, Mode.LONGPOLL})
"""The modes whose answers are compressed."""
_UNPARSED: Final = (Mode.OTHER, Outcome.REFUSED)
"""The mode and the outcome of requests that cannot be parsed."""


def counter(name: str, text: str, labels: tuple[str, ...], children: _Children) -> Metric:
    """Make a family of counters.  `name` has no `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in children:
        family.add_metric(values, value)
    return family


def gauge(name: str, text: str, labels: tuple[str, ...], children: _Children) -> Metric:
    """Make a family of gauges."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in children:
        family.add_metric(values, value)
    return family


def histogram(
    name: str, text: str, labels: tuple[str, ...], children: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Metric:
    """Make a family of histograms, with the exemplars of their buckets."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, spread in children:
        buckets: list[tuple[str, float] | tuple[str, float, SampleExemplar]] = []
        for at, (bound, count) in enumerate(spread.cumulative()):
            latest = spread.exemplars.get(at)
            if latest is None:
                buckets.append((bound, count))
            else:
                exemplar = SampleExemplar({"trace_id": latest.trace_id}, latest.value, latest.at_s)
                buckets.append((bound, count, exemplar))
        family.add_metric(values, buckets, spread.sum_s)
    return family


def by_route(routes: Routes, value: Callable[[RouteFigures], int]) -> _Children:
    """Return the children of a counter whose only label is the route."""
    found = ((route, value(figures)) for route, figures in routes.items())
    return [((route,), count) for route, count in found if count or route != NO_ROUTE]


def _by_mode(
    routes: Routes, spreads: Callable[[RouteFigures], Mapping[Mode, Histogram]], from_start: Container[Mode]
) -> Iterator[tuple[tuple[str, ...], Histogram]]:
    """Return the children of a histogram by mode.  A mode in `from_start` has a child even before its first
    observation."""
    for route, figures in routes.items():
        for mode, spread in spreads(figures).items():
            if spread or (route != NO_ROUTE and mode in from_start):
                yield (mode, route), spread


def client_families(routes: Routes) -> Iterator[Metric]:
    """Clients' requests and their answers."""
    yield counter(
        "durable_gateway_requests",
        "Completed client requests, by mode and outcome. Includes refused and dropped requests, requests that could "
        "not be parsed, and live reads that have ended. Excludes the admin port.",
        ("mode", "outcome", "route"),
        (
            ((mode, outcome, route), end.requests)
            for route, figures in routes.items()
            for (mode, outcome), end in figures.ends.items()
            if end.requests or route != NO_ROUTE or (mode, outcome) == _UNPARSED
        ),
    )
    yield counter(
        "durable_gateway_response_bytes",
        "Body bytes of the answers to the requests in durable_gateway_requests, as sent: after compression, and with "
        "the framing of events. Excludes headers, and live reads that have not ended.",
        ("mode", "outcome", "route"),
        (
            ((mode, outcome, route), end.sent_bytes)
            for route, figures in routes.items()
            for (mode, outcome), end in figures.ends.items()
            if end.requests or (route != NO_ROUTE and mode in READS)
        ),
    )
    yield counter(
        "durable_gateway_response_saved_bytes",
        "Bytes that compression saved in the answers of durable_gateway_response_bytes. Excludes answers that were "
        "not sent completely, and compression by the origin.",
        ("mode", "outcome", "route"),
        (
            ((mode, outcome, route), end.saved_bytes)
            for route, figures in routes.items()
            for (mode, outcome), end in figures.ends.items()
            if end.saved_bytes or (route != NO_ROUTE and mode in _CODED)
        ),
    )
    yield histogram(
        "durable_gateway_request_duration_seconds",
        "Seconds from reading a client's request to the end of the answer. Includes the time for which a live read "
        "waits for data or stays open, and repeated hits, which count as 0. Excludes time in the kernel's buffers.",
        ("mode", "route"),
        _by_mode(routes, lambda figures: figures.durations, _TIMED),
    )
    yield histogram(
        "durable_gateway_first_byte_seconds",
        "Seconds from reading a client's request to writing the first byte of the answer. Includes the heads of SSE "
        "answers, and repeated hits, which count as 0. Excludes requests that ended without an answer.",
        ("mode", "route"),
        _by_mode(routes, lambda figures: figures.first_bytes, _FIRST_BYTES),
    )
    yield gauge(
        "durable_gateway_subscribers",
        "Live clients connected now: waiting long-polls and open SSE connections. Excludes long-polls answered at "
        "once, and relayed live reads.",
        ("mode", "route"),
        (
            ((mode, route), count.value)
            for route, figures in routes.items()
            for mode, count in figures.subscribers.items()
            if count.value or route != NO_ROUTE
        ),
    )
    yield counter(
        "durable_gateway_deliveries",
        "Deliveries of data from a follower to live readers; each reader counts. Excludes data that arriving readers, "
        "or readers that catch up, get from the tape.",
        ("route",),
        by_route(routes, lambda figures: figures.deliveries.value),
    )
    yield histogram(
        "durable_gateway_delivery_delay_seconds",
        "Seconds from storing data of a follower until all live readers of the stream were sent the data. Observed "
        "once per delivery round, however many readers there are. Excludes time in clients' buffers.",
        ("route",),
        (
            ((route,), figures.delivery_delays)
            for route, figures in routes.items()
            if figures.delivery_delays or route != NO_ROUTE
        ),
    )


def upstream_families(routes: Routes) -> Iterator[Metric]:
    """Make the families of requests to origins and of the origins' answers."""
    yield counter(
        "durable_gateway_upstream_requests",
        "Requests sent to origins, by mode. Includes retries, tail probes, the gateway's own HEADs, and repetitions "
        "of a request at another origin. Excludes health checks, probes, and attempts that got no connection.",
        ("mode", "route"),
        (
            ((mode, route), count.value)
            for route, figures in routes.items()
            for mode, count in figures.upstream_requests.items()
            if count.value or route != NO_ROUTE
        ),
    )
    yield histogram(
        "durable_gateway_upstream_first_byte_seconds",
        "Seconds from sending a request to an origin to the head of the reply, including the time to connect and to "
        "send a request body. Includes the time for which the origin holds a long-poll. Excludes requests without a "
        "reply.",
        ("mode", "route"),
        _by_mode(routes, lambda figures: figures.upstream_first_bytes, _UPSTREAM_FIRST_BYTES),
    )
    yield counter(
        "durable_gateway_upstream_replies",
        "Replies of origins, by class of status. Excludes requests without a reply.",
        ("class", "route"),
        (
            ((status, route), count.value)
            for route, figures in routes.items()
            for status, count in figures.upstream_replies.items()
            if count.value or route != NO_ROUTE
        ),
    )
    yield counter(
        "durable_gateway_upstream_failures",
        "Requests to origins that failed, or whose replies were truncated, by error. Excludes 5xx replies "
        "(durable_gateway_upstream_replies) and requests whose clients left.",
        ("error", "route"),
        (
            ((error, route), count.value)
            for route, figures in routes.items()
            for error, count in figures.upstream_failures.items()
            if count.value or route != NO_ROUTE
        ),
    )
    yield counter(
        "durable_gateway_upstream_bytes",
        "Body bytes from origins, including SSE framing and base64. Excludes headers and request bodies.",
        ("mode", "route"),
        (
            ((mode, route), count.value)
            for route, figures in routes.items()
            for mode, count in figures.upstream_bytes.items()
            if count.value or route != NO_ROUTE
        ),
    )
    yield counter(
        "durable_gateway_upstream_retries",
        "Retries: further attempts after the first request to an origin. Excludes reconnects after a planned end.",
        ("route",),
        by_route(routes, lambda figures: figures.retries.value),
    )
    yield counter(
        "durable_gateway_unshared_reads",
        "Reads relayed one by one because the origin's replies may not be shared, by reason: a header of the reply "
        "(Set-Cookie, Cache-Control, Vary) or the reply's form. Excludes reads that are relayed because of the "
        "configuration.",
        ("reason", "route"),
        (
            ((reason, route), value)
            for route, figures in routes.items()
            for reason, value in figures.unshared.items()
            if value or route != NO_ROUTE
        ),
    )
    yield counter(
        "durable_gateway_reconnects",
        "Followers' live requests that ended while the stream was still followed: planned (the request's lifetime was "
        "over, or the follower changed between SSE and long-poll) or lost. Excludes live requests ended because the "
        "last reader had left.",
        ("reason", "route"),
        (
            (("planned" if is_planned else "lost", route), count.value)
            for route, figures in routes.items()
            for is_planned, count in figures.reconnects.items()
            if count.value or route != NO_ROUTE
        ),
    )


def coding_families(coded: Mapping[Coding, tuple[Count, Count, Count]]) -> Iterator[Metric]:
    """Compression: the number of bodies, and their bytes before and after."""
    texts = (
        (
            "durable_gateway_compressions",
            "Bodies that the gateway compressed. Excludes bodies that did not shrink, and reuses of a compressed body.",
        ),
        (
            "durable_gateway_compression_input_bytes",
            "Bytes before compression of the bodies in durable_gateway_compressions. Excludes all other bodies.",
        ),
        (
            "durable_gateway_compression_output_bytes",
            "Bytes after compression of the bodies in durable_gateway_compressions. Excludes all other bodies.",
        ),
    )
    for at, (name, text) in enumerate(texts):
        yield counter(name, text, ("coding",), (((coding,), counts[at].value) for coding, counts in coded.items()))


def state_families(state: State, routes: Iterable[str]) -> Iterator[Metric]:
    """Gauges of the gateway's state."""
    for name, text, value in (
        (
            "durable_gateway_ready",
            "1 while the gateway accepts new clients, else 0. Excludes the start and the drain.",
            1,
        ),
        (
            "durable_gateway_connections",
            "Open client connections, including idle connections and live reads. Excludes the admin port.",
            state.connections,
        ),
        (
            "durable_gateway_lag_bytes",
            "Bytes in this process's buffers that clients have not accepted yet. Excludes the kernel's buffers.",
            state.unsent.total,
        ),
        (
            "durable_gateway_lag_most_bytes",
            "Bytes in the buffers of this process for the one client with the most. Excludes the kernel's buffers.",
            state.unsent.most,
        ),
        (
            "durable_gateway_followed_streams",
            "Streams with live readers, or with a follower for other reads. Excludes relayed live reads.",
            state.followed,
        ),
        (
            "durable_gateway_background_tasks",
            "Running tasks of the engine: flights, followers, tail probes. Excludes tasks of connections.",
            state.background_tasks,
        ),
    ):
        yield gauge(name, text, (), [((), float(state.is_ready) if name == "durable_gateway_ready" else value)])
    yield from _gauges_by_route(
        sorted({*routes, *state.routes()}),
        (
            (
                "durable_gateway_flights",
                "Shared fetches in progress, including HEADs and tail probes. Excludes followers and relayed requests.",
                lambda route: state.flights.get(route, 0),
            ),
            (
                "durable_gateway_waiters",
                "Requests that wait for a shared fetch or read its body. Excludes readers that wait for a follower.",
                lambda route: state.waiters.get(route, 0),
            ),
            (
                "durable_gateway_tapes",
                "Tapes (streams in memory), including empty tapes. Excludes streams that are only relayed.",
                lambda route: state.holdings.get(route, _NOTHING).tapes,
            ),
            (
                "durable_gateway_tape_blocks",
                "Blocks of the tapes. A block is a run of bytes. Excludes compressed copies.",
                lambda route: state.holdings.get(route, _NOTHING).blocks,
            ),
            (
                "durable_gateway_tape_bytes",
                "Bytes of the budget that tapes use, including their indexes. Excludes compressed copies.",
                lambda route: state.holdings.get(route, _NOTHING).cost,
            ),
        ),
    )


def _gauges_by_route(
    routes: Iterable[str], texts: Iterable[tuple[str, str, Callable[[str], float]]]
) -> Iterator[Metric]:
    for name, text, value in texts:
        held = [((route,), value(route)) for route in routes]
        yield gauge(name, text, ("route",), [one for one in held if one[1] or one[0] != (NO_ROUTE,)])


def route_family(routes: Routes, protocols: Mapping[str, str]) -> Metric:
    """Return the routes with their protocols, for selection in dashboards."""
    children = [((route, protocols[route]), 1) for route in routes if route in protocols]
    return gauge(
        "durable_gateway_route_info",
        "Always 1. The labels name a configured route and the protocol of its clients: durable-streams or s2.",
        ("route", "protocol"),
        children,
    )


def build_family(version: str) -> Metric:
    """Return the versions of the gateway, Python and aiohttp."""
    versions = (version, platform.python_version(), aiohttp.__version__)
    return gauge(
        "durable_gateway_build_info",
        "Always 1. The labels name the versions of the gateway, Python and aiohttp.",
        ("version", "python", "aiohttp"),
        [(versions, 1)],
    )
