"""Counting, and the text of the counts for Prometheus.

`Metrics` is the recorder of the request path (`gateway.telemetry.metrics.MetricsRecorder`) and a prometheus-client
collector in one: the registry and the text formats are that library's, the numbers are plain ones (`figures`), the
names and help texts stand in `families`.  What has a state is looked at when somebody asks (`state`), not counted.

Traces are shown as exemplars of the duration buckets, where the OpenMetrics format is asked for; the plain format has
no place for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.http.http2.counts import SessionCounts
from gateway.ops.families import (
    build_family,
    by_route,
    client_families,
    coding_families,
    counter,
    gauge,
    histogram,
    state_families,
    upstream_families,
)
from gateway.ops.figures import DELAY_BOUNDS_S, Count, Histogram, RouteFigures, Total
from gateway.ops.http2_families import http2_families
from gateway.ops.listener_figures import ListenerFigures
from gateway.ops.operation_figures import OperationFigures
from gateway.ops.origin_families import origin_families
from gateway.ops.plan_families import plan_families
from gateway.ops.state import State
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.telemetry.metrics import NO_ROUTE

if TYPE_CHECKING:
    from gateway.ops.plan_state import PlanState

_CLASSES: Final = {hundreds: f"{hundreds}xx" for hundreds in range(2, 6)}


_TURN_SAMPLES: Final = 500
"""As many are encoded in one turn of the loop: about 5 ms."""
_EOF: Final = b"# EOF\n"


class _Part(Collector):
    """A part of a family, as a collection of its own."""

    def __init__(self, part: Metric) -> None:
        self._part = part

    def collect(self) -> Iterable[Metric]:
        return (self._part,)


_DESCRIBED: Final[list[Metric]] = []
"""The families of a gateway that has just begun, without their series; made once."""


class Metrics(Collector):
    """The gateway's series.  `routes` exist from the start, beside `NO_ROUTE`; others begin when first counted for.

    Without a registry it makes its own, with the process's figures beside the gateway's, so that several
    gateways can live in one process.  For exemplars, `wall` gives Unix seconds, and `trace_now` the trace
    of the request that is being counted, where that does not say it; None where it is in none.
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
        self.routes: dict[str, RouteFigures] = {}
        """What was counted, by route."""
        self._configured: set[str] = set()
        self._gone: set[str] = set()
        """Routes that were configured and are no more."""
        self._wall = wall
        self._trace_now = trace_now
        self.cache_limit_bytes = 0
        self.limits: dict[str, int] = {}
        """Bounds of the configuration, by the name of the figure that they bound (`connections`)."""
        self.configure(routes, cache_limit_bytes, limits or {})
        self.downstream_count = Count()
        self.slow_consumers = {True: Count(), False: Count()}
        """By whether they were closed."""
        self.log_drop_count = Count()
        self.loop_delays = Histogram(DELAY_BOUNDS_S)
        """How late the event loop was; whoever measures it puts its own here."""
        self._coded = {coding: (Count(), Count(), Count()) for coding in Coding}
        self.cache_bytes = 0
        self.before_collect: Callable[[], None] = lambda: None
        """Called before the series are read, for whoever counts many at a time."""
        self.look: Callable[[], State] = State
        """Looks at the gateway."""
        self.listeners = ListenerFigures()
        self.operations = OperationFigures()
        self.http2 = SessionCounts()
        """Counts of clients' HTTP/2 sessions; whoever has the sessions puts its own here."""
        self.plan: Callable[[], PlanState | None] = lambda: None
        """Looks at the cache plan in effect."""
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        registry.register(self)

    def configure(self, routes: Iterable[str], cache_limit_bytes: int, limits: Mapping[str, int]) -> None:
        """The configuration is this from here on.  Routes that are no more are told until nothing of them is left."""
        ordered = [*routes, NO_ROUTE]
        for route in ordered:
            self._of(route)
        wanted = set(ordered)
        self._gone = (self._gone | self._configured) - wanted
        self._configured = wanted
        self.cache_limit_bytes = cache_limit_bytes
        self.limits = dict(limits)

    # Sums over routes, for whoever shows them otherwise.

    def requests(self, mode: Mode, outcome: Outcome) -> Total:
        """Requests of all routes that ended so."""
        return Total(lambda: sum(figures.ended(mode, outcome).requests for figures in self.routes.values()))

    def upstream_requests(self, mode: Mode) -> Total:
        """Requests of all routes sent to origins."""
        return Total(lambda: sum(figures.upstream_requests[mode].value for figures in self.routes.values()))

    # The recorder.

    def _of(self, route: str) -> RouteFigures:
        figures = self.routes.get(route)
        if figures is None:
            figures = self.routes[route] = RouteFigures()
        return figures

    def request(
        self,
        mode: Mode,
        outcome: Outcome,
        duration_s: float,
        route: str = NO_ROUTE,
        *,
        first_byte_s: float | None = None,
        sent_bytes: int = 0,
        saved_bytes: int = 0,
        trace_id: str | None = None,
        requests: int = 1,
    ) -> None:
        end = self._of(route).ended(mode, outcome)
        end.requests += requests
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
        end = self._of(route).ended(mode, outcome)
        end.requests += n
        end.sent_bytes += body_bytes
        end.saved_bytes += saved_bytes
        end.durations.observe(0.0, n)
        end.first_bytes.observe(0.0, n)
        self.downstream_count.value += body_bytes

    def upstream_request(self, mode: Mode, route: str = NO_ROUTE) -> None:
        self._of(route).upstream_requests[mode].value += 1

    def upstream_head(self, mode: Mode, status: int, first_byte_s: float, route: str = NO_ROUTE) -> None:
        figures = self._of(route)
        figures.upstream_first_bytes[mode].observe(first_byte_s)
        figures.upstream_replies[_CLASSES.get(status // 100, "5xx")].value += 1

    def upstream_failure(self, mode: Mode, fault: str, route: str = NO_ROUTE) -> None:
        self._of(route).upstream_failures.setdefault(fault, Count()).value += 1

    def upstream_bytes(self, n: int, mode: Mode = Mode.OTHER, route: str = NO_ROUTE) -> None:
        self._of(route).upstream_bytes[mode].value += n

    def downstream_bytes(self, n: int) -> None:
        self.downstream_count.value += n

    def subscribers(self, mode: Mode, delta: int, route: str = NO_ROUTE) -> None:
        self._of(route).subscribers[mode].value += delta

    def delivered(self, readers: int, delay_s: float, route: str = NO_ROUTE) -> None:
        figures = self._of(route)
        figures.deliveries.value += readers
        figures.delivery_delays.observe(delay_s)

    def cache(self, bytes_: int, tapes: int) -> None:
        self.cache_bytes = bytes_

    def eviction(self, n: int = 1, route: str = NO_ROUTE) -> None:
        self._of(route).evictions.value += n

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        bodies, before, after = self._coded[coding]
        bodies.value += 1
        before.value += plain_bytes
        after.value += coded_bytes

    def slow_consumer(self, *, is_closed: bool = True) -> None:
        self.slow_consumers[is_closed].value += 1

    def retry(self, route: str = NO_ROUTE) -> None:
        self._of(route).retries.value += 1

    def reconnect(self, route: str = NO_ROUTE, *, is_planned: bool) -> None:
        self._of(route).reconnects[is_planned].value += 1

    def log_drops(self, n: int = 1) -> None:
        self.log_drop_count.value += n

    # The collector.

    def exposition(self, accept: str = "") -> tuple[bytes, str]:
        """The series in the format that `accept`, a request's header, asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The same text, made in turns with whatever else the loop has to do: with many routes it takes as long as
        thousands of requests.  Families are of one moment each."""
        encode, content_type = choose_encoder(accept)
        text = bytearray()
        for family in self.registry.collect():
            for at in range(0, max(1, len(family.samples)), _TURN_SAMPLES):
                part = Metric(family.name, family.documentation, family.type, family.unit)
                part.samples = family.samples[at : at + _TURN_SAMPLES]
                said = encode(_Part(part)).removesuffix(_EOF)
                while at and said.startswith(b"# "):
                    # What the family is has been said.
                    said = said.partition(b"\n")[2]
                text += said
                await asyncio.sleep(0)
        if content_type.startswith("application/openmetrics-text"):
            text += _EOF
        return bytes(text), content_type

    def describe(self) -> Iterable[Metric]:
        """The families' names, so that a registry refuses two gateways' series at once."""
        # They are those of every gateway that has just begun; to make all series takes longer than the rest of a start.
        if not _DESCRIBED:
            _DESCRIBED.extend(Metric(one.name, one.documentation, one.type, one.unit) for one in self.collect())
        return _DESCRIBED

    def collect(self) -> Iterator[Metric]:
        """The series as they stand."""
        self.before_collect()
        state = self.look()
        yield from client_families(self.routes)
        yield from upstream_families(self.routes)
        yield from self._own()
        yield from coding_families(self._coded)
        yield from state_families(state, self.routes)
        yield from origin_families(state.origins)
        yield from self.listeners.families()
        yield from http2_families(self.http2)
        yield from self.operations.families()
        if (plan := self.plan()) is not None:
            yield from plan_families(plan)
        yield build_family(self._version)
        self._forget(state)

    def _forget(self, state: State) -> None:
        """Drop the figures of routes that are gone, now that they have been told a last time; what is still counted for
        one, because it was under way for longer than that, is told once more."""
        for route in self._gone & self.routes.keys():
            is_read = any(count.value for count in self.routes[route].subscribers.values())
            if not is_read and route not in state.routes():
                del self.routes[route]

    def _own(self) -> Iterator[Metric]:
        """What has no route."""
        yield counter(
            "durable_gateway_downstream_bytes",
            "Body bytes handed to clients' connections as they went, whether or not they were read. Excludes headers.",
            (),
            [((), self.downstream_count.value)],
        )
        yield counter(
            "durable_gateway_slow_consumers",
            "Clients that did not keep up: moved, back to reading the tape at their own pace, or closed after that. "
            "Excludes those that went away by themselves.",
            ("action",),
            [(("closed" if is_closed else "moved",), count.value) for is_closed, count in self.slow_consumers.items()],
        )
        yield counter(
            "durable_gateway_evictions",
            "Tapes dropped to stay within the byte budget, and blocks of the one tape that is larger than all of it. "
            "Excludes those dropped because their stream was deleted, expired or was purged.",
            ("route",),
            by_route(self.routes, lambda figures: figures.evictions.value),
        )
        yield counter(
            "durable_gateway_log_drops",
            "Records of the access log given up: because its queue was full, because the sink refused them for good, "
            "or unwritten when the gateway left. Excludes what a sink took and lost.",
            (),
            [((), self.log_drop_count.value)],
        )
        yield histogram(
            "durable_gateway_event_loop_delay_seconds",
            "How much later than asked the event loop called a timer, ten times a second. Excludes time in threads.",
            (),
            [((), self.loop_delays)],
        )
        yield gauge(
            "durable_gateway_cache_bytes",
            "Stream bytes on tapes and compressed ones made of them. Excludes indexes, buffers, bodies in flight.",
            (),
            [((), self.cache_bytes)],
        )
        yield gauge(
            "durable_gateway_cache_limit_bytes",
            "The byte budget that durable_gateway_cache_bytes is kept within.",
            (),
            [((), self.cache_limit_bytes)],
        )
        for name, most in self.limits.items():
            yield gauge(
                f"durable_gateway_{name}_limit", f"The most that durable_gateway_{name} may be.", (), [((), most)]
            )
