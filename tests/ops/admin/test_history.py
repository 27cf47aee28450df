"""What the origin was spared, and the last ten minutes, over the admin port of a running gateway."""

from __future__ import annotations

from typing import Any

from gateway.origin.app import RunningOrigin
from tests.ops.admin.conftest import Bench, Start
from tests.waiting import pass_turns


async def test_what_was_spared_is_of_the_last_ten_seconds_and_of_all(bench: Bench, origin: RunningOrigin) -> None:
    await bench.put("/spared", b"x" * 100, is_closed=True)
    first = (await bench.get("/api/overview"))["spared"]
    assert (first["reads"], first["requests_spared"], first["bytes_spared"]) == (0, None, None), "a write is no read"
    before = origin.origin.counters.total_requests
    for _ in range(40):
        await bench.read("/spared?offset=-1")
    asked = origin.origin.counters.total_requests - before
    assert 0 < asked < 5
    for of in ("spared", "spared_since_start"):
        shown = (await bench.get("/api/overview"))[of]
        assert (shown["reads"], shown["origin_requests"]) == (40, asked)
        assert shown["requests_spared"] == 1 - asked / 40
        assert (shown["answer_bytes"], shown["origin_bytes"]) == (4_000, 100)
        assert shown["bytes_spared"] == 0.975

    bench.clock.advance(20)
    overview = await bench.get("/api/overview")
    assert overview["spared"] == {
        "window_s": 10,
        "reads": 0,
        "origin_requests": 0,
        "answer_bytes": 0,
        "origin_bytes": 0,
        "requests_spared": None,
        "bytes_spared": None,
    }
    assert overview["spared_since_start"]["reads"] == 40
    assert overview["spared_since_start"]["window_s"] == overview["uptime_s"] == 20


async def test_compressed_answers_count_as_long_as_they_were(bench: Bench) -> None:
    await bench.put("/text", b"the same words again and again " * 1_000, is_closed=True)
    for _ in range(4):
        await bench.read("/text?offset=-1", Accept_Encoding="gzip")
    shown = (await bench.get("/api/overview"))["spared"]
    assert shown["answer_bytes"] == 4 * shown["origin_bytes"] == 4 * 31_000
    assert shown["bytes_spared"] == 0.75


async def test_live_readers_are_spared_requests_from_the_moment_they_come(bench: Bench) -> None:
    await bench.put("/live")
    readers = [await bench.follow("/live") for _ in range(10)]
    await bench.until_readers("/live", 10)
    shown = (await bench.get("/api/overview"))["spared"]
    assert shown["reads"] == 10
    assert shown["requests_spared"] == 1 - shown["origin_requests"] / 10 > 0
    bench.clock.advance(20)
    for reader in readers:
        reader.close()
    await bench.until_readers("/live", 0)
    shown = (await bench.get("/api/overview"))["spared"]
    assert (shown["reads"], shown["requests_spared"]) == (0, None), "nobody came"


async def test_the_history_begins_with_the_gateway_and_holds_ten_minutes(bench: Bench) -> None:
    await bench.put("/past", b"x" * 10, is_closed=True)
    for _ in range(5):
        await bench.read("/past?offset=-1")
    bench.clock.advance(4)
    shown = await bench.get("/api/history")
    assert (shown["interval_s"], shown["window_s"]) == (2, 10)
    started, *later = shown["samples"]
    assert [one["uptime_s"] for one in shown["samples"]] == [0, 2, 4]
    assert (started["requests"], started["requests_spared"], started["downstream_bytes"]) == ({}, None, 0)
    overview = await bench.get("/api/overview")
    for sample in later:
        assert sum(sample["requests"].values()) == 6
        assert sample["upstream_requests"] == sum(overview["upstream_requests"].values())
        assert (sample["upstream_bytes"], sample["downstream_bytes"]) == (10, 50)
        assert sample["requests_spared"] == overview["spared"]["requests_spared"]
        assert sample["subscribers"] == {"longpoll": 0, "sse": 0}
        assert len(sample["delivery_delays"]) == len(shown["delivery_delay_bounds_s"]) + 1

    bench.clock.advance(3_600)
    samples: list[dict[str, Any]] = (await bench.get("/api/history"))["samples"]
    assert len(samples) == 301
    assert samples[-1]["at"] - samples[0]["at"] == 600
    assert samples[-1]["at"] == (await bench.get("/api/overview"))["now"]


async def test_deliveries_are_in_the_history_as_in_the_metrics(bench: Bench) -> None:
    bench.gateway.metrics.delivered(3, 0.003)
    bench.clock.advance(2)
    shown = await bench.get("/api/history")
    text = await bench.get("/metrics")
    counts = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("durable_gateway_delivery_delay_seconds_bucket") and 'route="-"' in line
    ]
    assert shown["samples"][-1]["delivery_delays"] == counts
    assert counts[-1] == 1


async def test_the_history_is_guarded_and_goes_with_the_gateway(start: Start, origin: RunningOrigin) -> None:
    bench = await start(origin.url, environ={"DURABLE_GATEWAY_ADMIN_TOKEN": "open-sesame"})
    assert (await bench.ask("GET", "/api/history")).status == 401
    assert (await bench.ask("GET", "/api/history", Authorization="Bearer open-sesame")).status == 200
    await bench.gateway.stop()
    bench.clock.advance(10)
    await pass_turns(1)
    assert repr(bench.gateway.history) == "<History: 1 samples>"
