"""Tracing: parents and links of spans, the headers sent to the origin, and that off is off."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import ClientSession, web
from multidict import CIMultiDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.config.telemetry import TracingConfig
from gateway.ops.opentelemetry_tracer import OpenTelemetryTracer
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.faults import Faults
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.hostile import Asked, HostileOrigin, answer, part_of_stream
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
LOOPBACK = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 1, "live_linger_s": 0}


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def ids(context: SpanContext | None) -> tuple[str, str]:
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def links(span: ReadableSpan) -> dict[str, tuple[str, str]]:
    """The linked contexts of a span, by kind of link."""
    return {str((link.attributes or {})["gateway.link"]): ids(link.context) for link in span.links}


def shown(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


class Traced(Edge):
    """A gateway whose ended spans are kept in memory."""

    def __init__(self, gateway: RunningGateway, clock: ManualClock, exporter: InMemorySpanExporter) -> None:
        super().__init__(gateway, clock)
        self._exporter = exporter

    def spans(self, kind: SpanKind) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.kind is kind]

    @property
    def requests(self) -> list[ReadableSpan]:
        return self.spans(SpanKind.SERVER)

    @property
    def flights(self) -> list[ReadableSpan]:
        return self.spans(SpanKind.INTERNAL)

    @property
    def exchanges(self) -> list[ReadableSpan]:
        return self.spans(SpanKind.CLIENT)

    async def ended(self, count: int) -> list[ReadableSpan]:
        """The spans of requests, once there are `count`: a span ends after the answer's last byte."""
        await eventually(lambda: len(self.requests) >= count)
        return self.requests

    async def at_rest(self) -> None:
        """Wait until no request is left; then every span has ended."""
        await self.until_idle()

    def forget(self) -> None:
        self._exporter.clear()


Start = Callable[..., Awaitable[Traced]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def origin(clock: ManualClock) -> AsyncIterator[RunningOrigin]:
    running = await start_origin(OriginSettings(), clock=clock)
    yield running
    running.origin.faults.clear()
    await running.stop(grace_s=0)


@pytest.fixture
def faults(origin: RunningOrigin) -> Faults:
    return origin.origin.faults


@pytest.fixture
async def start(clock: ManualClock) -> AsyncIterator[Start]:
    """Starts gateways whose spans are kept in memory; each must come to rest without help."""
    edges: list[Traced] = []

    async def start_one(origin_url: str, **settings: Any) -> Traced:
        config = GatewayConfig.for_origin(
            origin_url, **{**LOOPBACK, "sample_ratio": 1.0, "follow_clients": True, **settings}
        )
        exporter = InMemorySpanExporter()
        tracer = OpenTelemetryTracer(config.tracing, clock, Random(11), SimpleSpanProcessor(exporter))
        edges.append(Traced(await start_gateway(config, clock=clock, rng=Random(7), tracer=tracer), clock, exporter))
        return edges[-1]

    yield start_one
    for edge in edges:
        await edge.leave()
        try:
            await edge.until_idle()
        finally:
            await edge.gateway.stop()


@pytest.fixture
async def edge(origin: RunningOrigin, start: Start) -> Traced:
    return await start(origin.url)


@pytest.fixture
async def seen() -> AsyncIterator[HostileOrigin]:
    """An origin that keeps the headers of its requests; each of its streams holds `abc`."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method != "GET":
            writer.write(answer("204 No Content", {"Stream-Next-Offset": "0001"}))
        elif "offset=0001" in asked.target:
            writer.write(part_of_stream(b"", "0001"))
        else:
            writer.write(part_of_stream(b"abc", "0001"))

    running = HostileOrigin(script)
    await running.start()
    yield running
    await running.stop()


# -- requests ----------------------------------------------------------------------------------------------------------


async def test_a_request_continues_its_clients_trace(edge: Traced) -> None:
    await edge.put("/s", b"abc")
    edge.forget()
    assert (await edge.get("/s?offset=-1&signature=secret", SAMPLED)).body == b"abc"
    (span,) = await edge.ended(1)
    assert ids(context_of(span))[0] == TRACE
    assert ids(span.parent) == (TRACE, PARENT)
    told = shown(span)
    assert told["http.request.method"] == "GET"
    assert told["url.path"] == "/s"
    assert told["http.response.status_code"] == 200


async def test_a_request_without_a_trace_begins_one(edge: Traced) -> None:
    await edge.put("/s")
    (span,) = await edge.ended(1)
    assert span.parent is None
    assert span.name == "PUT"


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "00-0-0-01"},
        {"traceparent": f"00-{'0' * 32}-{PARENT}-01"},
        {"traceparent": f"ff-{TRACE}-{PARENT}-01"},
        {"traceparent": f"00-{TRACE}-{PARENT}-01-more"},
        {"traceparent": "x" * 2_000},
        {"traceparent": f"00-{TRACE}-{PARENT}-01", "Traceparent": f"00-{TRACE}-{PARENT}-01"},
    ],
)
async def test_an_invalid_trace_context_begins_a_new_trace(edge: Traced, headers: Mapping[str, str]) -> None:
    await edge.send("HEAD", "/none", headers)
    (span,) = await edge.ended(1)
    assert span.parent is None
    assert ids(context_of(span))[0] != TRACE


async def test_a_client_that_is_not_sampled_is_not_recorded(edge: Traced) -> None:
    await edge.put("/s", b"abc", traceparent=UNSAMPLED["traceparent"])
    await edge.get("/s", UNSAMPLED)
    await edge.at_rest()
    assert not edge.requests
    assert not edge.flights
    assert not edge.exchanges


async def test_a_public_edge_only_links_to_its_clients_traces(origin: RunningOrigin, start: Start) -> None:
    edge = await start(origin.url, follow_clients=False)
    await edge.put("/s", traceparent=UNSAMPLED["traceparent"])
    (span,) = await edge.ended(1)
    assert span.parent is None
    assert ids(context_of(span))[0] != TRACE
    assert links(span) == {"client": (TRACE, PARENT)}


async def test_remembered_answers_have_spans(edge: Traced) -> None:
    await edge.put("/s", b"abc", Stream_Closed="true")
    wire = await edge.wire()
    await wire.ask("/s")
    await wire.answer()
    await edge.ended(2)
    edge.forget()
    remembered = edge.gateway.clients.remembered
    assert remembered is not None
    for number in range(3):
        await wire.ask("/s", {"traceparent": f"00-{TRACE}-{number + 1:016x}-01"})
        assert (await wire.answer()).body == b"abc"
    spans = await edge.ended(3)
    assert remembered.served >= 2
    assert [ids(span.parent) for span in spans] == [(TRACE, f"{number:016x}") for number in (1, 2, 3)]
    told = shown(spans[-1])
    assert (told["gateway.mode"], told["gateway.outcome"]) == ("catchup", "hit")
    assert told["url.path"] == "/s"


@pytest.mark.parametrize("follows", [True, False])
async def test_remembered_answers_are_sampled_like_all_others(clock: ManualClock, follows: bool) -> None:
    exporter = InMemorySpanExporter()
    config = TracingConfig(sample_ratio=0.25, follow_clients=follows)
    tracer = OpenTelemetryTracer(config, clock, Random(11), SimpleSpanProcessor(exporter))

    def recorded(count: int, flags: str | None) -> int:
        exporter.clear()
        lines = f"traceparent: 00-{TRACE}-{PARENT}-{flags}\r\n" if flags is not None else ""
        for _ in range(count):
            request = f"GET /s HTTP/1.1\r\nHost: edge.test\r\n{lines}\r\n".encode()
            tracer.hit(request, Mode.CATCHUP, Outcome.HIT)
        return len(exporter.get_finished_spans())

    assert 150 < recorded(1_000, None) < 350
    # Each request has its own trace.
    assert len({context_of(span).trace_id for span in exporter.get_finished_spans()}) > 150
    if follows:
        assert recorded(100, "01") == 100
        assert recorded(100, "00") == 0
    else:
        assert 0 < recorded(100, "01") < 50
        assert 0 < recorded(100, "00") < 50
    await tracer.close(5)


async def test_a_failure_of_the_origin_is_an_error_in_all_its_spans(edge: Traced, faults: Faults) -> None:
    await edge.put("/s", b"abc")
    edge.forget()
    faults.refuse(times=None)
    async with edge.time_passing():
        assert (await edge.get("/s")).status == 502
    (span,) = await edge.ended(1)
    await edge.at_rest()
    assert span.status.status_code is StatusCode.ERROR
    assert shown(span)["http.response.status_code"] == 502
    (flight,) = [flight for flight in edge.flights if shown(flight)["gateway.flight"] == "bytes"]
    assert flight.status.status_code is StatusCode.ERROR
    assert shown(flight)["gateway.result"] == "failed"
    assert edge.exchanges
    assert all(exchange.status.status_code is StatusCode.ERROR for exchange in edge.exchanges)
    assert {shown(exchange)["error.type"] for exchange in edge.exchanges} == {"UpstreamUnreachable"}


async def test_the_span_of_a_dropped_request_ends(edge: Traced, faults: Faults) -> None:
    await edge.put("/s", b"abc")
    edge.forget()
    gate = faults.hold(kind="catchup")
    wire = await edge.begin("/s", SAMPLED)
    await bounded(gate.waiting(1))
    wire.reset()
    (span,) = await edge.ended(1)
    assert [event.name for event in span.events] == ["aborted"]
    gate.release()


async def test_spans_hold_no_query_and_no_header(edge: Traced) -> None:
    secrets = {"Authorization": "Bearer secret", "Cookie": "secret=secret", **SAMPLED}
    await edge.put("/s?token=secret", b"abc", Authorization="Bearer secret")
    await edge.get("/s?token=secret", secrets)
    await edge.get("/s?token=secret", secrets)
    await edge.at_rest()
    spans = [*edge.requests, *edge.flights, *edge.exchanges]
    assert len(spans) > 6
    assert not [span.name for span in spans if "secret" in f"{span.name} {shown(span)} {span.events}"]


# -- headers to the origin ---------------------------------------------------------------------------------------------


async def test_a_relayed_request_carries_the_span_that_it_is_made_for(seen: HostileOrigin, start: Start) -> None:
    edge = await start(seen.url)
    await edge.post("/s", b"abc", traceparent=SAMPLED["traceparent"], tracestate="vendor=1")
    (request,) = await edge.ended(1)
    (exchange,) = edge.exchanges
    assert ids(exchange.parent) == ids(context_of(request))
    (asked,) = seen.asked
    assert asked.headers.getall("traceparent") == [f"00-{TRACE}-{ids(context_of(exchange))[1]}-01"]
    assert asked.headers.getall("tracestate") == ["vendor=1"]


async def test_a_public_edge_passes_nothing_of_a_clients_trace_on(seen: HostileOrigin, start: Start) -> None:
    edge = await start(seen.url, follow_clients=False)
    await edge.post("/s", b"abc", traceparent=SAMPLED["traceparent"], tracestate="vendor=1")
    (request,) = await edge.ended(1)
    (asked,) = seen.asked
    assert asked.headers["traceparent"].split("-")[1] == ids(context_of(request))[0]
    assert "tracestate" not in asked.headers


async def test_the_origin_receives_traceparents_of_unrecorded_traces(seen: HostileOrigin, start: Start) -> None:
    edge = await start(seen.url)
    await edge.get("/s", UNSAMPLED)
    await edge.at_rest()
    assert seen.asked
    for asked in seen.asked:
        version, trace, parent, flags = asked.headers["traceparent"].split("-")
        assert (version, trace, flags) == ("00", TRACE, "00")
        assert parent != PARENT


async def test_a_shared_fetch_carries_its_flights_trace_and_no_other_header(seen: HostileOrigin, start: Start) -> None:
    edge = await start(seen.url)
    await edge.get("/s", {**SAMPLED, "X-Colour": "red", "baggage": "who=me"})
    await edge.at_rest()
    (fetch,) = seen.reads
    assert "X-Colour" not in fetch.headers
    assert "baggage" not in fetch.headers
    (flight,) = [flight for flight in edge.flights if shown(flight)["gateway.flight"] == "bytes"]
    (exchange,) = [exchange for exchange in edge.exchanges if ids(exchange.parent) == ids(context_of(flight))]
    assert fetch.headers["traceparent"] == f"00-{TRACE}-{ids(context_of(exchange))[1]}-01"


async def test_with_tracing_off_a_clients_header_passes_and_a_shared_fetch_has_none(
    seen: HostileOrigin, clock: ManualClock
) -> None:
    config = GatewayConfig.for_origin(seen.url, **LOOPBACK)
    edge = Edge(await start_gateway(config, clock=clock, rng=Random(7)), clock)
    await edge.post("/s", b"abc", traceparent=SAMPLED["traceparent"], tracestate="vendor=1")
    await edge.get("/s", SAMPLED)
    await edge.until_idle()
    await edge.gateway.stop()
    relayed, *shared = seen.asked
    assert relayed.headers["traceparent"] == SAMPLED["traceparent"]
    assert relayed.headers["tracestate"] == "vendor=1"
    assert shared
    assert not [asked for asked in shared if "traceparent" in asked.headers]


# -- flights -----------------------------------------------------------------------------------------------------------


async def test_a_flight_is_its_leaders_child_and_its_followers_are_linked_to_both(edge: Traced, faults: Faults) -> None:
    await edge.put("/s", b"0123456789")
    await edge.at_rest()
    edge.forget()
    gate = faults.hold(kind="catchup")
    leader = edge.asking("/s", SAMPLED)
    await bounded(gate.waiting(1))
    followers = [edge.asking("/s", {"traceparent": f"00-{number:032x}-{PARENT}-01"}) for number in (1, 2, 3)]
    await eventually(edge.readers(4))
    gate.release()
    assert {answer.body for answer in await asyncio.gather(leader, *followers)} == {b"0123456789"}
    await edge.at_rest()
    spans = {ids(context_of(span))[0]: span for span in await edge.ended(4)}
    led = spans[TRACE]
    assert not led.links
    (flight,) = [one for one in edge.flights if shown(one)["gateway.flight"] == "bytes" and ids(one.parent)[0] == TRACE]
    assert ids(flight.parent) == ids(context_of(led))
    told = shown(flight)
    assert told["gateway.followers"] == 3
    assert (told["gateway.result"], told["gateway.body_bytes"]) == ("landed", 10)
    (exchange,) = [one for one in edge.exchanges if ids(one.parent) == ids(context_of(flight))]
    assert shown(exchange)["http.response.status_code"] == 200
    for number in (1, 2, 3):
        linked = [ids(link.context) for link in spans[f"{number:032x}"].links]
        assert ids(context_of(flight)) in linked
        assert ids(context_of(led)) in linked


async def test_each_try_of_a_flight_is_an_exchange_of_its_own(edge: Traced, faults: Faults) -> None:
    await edge.put("/s", b"abc")
    await edge.at_rest()
    edge.forget()
    faults.status(503, times=1, kind="catchup")
    async with edge.time_passing():
        assert (await edge.get("/s")).body == b"abc"
    await edge.at_rest()
    (flight,) = [flight for flight in edge.flights if shown(flight)["gateway.flight"] == "bytes"]
    tries = [one for one in edge.exchanges if ids(one.parent) == ids(context_of(flight))]
    assert [shown(one)["http.response.status_code"] for one in tries] == [503, 200]


async def test_a_follower_is_traced_apart_from_its_first_reader(edge: Traced) -> None:
    await edge.put("/s", b"[1]", "application/json")
    await edge.at_rest()
    edge.forget()
    wire = await edge.begin("/s?offset=-1&live=sse", SAMPLED)
    assert (await wire.head()).status == 200
    event = await wire.event()
    assert event is not None
    assert event.data == "[1]"
    wire.leave()
    await edge.at_rest()
    live = [exchange for exchange in edge.exchanges if ids(context_of(exchange))[0] != TRACE]
    assert [exchange for exchange in live if exchange.parent is None]


# -- spans by themselves -----------------------------------------------------------------------------------------------


async def test_a_span_lasts_until_its_answer_has_ended_by_the_clock_and_ends_once() -> None:
    exporter, clock = InMemorySpanExporter(), ManualClock()
    tracer = OpenTelemetryTracer(
        TracingConfig(sample_ratio=1.0, follow_clients=True), clock, Random(11), SimpleSpanProcessor(exporter)
    )
    live = tracer.request("GET", "/live", CIMultiDict(SAMPLED))
    assert live.trace_id == TRACE
    failed = tracer.request("GET", "/once", CIMultiDict())
    failed.describe(Mode.CATCHUP, Outcome.FAILED, "chat")
    failed.set_status(502)
    failed.end_span()
    (once,) = exporter.get_finished_spans()
    assert shown(once)["gateway.route"] == "chat"
    assert once.status.status_code is StatusCode.ERROR
    clock.advance(60)
    live.describe(Mode.SSE, Outcome.FOLLOWED, "chat")
    live.end_span()
    live.end_span()
    _, ended = exporter.get_finished_spans()
    assert shown(ended)["gateway.outcome"] == "followed"
    assert ended.start_time is not None
    assert ended.end_time is not None
    assert round((ended.end_time - ended.start_time) / 1e9) == 60
    await tracer.close(5)


# -- export ------------------------------------------------------------------------------------------------------------


async def test_all_spans_reach_a_collector_by_the_time_the_gateway_stops(origin: RunningOrigin) -> None:
    received: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        received.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(content_type="application/x-protobuf")

    application = web.Application()
    application.add_routes([web.post("/v1/traces", collect)])
    collector = web.AppRunner(application)
    await collector.setup()
    await web.TCPSite(collector, "127.0.0.1", 0).start()
    endpoint = f"http://127.0.0.1:{collector.addresses[0][1]}/v1/traces"
    settings = {**LOOPBACK, "endpoint": endpoint, "sample_ratio": 1.0, "service_name": "edge-1"}
    try:
        gateway = await start_gateway(GatewayConfig.for_origin(origin.url, **settings))
        edge = Edge(gateway, ManualClock())
        await edge.put("/s", b"abc")
        await bounded(gateway.stop())
    finally:
        await collector.cleanup()
    (resource,) = [spans for one in received for spans in one.resource_spans]
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert named["service.name"] == "edge-1"
    assert {span.name for scope in resource.scope_spans for span in scope.spans} == {"PUT", "PUT origin"}


async def test_an_unreachable_collector_does_not_block_the_shutdown(
    origin: RunningOrigin, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = f"http://127.0.0.1:{unused_tcp_port}/v1/traces"
    settings = {**LOOPBACK, "endpoint": endpoint, "sample_ratio": 1.0, "export_timeout_s": 0.1}
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, **settings))
    edge = Edge(gateway, ManualClock())
    assert (await edge.put("/s", b"abc")).status == 201
    await bounded(gateway.stop())
    assert any(record.name.startswith("opentelemetry.") for record in caplog.records)


async def test_a_tracer_ends_without_its_exporter(clock: ManualClock) -> None:
    tracer = OpenTelemetryTracer(TracingConfig(), clock, Random(11), SimpleSpanProcessor(InMemorySpanExporter()))
    await bounded(tracer.close(5))
    await bounded(tracer.close(5))


# -- off ---------------------------------------------------------------------------------------------------------------

_OFF = """
import asyncio, sys
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, start_origin
import aiohttp

async def main():
    origin = await start_origin(OriginSettings())
    config = GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1)
    gateway = await start_gateway(config)
    async with aiohttp.ClientSession(gateway.gateway_url) as session:
        async with session.put("/s", data=b"abc") as reply:
            assert reply.status == 201, reply.status
        for _ in range(3):
            async with session.get("/s", headers={"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}) as reply:
                assert await reply.read() == b"abc"
    await gateway.stop()
    await origin.stop(grace_s=0)
    print(sorted(name for name in sys.modules if name.startswith("opentelemetry")))

asyncio.run(main())
"""


def test_off_does_not_even_import_opentelemetry() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _OFF], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_tracing_without_the_extra_is_refused_in_one_line() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from gateway.cli import main\n"
        "sys.argv = ['durable-gateway', 'serve', '--origin', 'http://127.0.0.1:9', '--listen', '127.0.0.1:0', "
        "'--admin', '127.0.0.1:0']\n"
        "sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": "", "DURABLE_GATEWAY_TRACING__ENDPOINT": "http://127.0.0.1:4318/v1/traces"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "durable-gateway[opentelemetry]" in done.stderr


@pytest.mark.parametrize("endpoint", ["collector:4318", "ftp://collector/v1", "http://collector", "http://u:p@c/v1"])
def test_an_invalid_collector_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="URL"):
        TracingConfig(endpoint=endpoint)


async def test_metrics_show_the_trace_of_a_request_that_is_sampled_and_no_other(
    start: Start, origin: RunningOrigin
) -> None:
    edge = await start(origin.url)
    await edge.put("/s", b"abc")
    metrics = f"{edge.gateway.admin_url}/metrics"
    accept = {"Accept": "application/openmetrics-text;version=1.0.0"}
    async with ClientSession() as session:
        await edge.get("/s?offset=-1", UNSAMPLED)
        async with session.get(metrics, headers=accept) as reply:
            assert TRACE not in await reply.text()
        await edge.get("/s?offset=-1", SAMPLED)
        async with session.get(metrics, headers=accept) as reply:
            assert reply.content_type == "application/openmetrics-text"
            assert f'trace_id="{TRACE}"' in await reply.text()
        async with session.get(metrics) as reply:
            assert TRACE not in await reply.text()


async def test_the_target_of_a_redirect_is_traced_within_the_redirected_request(
    start: Start, origin: RunningOrigin
) -> None:
    """Also if another request opened the connection on which the redirect came."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("307 Temporary Redirect", {"Location": origin.url + asked.target}))

    follower = HostileOrigin(script)
    await follower.start()
    try:
        edge = await start(follower.url, leaders=[origin.url], connection_rest_s=0)
        for name in ("one", "two"):
            assert (await edge.put(f"/{name}", b"x")).status == 201
        await edge.ended(2)
        await edge.at_rest()
    finally:
        await follower.stop()
    parents = {shown(span)["url.path"]: span.context.span_id for span in edge.requests if span.context}
    assert len(follower.writers) == 1
    assert [(shown(span)["url.path"], span.parent and span.parent.span_id) for span in edge.exchanges] == [
        (path, parents[path]) for path in ("/one", "/one", "/two", "/two")
    ]
