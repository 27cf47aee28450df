"""Tracing with OpenTelemetry: spans of requests, flights and exchanges, exported to a collector by OTLP over HTTP.

A flight is a shared fetch, and an exchange is one request to an origin.  The module needs the extra `opentelemetry`,
and is imported only if tracing is on.  Each gateway has its own tracer provider, which ends with the gateway.  There is
no global state.

A request span has a link to the client's `traceparent` (W3C Trace Context).  With `follow_clients = true`, the span
continues the client's trace instead, including the client's sampling decision.  Any client can then have its requests
recorded.  Every request to an origin carries the `traceparent` of its span, sampled or not.  Spans contain the paths of
streams but no query, header or body, because the query of a signed URL contains its signature.

If an answer is repeated from memory, the gateway sends nothing to an origin.  The client's request then needs a span
only if it is sampled.  There may be a hundred thousand such answers a second, so the sampling decision is made before
the span.

The times of spans come from the gateway's clock.  Spans wait in a bounded queue for the exporting thread, and spans
that do not fit are dropped.  Only the shutdown waits for the export, for a bounded time.
"""

from __future__ import annotations

import asyncio
import random
import re
import threading
from contextlib import suppress
from typing import Final

from multidict import CIMultiDict
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, TraceIdRatioBased
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from yarl import URL

from gateway import __version__
from gateway.aio.clock import Clock
from gateway.config.telemetry import TracingConfig
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.telemetry.tracing import ExchangeSpan, FlightSpan, Headers, flight_now, request_now

_EXPORT_S: Final = 5.0
"""Seconds between two exports."""
_BATCH_SPANS: Final = 512
_MOST_LINKS: Final = 64
"""The most links of one span.  A long live read may join any number of flights."""
_PATH_CHARS: Final = 512
_CONTEXT_LINES: Final = re.compile(rb"\r\n(traceparent|tracestate):[ \t]*([\x20-\x7e]*)(?=\r\n)", re.IGNORECASE)
_NOT_SAMPLED: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][02468ace]")
_METHODS: Final = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH"})


class _HeaderGetter(Getter[Headers]):
    """Reads a trace context from headers.  Several `traceparent` headers count as none (W3C Trace Context, section
    3.2)."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        values = carrier.getall(key, None)
        return None if values is None or (key == "traceparent" and len(values) > 1) else list(values)

    def keys(self, carrier: Headers) -> list[str]:
        return list(carrier)


class _Ids(IdGenerator):
    """Makes ids with the injected generator.  `drawn` is a trace id drawn in advance for the next root span."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.drawn = 0

    def draw(self) -> int:
        return self._rng.getrandbits(128) or 1

    def generate_span_id(self) -> int:
        return self._rng.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        drawn, self.drawn = self.drawn, 0
        return drawn or self.draw()


_GETTER: Final = _HeaderGetter()
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class OpenTelemetryTracer:
    """The `gateway.telemetry.tracing.Tracer` for OpenTelemetry.  In tests, `processor` replaces the queue and the
    exporter."""

    def __init__(
        self, config: TracingConfig, clock: Clock, rng: random.Random, processor: SpanProcessor | None = None
    ) -> None:
        self._clock = clock
        self._follows = config.follow_clients
        self._sampler = TraceIdRatioBased(config.sample_ratio)
        self._ids = _Ids(rng)
        self._provider = TracerProvider(
            sampler=ParentBased(self._sampler),
            id_generator=self._ids,
            resource=Resource.create({"service.name": config.service_name, "service.version": __version__}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor or _exporting(config))
        self._tracer = self._provider.get_tracer("durable-gateway", __version__)

    def request(self, method: str, path: str, headers: Headers) -> _RequestSpan:
        return _RequestSpan(self._begin_request(method, path, headers))

    def chooses(self, request: bytes) -> bool:
        lines: list[tuple[bytes, bytes]] = _CONTEXT_LINES.findall(request)
        if self._follows and lines:
            return len(lines) != 1 or _NOT_SAMPLED.fullmatch(lines[0][1]) is None
        drawn = self._ids.draw()
        if self._sampler.should_sample(None, drawn, "").decision is Decision.DROP:
            return False
        # The next root span gets this trace id.
        self._ids.drawn = drawn
        return True

    def hit(self, request: bytes, mode: Mode, outcome: Outcome) -> None:
        if not self.chooses(request):
            return
        lines: list[tuple[bytes, bytes]] = _CONTEXT_LINES.findall(request)
        line = request[: request.find(b"\r\n")].decode("latin-1").split(" ")
        headers: CIMultiDict[str] = CIMultiDict()
        for name, value in lines:
            headers.add(name.decode(), value.decode().strip())
        span = _RequestSpan(self._begin_request(line[0], line[1].partition("?")[0], headers))
        span.describe(mode, outcome, None)
        span.end_span()

    def _begin_request(self, method: str, path: str, headers: Headers) -> _TimedSpan:
        client_context = _PROPAGATOR.extract(headers, Context(), _GETTER) if "traceparent" in headers else Context()
        links: list[Link] = []
        context = client_context
        if not self._follows:
            context = Context()
            client = trace.get_current_span(client_context).get_span_context()
            if client.is_valid:
                links.append(Link(client, {"gateway.link": "client"}))
        # The protocol has few methods.  A client's invented method must not become a span name.
        name = method if method in _METHODS else "_OTHER"
        return self._begin(
            name, SpanKind.SERVER, context, {"http.request.method": name, "url.path": _short(path)}, links
        )

    def flight(self, kind: str) -> FlightSpan:
        leader = request_now.get()
        parent = leader.span if isinstance(leader, _RequestSpan) else None
        timed = self._begin(f"flight {kind}", SpanKind.INTERNAL, _context(parent), {"gateway.flight": kind})
        return _FlightSpan(timed, parent)

    def exchange(self, method: str, url: str, headers: CIMultiDict[str]) -> ExchangeSpan:
        flight, request = flight_now.get(), request_now.get()
        parent = flight.span if isinstance(flight, _FlightSpan) else None
        if parent is None and isinstance(request, _RequestSpan):
            parent = request.span
        origin_url = URL(url, encoded=True)
        attributes: dict[str, str | int] = {"http.request.method": method, "url.path": _short(origin_url.raw_path)}
        if origin_url.raw_host is not None and origin_url.port is not None:
            attributes |= {"server.address": origin_url.raw_host, "server.port": origin_url.port}
        timed = self._begin(f"{method} origin", SpanKind.CLIENT, _context(parent), attributes)
        return _ExchangeSpan(timed, headers)

    def _begin(
        self,
        name: str,
        kind: SpanKind,
        context: Context,
        attributes: dict[str, str | int] | dict[str, str],
        links: list[Link] | None = None,
    ) -> _TimedSpan:
        began, wall = self._clock.now(), self._clock.wall()
        span = self._tracer.start_span(
            name, context, kind, attributes, links, start_time=int(wall * 1e9), record_exception=False
        )
        return _TimedSpan(span, self._clock, began, wall)

    async def close(self, within_s: float) -> None:
        """Export the remaining spans for at most `within_s` seconds.  Spans that are left are lost."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop has closed already
                loop.call_soon_threadsafe(done.set)

        # Do not use the loop's executor, because a closing loop waits for its executor.
        threading.Thread(target=shut_down, name="tracing-shutdown", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await done.wait()


class _TimedSpan:
    """An OpenTelemetry span with times of the gateway's clock.  Only the first `end_span` has an effect."""

    __slots__ = ("_began", "_clock", "_is_over", "_links", "_wall", "span")

    def __init__(self, span: Span, clock: Clock, began: float, wall: float) -> None:
        self.span = span
        self._clock = clock
        self._began = began
        self._wall = wall
        self._is_over = False
        self._links = 0

    def link(self, to: SpanContext, what: str) -> None:
        if self._links < _MOST_LINKS and self.span.is_recording():
            self._links += 1
            self.span.add_link(to, {"gateway.link": what})

    def end_span(self) -> None:
        if not self._is_over:
            self._is_over = True
            # Take the duration from the monotonic clock, because the wall clock may have been set back.
            self.span.end(int((self._wall + self._clock.now() - self._began) * 1e9))


class _RequestSpan:
    __slots__ = ("_joined", "_timed", "span")

    def __init__(self, timed: _TimedSpan) -> None:
        self._timed = timed
        self.span = timed.span
        self._joined: Span | None = None

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self.span.get_span_context().trace_id)

    @property
    def is_sampled(self) -> bool:
        return self.span.get_span_context().trace_flags.sampled

    def describe(self, mode: Mode, outcome: Outcome, route: str | None) -> None:
        span = self.span
        if not span.is_recording():
            return
        span.set_attribute("gateway.mode", mode.value)
        span.set_attribute("gateway.outcome", outcome.value)
        if route is not None:
            span.set_attribute("gateway.route", route)
        if outcome is Outcome.FAILED:
            span.set_status(Status(StatusCode.ERROR))

    def set_status(self, status: int) -> None:
        self.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self.span.set_status(Status(StatusCode.ERROR))

    def aborted(self) -> None:
        self.span.add_event("aborted")

    def end_span(self) -> None:
        self._timed.end_span()

    def share(self, flight: Span, leader: Span | None) -> bool:
        """Add links to a flight and to the span of the request that started it (the leader).  Returns False if this
        request is the leader, or has the links already.
        """
        if self._joined is flight or leader is self.span:
            return False
        self._joined = flight
        self._timed.link(flight.get_span_context(), "flight")
        if leader is not None:
            self._timed.link(leader.get_span_context(), "leader")
        return True


class _FlightSpan:
    __slots__ = ("_followers", "_leader", "_timed", "span")

    def __init__(self, timed: _TimedSpan, leader: Span | None) -> None:
        self._timed = timed
        self.span = timed.span
        self._leader = leader
        self._followers = 0

    def enter(self) -> None:
        flight_now.set(self)

    def joined(self) -> None:
        request = request_now.get()
        if isinstance(request, _RequestSpan) and request.share(self.span, self._leader):
            self._followers += 1

    def end_span(self, result: str, status: int | None, size: int) -> None:
        span = self.span
        if span.is_recording():
            span.set_attribute("gateway.result", result)
            span.set_attribute("gateway.followers", self._followers)
            span.set_attribute("gateway.body_bytes", size)
            if status is not None:
                span.set_attribute("http.response.status_code", status)
            if result == "failed":
                span.set_status(Status(StatusCode.ERROR))
        self._timed.end_span()


class _ExchangeSpan:
    __slots__ = ("_timed", "headers")

    def __init__(self, timed: _TimedSpan, headers: CIMultiDict[str]) -> None:
        self._timed = timed
        # Copy the headers, because all readers of a shared fetch use the original.
        self.headers = headers.copy()
        for name in ("traceparent", "tracestate"):
            self.headers.popall(name, None)
        _PROPAGATOR.inject(self.headers, _context(timed.span))

    def set_status(self, status: int) -> None:
        self._timed.span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._timed.span.set_status(Status(StatusCode.ERROR))

    def failed(self, error: BaseException) -> None:
        span = self._timed.span
        span.set_attribute("error.type", type(error).__name__)
        # An exchange is cancelled when its readers have left, which is no error of the origin.
        if not isinstance(error, asyncio.CancelledError):
            span.set_status(Status(StatusCode.ERROR))

    def end_span(self) -> None:
        self._timed.end_span()


def _context(parent: Span | None) -> Context:
    """Make a context with `parent` as the current span, and nothing else."""
    return Context() if parent is None else trace.set_span_in_context(parent, Context())


def _short(path: str) -> str:
    return path if len(path) <= _PATH_CHARS else path[:_PATH_CHARS] + "…"


def _exporting(config: TracingConfig) -> SpanProcessor:
    exporter = OTLPSpanExporter(endpoint=config.endpoint, timeout=config.export_timeout_s)
    return BatchSpanProcessor(
        exporter,
        max_queue_size=config.queue_spans,
        schedule_delay_millis=_EXPORT_S * 1e3,
        max_export_batch_size=min(_BATCH_SPANS, config.queue_spans),
    )
