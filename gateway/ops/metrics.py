"""The metrics recorder, and its exposition for Prometheus.

`Metrics` is the recorder for requests (`gateway.telemetry.metrics.MetricsRecorder`) and a prometheus-client collector.
The registry and the text formats come from that library.  The numbers are plain Python numbers (`figures`), and
`families` has the names and help texts.  The gateway's state is read at each collection (`state`).

Traces are shown as exemplars of the duration buckets in the OpenMetrics format.  The plain format has no exemplars.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.auth.usage import Usage
from gateway.http.http2.flood_limits import SessionCounts
from gateway.ops.auth_families import auth_families
from gateway.ops.connection_families import connection_families
from gateway.ops.disk_families import DiskState, disk_families
from gateway.ops.families import (
    build_family,
    by_route,
    client_families,
    coding_families,
    counter,
    gauge,
    histogram,
    route_family,
    state_families,
    upstream_families,
)
from gateway.ops.figures import DELAY_BOUNDS_S, Count, Histogram, RouteFigures, Total
from gateway.ops.fleet_families import fleet_families
from gateway.ops.http2_families import http2_families, upstream_http2_families
from gateway.ops.limit_figures import LimitFigures
from gateway.ops.listener_figures import ListenerFigures
from gateway.ops.memory_figures import MemoryFigures
from gateway.ops.operation_figures import OperationFigures
from gateway.ops.origin_families import origin_families
from gateway.ops.plan_families import plan_families
from gateway.ops.state import State
from gateway.ops.tenant_families import tenant_families
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.telemetry.metrics import NO_ROUTE, NOTHING_SENT, Sent

if TYPE_CHECKING:
    from gateway.ops.plan_state import PlanState
    from gateway.upstream.auth_services import AuthServices

_CLASSES: Final = {hundreds: f"{hundreds}xx" for hundreds in range(2, 6)}


_TURN_SAMPLES: Final = 500
"""Samples encoded in one turn of the loop, in about 5 ms."""
_EOF: Final = b"# EOF\n"


async def in_turns(families: Iterable[Metric], accept: str) -> tuple[bytes, str]:
    """Encode the families in the format that the Accept header prefers.  Return the text and the content type.

    The work is divided into parts with turns of the loop between them.  With many routes, the text takes as long as
    thousands of requests."""
    encode, content_type = choose_encoder(accept)
    text = bytearray()
    for family in families:
        for at in range(0, max(1, len(family.samples)), _TURN_SAMPLES):
            part = Metric(family.name, family.documentation, family.type, family.unit)
            part.samples = family.samples[at : at + _TURN_SAMPLES]
            encoded = encode(_Part(part)).removesuffix(_EOF)
            while at and encoded.startswith(b"# "):
                # The first part has the family's header already.
                encoded = encoded.partition(b"\n")[2]
            text += encoded
            await asyncio.sleep(0)
    if content_type.startswith("application/openmetrics-text"):
        text += _EOF
    return bytes(text), content_type


class _Part(Collector):
    """A part of a family, as a collector."""

    def __init__(self, part: Metric) -> None:
        self._part = part

    def collect(self) -> Iterable[Metric]:
        return (self._part,)


_DESCRIBED: Final[list[Metric]] = []
"""The families of a newly started gateway, without series.  Made once."""


class Metrics(Collector):
    """The gateway's series.  `routes` and `NO_ROUTE` exist from the start, and other routes from their first count.

    Without `registry`, `Metrics` makes its own registry, which includes the figures of the process.  Several gateways
    can thus live in one process.  For exemplars, `wall` returns Unix seconds, and `trace_now` returns the trace id of
    the current request or None.  `trace_now` is called for requests recorded without a trace id.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        routes: Iterable[str] = (),
        cache_limit_bytes: int = 0,
        limits: Mapping[str, int] | None = None,
        wall: Callable[[], float] = lambda: 0.0,
        trace_now: Callable[[], str | None] | None = None,
        version: str = __version__,
    ) -> None:
        self._version = version
        self.routes: defaultdict[str, RouteFigures] = defaultdict(RouteFigures)
        """Counts by route."""
        self.protocols: dict[str, str] = {}
        """The protocol of each configured route."""
        self._configured: set[str] = set()
        self._removed: set[str] = set()
        """Routes that have been removed from the configuration."""
        self._wall = wall
        self._trace_now = trace_now
        self.cache_limit_bytes = 0
        self.limits: dict[str, int] = {}
        """Configured limits, by the name of the figure that they limit, such as `connections`."""
        self.configure(routes, cache_limit_bytes, limits or {})
        self.downstream_count = Count()
        self.slow_consumers = {True: Count(), False: Count()}
        """Slow clients.  The key is whether the gateway closed the client's connection."""
        self.log_drop_count = Count()
        self.loop_delays = Histogram(DELAY_BOUNDS_S)
        """Delays of the event loop.  A `LoopDelay` replaces the histogram."""
        self._coded = {coding: (Count(), Count(), Count()) for coding in Coding}
        self.before_collect: Callable[[], None] = lambda: None
        """Called before each collection, to add the counts that are gathered in batches."""
        self.look: Callable[[], State] = State
        """Reads the gateway's state."""
        self.listeners = ListenerFigures()
        self.memory = MemoryFigures()
        self.operations = OperationFigures()
        self.limit_figures = LimitFigures()
        self.http2 = SessionCounts()
        """The counts of clients' HTTP/2 sessions.  The server replaces the object."""
        self.upstream_http2 = SessionCounts()
        """The counts of HTTP/2 sessions with origins.  The engine's client replaces the object."""
        self.auth_services: AuthServices | None = None
        self.guarded_routes: tuple[str, ...] = ()
        """Routes with rules of authorisation."""
        self.plan: Callable[[], PlanState | None] = lambda: None
        """Reads the state of the cache plan in effect."""
        self.disk: Callable[[], DiskState | None] = lambda: None
        """Reads the figures of the store on disk."""
        self.tenants: Callable[[], Iterable[tuple[tuple[str, str], Usage]]] = lambda: ()
        """Reads the usage by issuer and tenant."""
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        registry.register(self)

    def configure(self, routes: Iterable[str], cache_limit_bytes: int, limits: Mapping[str, int]) -> None:
        """Apply a configuration.  A removed route stays exposed until all of its state is gone."""
        ordered = [*routes, NO_ROUTE]
        for route in ordered:
            self.routes.setdefault(route, RouteFigures())
        wanted = set(ordered)
        self._removed = (self._removed | self._configured) - wanted
        self._configured = wanted
        self.cache_limit_bytes = cache_limit_bytes
        self.limits = dict(limits)

    # -- sums over routes

    def requests(self, mode: Mode, outcome: Outcome) -> Total:
        """Return the number of requests with this mode and outcome, over all routes."""
        return Total(lambda: sum(figures.ended(mode, outcome).requests for figures in self.routes.values()))

    def upstream_requests(self, mode: Mode) -> Total:
        """Return the number of requests sent to origins, over all routes."""
        return Total(lambda: sum(figures.upstream_requests[mode].value for figures in self.routes.values()))

    # -- the recorder

    def request(
        self,
        mode: Mode,
        outcome: Outcome,
        duration_s: float,
        route: str = NO_ROUTE,
        sent: Sent = NOTHING_SENT,
        *,
        trace_id: str | None = None,
        requests: int = 1,
    ) -> None:
        figures = self.routes[route]
        end = figures.ends.get((mode, outcome)) or figures.ended(mode, outcome)
        end.requests += requests
        first_byte_s, sent_bytes, saved_bytes = sent
        end.sent_bytes += sent_bytes * requests
        end.saved_bytes += saved_bytes * requests
        if trace_id is None and self._trace_now is not None:
            trace_id = self._trace_now()
        if not trace_id:
            end.durations.observe(duration_s, requests)
            if first_byte_s is not None:
                end.first_bytes.observe(first_byte_s, requests)
            return
        now = self._wall()
        end.durations.observe_traced(duration_s, trace_id, now)
        if first_byte_s is not None:
            end.first_bytes.observe_traced(first_byte_s, trace_id, now)

    def hits(
        self, mode: Mode, outcome: Outcome, n: int, body_bytes: int, route: str = NO_ROUTE, *, saved_bytes: int = 0
    ) -> None:
        end = self.routes[route].ended(mode, outcome)
        end.requests += n
        end.sent_bytes += body_bytes
        end.saved_bytes += saved_bytes
        end.durations.observe(0.0, n)
        end.first_bytes.observe(0.0, n)
        self.downstream_count.value += body_bytes

    def upstream_request(self, mode: Mode, route: str = NO_ROUTE) -> None:
        self.routes[route].upstream_requests[mode].value += 1

    def upstream_head(self, mode: Mode, status: int, first_byte_s: float, route: str = NO_ROUTE) -> None:
        figures = self.routes[route]
        figures.upstream_first_bytes[mode].observe(first_byte_s)
        figures.upstream_replies[_CLASSES.get(status // 100, "5xx")].value += 1

    def upstream_failure(self, mode: Mode, fault: str, route: str = NO_ROUTE) -> None:
        self.routes[route].upstream_failures.setdefault(fault, Count()).value += 1

    def upstream_bytes(self, n: int, mode: Mode = Mode.OTHER, route: str = NO_ROUTE) -> None:
        self.routes[route].upstream_bytes[mode].value += n

    def downstream_bytes(self, n: int) -> None:
        self.downstream_count.value += n

    def subscribers(self, mode: Mode, delta: int, route: str = NO_ROUTE) -> None:
        self.routes[route].subscribers[mode].value += delta

    def delivered(self, readers: int, delay_s: float, route: str = NO_ROUTE) -> None:
        figures = self.routes[route]
        figures.deliveries.value += readers
        figures.delivery_delays.observe(delay_s)

    def eviction(self, n: int = 1, route: str = NO_ROUTE) -> None:
        self.routes[route].evictions.value += n

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        bodies, before, after = self._coded[coding]
        bodies.value += 1
        before.value += plain_bytes
        after.value += coded_bytes

    def slow_consumer(self, *, is_closed: bool = True) -> None:
        self.slow_consumers[is_closed].value += 1

    def client_limited(self, limit: str) -> None:
        self.limit_figures.client_limited[limit] += 1

    def rate_limited(self, limit: str, route: str = NO_ROUTE) -> None:
        self.limit_figures.rate_limited[limit, route] += 1

    def unshared(self, reason: str, route: str = NO_ROUTE) -> None:
        self.routes[route].unshared[reason] += 1

    def retry(self, route: str = NO_ROUTE) -> None:
        self.routes[route].retries.value += 1

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        self.routes[route].reconnects[is_planned].value += 1

    def log_drops(self, n: int = 1) -> None:
        self.log_drop_count.value += n

    # -- the collector

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """Return the series in the format that the Accept header prefers, and the content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """Like `exposition`, but with turns of the loop between parts.  The samples of one family are from the same
        moment.  The samples of different families may be from different moments.
        """
        return await in_turns(self.registry.collect(), accept)

    def describe(self) -> Iterable[Metric]:
        """Return the names of all families, by which a registry detects a second gateway."""
        # The description is made once, because collecting all series takes longer than the rest of a start.
        if not _DESCRIBED:
            _DESCRIBED.extend(Metric(one.name, one.documentation, one.type, one.unit) for one in self.collect())
        return _DESCRIBED

    def collect(self) -> Iterator[Metric]:
        """Return the series with their current values."""
        self.before_collect()
        state = self.look()
        yield from client_families(self.routes)
        yield from upstream_families(self.routes)
        yield from self._routeless_families(state)
        yield from coding_families(self._coded)
        yield from state_families(state, self.routes)
        yield from connection_families(state.upstream, state.slots)
        yield from origin_families(state.origins)
        yield from fleet_families(state.members, state.missed_orders, state.found, state.by_redis)
        yield from self.listeners.families()
        yield from self.memory.families()
        yield from self.limit_figures.families()
        yield from http2_families(self.http2)
        yield from upstream_http2_families(self.upstream_http2)
        yield from self.operations.families()
        yield from auth_families(self.auth_services, self.guarded_routes)
        if (plan := self.plan()) is not None:
            yield from plan_families(plan)
        if (disk := self.disk()) is not None:
            yield from disk_families(disk)
        yield from tenant_families(self.tenants())
        yield route_family(self.routes, self.protocols)
        yield build_family(self._version)
        self._forget(state)

    def _forget(self, state: State) -> None:
        """Drop the figures of removed routes after their last exposition.

        A request of such a route that ends later makes the route appear again.
        """
        for route in self._removed & self.routes.keys():
            is_read = any(count.value for count in self.routes[route].subscribers.values())
            if not is_read and route not in state.routes():
                del self.routes[route]

    def _routeless_families(self, state: State) -> Iterator[Metric]:
        """Return the families without a route label."""
        yield counter(
            "durable_gateway_downstream_bytes",
            "Body bytes written to client connections, whether or not the clients have read them. Excludes headers.",
            (),
            [((), self.downstream_count.value)],
        )
        yield counter(
            "durable_gateway_slow_consumers",
            "Slow clients, by action: moved (the buffers of a live reader were full, so the reader continues from the "
            "tape at its own pace) or closed (the client read too slowly and was dropped). Excludes clients that left "
            "by themselves.",
            ("action",),
            [(("closed" if is_closed else "moved",), count.value) for is_closed, count in self.slow_consumers.items()],
        )
        yield counter(
            "durable_gateway_evictions",
            "Tapes dropped to stay within the byte budget, and blocks dropped from a tape that exceeds the budget "
            "alone. Excludes tapes dropped because the stream was deleted, purged or expired.",
            ("route",),
            by_route(self.routes, lambda figures: figures.evictions.value),
        )
        yield counter(
            "durable_gateway_log_drops",
            "Records of the access log that were lost: the queue was full, the sink gave up writing, or the records "
            "were not written before the shutdown. Excludes records that a sink accepted and then lost.",
            (),
            [((), self.log_drop_count.value)],
        )
        yield histogram(
            "durable_gateway_event_loop_delay_seconds",
            "How late the event loop calls a timer, measured ten times a second. Excludes time in threads.",
            (),
            [((), self.loop_delays)],
        )
        yield gauge(
            "durable_gateway_cache_bytes",
            "Bytes of the cache budget in use: tapes with their offsets, names and headers, and data derived from "
            "tapes, such as compressed bodies. Excludes buffers and bodies in flight.",
            (),
            [((), state.cache_bytes)],
        )
        yield gauge(
            "durable_gateway_cache_limit_bytes",
            "The byte budget that bounds durable_gateway_cache_bytes.",
            (),
            [((), self.cache_limit_bytes)],
        )
        for name, most in self.limits.items():
            yield gauge(f"durable_gateway_{name}_limit", f"The limit of durable_gateway_{name}.", (), [((), most)])
