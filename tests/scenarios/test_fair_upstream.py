"""The connections to origins are shared fairly: one client, one kind of request or one route never holds them all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, part_of_stream
from tests.scenarios.test_figures import figure
from tests.waiting import at_rest, eventually

TEXT = {"Content-Type": "text/plain"}
LARGE = 8 << 20
_BODIES_S = 90.0


def of(client: int) -> dict[str, str]:
    """The headers by which a trusted proxy names one of several clients."""
    return {**TEXT, "X-Forwarded-For": f"192.0.2.{client}"}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"trusted_proxies": ["127.0.0.1"], "upstream_connections": 16, "retry_attempts": 0}


async def large_for_big(asked: Asked, writer: asyncio.StreamWriter) -> None:
    is_big = asked.target.startswith("/big")
    writer.write(part_of_stream(b"x" * (LARGE if is_big else 4), "0001"))


@pytest.mark.http_1
async def test_a_client_that_stops_reading_leaves_connections_to_others(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    origin = await hostile(large_for_big)
    edge = await start(origin.url, **settings)
    for number in range(32):
        await edge.begin(f"/big{number}?offset=snapshot", of(1), receive_bytes=4_096)
    await at_rest(lambda: len(origin.reads))
    read, write = edge.asking("/other", of(2)), asyncio.create_task(edge.send("POST", "/other", of(2), b"x"))
    assert (await bounded(read)).body == b"xxxx"
    assert (await bounded(write)).status == 200


@pytest.mark.http_1
@pytest.mark.parametrize(
    ("offset", "cache_bytes", "are_dropped"),
    [("-1", 512 << 20, False), ("-1", 8 << 20, True), ("snapshot", 512 << 20, True)],
    ids=["read on into the cache", "without room in the cache", "relayed"],
)
async def test_many_clients_that_stop_reading_leave_connections_to_others(
    hostile: Hostile, start: Start, settings: dict[str, Any], offset: str, cache_bytes: int, are_dropped: bool
) -> None:
    origin = await hostile(large_for_big)
    edge = await start(origin.url, cache_bytes=cache_bytes, max_flight_bytes="32MiB", **settings)
    slow = [
        await edge.begin(f"/big{number}?offset={offset}", of(number), receive_bytes=4_096) for number in range(1, 13)
    ]
    for wire in slow:
        assert (await wire.head()).status == 200
    # All connections that reads may use are in use, by clients that take nothing.
    others = [edge.asking(f"/other{number}", of(number)) for number in range(100, 104)]
    assert [(await bounded(other)).body for other in others] == [b"xxxx"] * 4
    # Many megabytes in pieces of 4 KiB: far more than other answers take.
    async with asyncio.timeout(_BODIES_S):
        ended = await asyncio.gather(*(wire.body() for wire in slow), return_exceptions=True)
    dropped = sum(isinstance(one, Exception) for one in ended)
    assert sum(one == b"x" * LARGE for one in ended) == len(slow) - dropped
    assert 0 < dropped <= 4 if are_dropped else not dropped


@pytest.mark.http_1
async def test_a_client_that_uploads_slowly_leaves_connections_to_others(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    origin = await hostile(large_for_big)
    edge = await start(origin.url, **settings)
    head = "POST /s HTTP/1.1\r\nHost: edge.test\r\nContent-Type: text/plain\r\nX-Forwarded-For: 192.0.2.1\r\n"
    for _ in range(16):
        wire = await edge.wire()
        await wire.send(f"{head}Content-Length: 70000\r\n\r\nx".encode())
    await at_rest(lambda: edge.gateway.engine.client.open_connections)
    large = asyncio.create_task(edge.send("POST", "/large", of(2), b"x" * 100_000))
    read, write = edge.asking("/other", of(2)), asyncio.create_task(edge.send("POST", "/other", of(2), b"x"))
    assert [(await bounded(one)).status for one in (read, write, large)] == [200, 200, 200]


@pytest.mark.http_1
async def test_a_slow_chunked_body_holds_no_connection_until_it_is_known_to_be_slow(edge: Edge) -> None:
    assert (await edge.send("PUT", "/s", of(1), b"")).status == 201
    wire = await edge.wire()
    head = "POST /s HTTP/1.1\r\nHost: edge.test\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    await wire.send(f"{head}1\r\na\r\n".encode())
    await eventually(lambda: len(edge.gateway.engine.origins.snapshot()) == 1)
    assert (await edge.get("/s", of(2))).status == 200
    assert edge.gateway.engine.client.open_connections == 0
    await wire.send(b"1\r\nb\r\n0\r\n\r\n")
    assert (await wire.answer()).status == 204
    assert (await edge.get("/s", of(2))).body == b"ab"


async def test_a_client_with_one_request_does_not_wait_behind_one_with_many(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    gate = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(part_of_stream(b"x", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url, **{**settings, "upstream_connections": 1})
    many = [edge.asking(f"/many{number}", of(1)) for number in range(20)]
    await origin.until(lambda: len(origin.reads) == 1)
    await eventually(edge.readers(20))
    one = edge.asking("/one", of(2))
    await eventually(edge.readers(21))
    gate.set()
    assert (await bounded(one)).status == 200
    await bounded(asyncio.gather(*many))
    assert [asked.target.partition("?")[0] for asked in origin.reads].index("/one") <= 2


async def test_a_request_that_waits_too_long_gets_a_503_that_is_not_held_against_the_origin(
    start: Start, origin: RunningOrigin, faults: Faults, settings: dict[str, Any]
) -> None:
    edge = await start(origin.url, **settings, upstream_wait_s=0.05, breaker_failures=1)
    gate = faults.hold(method="PUT")
    hung = [asyncio.create_task(edge.send("PUT", f"/hung{number}", of(number), b"")) for number in range(12)]
    await bounded(gate.waiting(12))
    for number in range(3):
        late = await bounded(edge.send("PUT", "/late", of(20 + number), b""))
        assert (late.status, late.body) == (503, b"Too many requests wait for the origin\n")
        assert int(late.headers["Retry-After"]) >= 1
    # Reads are not concerned.
    assert (await bounded(edge.get("/hung0", of(20)))).status == 404
    gate.release()
    assert {answer.status for answer in await bounded(asyncio.gather(*hung))} == {201}
    (seen,) = edge.gateway.engine.origins.snapshot()
    assert (seen.failures, seen.is_up) == (0, True)
    assert figure(edge, "durable_gateway_upstream_refused_total", reason="time") == 3


async def test_a_read_that_waits_too_long_is_answered_from_its_tape(
    start: Start, origin: RunningOrigin, faults: Faults, settings: dict[str, Any]
) -> None:
    edge = await start(origin.url, **settings, upstream_wait_s=0.05, tail="asked")
    assert (await edge.send("PUT", "/s", of(1), b"abc")).status == 201
    assert (await edge.get("/s", of(1))).body == b"abc"
    gate = faults.hold(kind=Kind.CATCHUP)
    hung = [edge.asking(f"/hung{number}", of(number)) for number in range(12)]
    await bounded(gate.waiting(12))
    stale = await bounded(edge.get("/s", of(30)))
    assert (stale.status, stale.body, stale.is_up_to_date) == (200, b"abc", False)
    gate.release()
    await bounded(asyncio.gather(*hung))


async def test_a_client_with_a_quarter_of_the_queue_is_refused_at_once_and_others_are_not(
    start: Start, origin: RunningOrigin, faults: Faults, settings: dict[str, Any]
) -> None:
    edge = await start(origin.url, **{**settings, "upstream_connections": 1, "upstream_queue": 16})
    gate = faults.hold(kind=Kind.CATCHUP)
    waiting = [edge.asking(f"/many{number}", of(1)) for number in range(5)]
    await eventually(lambda: figure(edge, "durable_gateway_upstream_queue", purpose="read") == 4)
    refused = await bounded(edge.get("/further", of(1)))
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    waiting.append(edge.asking("/other", of(2)))
    await eventually(lambda: figure(edge, "durable_gateway_upstream_queue", purpose="read") == 5)
    gate.release()
    assert {answer.status for answer in await bounded(asyncio.gather(*waiting))} == {404}
    assert figure(edge, "durable_gateway_upstream_refused_total", reason="client") == 1
    assert figure(edge, "durable_gateway_upstream_slots", purpose="read") == 0


@pytest.mark.http_1
async def test_requests_that_wait_are_counted_by_the_bound_that_delays_them(
    start: Start,
    origin: RunningOrigin,
    faults: Faults,
    settings: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    edge = await start(origin.url, **{**settings, "client_upstream_requests": 2})
    gate = faults.hold(kind=Kind.CATCHUP)

    def waited(reason: str) -> float:
        return figure(edge, "durable_gateway_upstream_waited_total", reason=reason)

    asking = [edge.asking(f"/one{number}", of(1)) for number in range(5)]
    await eventually(lambda: waited("client") == 3)
    assert waited("connections") == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "gateway.upstream"]
    assert lines == ["requests of 192.0.2.1 wait: 2 are under way at one origin (limits.client_upstream_requests)"]
    asking += [edge.asking(f"/two{number}", of(number)) for number in range(2, 20)]
    await eventually(lambda: waited("connections") > 0)
    gate.release()
    assert {answer.status for answer in await bounded(asyncio.gather(*asking))} == {404}


async def test_a_shared_fetch_does_not_wait_behind_its_first_clients_bound(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    gate = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.target.startswith("/hung"):
            await gate.wait()
        writer.write(part_of_stream(b"x", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url, **settings, client_upstream_requests=2)
    hung = [edge.asking(f"/hung{number}", of(1)) for number in range(2)]
    await origin.until(lambda: len(origin.reads) == 2)
    first = edge.asking("/shared", of(1))
    await eventually(edge.readers(3))
    assert (await bounded(edge.get("/shared", of(2)))).body == b"x"
    assert (await bounded(first)).body == b"x"
    gate.set()
    await bounded(asyncio.gather(*hung))


async def test_clients_that_a_client_invents_are_no_clients(
    hostile: Hostile, start: Start, settings: dict[str, Any]
) -> None:
    """What a client that is no trusted proxy says of its address goes for nothing."""
    gate = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        writer.write(part_of_stream(b"x", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url, upstream_connections=16, client_upstream_requests=3)
    many = [edge.asking(f"/many{number}", of(number)) for number in range(8)]
    await eventually(lambda: figure(edge, "durable_gateway_upstream_queue", purpose="read") == 5)
    assert figure(edge, "durable_gateway_upstream_slots", purpose="read") == 3
    gate.set()
    await bounded(asyncio.gather(*many))


async def test_a_health_check_does_not_wait_for_a_connection(
    start: Start, origin: RunningOrigin, faults: Faults, settings: dict[str, Any]
) -> None:
    check = {"path": "/check", "interval_s": 1, "timeout_s": 5, "eject_after": 1}
    settings = {**settings, "upstream_connections": 1, "upstream_wait_s": 0.01}
    edge = await start([origin.url], **settings, health_check=check)
    gate = faults.hold(method="PUT")
    hung = asyncio.create_task(edge.send("PUT", "/hung", of(1), b""))
    await bounded(gate.waiting(1))
    async with edge.time_passing():
        await eventually(lambda: sum(edge.gateway.engine.origins.snapshot()[0].checks.values()) >= 3)
    assert edge.gateway.engine.origins.snapshot()[0].checks[False] == 0
    gate.release()
    assert (await bounded(hung)).status == 201
