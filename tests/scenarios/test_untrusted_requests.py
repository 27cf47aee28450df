"""What a client cannot do by a request alone: speak for a proxy, get its own fields echoed, decide what is traced."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.telemetry import TracingConfig
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer
from tests.waiting import eventually

CLAIMS = {
    "X-Real-IP": "203.0.113.7",
    "X-Forwarded-For": "203.0.113.7",
    "X-Forwarded-Host": "evil.test",
    "X-Forwarded-Port": "1",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Server": "evil.test",
}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"])
async def test_no_claim_of_an_untrusted_client_reaches_the_origin(hostile: Hostile, start: Start, method: str) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", {"X-Public": "1"}))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url)
    await edge.send(method, "/s", {**CLAIMS, "Content-Type": "text/plain"}, b"x" if method in ("PUT", "POST") else None)
    assert origin.asked
    for asked in origin.asked:
        assert not [name for name in asked.headers if name.lower().startswith(("x-forwarded", "x-real"))]
        assert "203.0.113.7" not in asked.headers.get("Forwarded", "")


@pytest.mark.http_1
async def test_the_host_of_an_absolute_target_replaces_the_host_header(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", {}))

    origin = await hostile(script)
    edge = await start(origin.url)
    for host in ("one.test", "two.test:81"):
        await edge.send("OPTIONS", f"http://{host}/s")
        assert host in origin.asked[-1].headers["Forwarded"]


async def test_a_trace_is_refused_and_echoes_nothing(edge: Edge, counters: Counters) -> None:
    refused = await edge.send("TRACE", "/s", {"Authorization": "secret", "Cookie": "secret"})
    assert (refused.status, refused.is_one_line_of_text) == (501, True)
    assert b"secret" not in refused.body
    assert not counters.total_requests


async def test_a_path_that_an_origin_may_resolve_to_another_is_refused(edge: Edge, counters: Counters) -> None:
    """An origin that resolves targets as URL references reads `//x/s` as `/s` on the host `x`."""
    await edge.put("/s", b"0123456789")
    asked = counters.total_requests
    for target in ("//x/s", "//x/s?offset=-1&live=sse", "///s", "/.//x/s", "/a/..//x/s", "/%2e//x/s"):
        for method in ("GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS"):
            refused = await edge.send(method, target, {"Content-Type": "text/plain"})
            assert refused.status == 400, f"{method} {target}"
            assert method == "HEAD" or refused.is_one_line_of_text
    assert counters.total_requests == asked


@pytest.mark.http_1
@pytest.mark.parametrize(
    "raw",
    [
        b"DELETE http://h//x/s HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /s%zz HTTP/1.1\r\nHost: h\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST /s HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /s HTTP/1.0\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ],
)
async def test_a_400_names_the_gateway_and_no_library(edge: Edge, counters: Counters, raw: bytes) -> None:
    wire = await edge.wire()
    await wire.send(raw)
    refused = await wire.answer()
    assert refused.status == 400
    assert set(refused.headers.getall("Server", [])) <= {edge.gateway.config.server.node_name}
    assert not counters.total_requests


def test_clients_do_not_decide_what_is_traced_by_default() -> None:
    assert not TracingConfig().follow_clients


@pytest.mark.parametrize("mode", ["", "&live=long-poll", "&live=sse"])
async def test_concurrent_reads_of_a_missing_stream_are_404_and_never_502(
    edge: Edge, origin: RunningOrigin, counters: Counters, mode: str
) -> None:
    """By readers with and without credentials, while others write and delete other streams."""
    reads = [
        edge.asking(f"/none?offset={offset}{mode}", {} if number % 3 else {"Authorization": f"Bearer {number}"})
        for number in range(60)
        for offset in ("-1", "now", "0001")[: 3 if mode != "&live=sse" else 2]
    ]
    await edge.put("/other", b"x")
    await edge.send("DELETE", "/other")
    async with edge.time_passing():
        statuses = {answered.status for answered in await bounded(asyncio.gather(*reads))}
    assert statuses == {404}
    assert counters.requests[Kind.CATCHUP] < len(reads)


async def test_concurrent_reads_of_a_stream_that_comes_and_goes_are_never_502(
    edge: Edge, origin: RunningOrigin
) -> None:
    statuses: set[int] = set()
    is_over = False

    async def read() -> None:
        while not is_over:
            statuses.add((await edge.get("/s?offset=-1")).status)

    readers = [asyncio.create_task(read()) for _ in range(8)]
    async with edge.time_passing():
        for number in range(40):
            # Half of it happens at the origin, of which the gateway learns by its reads alone.
            url = edge.url if number % 2 else origin.url
            await edge.send_to(url, "PUT", "/s", {"Content-Type": "text/plain"}, b"x" * number)
            await edge.send_to(url, "DELETE", "/s")
        is_over = True
        await bounded(asyncio.gather(*readers))
    assert statuses <= {200, 404}
    await eventually(lambda: not edge.gateway.engine.fetches)
