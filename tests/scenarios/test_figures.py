"""Metrics and snapshots show the true state, and figures about the origin are counted by route."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Start, bounded
from tests.waiting import eventually

SMALL = 30_000


@pytest.fixture
def origin_settings() -> OriginSettings:
    return OriginSettings(sse_lifetime_s=5.0)


def figure(edge: Edge, name: str, **labels: str) -> float:
    """The current value of one metric."""
    value = edge.gateway.metrics.registry.get_sample_value(name, labels)
    assert value is not None, name
    return value


async def test_a_shared_fetch_is_one_flight_with_all_who_wait_for_it(edge: Edge, faults: Faults) -> None:
    await edge.put("/s", b"text")
    gate = faults.hold(kind="catchup")
    readers = [edge.asking("/s?offset=-1") for _ in range(5)]
    await bounded(gate.waiting(1))
    await eventually(lambda: figure(edge, "durable_gateway_waiters", route="default") == 5)
    assert figure(edge, "durable_gateway_flights", route="default") == 1
    assert figure(edge, "durable_gateway_connections") == 5
    assert figure(edge, "durable_gateway_upstream_connections", pool="shared", state="busy") == 1
    gate.release()
    for reader in readers:
        assert (await bounded(reader)).body == b"text"
    await eventually(lambda: figure(edge, "durable_gateway_flights", route="default") == 0)
    assert figure(edge, "durable_gateway_waiters", route="default") == 0
    await eventually(lambda: figure(edge, "durable_gateway_upstream_connections", pool="shared", state="busy") == 0)
    assert figure(edge, "durable_gateway_upstream_connections", pool="shared", state="idle") >= 1
    assert figure(edge, "durable_gateway_upstream_connection_oldest_seconds", pool="shared") > 0


async def test_a_followed_stream_is_one_live_connection(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"[1]", "application/json")
    wires = [await edge.begin("/s?offset=-1&live=sse") for _ in range(3)]
    for wire in wires:
        assert (await bounded(wire.head())).status == 200
    await eventually(lambda: counters.parked == 1)
    assert figure(edge, "durable_gateway_followed_streams") == 1
    assert figure(edge, "durable_gateway_upstream_connections", pool="live", state="busy") == 1
    assert figure(edge, "durable_gateway_upstream_requests_total", mode="sse", route="default") == 1
    assert figure(edge, "durable_gateway_ready") == 1


async def test_the_bytes_of_tapes_are_always_counted_right(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, cache_bytes=4 * SMALL)
    for number in range(8):
        await edge.put(f"/s/{number}", b"x" * SMALL)
        await edge.get(f"/s/{number}?offset=-1")
    await edge.send("DELETE", "/s/7")
    await edge.post("/s/6", b"y" * 100)
    await edge.get("/s/6?offset=-1")
    store = edge.gateway.engine.store
    held: Counter[str] = Counter()
    for stream in store:
        held["tapes"] += 1
        held["blocks"] += stream.tape.block_count
        held["bytes"] += stream.cost
    assert figure(edge, "durable_gateway_evictions_total", route="default") >= 4
    assert held["blocks"]
    assert figure(edge, "durable_gateway_tapes", route="default") == held["tapes"] == len(store)
    assert figure(edge, "durable_gateway_tape_blocks", route="default") == held["blocks"]
    assert figure(edge, "durable_gateway_tape_bytes", route="default") == held["bytes"] == store.cost


async def test_outcomes_of_origin_requests_are_distinguished(edge: Edge, faults: Faults) -> None:
    await edge.put("/s", b"text")
    faults.refuse(kind="append", times=1)
    assert (await edge.post("/s", b"more")).status == 502
    faults.status(503, kind="append", times=1)
    assert (await edge.post("/s", b"more")).status == 503
    assert figure(edge, "durable_gateway_upstream_failures_total", error="UpstreamUnreachable", route="default") == 1
    assert figure(edge, "durable_gateway_upstream_replies_total", **{"class": "5xx"}, route="default") == 1
    assert figure(edge, "durable_gateway_upstream_replies_total", **{"class": "2xx"}, route="default") == 1
    assert figure(edge, "durable_gateway_upstream_requests_total", mode="append", route="default") == 2
    assert figure(edge, "durable_gateway_upstream_first_byte_seconds_count", mode="append", route="default") == 1


@pytest.mark.parametrize("kind", ["sse", "head"])
async def test_an_error_status_for_a_follower_counts_as_a_reply_and_not_as_a_failure(
    edge: Edge, faults: Faults, kind: Kind
) -> None:
    await edge.put("/s", b"[1]", "application/json")
    faults.status(500, kind=kind, times=2)
    wire = await edge.begin("/s?offset=-1&live=sse")
    async with edge.time_passing():
        await eventually(lambda: figure(edge, "durable_gateway_reconnects_total", reason="lost", route="default") == 2)
    await wire.closed()
    assert figure(edge, "durable_gateway_upstream_replies_total", **{"class": "5xx"}, route="default") == 2
    assert figure(edge, "durable_gateway_upstream_failures_total", error="UpstreamBroken", route="default") == 0


async def test_a_follower_that_comes_back_says_whether_that_was_planned(edge: Edge, faults: Faults) -> None:
    await edge.put("/s", b"[1]", "application/json")
    faults.drop(10, kind="sse", times=1)
    wire = await edge.begin("/s?offset=-1&live=sse")
    async with edge.time_passing():
        await eventually(lambda: figure(edge, "durable_gateway_reconnects_total", reason="lost", route="default") == 1)
        await eventually(
            lambda: figure(edge, "durable_gateway_reconnects_total", reason="planned", route="default") >= 1
        )
    await wire.closed()
    assert figure(edge, "durable_gateway_upstream_failures_total", error="UpstreamBroken", route="default") == 1
    assert figure(edge, "durable_gateway_upstream_retries_total", route="default") == 1


async def test_unsent_bytes_are_a_clients_lag(edge: Edge) -> None:
    await edge.put("/s", b"x" * 8_000_000)
    wire = await edge.begin("/s?offset=-1", receive_bytes=4_096)
    await eventually(lambda: figure(edge, "durable_gateway_lag_bytes") > 0)
    assert figure(edge, "durable_gateway_lag_most_bytes") == figure(edge, "durable_gateway_lag_bytes")
    await wire.closed()
    await eventually(lambda: figure(edge, "durable_gateway_lag_bytes") == 0)


async def test_the_delay_of_a_delivery_is_not_the_silence_before_it(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"text")
    wire = await edge.begin("/s?offset=-1&live=sse")
    await bounded(wire.head())
    await bounded(wire.event())
    await eventually(lambda: counters.parked == 1)
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed for topic in topics()))
    edge.clock.advance(3)
    await edge.post("/s", b"more")
    while (event := await bounded(wire.event())) is not None and event.data != "more":
        pass
    await eventually(lambda: figure(edge, "durable_gateway_deliveries_total", route="default") == 1)
    assert figure(edge, "durable_gateway_delivery_delay_seconds_sum", route="default") < 1


async def test_an_error_of_the_gateways_own_is_counted_as_one(edge: Edge, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(read: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(edge.gateway.engine, "catch_up", broken)
    assert (await edge.get("/s?offset=-1")).status == 500
    labels = {"mode": "catchup", "outcome": "failed", "route": "default"}
    assert figure(edge, "durable_gateway_requests_total", **labels) == 1
