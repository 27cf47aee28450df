"""The sums of the access log equal the counters: exactly one line accounts for each request to the origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin
from gateway.protocol.mode import Mode
from gateway.telemetry.access_record import RecordedStream
from tests.ops.log_reading import lines_of
from tests.scenarios import test_access_log
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.noting import confirmed
from tests.scenarios.wire import Dropped
from tests.waiting import eventually

log = test_access_log.log
settings = test_access_log.settings


def counted(edge: Edge) -> tuple[float, float]:
    """Requests to the origin and body bytes from it, by the metrics."""
    families = {family.name: family for family in edge.gateway.metrics.registry.collect()}

    def total(name: str) -> float:
        return sum(sample.value for sample in families[name].samples if sample.name.endswith("_total"))

    return total("durable_gateway_upstream_requests"), total("durable_gateway_upstream_bytes")


def summed(lines: list[dict[str, Any]]) -> tuple[int, int]:
    return sum(line.get("origin_requests", 0) for line in lines), sum(line["fetched_bytes"] for line in lines)


async def balanced_lines(edge: Edge, log: Path) -> list[dict[str, Any]]:
    """All lines, once no request is under way and every due line is written; checks their sums against the counters."""
    await edge.leave()
    await edge.until_idle()
    access_log = edge.gateway.access_log

    def has_come() -> bool:
        edge.clock.advance(60)
        return repr(access_log) == "0 queued, 0 unwritten, 0 unclaimed"

    await eventually(has_come)
    lines = lines_of(log)
    assert summed(lines) == counted(edge)
    assert len({line["id"] for line in lines}) == len(lines)
    return lines


async def test_reads_of_all_kinds_and_writes(edge: Edge, log: Path, origin: RunningOrigin) -> None:
    tail = (await edge.put("/s", b'[{"a":1},{"a":2}]', "application/json")).headers["Stream-Next-Offset"]
    for _ in range(3):
        await edge.get("/s?offset=-1", {"X-Some": "1"})
    await edge.get("/s?offset=now")
    await edge.send("HEAD", "/s")
    await edge.get("/missing?offset=-1")
    await edge.send("PATCH", "/s", body=b"what")
    await edge.post("/s", b'[{"a":3}]', "application/json")
    await edge.get(f"/s?live=long-poll&offset={tail}")
    await edge.get("/s?offset=-1", {"Authorization": "Bearer a"})
    await edge.send("DELETE", "/s")
    lines = await balanced_lines(edge, log)
    assert counted(edge) == (summed(lines)[0], summed(lines)[1])
    assert all(line["is_final"] for line in lines if line["method"] in ("PUT", "POST", "PATCH", "DELETE"))


async def test_a_followers_bytes_are_logged_by_its_readers_once(edge: Edge, log: Path, origin: RunningOrigin) -> None:
    await edge.put("/s", b"[1]", "application/json")
    readers = [await edge.begin("/s?live=sse&offset=-1") for _ in range(3)]
    await confirmed(edge, 3)
    for number in range(5):
        await edge.post("/s", b"[%d]" % number, "application/json")
    await edge.send("POST", "/s", {"Content-Type": "application/json", "Stream-Closed": "true"})
    for reader in readers:
        await bounded(reader.answer("GET"))
    lines = await balanced_lines(edge, log)
    live = [line for line in lines if line["mode"] == "sse"]
    assert [line["is_final"] for line in live] == [True] * 3
    told = sorted(line["fetched_bytes"] for line in live)
    # The first reader fetches what was there before, and no line has both.
    assert told[:2] in ([0, 0], [0, 3])
    assert told[2] > len(b"[1][0][1][2][3][4]")


async def test_bytes_for_a_lingering_follower_have_their_own_line(
    start: Start, settings: dict[str, Any], log: Path, origin: RunningOrigin
) -> None:
    edge = await start(origin.url, **settings, live_linger_s=200, sse_lifetime_s=600)
    await edge.put("/s?room=1", b"[1]", "application/json")
    reader = await edge.begin("/s?room=1&live=sse&offset=-1")
    await reader.head()
    await confirmed(edge)
    await reader.closed()

    def is_noted() -> bool:
        edge.clock.advance(1.0)
        return b'"close_reason":"left"' in log.read_bytes()

    await eventually(is_noted)
    await edge.post("/s?room=1", b"[2]", "application/json")
    (topic,) = edge.gateway.engine.live.topics()
    tail = topic.stream.acked.tail
    await eventually(lambda: topic.position == tail)
    lines = await balanced_lines(edge, log)
    (own,) = [line for line in lines if not line["is_final"]]
    told = {name: own.get(name) for name in ("stream", "route", "mode", "outcome", "method", "status", "client")}
    assert told == {
        "stream": "/s?room=1", "route": "default", "mode": "sse", "outcome": "followed", "method": "GET",
        "status": None, "client": None,
    }  # fmt: skip
    assert own["fetched_bytes"] > 3


async def test_clients_that_leave_and_retried_fetches(edge: Edge, log: Path, origin: RunningOrigin) -> None:
    await edge.put("/s", b"x" * 1_000)
    gate = origin.origin.faults.hold(kind="catchup")
    leader = await edge.begin("/s?offset=-1")
    await gate.waiting(1)
    reads = [edge.asking("/s?offset=-1") for _ in range(3)]
    await eventually(edge.readers(4))
    await leader.closed()
    await eventually(edge.readers(3))
    gate.release()
    for read in reads:
        assert (await read).status == 200
    # No reader is left to account for the fetch.
    gate = origin.origin.faults.hold(kind="catchup")
    alone = await edge.begin("/s?offset=-1&q=2")
    await gate.waiting(1)
    await alone.closed()
    await eventually(lambda: not edge.gateway.engine.fetches)
    gate.release()
    origin.origin.faults.status(503, kind="catchup", times=1)
    async with edge.time_passing():
        assert (await edge.get("/s?offset=-1&q=3")).status in (200, 404)
    await edge.put("/long", b"y" * 500_000)
    origin.origin.faults.drop(300_000, kind="catchup", times=None)
    with pytest.raises(Dropped):
        await edge.get("/long?offset=-1")
    await balanced_lines(edge, log)


async def test_a_write_whose_client_left_has_a_line(edge: Edge, log: Path, origin: RunningOrigin) -> None:
    await edge.put("/s", b"x")
    gate = origin.origin.faults.hold(kind="append")
    writer = await edge.begin("/s", {"Content-Type": "text/plain"}, method="POST", body=b"abc")
    await gate.waiting(1)
    await writer.closed()
    gate.release()
    lines = await balanced_lines(edge, log)
    assert [line["origin_requests"] for line in lines if line["mode"] == "append"] == [1]


async def test_warmed_streams_have_their_own_lines(
    start: Start, settings: dict[str, Any], log: Path, origin: RunningOrigin, tmp_path: Path
) -> None:
    sample = json.loads((Path(__file__).parents[2] / "config" / "cache-plan.json").read_bytes())
    entry = {"route": "default", "stream": "/s", "bytes": 1, "reason": "so"}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(sample | {"pin": [], "warm": [entry], "do_not_store": [], "lifetimes": []}))
    edge = await start(origin.url, **settings, file=str(plan))
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": "text/plain"}, b"0123456789")
    warming = edge.gateway.planned.warming
    assert warming is not None
    async with edge.time_passing():
        await eventually(lambda: warming.is_over)
    assert (await edge.get("/s?offset=-1")).body == b"0123456789"
    lines = await balanced_lines(edge, log)
    (own,) = [line for line in lines if not line["is_final"]]
    assert (own["stream"], own["fetched_bytes"], own["origin_requests"], "client" in own) == ("/s", 10, 2, False)


async def test_unclaimed_bytes_are_logged_in_time_with_one_line_per_live_read(
    start: Start, settings: dict[str, Any], log: Path, origin: RunningOrigin
) -> None:
    edge = await start(origin.url, **settings, live_interval_s=0)
    access_log = edge.gateway.access_log
    for number in range(300):
        access_log.unclaimed(RecordedStream("default", f"/{number}", None), Mode.SSE)
    lines = await balanced_lines(edge, log)
    assert len([line for line in lines if line["mode"] == "sse"]) == 300


async def test_very_many_followed_streams_have_no_line_for_each_piece(
    start: Start, settings: dict[str, Any], log: Path, origin: RunningOrigin
) -> None:
    edge = await start(origin.url, **settings, followed_streams=6_000, queue_records=100_000)
    access_log = edge.gateway.access_log
    for _ in range(3):
        for number in range(6_000):
            access_log.unclaimed(RecordedStream("default", f"/{number}", None), Mode.SSE)
    lines = await balanced_lines(edge, log)
    assert len(lines) == 6_000


async def test_a_drain_and_a_shutdown_leave_no_bytes_unlogged(
    log: Path, settings: dict[str, Any], origin: RunningOrigin, clock: ManualClock
) -> None:
    config = GatewayConfig.for_origin(
        origin.url, **settings, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1, live_linger_s=60
    )
    edge = Edge(await start_gateway(config, clock=clock), clock)
    try:
        await edge.put("/s", b"[1]", "application/json")
        reader = await edge.begin("/s?live=sse&offset=-1")
        await reader.head()
        await confirmed(edge)
        edge.gateway.drain(0.5)

        def has_left() -> bool:
            edge.clock.advance(0.1)
            return not any(topic.readers_now for topic in edge.gateway.engine.live.topics())

        await eventually(has_left)
        await edge.post("/s", b"[2]", "application/json")
    finally:
        await edge.leave()
        await edge.gateway.stop()
    lines = lines_of(log)
    assert summed(lines) == counted(edge)
    # The bytes that arrived while the follower lingered come last.
    assert [line["is_final"] for line in lines] == [True, True, True, False]
