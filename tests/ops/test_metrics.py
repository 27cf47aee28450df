"""The gateway's metric families."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gateway.ops.figures import DURATION_BOUNDS_S, LIVE, READS, RELAYED, Histogram
from gateway.ops.metrics import Metrics
from gateway.ops.state import State, Unsent
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.tape.costs import RouteUsage
from gateway.telemetry.metrics import NO_ROUTE, MetricsRecorder, NoMetrics, Sent
from gateway.upstream.connection_pool import Connections
from gateway.upstream.failures import Refusal
from gateway.upstream.slots import Purpose, SlotUse

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def fresh(*routes: str) -> Metrics:
    return Metrics(
        CollectorRegistry(),
        routes=routes or ("a",),
        cache_limit_bytes=1000,
        limits={"connections": 7},
        wall=lambda: 1_790_000_000.0,
        version="9.9",
    )


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_every_help_text_states_its_exclusions() -> None:
    text, content_type = fresh().exposition()
    families = list(text_string_to_metric_families(text.decode()))
    for family in families:
        assert family.name.startswith("durable_gateway_")
        if not family.name.endswith(("_limit", "_limit_bytes", "_info")):
            assert "xcludes" in family.documentation, family.name
    assert content_type.startswith("text/plain; version=")


def test_clients_cannot_create_label_values() -> None:
    metrics = fresh()
    metrics.upstream_failure(Mode.SSE, "UpstreamBroken", "a")
    metrics.look = lambda: State(upstream={"live": Connections(1, 1, 1.0, 1.0)})
    text, _ = metrics.exposition()
    labels = {
        label
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        for label in sample.labels
    }
    of_the_build = {"version", "python", "aiohttp"}
    assert labels - of_the_build == {
        "mode", "outcome", "route", "le", "coding", "class", "error", "reason", "action", "pool", "state", "code",
        "kind", "result", "purpose", "limit",
    }  # fmt: skip


@pytest.mark.parametrize("route", ["a", "b"])
def test_every_mode_and_outcome_of_a_route_exists_from_the_start(route: str) -> None:
    metrics = fresh("a", "b")
    for mode in Mode:
        assert value(metrics, "durable_gateway_upstream_requests_total", mode=mode, route=route) == 0
        for outcome in Outcome if mode in READS else RELAYED:
            labels = {"mode": mode, "outcome": outcome, "route": route}
            assert value(metrics, "durable_gateway_requests_total", **labels) == 0
            if mode in READS:
                assert value(metrics, "durable_gateway_response_bytes_total", **labels) == 0
    for mode in LIVE:
        assert value(metrics, "durable_gateway_subscribers", mode=mode, route=route) == 0


def series(metrics: Metrics) -> list[Sample]:
    text, _ = metrics.exposition()
    return [sample for family in text_string_to_metric_families(text.decode()) for sample in family.samples]


def test_an_idle_route_exports_no_series_that_are_never_read() -> None:
    assert len(series(fresh("a"))) < 500
    assert len(series(fresh("a", "b"))) - len(series(fresh("a"))) < 400


def test_without_events_no_route_has_one_series() -> None:
    metrics = fresh()
    (one,) = (sample for sample in series(metrics) if sample.labels.get("route") == NO_ROUTE)
    assert (one.name, one.labels["mode"], one.labels["outcome"]) == (
        "durable_gateway_requests_total",
        "other",
        "refused",
    )
    metrics.request(Mode.OTHER, Outcome.REFUSED, 0.1, sent=Sent(body_bytes=12))
    metrics.eviction()
    found = {sample.name: sample.value for sample in series(metrics) if sample.labels.get("route") == NO_ROUTE}
    assert found["durable_gateway_requests_total"] == 1
    assert found["durable_gateway_response_bytes_total"] == 12
    assert found["durable_gateway_request_duration_seconds_count"] == 1
    assert found["durable_gateway_evictions_total"] == 1


@pytest.mark.parametrize(
    ("name", "shown", "others"),
    [
        ("request_duration", set(Mode) - {Mode.HEAD, Mode.OTHER}, {Mode.HEAD, Mode.OTHER}),
        ("first_byte", {Mode.CATCHUP}, set(Mode) - {Mode.CATCHUP}),
        (
            "upstream_first_byte",
            {Mode.CATCHUP, Mode.HEAD, Mode.CREATE, Mode.APPEND, Mode.DELETE},
            {Mode.LONGPOLL, Mode.SSE, Mode.OTHER},
        ),
    ],
)
def test_a_histogram_that_no_dashboard_shows_begins_with_what_it_observes(
    name: str, shown: set[Mode], others: set[Mode]
) -> None:
    metrics = fresh()
    counted = f"durable_gateway_{name}_seconds_count"
    assert {mode: value(metrics, counted, mode=mode, route="a") for mode in Mode} == {
        **dict.fromkeys(shown, 0),
        **dict.fromkeys(others),
    }
    for mode in Mode:
        metrics.request(mode, Outcome.HIT, 0.1, "a", sent=Sent(first_byte_s=0.1))
        metrics.upstream_head(mode, 200, 0.1, "a")
    assert {mode: value(metrics, counted, mode=mode, route="a") for mode in Mode} == dict.fromkeys(Mode, 1)


def test_a_request_counts_once_and_its_times_and_bytes_with_it() -> None:
    metrics = fresh("a", "b")
    metrics.request(Mode.SSE, Outcome.HIT, 0.3, "a", sent=Sent(first_byte_s=0.002, body_bytes=70, saved_bytes=30))
    of_a = {"mode": "sse", "route": "a"}
    assert value(metrics, "durable_gateway_requests_total", outcome="hit", **of_a) == 1
    assert value(metrics, "durable_gateway_requests_total", outcome="miss", **of_a) == 0
    assert value(metrics, "durable_gateway_requests_total", outcome="hit", mode="sse", route="b") == 0
    assert value(metrics, "durable_gateway_response_bytes_total", outcome="hit", **of_a) == 70
    assert value(metrics, "durable_gateway_response_saved_bytes_total", outcome="hit", **of_a) == 30
    assert value(metrics, "durable_gateway_request_duration_seconds_sum", **of_a) == pytest.approx(0.3)
    assert value(metrics, "durable_gateway_request_duration_seconds_bucket", le="0.25", **of_a) == 0
    assert value(metrics, "durable_gateway_request_duration_seconds_bucket", le="0.5", **of_a) == 1
    assert value(metrics, "durable_gateway_first_byte_seconds_bucket", le="0.001", **of_a) == 0
    assert value(metrics, "durable_gateway_first_byte_seconds_bucket", le="0.0025", **of_a) == 1
    metrics.request(Mode.SSE, Outcome.ABORTED, 0.1, "a")
    assert value(metrics, "durable_gateway_request_duration_seconds_count", **of_a) == 2
    assert value(metrics, "durable_gateway_first_byte_seconds_count", **of_a) == 1
    hits = metrics.requests(Mode.SSE, Outcome.HIT)
    assert hits.value == 1
    metrics.request(Mode.SSE, Outcome.HIT, 0.3, "b")
    assert hits.value == 2


def test_hits_count_as_many_as_they_are() -> None:
    metrics = fresh()
    counted: list[int] = []

    def count() -> None:
        if not counted:
            metrics.hits(Mode.CATCHUP, Outcome.HIT, 1000, 5000, "a", saved_bytes=7000)
            counted.append(1)

    metrics.before_collect = count
    labels = {"mode": "catchup", "route": "a"}
    assert value(metrics, "durable_gateway_requests_total", outcome="hit", **labels) == 1000
    assert value(metrics, "durable_gateway_response_bytes_total", outcome="hit", **labels) == 5000
    assert value(metrics, "durable_gateway_response_saved_bytes_total", outcome="hit", **labels) == 7000
    assert value(metrics, "durable_gateway_downstream_bytes_total") == 5000
    assert value(metrics, "durable_gateway_request_duration_seconds_bucket", le="0.0005", **labels) == 1000
    assert value(metrics, "durable_gateway_first_byte_seconds_count", **labels) == 1000


def test_requests_without_a_route_share_one_label() -> None:
    metrics = fresh()
    assert value(metrics, "durable_gateway_requests_total", mode="other", outcome="refused", route=NO_ROUTE) == 0
    metrics.request(Mode.OTHER, Outcome.REFUSED, 0.0)
    assert value(metrics, "durable_gateway_requests_total", mode="other", outcome="refused", route=NO_ROUTE) == 1


def test_an_unexpected_outcome_of_a_mode_is_still_counted() -> None:
    metrics = fresh()
    metrics.request(Mode.HEAD, Outcome.STALE_IF_ERROR, 0.1, "a", sent=Sent(body_bytes=3))
    assert value(metrics, "durable_gateway_requests_total", mode="head", outcome="stale_if_error", route="a") == 1
    assert value(metrics, "durable_gateway_response_bytes_total", mode="head", outcome="stale_if_error", route="a") == 3


def test_origin_events_are_counted_in_their_series() -> None:
    metrics = fresh()
    metrics.upstream_request(Mode.LONGPOLL, "a")
    metrics.upstream_head(Mode.LONGPOLL, 204, 0.2, "a")
    metrics.upstream_head(Mode.LONGPOLL, 503, 0.1, "a")
    metrics.upstream_failure(Mode.LONGPOLL, "UpstreamTimeout", "a")
    metrics.upstream_bytes(10, Mode.LONGPOLL, "a")
    metrics.retry("a")
    metrics.reconnect("a", is_planned=True)
    metrics.reconnect("a", is_planned=False)
    metrics.reconnect("a", is_planned=False)
    assert value(metrics, "durable_gateway_upstream_requests_total", mode="longpoll", route="a") == 1
    assert value(metrics, "durable_gateway_upstream_replies_total", **{"class": "2xx"}, route="a") == 1
    assert value(metrics, "durable_gateway_upstream_replies_total", **{"class": "5xx"}, route="a") == 1
    assert value(
        metrics, "durable_gateway_upstream_first_byte_seconds_sum", mode="longpoll", route="a"
    ) == pytest.approx(0.3)
    assert value(metrics, "durable_gateway_upstream_failures_total", error="UpstreamTimeout", route="a") == 1
    assert value(metrics, "durable_gateway_upstream_bytes_total", mode="longpoll", route="a") == 10
    assert value(metrics, "durable_gateway_upstream_retries_total", route="a") == 1
    assert value(metrics, "durable_gateway_reconnects_total", reason="planned", route="a") == 1
    assert value(metrics, "durable_gateway_reconnects_total", reason="lost", route="a") == 2


def test_other_events_are_counted_in_their_series() -> None:
    metrics = fresh()
    metrics.downstream_bytes(20)
    metrics.subscribers(Mode.SSE, 3, "a")
    metrics.subscribers(Mode.SSE, -1, "a")
    metrics.delivered(50, 0.002, "a")
    metrics.delivered(50, 0.002, "a")
    metrics.look = lambda: State(cache_bytes=500)
    metrics.eviction(2, "a")
    metrics.coded(Coding.BR, 100, 20)
    metrics.slow_consumer()
    metrics.slow_consumer(is_closed=False)
    metrics.log_drops(5)
    assert value(metrics, "durable_gateway_downstream_bytes_total") == 20
    assert value(metrics, "durable_gateway_subscribers", mode="sse", route="a") == 2
    assert value(metrics, "durable_gateway_deliveries_total", route="a") == 100
    assert value(metrics, "durable_gateway_delivery_delay_seconds_count", route="a") == 2
    assert value(metrics, "durable_gateway_cache_bytes") == 500
    assert value(metrics, "durable_gateway_cache_limit_bytes") == 1000
    assert value(metrics, "durable_gateway_connections_limit") == 7
    assert value(metrics, "durable_gateway_evictions_total", route="a") == 2
    assert value(metrics, "durable_gateway_compressions_total", coding="br") == 1
    assert value(metrics, "durable_gateway_compression_input_bytes_total", coding="br") == 100
    assert value(metrics, "durable_gateway_compression_output_bytes_total", coding="br") == 20
    assert value(metrics, "durable_gateway_slow_consumers_total", action="closed") == 1
    assert value(metrics, "durable_gateway_slow_consumers_total", action="moved") == 1
    assert value(metrics, "durable_gateway_log_drops_total") == 5
    text = metrics.exposition()[0].decode()
    assert "durable_gateway_build_info{" in text
    assert 'version="9.9"' in text


def test_the_state_is_read_at_collection() -> None:
    metrics = fresh("a", "b")
    metrics.look = lambda: State(
        is_ready=True,
        connections=5,
        unsent=Unsent(300, 200),
        flights={"a": 2},
        waiters={"a": 40},
        followed=3,
        holdings={"a": RouteUsage(4, 9, 12_000)},
        upstream={"live": Connections(3, 1, 60.0, 20.0)},
        slots=SlotUse({Purpose.READ: 7, Purpose.WRITE: 2}, {Purpose.READ: 5}, {Refusal.CLIENT: 6}),
    )
    assert value(metrics, "durable_gateway_ready") == 1
    assert value(metrics, "durable_gateway_connections") == 5
    assert value(metrics, "durable_gateway_lag_bytes") == 300
    assert value(metrics, "durable_gateway_lag_most_bytes") == 200
    assert value(metrics, "durable_gateway_flights", route="a") == 2
    assert value(metrics, "durable_gateway_waiters", route="a") == 40
    assert value(metrics, "durable_gateway_waiters", route="b") == 0
    assert value(metrics, "durable_gateway_followed_streams") == 3
    assert value(metrics, "durable_gateway_tapes", route="a") == 4
    assert value(metrics, "durable_gateway_tape_blocks", route="a") == 9
    assert value(metrics, "durable_gateway_tape_bytes", route="a") == 12_000
    assert value(metrics, "durable_gateway_tape_bytes", route="b") == 0
    assert value(metrics, "durable_gateway_upstream_connections", pool="live", state="busy") == 3
    assert value(metrics, "durable_gateway_upstream_connections", pool="live", state="idle") == 1
    assert value(metrics, "durable_gateway_upstream_connection_oldest_seconds", pool="live") == 60
    assert value(metrics, "durable_gateway_upstream_connection_mean_seconds", pool="live") == 20
    assert value(metrics, "durable_gateway_upstream_slots", purpose="read") == 7
    assert value(metrics, "durable_gateway_upstream_slots", purpose="write") == 2
    assert value(metrics, "durable_gateway_upstream_queue", purpose="read") == 5
    assert value(metrics, "durable_gateway_upstream_refused_total", reason="client") == 6


def exemplars(text: bytes) -> list[Sample]:
    families = list(open_metrics(text.decode()))  # type: ignore[no-untyped-call]
    return [sample for family in families for sample in family.samples if sample.exemplar is not None]


def test_a_trace_is_an_exemplar_of_its_bucket_in_openmetrics() -> None:
    metrics = fresh()
    metrics.request(Mode.CATCHUP, Outcome.MISS, 0.03, "a", sent=Sent(first_byte_s=0.02), trace_id="0" * 32)
    metrics.request(Mode.CATCHUP, Outcome.MISS, 0.04, "a", sent=Sent(first_byte_s=0.02), trace_id=TRACE_ID)
    metrics.request(Mode.CATCHUP, Outcome.MISS, 0.04, "a", sent=Sent(first_byte_s=0.02))
    text, content_type = metrics.exposition(OPEN_METRICS)
    assert content_type.startswith("application/openmetrics-text")
    shown = {sample.name: sample for sample in exemplars(text)}
    assert set(shown) == {
        "durable_gateway_request_duration_seconds_bucket",
        "durable_gateway_first_byte_seconds_bucket",
    }
    duration = shown["durable_gateway_request_duration_seconds_bucket"]
    assert duration.labels["le"] == "0.05"
    assert duration.value == 3
    assert duration.exemplar is not None
    assert duration.exemplar.labels == {"trace_id": TRACE_ID}
    assert duration.exemplar.value == 0.04
    assert float(duration.exemplar.timestamp or 0) == 1_790_000_000
    plain, content_type = metrics.exposition("text/plain")
    assert content_type.startswith("text/plain")
    assert TRACE_ID.encode() not in plain
    assert metrics.exposition()[0] == plain


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
async def test_a_scrape_yields_to_the_loop_and_gives_the_same_text(accept: str) -> None:
    metrics = fresh(*(f"route-{n}" for n in range(10)))
    metrics.request(Mode.SSE, Outcome.FOLLOWED, 0.3, "route-7", sent=Sent(first_byte_s=0.1), trace_id=TRACE_ID)
    turns = 0
    is_over = False

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not is_over:
            asyncio.get_running_loop().call_soon(turn)

    turn()
    text, content_type = await metrics.scrape(accept)
    is_over = True
    assert (text, content_type) == metrics.exposition(accept)
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    assert turns > samples / 500


@given(st.lists(st.floats(0, 1000)))
def test_a_bucket_counts_observations_up_to_its_bound(durations: list[float]) -> None:
    spread = Histogram()
    for duration in durations:
        spread.observe(duration)
    cumulative = dict(spread.cumulative())
    for bound in DURATION_BOUNDS_S:
        assert cumulative[str(bound)] == sum(duration <= bound for duration in durations)
    assert cumulative["+Inf"] == len(durations) == spread.count
    assert spread.sum_s == pytest.approx(sum(durations))


def test_two_gateways_live_in_one_process_each_with_its_own_registry() -> None:
    one, other = Metrics(), Metrics()
    one.retry()
    assert value(one, "durable_gateway_upstream_retries_total", route=NO_ROUTE) == 1
    assert value(other, "durable_gateway_upstream_retries_total", route=NO_ROUTE) is None
    assert b"process_" in one.exposition()[0]


def test_one_registry_refuses_two_gateways() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)


def test_both_recorders_implement_the_protocol() -> None:
    recorders: list[MetricsRecorder] = [fresh(), NoMetrics()]
    for recorder in recorders:
        recorder.request(Mode.CATCHUP, Outcome.HIT, 0.001)
        recorder.hits(Mode.CATCHUP, Outcome.HIT, 2, 8)
        recorder.upstream_request(Mode.SSE)
        recorder.upstream_head(Mode.SSE, 200, 0.1)
        recorder.upstream_failure(Mode.SSE, "UpstreamBroken")
        recorder.upstream_bytes(3)
        recorder.downstream_bytes(4)
        recorder.subscribers(Mode.SSE, 1)
        recorder.delivered(9, 0.1)
        recorder.eviction(2)
        recorder.coded(Coding.ZSTD, 3, 2)
        recorder.slow_consumer()
        recorder.slow_consumer(is_closed=False)
        recorder.retry()
        recorder.reconnect(is_planned=False)
        recorder.log_drops()
    silent = recorders[1]
    assert isinstance(silent, NoMetrics)
    assert silent.counts == {
        ("request", "catchup", "hit"): 3,
        ("upstream_request", "sse"): 1,
        ("upstream_head", "sse", "2xx"): 1,
        ("upstream_failure", "sse", "UpstreamBroken"): 1,
        ("upstream_bytes",): 3,
        ("downstream_bytes",): 12,
        ("subscribers", "sse"): 1,
        ("delivered",): 9,
        ("eviction",): 2,
        ("coded", "zstd"): 1,
        ("slow_consumer", "closed"): 1,
        ("slow_consumer", "moved"): 1,
        ("retry",): 1,
        ("reconnect", "lost"): 1,
        ("log_drops",): 1,
    }


def test_a_request_is_in_the_current_trace_unless_it_names_one() -> None:
    running: list[str | None] = [None, TRACE_ID]
    metrics = Metrics(CollectorRegistry(), routes=("a",), trace_now=lambda: running.pop(0))
    metrics.request(Mode.CATCHUP, Outcome.HIT, 0.001, "a")
    assert exemplars(metrics.exposition(OPEN_METRICS)[0]) == []
    metrics.request(Mode.CATCHUP, Outcome.HIT, 0.001, "a")
    metrics.request(Mode.SSE, Outcome.FOLLOWED, 0.001, "a", trace_id="0" * 31 + "1")
    shown = exemplars(metrics.exposition(OPEN_METRICS)[0])
    found = {sample.labels["mode"]: sample.exemplar.labels["trace_id"] for sample in shown if sample.exemplar}
    assert found == {"catchup": TRACE_ID, "sse": "0" * 31 + "1"}


def test_a_reload_adds_routes_and_keeps_counts() -> None:
    metrics = fresh("a")
    metrics.retry("a")
    metrics.configure(["b"], 2_000, {"connections": 9})
    assert value(metrics, "durable_gateway_upstream_retries_total", route="a") == 1
    assert value(metrics, "durable_gateway_upstream_retries_total", route="b") == 0
    assert value(metrics, "durable_gateway_cache_limit_bytes") == 2_000
    assert value(metrics, "durable_gateway_connections_limit") == 9


def test_a_route_names_its_protocol_as_long_as_it_is_configured() -> None:
    metrics = fresh("a", "b")
    metrics.protocols = {"a": "durable-streams", "b": "s2"}
    assert value(metrics, "durable_gateway_route_info", route="a", protocol="durable-streams") == 1
    assert value(metrics, "durable_gateway_route_info", route="b", protocol="s2") == 1
    metrics.protocols = {"a": "s2"}
    found = [sample.labels for sample in series(metrics) if sample.name == "durable_gateway_route_info"]
    assert found == [{"route": "a", "protocol": "s2"}]


def routes_exposed(metrics: Metrics) -> set[str]:
    text, _ = metrics.exposition()
    families = text_string_to_metric_families(text.decode())
    return {sample.labels["route"] for family in families for sample in family.samples if "route" in sample.labels}


def test_a_removed_route_is_exposed_until_its_state_is_gone_and_once_more() -> None:
    metrics = fresh("a", "b")
    metrics.request(Mode.CATCHUP, Outcome.HIT, 0.1, "b")
    metrics.subscribers(Mode.SSE, 1, "b")
    metrics.configure(["a"], 1_000, {})
    for _ in range(3):
        assert routes_exposed(metrics) == {"a", "b", NO_ROUTE}
    metrics.subscribers(Mode.SSE, -1, "b")
    metrics.look = lambda: State(holdings={"b": RouteUsage(1, 1, 1)})
    assert routes_exposed(metrics) == {"a", "b", NO_ROUTE}
    metrics.look = lambda: State(flights={"b": 1}, holdings={"b": RouteUsage()})
    assert routes_exposed(metrics) == {"a", "b", NO_ROUTE}
    metrics.look = lambda: State(holdings={"b": RouteUsage()}, flights={"b": 0})
    assert value(metrics, "durable_gateway_requests_total", mode="catchup", outcome="hit", route="b") == 1
    assert routes_exposed(metrics) == {"a", "b", NO_ROUTE}
    assert routes_exposed(metrics) == {"a", NO_ROUTE}
    # A request that ends late is exposed once more.
    metrics.request(Mode.CATCHUP, Outcome.HIT, 0.1, "b")
    assert value(metrics, "durable_gateway_requests_total", mode="catchup", outcome="hit", route="b") == 1
    assert routes_exposed(metrics) == {"a", "b", NO_ROUTE}
    assert routes_exposed(metrics) == {"a", NO_ROUTE}


def test_a_route_that_comes_back_stays_exposed() -> None:
    metrics = fresh("a", "b")
    metrics.configure(["a"], 1_000, {})
    metrics.configure(["a", "b"], 1_000, {})
    for _ in range(2):
        assert routes_exposed(metrics) == {"a", "b", NO_ROUTE}
