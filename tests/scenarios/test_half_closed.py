"""Clients that shut down their sending side after their requests: they are answered, and then the connection ends."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults, When
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import BOUND_S, Dropped, Wire
from tests.transports import EDGE, TLS, Trust, listening
from tests.waiting import eventually

pytestmark = pytest.mark.http_2

TEXT = {"Content-Type": "text/plain"}


async def asking(edge: Edge, target: str, method: str = "GET", body: bytes | None = None) -> Wire:
    """A client that has sent a request and half-closed."""
    wire = await edge.begin(target, TEXT if body is not None else None, method=method, body=body)
    await end(wire)
    return wire


async def end(wire: Wire) -> None:
    """Half-close."""

    async def unsent(data: bytes) -> None:
        """Acknowledgements are not sent any more."""

    wire.writer.write_eof()
    wire.send = unsent  # type: ignore[method-assign]


async def has_ended(wire: Wire) -> bool:
    """Whether the connection ends, and no further answer comes first."""
    if not isinstance(wire, Http2Wire):
        return await wire.is_ended()
    try:
        while True:
            await wire.read()
    except Dropped:
        return len(wire.calls) == 1


async def test_a_read_is_answered_by_the_origin_and_from_memory(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"abc", Stream_Closed="true")
    for _ in range(3):
        wire = await asking(edge, "/s")
        got = await wire.answer()
        assert (got.status, got.body) == (200, b"abc")
        assert await has_ended(wire)
    assert counters.requests[Kind.CATCHUP] == 1


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD"])
async def test_a_request_that_the_origin_answers_late_is_answered(start: Start, hostile: Hostile, method: str) -> None:
    may_answer = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await may_answer.wait()
        writer.write(answer("200 OK", {"X-Late": "1"}))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url)
    wire = await asking(edge, "/s", method, b"abc" if method in ("POST", "PUT") else None)
    await origin.until(lambda: len(origin.asked) == 1)
    may_answer.set()
    got = await wire.answer(method)
    assert (got.status, got.headers["X-Late"]) == (200, "1")
    assert await has_ended(wire)


async def test_a_body_that_is_not_whole_is_a_400_and_no_write(edge: Edge, counters: Counters) -> None:
    await edge.put("/s")
    wire = await edge.wire()
    if isinstance(wire, Http2Wire):
        await wire.ask("/s", TEXT, "POST", b"ab", ends=False)
    else:
        await wire.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nab")
    await end(wire)
    assert (await wire.answer()).status == 400
    assert await has_ended(wire)
    assert not counters.requests[Kind.APPEND]


async def test_a_long_poll_is_answered_when_something_is_appended(edge: Edge) -> None:
    put = await edge.put("/s", b"abc")
    wire = await asking(edge, f"/s?offset={put.next_offset}&live=long-poll")
    await eventually(lambda: bool(edge.gateway.engine.live))
    await edge.post("/s", b"def")
    got = await wire.answer()
    assert (got.status, got.body) == (200, b"def")
    assert await has_ended(wire)


async def test_an_sse_reader_gets_its_events(edge: Edge) -> None:
    await edge.put("/s", b"abc")
    wire = await asking(edge, "/s?offset=-1&live=sse")
    assert (await wire.head()).status == 200
    events = [await wire.event(), await wire.event()]
    await edge.post("/s", b"def", Stream_Closed="true")
    events += [await wire.event(), await wire.event()]
    assert [event.data for event in events if event is not None and event.name == "data"] == ["abc", "def"]
    assert await wire.event() is None
    assert await has_ended(wire)


@pytest.mark.parametrize("mode", ["long-poll", "sse"])
@pytest.mark.parametrize("is_relayed", [False, True])
async def test_a_live_reader_that_is_gone_leaves_nothing(
    start: Start, origin: RunningOrigin, mode: str, is_relayed: bool
) -> None:
    edge = await start(origin.url, cache=not is_relayed)
    await edge.put("/s", b"abc", "application/octet-stream")
    wires = [await edge.begin(f"/s?offset=now&live={mode}") for _ in range(3)]
    usage = edge.gateway.clients.accounts
    await eventually(lambda: usage.live_reads("127.0.0.1") == 3)
    for wire in wires:
        await wire.closed()
    await eventually(lambda: not len(edge.gateway.clients))
    assert usage.live_reads("127.0.0.1") == 0


@pytest.mark.http_1
async def test_all_pipelined_requests_are_answered(edge: Edge) -> None:
    await edge.put("/s", b"abc", Stream_Closed="true")
    wire = await edge.wire()
    await wire.send(b"GET /s HTTP/1.1\r\nHost: h\r\n\r\n" * 3 + b"GET /none HTTP/1.1\r\nHost: h\r\n\r\nGET /s HT")
    wire.writer.write_eof()
    assert [(await wire.answer()).status for _ in range(4)] == [200, 200, 200, 404]
    assert await wire.is_ended()


class SecureClient:
    """A client under TLS that can end its own side alone."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = tls.wrap_bio(self._in, self._out, server_hostname=EDGE)

    async def said(self, url: str, request: bytes, *, says_so: bool) -> bytes:
        """The whole answer to a request after which this side half-closes, with a close_notify if it `says_so`."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        got, is_ending, has_ended = b"", False, False
        while True:
            try:
                if not is_ending:
                    self._tls.do_handshake()
                    self._tls.write(request)
                    if says_so:
                        is_ending = True
                        self._tls.unwrap()
                    is_ending = True
                while piece := self._tls.read(1 << 16):
                    got += piece
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                break
            if data := self._out.read():
                writer.write(data)
            if is_ending and not has_ended:
                has_ended = True
                writer.write_eof()
            data = await reader.read(1 << 16)
            if not data:
                break
            self._in.write(data)
        writer.close()
        return got


@pytest.mark.http_1
@pytest.mark.parametrize("says_so", [False, True])
async def test_over_tls_a_request_is_answered(
    start: Start, origin: RunningOrigin, faults: Faults, trust: Trust, says_so: bool
) -> None:
    edge = await start(origin.url, **listening(TLS, trust))
    hold = faults.hold(kind=Kind.CREATE, when=When.REQUEST)
    tls = trust.believed_by(TLS)
    assert tls is not None
    request = b"PUT /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\nabc"
    said = asyncio.create_task(SecureClient(tls).said(edge.url, request, says_so=says_so))
    await bounded(hold.waiting(1))
    hold.release()
    async with asyncio.timeout(BOUND_S):
        assert (await said).startswith(b"HTTP/1.1 201 ")


# -- the in-memory origin


@pytest.mark.http_1
async def test_the_in_memory_origin_answers_and_closes(origin: RunningOrigin, counters: Counters) -> None:
    begun_wires: list[Wire] = []

    async def begun(request: bytes) -> Wire:
        wire = await Wire.open(origin.url)
        begun_wires.append(wire)
        await wire.send(request)
        wire.writer.write_eof()
        return wire

    head = b"Host: h\r\nContent-Type: text/plain\r\nContent-Length: 3\r\n\r\n"
    wire = await begun(b"PUT /s HTTP/1.1\r\n" + head + b"abc")
    assert (await wire.answer()).status == 201
    assert await wire.is_ended()
    wire = await begun(b"GET /s HTTP/1.1\r\nHost: h\r\n\r\nGET /none HTTP/1.1\r\nHost: h\r\n\r\n")
    assert [(await wire.answer()).status for _ in range(2)] == [200, 404]
    assert await wire.is_ended()
    polls = await begun(b"GET /s?offset=now&live=long-poll HTTP/1.1\r\nHost: h\r\n\r\n")
    events = await begun(b"GET /s?offset=now&live=sse HTTP/1.1\r\nHost: h\r\n\r\n")
    gone = [
        await begun(b"GET /s?offset=now&live=%b HTTP/1.1\r\nHost: h\r\n\r\n" % way) for way in (b"sse", b"long-poll")
    ]
    await bounded(counters.live_is(4))
    for wire in gone:
        await wire.closed()
    await bounded(counters.live_is(2))
    wire = await begun(b"POST /s HTTP/1.1\r\n" + head + b"def")
    assert (await wire.answer()).status == 204
    assert (await polls.answer()).body == b"def"
    assert await polls.is_ended()
    assert (await events.head()).status == 200
    control = await events.event()
    data = await events.event()
    assert control is not None
    assert data is not None
    assert (control.name, data.name, data.data) == ("control", "data", "def")
    for wire in begun_wires:
        await wire.closed()
