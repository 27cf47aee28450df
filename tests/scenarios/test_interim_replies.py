"""Interim replies of origins, and requests whose clients wait for 100 Continue before they send the body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import pytest

from gateway.http.http2 import frames
from gateway.server import request as server_request
from gateway.upstream.breaker import BreakerState
from tests.http.http2.peer import reply
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Wire
from tests.upstream.http2_peer import Http2Peer, http2_origin
from tests.upstream.test_exchange import Origin, Peer, origin

pytestmark = pytest.mark.http_1

PATHS = ["/s?offset=-1&live=long-poll", "/other"]


class Exchange(Protocol):
    """One request at the origin's side, over either version."""

    head: dict[str, str]

    async def says(self, status: int, **fields: str) -> None:
        """An interim reply, or a final one without a body."""

    async def body(self) -> bytes: ...


class Http1Exchange:
    def __init__(self, peer: Peer, head: bytes) -> None:
        self.peer = peer
        lines = head.decode().split("\r\n")[1:-2]
        self.head = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}

    async def says(self, status: int, **fields: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
        length = "" if status < 200 or status == 204 else "Content-Length: 0\r\n"
        await self.peer.says(f"HTTP/1.1 {status} R\r\n{lines}{length}\r\n".encode())

    async def body(self) -> bytes:
        return await self.peer.reader.readexactly(int(self.head["content-length"]))


class Http2Exchange:
    def __init__(self, peer: Http2Peer, stream_id: int, head: dict[str, str]) -> None:
        self.peer = peer
        self.id = stream_id
        self.head = head

    async def says(self, status: int, **fields: str) -> None:
        named = ((name.lower().replace("_", "-"), value) for name, value in fields.items())
        block = [(":status", str(status)), *named]
        await self.peer.says(reply(self.id, block, ends=status >= 200))

    async def body(self) -> bytes:
        got = b""
        while True:
            _, flags, _, payload = await self.peer.until(frames.DATA)
            got += payload
            if flags & frames.END_STREAM:
                return got


Script = Callable[[Exchange], Awaitable[None]]


@asynccontextmanager
async def served(version: str, script: Script) -> AsyncIterator[Origin]:
    """An origin over this version of HTTP that gives each request to the script."""

    async def over_http1(peer: Peer) -> None:
        while True:
            await script(Http1Exchange(peer, await peer.asked()))

    async def over_http2(peer: Http2Peer) -> None:
        while True:
            asked = await peer.asked()
            await script(Http2Exchange(peer, asked.id, asked.fields))

    context: AbstractAsyncContextManager[Origin]
    context = origin(over_http1) if version == "1.1" else http2_origin(over_http2)
    async with context as running:
        yield running


async def head_from(wire: Wire) -> bytes:
    """The next head on an HTTP/1.1 connection."""
    return await bounded(wire.reader.readuntil(b"\r\n\r\n"))


async def posting(edge: Edge, more: bytes = b"", version: bytes = b"1.1") -> Wire:
    """A client that has sent the head of a POST with four bytes of body."""
    wire = await edge.wire()
    await wire.send(b"POST /s HTTP/%b\r\nHost: h\r\nContent-Type: text/plain\r\n%b\r\n" % (version, more))
    return wire


EXPECTING = b"Content-Length: 4\r\nExpect: 100-continue\r\n"
VERSIONS = pytest.mark.parametrize("version", ["1.1", "2"])


# -- interim replies


@VERSIONS
@pytest.mark.parametrize("path", PATHS)
async def test_an_interim_reply_reaches_the_client_before_the_final_one(start: Start, version: str, path: str) -> None:
    async def script(asked: Exchange) -> None:
        hop_by_hop = {"Keep_Alive": "timeout=5"} if version == "1.1" else {}
        for _ in range(3):
            await asked.says(103, Link="</a>; rel=preload", **hop_by_hop)
        await asked.says(204, Stream_Next_Offset="1")

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version, cache=False)
        wire = await edge.begin(path)
        for _ in range(3):
            interim = (await head_from(wire)).lower()
            assert interim.startswith(b"http/1.1 103 early hints\r\nlink: </a>; rel=preload\r\n")
            assert b"\r\nvia: " in interim
            assert b"keep-alive" not in interim
        assert (await head_from(wire)).startswith(b"HTTP/1.1 204 ")


@VERSIONS
async def test_a_client_of_http_2_gets_interim_replies_too(start: Start, version: str) -> None:
    async def script(asked: Exchange) -> None:
        await asked.says(102)
        await asked.says(204)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version, cache=False)
        wire = await Http2Wire.open(edge.url)
        await wire.ask("/other")
        assert (await bounded(wire.answer())).status == 204
        assert [head.status for head in wire.call.heads] == [102, 204]
        await wire.closed()


@VERSIONS
async def test_a_client_of_http_1_0_gets_the_final_reply_alone(start: Start, version: str) -> None:
    async def script(asked: Exchange) -> None:
        await asked.says(102)
        await asked.says(204)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version, cache=False)
        wire = await posting(edge, b"Content-Length: 0\r\n", b"1.0")
        assert b" 204 " in (await head_from(wire)).split(b"\r\n")[0]


@VERSIONS
async def test_interim_replies_that_come_too_fast_are_a_502_that_does_not_count_against_the_origin(
    start: Start, version: str
) -> None:
    async def script(asked: Exchange) -> None:
        for _ in range(40):
            await asked.says(102)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version, cache=False, retry_attempts=0)
        for _ in range(12):
            wire = await edge.begin("/s")
            while (head := await head_from(wire)).startswith(b"HTTP/1.1 102 "):
                pass
            assert head.startswith(b"HTTP/1.1 502 ")
            await wire.closed()
        (state,) = edge.gateway.engine.origins.snapshot()
        assert (state.state, state.failures) == (BreakerState.CLOSED, 0)


# -- 100 Continue


@VERSIONS
async def test_the_origin_says_whether_a_client_is_to_send_its_body(start: Start, version: str) -> None:
    has_head, may_go_on = asyncio.Event(), asyncio.Event()
    bodies: list[bytes] = []

    async def script(asked: Exchange) -> None:
        assert asked.head["expect"] == "100-continue"
        has_head.set()
        await may_go_on.wait()
        await asked.says(100)
        bodies.append(await asked.body())
        await asked.says(204)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version)
        wire = await posting(edge, EXPECTING)
        await bounded(has_head.wait())
        may_go_on.set()
        assert await head_from(wire) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(b"body")
        assert (await head_from(wire)).startswith(b"HTTP/1.1 204 ")
        assert bodies == [b"body"]


@VERSIONS
@pytest.mark.parametrize("status", [401, 413, 417])
async def test_an_origin_may_refuse_a_body_before_any_of_it_is_sent(start: Start, version: str, status: int) -> None:
    async def script(asked: Exchange) -> None:
        await asked.says(status)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version)
        wire = await posting(edge, EXPECTING)
        assert (await head_from(wire)).startswith(b"HTTP/1.1 %d " % status)
        again = await edge.begin("/s?x")
        assert (await head_from(again)).startswith(b"HTTP/1.1 %d " % status), "the next request is not read as the body"


@VERSIONS
async def test_a_client_of_http_2_is_asked_for_its_body_by_the_origin(start: Start, version: str) -> None:
    async def script(asked: Exchange) -> None:
        assert asked.head["expect"] == "100-continue"
        await asked.says(100)
        assert await asked.body() == b"body"
        await asked.says(204)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version)
        wire = await Http2Wire.open(edge.url)
        fields = {"Content-Type": "text/plain", "Expect": "100-continue", "Content-Length": "4"}
        await wire.ask("/s", fields, "POST", b"", ends=False)
        while not wire.call.heads:
            await wire.read()
        assert wire.call.heads[0].status == 100
        await wire.part(b"body", ends=True)
        assert (await bounded(wire.answer())).status == 204
        await wire.closed()


@VERSIONS
async def test_the_gateway_asks_for_the_body_where_the_origin_ignores_the_expectation(
    start: Start, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_request, "CONTINUE_S", 0.05)

    async def script(asked: Exchange) -> None:
        assert await asked.body() == b"body"
        await asked.says(204)

    async with served(version, script) as running:
        edge = await start(running.url, origin_http=version)
        wire = await posting(edge, EXPECTING)
        assert await head_from(wire) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(b"body")
        assert (await head_from(wire)).startswith(b"HTTP/1.1 204 ")


@pytest.mark.parametrize("method", ["DELETE", "POST"])
async def test_a_body_that_the_gateway_needs_first_is_asked_for_by_the_gateway(start: Start, method: str) -> None:
    """The body of a DELETE is sent whole or not at all, and one that a redirect may send elsewhere is kept."""

    async def script(asked: Exchange) -> None:
        assert "expect" not in asked.head
        assert await asked.body() == b"body"
        await asked.says(204)

    async with served("1.1", script) as running:
        leaders = ["http://127.0.0.1:9"] if method == "POST" else []
        edge = await start(running.url, leaders=leaders)
        wire = await edge.wire()
        await wire.send(b"%b /s HTTP/1.1\r\nHost: h\r\n%b\r\n" % (method.encode(), EXPECTING))
        assert await head_from(wire) == b"HTTP/1.1 100 Continue\r\n\r\n"
        await wire.send(b"body")
        assert (await head_from(wire)).startswith(b"HTTP/1.1 204 ")


async def test_a_body_that_is_here_already_needs_no_interim_reply(start: Start) -> None:
    async def script(asked: Exchange) -> None:
        assert "expect" not in asked.head
        assert await asked.body() == b"body"
        await asked.says(204)

    async with served("1.1", script) as running:
        edge = await start(running.url)
        wire = await edge.wire()
        await wire.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n" + EXPECTING + b"\r\nbody")
        assert (await head_from(wire)).startswith(b"HTTP/1.1 204 ")
