"""The connections to origins are shared fairly: one client, one kind of request or one route never holds them all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, part_of_stream
from tests.waiting import at_rest, eventually

TEXT = {"Content-Type": "text/plain"}
LARGE = 8 << 20


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
async def test_a_slow_chunked_body_holds_no_connection_until_it_is_known_to_be_slow(
    edge: Edge, counters: Counters
) -> None:
    assert (await edge.send("PUT", "/s", of(1), b"")).status == 201
    wire = await edge.wire()
    head = "POST /s HTTP/1.1\r\nHost: edge.test\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    await wire.send(f"{head}1\r\na\r\n".encode())
    await eventually(lambda: len(edge.gateway.engine.origins.look()) == 1)
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


async def test_requests_that_wait_too_long_get_a_503_that_is_not_held_against_the_origin(
    edge: Edge, faults: Faults, settings: dict[str, Any]
) -> None:
    gate = faults.hold(method="PUT")
    hung = [asyncio.create_task(edge.send("PUT", f"/hung{number}", of(number % 4), b"")) for number in range(20)]
    await bounded(gate.waiting(12))
    late = await bounded(edge.send("PUT", "/late", of(9), b""))
    assert (late.status, late.body) == (503, b"Too many requests wait for the origin\n")
    assert int(late.headers["Retry-After"]) >= 1
    gate.release()
    await bounded(asyncio.gather(*hung))
    (origin,) = edge.gateway.engine.origins.look()
    assert (origin.failures, origin.is_up) == (0, True)
