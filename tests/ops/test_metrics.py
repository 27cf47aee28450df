"""The gateway's series."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics_seam import Recorder, Silent
from gateway.ops.metrics import DURATION_BOUNDS_S, Durations, Metrics
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode


def fresh() -> Metrics:
    return Metrics(CollectorRegistry(), cache_limit_bytes=1000, version="9.9")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_the_series_are_exactly_these_and_each_says_what_it_counts() -> None:
    text, content_type = fresh().exposition()
    families = list(text_string_to_metric_families(text.decode()))
    names = {sample.name for family in families for sample in family.samples}
    assert names == {
        "gateway_requests_total",
        "gateway_upstream_requests_total",
        "gateway_upstream_bytes_total",
        "gateway_downstream_bytes_total",
        "gateway_subscribers",
        "gateway_cache_bytes",
        "gateway_cache_limit_bytes",
        "gateway_tapes",
        "gateway_evictions_total",
        "gateway_request_duration_seconds_bucket",
        "gateway_request_duration_seconds_count",
        "gateway_request_duration_seconds_sum",
        "gateway_compressions_total",
        "gateway_compression_input_bytes_total",
        "gateway_compression_output_bytes_total",
        "gateway_slow_consumers_total",
        "gateway_upstream_retries_total",
        "gateway_build_info",
    }
    for family in families:
        if family.name not in ("gateway_build_info", "gateway_cache_limit_bytes"):
            assert "xcludes" in family.documentation, family.name
    assert content_type.startswith("text/plain; version=")


def test_every_mode_and_outcome_exists_from_the_start() -> None:
    metrics = fresh()
    for mode in Mode:
        assert value(metrics, "gateway_upstream_requests_total", mode=mode) == 0
        assert value(metrics, "gateway_request_duration_seconds_count", mode=mode) == 0
        for outcome in Outcome:
            assert value(metrics, "gateway_requests_total", mode=mode, outcome=outcome) == 0


def test_a_request_counts_once_and_its_duration_too() -> None:
    metrics = fresh()
    metrics.request(Mode.SSE, Outcome.HIT, 0.3)
    metrics.requests(Mode.SSE, Outcome.HIT).inc()
    assert value(metrics, "gateway_requests_total", mode="sse", outcome="hit") == 2
    assert value(metrics, "gateway_requests_total", mode="sse", outcome="miss") == 0
    assert value(metrics, "gateway_request_duration_seconds_count", mode="sse") == 1
    assert value(metrics, "gateway_request_duration_seconds_sum", mode="sse") == pytest.approx(0.3)
    assert value(metrics, "gateway_request_duration_seconds_bucket", mode="sse", le="0.25") == 0
    assert value(metrics, "gateway_request_duration_seconds_bucket", mode="sse", le="0.5") == 1


def test_everything_else_counts_where_it_belongs() -> None:
    metrics = fresh()
    metrics.upstream_request(Mode.LONGPOLL)
    metrics.upstream_requests(Mode.LONGPOLL).inc(2)
    metrics.upstream_bytes(10)
    metrics.downstream_bytes(20)
    metrics.subscribers(Mode.SSE, 5)
    metrics.subscribers(Mode.SSE, -2)
    metrics.cache(700, 3)
    metrics.eviction()
    metrics.eviction(2)
    metrics.coded(Coding.BR, 1_000, 200)
    metrics.coded(Coding.BR, 500, 50)
    metrics.slow_consumer()
    metrics.retry()
    assert value(metrics, "gateway_compressions_total", coding="br") == 2
    assert value(metrics, "gateway_compressions_total", coding="gzip") == 0
    assert value(metrics, "gateway_compression_input_bytes_total", coding="br") == 1_500
    assert value(metrics, "gateway_compression_output_bytes_total", coding="br") == 250
    assert value(metrics, "gateway_upstream_requests_total", mode="longpoll") == 3
    assert value(metrics, "gateway_upstream_bytes_total") == 10
    assert value(metrics, "gateway_downstream_bytes_total") == 20
    assert value(metrics, "gateway_subscribers", mode="sse") == 3
    assert value(metrics, "gateway_subscribers", mode="longpoll") == 0
    assert value(metrics, "gateway_cache_bytes") == 700
    assert value(metrics, "gateway_cache_limit_bytes") == 1000
    assert value(metrics, "gateway_tapes") == 3
    assert value(metrics, "gateway_evictions_total") == 3
    assert value(metrics, "gateway_slow_consumers_total") == 1
    assert value(metrics, "gateway_upstream_retries_total") == 1
    assert value(metrics, "gateway_build_info", version="9.9") == 1


@given(st.lists(st.floats(0, 1000)))
def test_buckets_hold_what_took_at_most_their_bound(durations: list[float]) -> None:
    spread = Durations()
    for duration in durations:
        spread.observe(duration)
    cumulative = dict(spread.cumulative())
    for bound in DURATION_BOUNDS_S:
        assert cumulative[str(bound)] == sum(duration <= bound for duration in durations)
    assert cumulative["+Inf"] == len(durations)
    assert spread.sum_s == pytest.approx(sum(durations))


def test_two_gateways_live_in_one_process_each_with_its_own_registry() -> None:
    one, other = Metrics(), Metrics()
    one.retry()
    assert value(one, "gateway_upstream_retries_total") == 1
    assert value(other, "gateway_upstream_retries_total") == 0
    assert b"process_" in one.exposition()[0]


def test_one_registry_refuses_two_gateways() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)


def test_both_recorders_fit_the_seam() -> None:
    recorders: list[Recorder] = [fresh(), Silent()]
    for recorder in recorders:
        recorder.request(Mode.CATCHUP, Outcome.HIT, 0.001)
        recorder.upstream_request(Mode.SSE)
        recorder.upstream_bytes(3)
        recorder.downstream_bytes(4)
        recorder.subscribers(Mode.SSE, 1)
        recorder.cache(5, 6)
        recorder.eviction(2)
        recorder.coded(Coding.ZSTD, 3, 2)
        recorder.slow_consumer()
        recorder.retry()
    silent = recorders[1]
    assert isinstance(silent, Silent)
    assert silent.counts == {
        ("request", "catchup", "hit"): 1,
        ("upstream_request", "sse"): 1,
        ("upstream_bytes",): 3,
        ("downstream_bytes",): 4,
        ("subscribers", "sse"): 1,
        ("eviction",): 2,
        ("coded", "zstd"): 1,
        ("slow_consumer",): 1,
        ("retry",): 1,
    }
    assert (silent.cache_bytes, silent.tapes) == (5, 6)
