"""The series as Prometheus reads them: a name, labels, and a help text that says what is counted in and what is not.

Labels are modes, outcomes, routes, codings, status classes and names of errors: none can grow with what clients ask.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import aiohttp
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar as SampleExemplar

from gateway.ops.figures import Count, Histogram, RouteFigures
from gateway.ops.state import State
from gateway.protocol.coding import Coding
from gateway.tape.store import RouteUsage

Routes = Mapping[str, RouteFigures]
_NOTHING: Final = RouteUsage()
_Children = Iterable[tuple[tuple[str, ...], float]]


def counter(name: str, text: str, labels: tuple[str, ...], children: _Children) -> Metric:
    """A family of counters; `name` without its `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in children:
        family.add_metric(values, value)
    return family


def gauge(name: str, text: str, labels: tuple[str, ...], children: _Children) -> Metric:
    """A family of gauges."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in children:
        family.add_metric(values, value)
    return family


def histogram(
    name: str, text: str, labels: tuple[str, ...], children: Iterable[tuple[tuple[str, ...], Histogram]]
) -> Metric:
    """A family of histograms, with the exemplars that their buckets have."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, spread in children:
        buckets: list[tuple[str, float] | tuple[str, float, SampleExemplar]] = []
        for at, (bound, count) in enumerate(spread.cumulative()):
            shown = spread.exemplars.get(at)
            if shown is None:
                buckets.append((bound, count))
            else:
                exemplar = SampleExemplar({"trace_id": shown.trace_id}, shown.value, shown.at_s)
                buckets.append((bound, count, exemplar))
        family.add_metric(values, buckets, spread.sum_s)
    return family


def client_families(routes: Routes) -> Iterator[Metric]:
    """What clients asked, and how they were answered."""
    yield counter(
        "gateway_requests",
        "Client requests that have ended, by what was asked and how it was answered. Includes refused and dropped "
        "ones, those that could not be parsed and, once they end, live reads; excludes the admin port.",
        ("mode", "outcome", "route"),
        (
            ((mode, outcome, route), end.requests)
            for route, figures in routes.items()
            for (mode, outcome), end in figures.ends.items()
        ),
    )
    yield counter(
        "gateway_response_bytes",
        "Body bytes of the answers to the requests in gateway_requests, as they were sent, codings and framing of "
        "events included. Excludes headers and, until they end, live reads.",
        ("mode", "outcome", "route"),
        (
            ((mode, outcome, route), end.sent_bytes)
            for route, figures in routes.items()
            for (mode, outcome), end in figures.ends.items()
        ),
    )
    yield counter(
        "gateway_response_saved_bytes",
        "How many more body bytes the answers in gateway_response_bytes had before they were coded. Excludes answers "
        "that were not sent whole, and what was coded by the origin.",
        ("mode", "outcome", "route"),
        (
            ((mode, outcome, route), end.saved_bytes)
            for route, figures in routes.items()
            for (mode, outcome), end in figures.ends.items()
        ),
    )
    yield histogram(
        "gateway_request_duration_seconds",
        "Seconds from reading a client's request to the end of its answer. Includes the time a live read waited for "
        "data or an SSE connection lived, and repeated hits, at 0; excludes time in the kernel's buffers.",
        ("mode", "route"),
        (((mode, route), spread) for route, figures in routes.items() for mode, spread in figures.durations.items()),
    )
    yield histogram(
        "gateway_first_byte_seconds",
        "Seconds from reading a client's request to writing the first byte of its answer: of a long-poll the answer, "
        "of SSE the head. Includes repeated hits, at 0; excludes requests that ended without an answer.",
        ("mode", "route"),
        (((mode, route), spread) for route, figures in routes.items() for mode, spread in figures.first_bytes.items()),
    )
    yield gauge(
        "gateway_subscribers",
        "Live clients connected now: waiting long-polls and open SSE connections. Excludes long-polls that are "
        "answered at once and live reads that are relayed.",
        ("mode", "route"),
        (
            ((mode, route), count.value)
            for route, figures in routes.items()
            for mode, count in figures.subscribers.items()
        ),
    )
    yield counter(
        "gateway_deliveries",
        "Times that what a follower had brought was handed to a live reader. Excludes what readers were sent from the "
        "tape when they came or caught up.",
        ("route",),
        (((route,), figures.deliveries.value) for route, figures in routes.items()),
    )
    yield histogram(
        "gateway_delivery_delay_seconds",
        "Seconds from laying what a follower had brought until the last live reader of the stream was handed it. Once "
        "for each such round, however many readers it has; excludes time in clients' buffers.",
        ("route",),
        (((route,), figures.delivery_delays) for route, figures in routes.items()),
    )


def upstream_families(routes: Routes) -> Iterator[Metric]:
    """What the origins were asked, and how they answered."""
    yield counter(
        "gateway_upstream_requests",
        "Requests sent to origins, by what was asked of them. Includes retries, tail probes and the gateway's own "
        "HEADs, and each origin that a request went on to; excludes health checks, probes and connections not used.",
        ("mode", "route"),
        (
            ((mode, route), count.value)
            for route, figures in routes.items()
            for mode, count in figures.upstream_requests.items()
        ),
    )
    yield histogram(
        "gateway_upstream_first_byte_seconds",
        "Seconds from sending a request to an origin to the head of its answer, connecting and request bodies "
        "included. Includes the time the origin held a long-poll; excludes requests that were not answered.",
        ("mode", "route"),
        (
            ((mode, route), spread)
            for route, figures in routes.items()
            for mode, spread in figures.upstream_first_bytes.items()
        ),
    )
    yield counter(
        "gateway_upstream_replies",
        "Answers of origins by class of status. Excludes requests that came to nothing.",
        ("class", "route"),
        (
            ((status, route), count.value)
            for route, figures in routes.items()
            for status, count in figures.upstream_replies.items()
        ),
    )
    yield counter(
        "gateway_upstream_failures",
        "Requests to origins that came to nothing or were cut off, by the error. Excludes answers that say 5xx, which "
        "are in gateway_upstream_replies, and requests whose clients left.",
        ("error", "route"),
        (
            ((error, route), count.value)
            for route, figures in routes.items()
            for error, count in figures.upstream_failures.items()
        ),
    )
    yield counter(
        "gateway_upstream_bytes",
        "Body bytes from origins, SSE framing and base64 included. Excludes headers and request bodies.",
        ("mode", "route"),
        (
            ((mode, route), count.value)
            for route, figures in routes.items()
            for mode, count in figures.upstream_bytes.items()
        ),
    )
    yield counter(
        "gateway_upstream_retries",
        "Requests to an origin that were tries after the first. Excludes reconnects after a planned end.",
        ("route",),
        (((route,), figures.retries.value) for route, figures in routes.items()),
    )
    yield counter(
        "gateway_reconnects",
        "Live requests of followers that ended while their stream was still followed: planned, at the end of their "
        "life or of one long-poll's bulk, or lost. Excludes those ended because the last reader had left.",
        ("reason", "route"),
        (
            (("planned" if is_planned else "lost", route), count.value)
            for route, figures in routes.items()
            for is_planned, count in figures.reconnects.items()
        ),
    )


def coding_families(coded: Mapping[Coding, tuple[Count, Count, Count]]) -> Iterator[Metric]:
    """What was compressed: bodies, bytes before, bytes after."""
    texts = (
        (
            "gateway_compressions",
            "Bodies compressed. Excludes those that did not shrink and, since each is made once, those sent again.",
        ),
        (
            "gateway_compression_input_bytes",
            "Bytes of those bodies before. Excludes what gateway_compressions excludes.",
        ),
        (
            "gateway_compression_output_bytes",
            "Bytes of those bodies after. Excludes what gateway_compressions excludes.",
        ),
    )
    for at, (name, text) in enumerate(texts):
        yield counter(name, text, ("coding",), (((coding,), counts[at].value) for coding, counts in coded.items()))


def state_families(state: State, routes: Iterable[str]) -> Iterator[Metric]:
    """What a look at the gateway shows."""
    for name, text, value in (
        ("gateway_ready", "1 while new clients are accepted. Excludes the time before the first and the drain.", 1),
        (
            "gateway_connections",
            "Client connections open now, idle ones and live reads included. Excludes the admin port.",
            state.connections,
        ),
        (
            "gateway_lag_bytes",
            "Bytes written for clients and not yet taken by them, over all clients. Excludes the kernel's buffers.",
            state.unsent.total,
        ),
        (
            "gateway_lag_most_bytes",
            "The same of the one client that has left most. Excludes the kernel's buffers.",
            state.unsent.most,
        ),
        (
            "gateway_followed_streams",
            "Streams with live readers, or within the linger after the last one left. Excludes live reads relayed.",
            state.followed,
        ),
        (
            "gateway_background_tasks",
            "Tasks of the engine that run now: flights, followers, looks. Excludes connections' own tasks.",
            state.background_tasks,
        ),
    ):
        yield gauge(name, text, (), [((), float(state.is_ready) if name == "gateway_ready" else value)])
    yield from _by_route(
        sorted({*routes, *state.routes()}),
        (
            (
                "gateway_flights",
                "Shared fetches in the air now, HEADs and looks at the tail included. Excludes followers and relays.",
                lambda route: state.flights.get(route, 0),
            ),
            (
                "gateway_waiters",
                "Requests that wait for those fetches or read along. Excludes live readers, who wait for a follower.",
                lambda route: state.waiters.get(route, 0),
            ),
            (
                "gateway_tapes",
                "Tapes held, empty ones included. Excludes streams only relayed.",
                lambda route: state.holdings.get(route, _NOTHING).tapes,
            ),
            (
                "gateway_tape_blocks",
                "Blocks that the tapes' bytes lie in. Excludes compressed copies.",
                lambda route: state.holdings.get(route, _NOTHING).blocks,
            ),
            (
                "gateway_tape_bytes",
                "Bytes of the budget that tapes take, their indexes included. Excludes compressed copies.",
                lambda route: state.holdings.get(route, _NOTHING).cost,
            ),
        ),
    )
    pools = state.upstream.items()
    yield gauge(
        "gateway_upstream_connections",
        "Connections to origins: in the pool of live requests or in that of all others, in use or waiting for the next "
        "request. Excludes those being made.",
        ("pool", "state"),
        [
            *(((pool, "busy"), float(seen.busy)) for pool, seen in pools),
            *(((pool, "idle"), float(seen.idle)) for pool, seen in pools),
        ],
    )
    yield gauge(
        "gateway_upstream_connection_oldest_seconds",
        "Age of the oldest of those connections, 0 where there is none. Excludes what gateway_upstream_connections "
        "excludes.",
        ("pool",),
        (((pool,), seen.oldest_s) for pool, seen in pools),
    )
    yield gauge(
        "gateway_upstream_connection_mean_seconds",
        "Mean age of those connections, 0 where there is none. Excludes what gateway_upstream_connections excludes.",
        ("pool",),
        (((pool,), seen.mean_s) for pool, seen in pools),
    )


def _by_route(routes: Iterable[str], texts: Iterable[tuple[str, str, Callable[[str], float]]]) -> Iterator[Metric]:
    for name, text, value in texts:
        yield gauge(name, text, ("route",), [((route,), value(route)) for route in routes])


def build_family(version: str) -> Metric:
    """What runs here."""
    versions = (version, platform.python_version(), aiohttp.__version__)
    return gauge(
        "gateway_build_info",
        "Always 1; the labels name the versions.",
        ("version", "python", "aiohttp"),
        [(versions, 1)],
    )
