"""From a real gateway's log to gold: its sums equal the gateway's counters."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.pipeline import tables
from gateway.pipeline.aggregate import aggregate
from gateway.pipeline.events import Files
from gateway.pipeline.ingest import ingest
from gateway.pipeline.lake import Lake
from tests.pipeline.gold.exact import columns
from tests.scenarios.conftest import Edge
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG_POLLS = 3
LOOPS = 25
JSON = "application/json"

Counted = dict[str, Counter[tuple[str, ...]]]


async def traffic(edge: Edge, origin: RunningOrigin) -> None:
    """Reads of the modes and outcomes that are easy to cause, writes, a stream that is closed, a failing origin."""
    # All readers of a first page that is not the tail share one fetch, whenever they arrive.
    await edge.put("/long", b"[" + b",".join(b'{"a":%d}' % number for number in range(60)) + b"]", JSON)
    gate = origin.origin.faults.hold(kind="catchup")
    shared = [edge.asking("/long?offset=-1") for _ in range(5)]
    await eventually(edge.readers(5))
    gate.release()
    for reader in shared:
        assert (await reader).status == 200
    tail = (await edge.put("/s", b'[{"a":1}]', JSON)).headers["Stream-Next-Offset"]
    for _ in range(4):
        await edge.get("/s?offset=-1", {"X-Some": "1"})
    await edge.get(f"/s?offset={tail}")
    for _ in range(3):
        await edge.get("/long?offset=-1", {"Accept-Encoding": "gzip"})
    await edge.get("/s?offset=-1&offset=now")
    await edge.get("/missing?offset=-1")
    await edge.send("HEAD", "/s")
    polls = [edge.asking(f"/s?live=long-poll&offset={tail}") for _ in range(LONG_POLLS)]
    await _wait_for_readers(edge, LONG_POLLS)
    tail = (await edge.post("/s", b'[{"a":2}]', JSON)).headers["Stream-Next-Offset"]
    for poll in polls:
        assert (await poll).status == 200
    follower = await edge.begin("/s?live=sse&offset=-1")
    await follower.head()
    await _wait_for_readers(edge, 1)
    tail = (await edge.post("/s", b'[{"a":3}]', JSON)).headers["Stream-Next-Offset"]
    while (event := await follower.event()) is not None and tail not in event.data:
        pass
    follower.reset()
    await edge.send("POST", "/s", {"Content-Type": JSON, "Stream-Closed": "true"}, b"")
    for _ in range(LOOPS):
        assert (await edge.get(f"/s?live=long-poll&offset={tail}")).status == 204
    origin.origin.faults.status(503, kind="append", times=1)
    assert (await edge.post("/other", b"x")).status == 503


async def _wait_for_readers(edge: Edge, readers: int) -> None:
    topics = edge.gateway.engine.live.topics
    await eventually(
        lambda: any(
            topic.is_confirmed and len(topic.readers_now) + topic.extra_clients == readers for topic in topics()
        )
    )


async def logged(log: Path) -> Counted:
    """The gateway's counters after this traffic, which is in the log."""
    origin = await start_origin(OriginSettings(max_chunk_bytes=200))
    settings: dict[str, Any] = {"sink": "file", "path": str(log), "client_address": "full"}
    config = GatewayConfig.for_origin(
        origin.url, **settings, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1, live_linger_s=0,
        compress_min_bytes=1,
    )  # fmt: skip
    try:
        edge = Edge(await start_gateway(config), ManualClock())
        try:
            await traffic(edge, origin)
        finally:
            await edge.leave()
            await edge.gateway.stop()
    finally:
        await origin.stop(grace_s=0)
    counted: Counted = {}
    for family in edge.gateway.metrics.registry.collect():
        for sample in family.samples:
            if sample.name.endswith("_total") and sample.value:
                key = tuple(sample.labels.get(name, "-") for name in ("route", "mode", "outcome"))
                counted.setdefault(family.name, Counter())[key] += int(sample.value)
    return counted


def test_golds_sums_equal_the_gateways_counters(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counted = runner.run(logged(log))
    lake = Lake(str(tmp_path / "lake"))
    ingest(spark, Files((str(log),)), lake, progress=lambda text: None)
    aggregate(spark, lake, progress=lambda text: None)

    requests: Counter[tuple[str, ...]] = Counter()
    sent: Counter[tuple[str, ...]] = Counter()
    saved: Counter[tuple[str, ...]] = Counter()
    origin: Counter[str] = Counter()
    for row in _rows(lake, tables.TRAFFIC):
        key = (row["route"], row["mode"], row["outcome"])
        requests[key] += row["requests"]
        sent[key] += row["sent_bytes"]
        saved[key] += row["saved_bytes"]
        origin["requests"] += row["origin_requests"]
        origin["bytes"] += row["fetched_bytes"]
    assert +requests == counted["durable_gateway_requests"]
    assert +sent == counted["durable_gateway_response_bytes"]
    assert +saved == counted["durable_gateway_response_saved_bytes"]
    assert saved.total() > 0
    assert sent.total() == counted["durable_gateway_downstream_bytes"].total()
    assert origin["requests"] == counted["durable_gateway_upstream_requests"].total()
    assert origin["bytes"] == counted["durable_gateway_upstream_bytes"].total()
    assert {mode for _, mode, _ in requests} >= {"append", "catchup", "create", "head", "longpoll", "sse"}
    assert {outcome for _, _, outcome in requests} >= {"collapsed", "failed", "followed", "hit", "miss", "refused"}

    reads = _summed(lake, tables.OFFLOAD, "requests", "by_collapse", "by_follow")
    assert reads[0] == sum(n for (_, mode, _), n in requests.items() if mode in ("catchup", "longpoll", "sse"))
    assert reads[1:] == [requests["default", "catchup", "collapsed"], _of(requests, "followed")]
    assert _summed(lake, tables.DELIVERY, "deliveries") == [LONG_POLLS]
    # A minute may have ended in between; then only its longer part is listed.
    (loops,) = _summed(lake, tables.CLOSED_LOOPS, "requests")
    assert LOOPS // 2 < loops <= LOOPS


def _rows(lake: Lake, table: tables.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = lake.snapshot(table).arrow(columns(table)).read_all().to_pylist()
    return found


def _summed(lake: Lake, table: tables.Table, *names: str) -> list[int]:
    rows = _rows(lake, table)
    return [sum(row[name] for row in rows) for name in names]


def _of(requests: Counter[tuple[str, ...]], outcome: str) -> int:
    return sum(n for (_, _, found), n in requests.items() if found == outcome)
