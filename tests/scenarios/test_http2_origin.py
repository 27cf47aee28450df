"""Origins that are asked over HTTP/2: real servers, sessions that stream both ways, and origins that misbehave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.http.http2 import frames
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from tests.http.http2.peer import OK, data, goaway, reply, reset
from tests.http2_front import Http2Front
from tests.nginx import running_nginx
from tests.scenarios.conftest import Start, bounded
from tests.upstream.http2_peer import Http2Peer, http2_origin
from tests.waiting import eventually

pytestmark = pytest.mark.http_1_origin


@asynccontextmanager
async def served(kind: str, origin: RunningOrigin, start: Start, folder: Path) -> AsyncIterator[str]:
    """The URL of a server of HTTP/2 in front of the in-memory origin."""
    if kind == "nginx":
        async with running_nginx(folder, origin.url, "proxy_buffering off;", " http2") as url:
            yield url
    else:
        yield (await start(origin.url, listen="127.0.0.1:0", node_name="inner")).url


@pytest.mark.parametrize("kind", ["nginx", "a gateway"])
async def test_real_servers_are_asked_over_http_2(
    kind: str, origin: RunningOrigin, counters: Counters, start: Start, tmp_path: Path
) -> None:
    async with served(kind, origin, start, tmp_path) as url:
        edge = await start(url, origin_http="2")
        assert (await edge.put("/s", b"first")).status == 201
        assert (await edge.get("/s?offset=-1")).body == b"first"
        assert (await edge.send("HEAD", "/s")).status == 200
        assert (await edge.get("/none?offset=-1")).status == 404
        wire = await edge.begin("/s?offset=-1&live=sse")
        await wire.head()
        polling = edge.asking(f"/s?offset={(await edge.get('/s')).next_offset}&live=long-poll")
        await eventually(lambda: edge.gateway.engine.client.exchanges.http2.streams >= 1)
        large = bytes(range(256)) * 1_000
        assert (await edge.post("/s", large)).status in (200, 204)
        assert (await bounded(polling)).body == large
        assert (await edge.get("/s?offset=-1")).body == b"first" + large
        # Brief requests and live ones have connections of their own.
        assert edge.gateway.engine.client.exchanges.http2.connections == 2


async def test_a_request_and_its_answer_stream_at_the_same_time(start: Start) -> None:
    """Each part of the answer is here before the next part of the request is sent, as in an append session."""

    async def script(peer: Http2Peer) -> None:
        asked = await peer.asked()
        await peer.says(reply(asked.id, [*OK, ("content-type", "s2s/proto")], ends=False))
        while True:
            kind, flags, _, payload = await peer.frame()
            if kind == frames.DATA and payload:
                await peer.says(data(asked.id, b"ack " + payload))
            if kind == frames.DATA and flags & frames.END_STREAM:
                await peer.says(data(asked.id, ends=True))
                await peer.idles()

    async with http2_origin(script) as running:
        edge = await start(running.url, origin_http="2")
        wire = await edge.wire()
        await wire.send(b"POST /s HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(4):
            await wire.send(b"1\r\n%d\r\n" % number)
            answered = await bounded(wire.reader.readuntil(b"ack %d\r\n" % number))
            assert answered.startswith(b"HTTP/1.1 200 ") == (number == 0)
        await wire.send(b"0\r\n\r\n")
        await bounded(wire.reader.readuntil(b"0\r\n\r\n"))
        await edge.leave()


async def test_readers_are_served_while_origins_connections_go(
    origin: RunningOrigin, start: Start, fronts: list[Http2Front]
) -> None:
    """GOAWAY in the middle of everything: no request fails, and live readers miss nothing."""
    front = Http2Front(origin.url)
    fronts.append(front)
    await front.start()
    edge = await start(front.url, origin_http="2")
    await edge.put("/s", b"0")
    wire = await edge.begin("/s?offset=-1&live=sse")
    await wire.head()
    await eventually(lambda: len(front.peers) == 2)
    for number in range(1, 6):
        for peer in tuple(front.peers):
            peer.leave()
        assert (await edge.post("/s", b"%d" % number)).status in (200, 204)
        assert (await edge.get(f"/unknown{number}")).status == 404
    got = b""
    async with edge.time_passing():
        while not got.endswith(b"5"):
            event = await wire.event()
            assert event is not None
            got += event.data.encode() if event.name == "data" else b""
    assert got == b"012345"
    assert front.connections > 2


async def test_an_origin_that_misbehaves_over_http_2_is_a_502_and_opens_its_breaker(start: Start) -> None:
    async def script(peer: Http2Peer) -> None:
        while True:
            asked = await peer.asked()
            match asked.fields[":path"]:
                case "/reset":
                    await peer.says(reset(asked.id))
                case "/malformed":
                    await peer.says(reply(asked.id, [("x", "y")]))
                case "/push":
                    await peer.says(reply(2))
                case "/goaway":
                    await peer.says(goaway(0))

    async with http2_origin(script) as running:
        edge = await start(running.url, origin_http="2", retry_attempts=0)
        for path in ("/malformed", "/reset", "/push", "/goaway"):
            assert (await edge.post(path, b"x")).status in (502, 503)
        (state,) = edge.gateway.engine.origins.snapshot()
        assert state.failures == 4
        assert (await edge.post("/malformed", b"x")).status == 502
        refused = await edge.post("/malformed", b"x")
        assert (refused.status, "Retry-After" in refused.headers) == (503, True)
        assert running.connections <= 4
