"""Counting, and the Prometheus text of the counts.

The counts are plain Python numbers that belong to the event loop's thread, because they are on the path of every
request: a label's child is bound once and counting is one attribute call, without a lock or a look at label values.
`Metrics` is a prometheus-client collector over them, so the registry and the text format are that library's.  All
modes and outcomes exist from the start at 0, so that rates are right from the first request on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gateway import __version__
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode

DURATION_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
"""Upper bounds of the duration buckets: from a cached read to the longest planned life of an SSE connection."""


class Count:
    """One number that a label's child is."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: int = 0

    def inc(self, n: int = 1) -> None:
        self.value += n


class Durations:
    """How long the requests of one mode took: counts by bucket, and the sum in seconds."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        self.sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        self.counts[bisect_left(DURATION_BOUNDS_S, duration_s)] += 1
        self.sum_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        bounds = [*(str(bound) for bound in DURATION_BOUNDS_S), "+Inf"]
        return list(zip(bounds, map(float, accumulate(self.counts)), strict=True))


class Metrics(Collector):
    """The gateway's series: a `gateway.metrics_seam.Recorder` and a Prometheus collector in one.

    Without a registry it makes its own, with the process's figures beside the gateway's, so that several
    gateways can live in one process.
    """

    def __init__(
        self, registry: CollectorRegistry | None = None, *, cache_limit_bytes: int = 0, version: str = __version__
    ) -> None:
        self._version = version
        self._requests = {(mode, outcome): Count() for mode in Mode for outcome in Outcome}
        self._durations = {mode: Durations() for mode in Mode}
        self._upstream_requests = {mode: Count() for mode in Mode}
        self._subscribers = {mode: Count() for mode in (Mode.LONGPOLL, Mode.SSE)}
        self._upstream_bytes = Count()
        self._downstream_bytes = Count()
        self._evictions = Count()
        self._coded = {coding: Count() for coding in Coding}
        self._coded_in = {coding: Count() for coding in Coding}
        self._coded_out = {coding: Count() for coding in Coding}
        self._slow_consumers = Count()
        self._retries = Count()
        self._cache_bytes = 0
        self._tapes = 0
        self.cache_limit_bytes = cache_limit_bytes
        self.before_collect: Callable[[], None] = lambda: None
        """Called before the series are read, for whoever counts many at a time."""
        if registry is None:
            registry = CollectorRegistry()
            ProcessCollector(registry=registry)
        self.registry = registry
        registry.register(self)

    # Children, for whoever counts often enough to hold on to one.

    def requests(self, mode: Mode, outcome: Outcome) -> Count:
        """The child of `gateway_requests_total` for this mode and outcome."""
        return self._requests[mode, outcome]

    def durations(self, mode: Mode) -> Durations:
        """The child of `gateway_request_duration_seconds` for this mode."""
        return self._durations[mode]

    def upstream_requests(self, mode: Mode) -> Count:
        """The child of `gateway_upstream_requests_total` for this mode."""
        return self._upstream_requests[mode]

    # The recorder.

    def request(self, mode: Mode, outcome: Outcome, duration_s: float) -> None:
        self._requests[mode, outcome].value += 1
        self._durations[mode].observe(duration_s)

    def hits(self, mode: Mode, outcome: Outcome, n: int, body_bytes: int) -> None:
        self._requests[mode, outcome].value += n
        self._durations[mode].counts[0] += n
        self._downstream_bytes.value += body_bytes

    def upstream_request(self, mode: Mode) -> None:
        self._upstream_requests[mode].value += 1

    def upstream_bytes(self, n: int) -> None:
        self._upstream_bytes.value += n

    def downstream_bytes(self, n: int) -> None:
        self._downstream_bytes.value += n

    def subscribers(self, mode: Mode, delta: int) -> None:
        self._subscribers.setdefault(mode, Count()).value += delta

    def cache(self, bytes_: int, tapes: int) -> None:
        self._cache_bytes = bytes_
        self._tapes = tapes

    def eviction(self, n: int = 1) -> None:
        self._evictions.value += n

    def coded(self, coding: Coding, plain_bytes: int, coded_bytes: int) -> None:
        self._coded[coding].value += 1
        self._coded_in[coding].value += plain_bytes
        self._coded_out[coding].value += coded_bytes

    def slow_consumer(self) -> None:
        self._slow_consumers.value += 1

    def retry(self) -> None:
        self._retries.value += 1

    # The collector.

    def exposition(self) -> tuple[bytes, str]:
        """The registry in the Prometheus text format, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        """The same families, so that a registry refuses two gateways' series at once."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """The series as they stand."""
        self.before_collect()
        yield from self._traffic()
        yield from self._state()

    def _traffic(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "gateway_requests",
            "Client requests that have ended, by what was asked and how it was answered. Includes refused and dropped "
            "ones and, once they end, live reads; excludes requests that could not be parsed and the admin port.",
            labels=("mode", "outcome"),
        )
        for (mode, outcome), count in self._requests.items():
            requests.add_metric((mode.value, outcome.value), count.value)
        yield requests

        durations = HistogramMetricFamily(
            "gateway_request_duration_seconds",
            "Seconds from reading a client's request to the end of its answer. Includes the time a live read waited "
            "for data or an SSE connection lived; excludes time in the kernel's buffers.",
            labels=("mode",),
        )
        for mode, spread in self._durations.items():
            durations.add_metric((mode.value,), spread.cumulative(), spread.sum_s)
        yield durations

        upstream = CounterMetricFamily(
            "gateway_upstream_requests",
            "Requests sent to origins, by what was asked of them. Includes retries, tail probes and the gateway's own "
            "HEADs; excludes connections opened and not used.",
            labels=("mode",),
        )
        for mode, count in self._upstream_requests.items():
            upstream.add_metric((mode.value,), count.value)
        yield upstream

        for name, text, count in (
            (
                "gateway_upstream_bytes",
                "Body bytes from origins, SSE framing and base64 included. Excludes headers and request bodies.",
                self._upstream_bytes,
            ),
            (
                "gateway_downstream_bytes",
                "Body bytes handed to clients' connections, whether or not they were read. Excludes headers.",
                self._downstream_bytes,
            ),
            (
                "gateway_upstream_retries",
                "Requests to an origin that were tries after the first. Excludes reconnects after a planned end.",
                self._retries,
            ),
            (
                "gateway_slow_consumers",
                "Live clients closed because they did not keep up. Excludes those that went away by themselves.",
                self._slow_consumers,
            ),
        ):
            yield CounterMetricFamily(name, text, value=count.value)

        for name, text, by_coding in (
            (
                "gateway_compressions",
                "Bodies compressed. Excludes those that did not shrink and, since each is made once, those sent again.",
                self._coded,
            ),
            (
                "gateway_compression_input_bytes",
                "Bytes of those bodies before. Excludes what gateway_compressions excludes.",
                self._coded_in,
            ),
            (
                "gateway_compression_output_bytes",
                "Bytes of those bodies after. Excludes what gateway_compressions excludes.",
                self._coded_out,
            ),
        ):
            family = CounterMetricFamily(name, text, labels=("coding",))
            for coding, count in by_coding.items():
                family.add_metric((coding.value,), count.value)
            yield family

    def _state(self) -> Iterator[Metric]:
        subscribers = GaugeMetricFamily(
            "gateway_subscribers",
            "Live clients connected now: waiting long-polls and open SSE connections. Excludes long-polls that are "
            "answered at once.",
            labels=("mode",),
        )
        for mode, count in self._subscribers.items():
            subscribers.add_metric((mode.value,), count.value)
        yield subscribers

        yield CounterMetricFamily(
            "gateway_evictions",
            "Tapes dropped to stay within the byte budget. Excludes those dropped because their stream was deleted, "
            "expired or was purged.",
            value=self._evictions.value,
        )
        for name, text, value in (
            (
                "gateway_cache_bytes",
                "Stream bytes on tapes and compressed ones made of them. Excludes indexes, buffers, bodies in flight.",
                self._cache_bytes,
            ),
            (
                "gateway_cache_limit_bytes",
                "The byte budget that gateway_cache_bytes is kept within.",
                self.cache_limit_bytes,
            ),
            ("gateway_tapes", "Tapes held, empty ones included. Excludes streams only relayed.", self._tapes),
        ):
            yield GaugeMetricFamily(name, text, value=value)

        build = GaugeMetricFamily("gateway_build_info", "Always 1; the label names the version.", labels=("version",))
        build.add_metric((self._version,), 1)
        yield build
