"""The definition of what the origin was spared."""

from __future__ import annotations

import pytest

from gateway.ops.metrics import Metrics
from gateway.ops.spared import Tally
from gateway.protocol.cache_status import Outcome
from gateway.protocol.mode import Mode
from gateway.telemetry.metrics import Sent


def tally(metrics: Metrics) -> Tally:
    return Tally.of(metrics.routes.values(), metrics.downstream_count.value)


def test_the_share_compares_all_reads_with_origin_requests_for_reads_over_all_routes() -> None:
    metrics = Metrics()
    for mode, outcome, route in (
        (Mode.CATCHUP, Outcome.HIT, "a"),
        (Mode.CATCHUP, Outcome.REVALIDATED, "b"),
        (Mode.LONGPOLL, Outcome.FOLLOWED, "a"),
        (Mode.HEAD, Outcome.PASS, "b"),
    ):
        metrics.request(mode, outcome, 0.1, route)
    metrics.upstream_request(Mode.HEAD, "b")
    assert tally(metrics) == Tally(reads=4, origin_requests=1)
    assert tally(metrics).requests_spared == 0.75


@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.APPEND, Mode.DELETE, Mode.OTHER])
def test_writes_are_left_out_on_both_sides(mode: Mode) -> None:
    metrics = Metrics()
    metrics.request(mode, Outcome.PASS, 0.1)
    metrics.upstream_request(mode)
    assert tally(metrics) == Tally()
    assert tally(metrics).requests_spared is None


def test_live_readers_count_once_when_they_begin() -> None:
    metrics = Metrics()
    before = tally(metrics)
    for _ in range(100):
        metrics.subscribers(Mode.SSE, 1)
    metrics.upstream_request(Mode.SSE)
    came = tally(metrics)
    assert came.since(before) == Tally(reads=100, origin_requests=1)
    assert came.requests_spared == 0.99
    for _ in range(100):
        metrics.subscribers(Mode.SSE, -1)
        metrics.request(Mode.SSE, Outcome.ABORTED, 60.0)
    # Leaving is not a read, and a window without reads has no share.
    assert tally(metrics).since(came) == Tally()
    assert tally(metrics).since(came).requests_spared is None


def test_bytes_count_before_compression_as_they_are_sent() -> None:
    metrics = Metrics()
    metrics.downstream_bytes(600)
    metrics.request(Mode.CATCHUP, Outcome.HIT, 0.1, sent=Sent(body_bytes=600, saved_bytes=400))
    metrics.hits(Mode.CATCHUP, Outcome.HIT, 2, 1_200, saved_bytes=800)
    metrics.upstream_bytes(300, Mode.CATCHUP)
    assert (tally(metrics).answer_bytes, tally(metrics).origin_bytes) == (3_000, 300)
    assert tally(metrics).bytes_spared == 0.9
    metrics.downstream_bytes(1_000)  # to a live reader, who stays
    assert tally(metrics).answer_bytes == 4_000


def test_a_negative_share_is_kept() -> None:
    assert Tally(reads=10, origin_requests=25, answer_bytes=10, origin_bytes=15).requests_spared == -1.5
    assert Tally(reads=10, origin_requests=25, answer_bytes=10, origin_bytes=15).bytes_spared == -0.5
    assert Tally(origin_requests=3, origin_bytes=9).requests_spared is None
    assert Tally(origin_requests=3, origin_bytes=9).bytes_spared is None


def test_a_removed_route_makes_no_count_negative() -> None:
    assert Tally(1, 1, 1, 1).since(Tally(5, 5, 5, 5)) == Tally()
