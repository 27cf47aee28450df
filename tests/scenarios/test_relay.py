"""Relayed requests: bodies stream both ways, headers are rewritten, and no write is half-done."""

import asyncio
from typing import Any, cast

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from gateway.server.connection import Connection
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer
from tests.scenarios.test_client_limits import Lines, counted
from tests.scenarios.wire import Dropped
from tests.transports import Trust
from tests.waiting import eventually, pass_turns

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"client_idle_timeout_s": 1.0, "max_request_bytes": 100_000}


@pytest.mark.http_1
async def test_headers_are_those_of_an_intermediary(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = {
            "Connection": "X-Private, Stream-Next-Offset",
            "X-Private": "1",
            "Keep-Alive": "timeout=5",
            "Via": "1.1 inner",
            "Stream-Next-Offset": "0001",
            "X-Public": "2",
        }
        writer.write(answer("200 OK", headers))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url)
    for method in ("PUT", "POST", "DELETE", "HEAD", "PATCH", "PROPFIND", "OPTIONS"):
        headers = {
            **TEXT,
            "Connection": "keep-alive, X-Secret, Authorization, Stream-Closed",
            "X-Secret": "1",
            "Authorization": "a",
            "Stream-Closed": "true",
            "TE": "trailers",
            "Proxy-Authorization": "p",
            "Upgrade": "h2c",
            "Via": "1.0 outer",
            "X-Request": "3",
        }
        got = await edge.send(method, "/s?b=2&a=1&offset=x", headers, None if method == "HEAD" else b"body")
        assert got.status == 200
        assert (got.headers["Via"], got.headers["X-Public"]) == ("1.1 inner, 1.1 durable-gateway", "2")
        assert got.headers["Stream-Next-Offset"] == "0001"
        assert not {"X-Private", "Keep-Alive"} & set(got.headers)
        asked = origin.asked[-1]
        assert (asked.method, asked.target) == (method, "/s?b=2&a=1&offset=x")
        assert not {"X-Secret", "TE", "Proxy-Authorization", "Upgrade"} & set(asked.headers)
        assert asked.headers["Authorization"] == "a"
        assert asked.headers["Stream-Closed"] == "true"
        assert asked.headers["Via"] == "1.0 outer, 1.1 durable-gateway"
        assert asked.headers["CDN-Loop"] == "durable-gateway"
        assert asked.headers["Forwarded"] == f"for=127.0.0.1;host=edge.test;proto={edge.scheme}"
        assert asked.headers["X-Request"] == "3"


@pytest.mark.http_1
async def test_writes_of_equal_bytes_are_each_sent_for_their_own_client(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("204 No Content", {"Stream-Next-Offset": "0001"}))

    origin = await hostile(script)
    edge = await start(origin.url)
    addresses = ["127.0.0.1", "127.0.0.2"]
    async with Lines(edge) as lines:
        for address in addresses * 3:
            line = await lines.open(address)
            assert line.writer is not None
            line.writer.write(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx")
            await line.until(b"\r\n\r\n")
            assert f"for={address};" in origin.asked[-1].headers["Forwarded"]
    assert [asked.method for asked in origin.asked] == ["POST"] * 6


@pytest.mark.http_1
@pytest.mark.parametrize("credential", ["x-key", "producer-seq"])
async def test_appends_of_a_producer_are_sent_with_their_own_numbers(
    hostile: Hostile, start: Start, credential: str
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("204 No Content", {"Stream-Next-Offset": f"{len(origin.asked):04d}"}))

    origin = await hostile(script)
    edge = await start(origin.url, credential_headers=[credential])
    async with Lines(edge) as lines:
        line = await lines.open()
        assert line.writer is not None
        for number in range(6):
            body = b"x" * (1 + number % 3)
            line.writer.write(
                b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nX-Key: k\r\nProducer-Id: p\r\n"
                b"Producer-Epoch: 0\r\nProducer-Seq: %d\r\nContent-Length: %d\r\n\r\n%b" % (number, len(body), body)
            )
            await line.until(b"\r\n\r\n")
    numbers = [(asked.headers.getall("Producer-Seq"), asked.headers.getall("Content-Length")) for asked in origin.asked]
    assert numbers == [([str(number)], [str(1 + number % 3)]) for number in range(6)]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "POST", "DELETE"])
async def test_a_looping_request_is_refused(edge: Edge, counters: Counters, method: str) -> None:
    headers = {**TEXT, "CDN-Loop": "other; x=1, Durable-Gateway"}
    refused = await edge.send(method, "/s", headers, b"x" if method in ("PUT", "POST") else None)
    assert refused.status == 508
    assert counters.total_requests == 0


async def test_a_gateway_in_front_of_itself_does_not_loop(start: Start, origin: RunningOrigin, trust: Trust) -> None:
    outer = await start(origin.url, node_name="outer")
    inner = await start(outer.url, node_name="inner", origin_tls={"ca_file": str(trust.authority)})
    await inner.put("/s", b"0123456789")
    assert (await inner.get("/s")).body == b"0123456789"


@pytest.mark.http_1
async def test_bodies_stream_in_both_directions(hostile: Hostile, start: Start) -> None:
    """Each side sends its next piece only after the other's has arrived: no whole body may be awaited."""
    pieces: asyncio.Queue[bytes] = asyncio.Queue()
    go_on = asyncio.Event()
    readers: list[asyncio.StreamReader] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        readers.append(reader)
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            pieces.put_nowait((await reader.readexactly(size + 2))[:-2])
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await go_on.wait()
        writer.write(b"3\r\ndef\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    edge = await start(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    wire = await edge.wire()
    await wire.send(b"POST /s/__ds/subscriptions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    for piece in (b"one", b"two"):
        await wire.send(b"3\r\n" + piece + b"\r\n")
        assert await bounded(pieces.get()) == piece
    await wire.send(b"0\r\n\r\n")
    assert (await wire.head()).status == 200
    assert await wire.piece() == b"abc"
    go_on.set()
    assert await wire.body() == b"def"
    await edge.until_idle()
    server.close()
    await server.wait_closed()


@pytest.mark.http_1
@pytest.mark.parametrize("framing", ["Content-Length: 100000", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_client_that_leaves_in_its_upload_never_made_a_whole_write(
    edge: Edge, counters: Counters, framing: str, method: str
) -> None:
    if method == "POST":
        await edge.put("/s", b"before")
    wire = await edge.wire()
    await wire.send(f"{method} /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n{framing}\r\n\r\n".encode())
    await wire.send(b"01234" if "Length" in framing else b"5\r\n01234\r\n")
    kind = Kind.APPEND if method == "POST" else Kind.CREATE
    before = counters.finished[kind]
    await bounded(counters.reached(kind, before + 1))
    wire.reset()
    await bounded(counters.until(lambda now: now.finished[kind] == before + 1))
    await edge.until_idle()
    read = await edge.get("/s")
    assert (read.status, read.body) == (200, b"before") if method == "POST" else read.status == 404


@pytest.mark.http_1
async def test_a_small_body_is_sent_only_when_it_is_complete(edge: Edge, counters: Counters) -> None:
    """Otherwise a client that sends a byte now and then would occupy a slot at the origin."""
    await edge.put("/s", b"before")
    before = counters.total_requests
    slow = await edge.wire()
    await slow.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\naf")
    assert (await edge.send("HEAD", "/s")).status == 200
    assert counters.requests[Kind.APPEND] == 0
    await slow.send(b"ter")
    assert (await slow.answer()).status == 204
    assert counters.requests[Kind.APPEND] == 1
    leaving = await edge.wire()
    await leaving.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\naf")
    leaving.reset()
    await edge.until_idle()
    assert counters.total_requests <= before + 3
    assert (await edge.get("/s")).body == b"beforeafter"


async def test_a_client_that_leaves_after_its_upload_has_written(edge: Edge, counters: Counters) -> None:
    """The origin has the write: later readers see it, although its client got no answer."""
    await edge.put("/s", b"before")
    assert (await edge.get("/s")).is_up_to_date
    wire = await edge.begin("/s", TEXT, method="POST", body=b"after")
    await bounded(counters.reached(Kind.APPEND, 1))
    wire.reset()
    await edge.until_idle()
    assert (await edge.get("/s")).body == b"beforeafter"


@pytest.mark.http_1
async def test_nothing_behind_an_answer_that_breaks_off_is_begun(hostile: Hostile, start: Start) -> None:
    """An answer to the next request would appear in the middle of the body."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", {"Content-Length": "100"}, b"part"))
        await writer.drain()
        writer.close()

    origin = await hostile(script)
    edge = await start(origin.url)
    wire = await edge.wire()
    await wire.send(
        b"OPTIONS /s HTTP/1.1\r\nHost: h\r\n\r\n"
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx"
    )
    assert (await wire.head()).status == 200
    with pytest.raises(Dropped) as dropped:
        await wire.body()
    assert b"part".startswith(dropped.value.body)
    await eventually(lambda: not edge.gateway.connections)
    assert [asked.method for asked in origin.asked] == ["OPTIONS"]


async def test_nothing_is_left_of_a_write_whose_client_has_gone_and_whose_answer_breaks_off(
    hostile: Hostile, start: Start
) -> None:
    go = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(answer("200 OK", {"Content-Length": "100"}, b"part"))
        await writer.drain()
        writer.close()

    origin = await hostile(script)
    edge = await start(origin.url)
    wire = await edge.begin("/s", TEXT, method="POST", body=b"after")
    await origin.until(lambda: bool(origin.asked))
    wire.reset()
    client = next(iter(edge.gateway.clients))
    await eventually(lambda: cast("Connection", client).transport is None)
    assert edge.gateway.connections == 1
    go.set()
    await eventually(lambda: not edge.gateway.connections)


@pytest.mark.http_1
async def test_a_client_that_leaves_with_much_unread_leaves_nothing_of_its_write(
    hostile: Hostile, start: Start
) -> None:
    """A client that does not read is treated as slow first, and as gone later."""
    go = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await go.wait()
        writer.write(answer("200 OK", {}, b"done"))

    origin = await hostile(script)
    edge = await start(origin.url)
    wire = await edge.begin("/s", TEXT, method="POST", body=b"after")
    await origin.until(lambda: bool(origin.asked))
    client = cast("Connection", next(iter(edge.gateway.clients)))
    # Like a transport that still holds much unsent data.
    client.pause_writing()
    wire.reset()
    await eventually(lambda: client.transport is None)
    go.set()
    await eventually(lambda: not edge.gateway.connections)


@pytest.mark.http_1
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_beyond_the_bound_is_a_413_and_no_write(edge: Edge, is_chunked: bool) -> None:
    await edge.put("/s", b"before")
    wire = await edge.wire()
    head = "POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n"
    if is_chunked:
        await wire.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(3):
            await wire.send(b"9c40\r\n" + b"x" * 40_000 + b"\r\n")
    else:
        await wire.send(f"{head}Content-Length: 100001\r\n\r\n".encode())
    refused = await wire.answer()
    assert (refused.status, refused.is_one_line_of_text) == (413, True)
    assert await wire.is_ended()
    assert (await edge.get("/s")).body == b"before"


@pytest.mark.http_1
async def test_a_body_that_stops_coming_is_a_408_within_the_bound_and_no_write(edge: Edge) -> None:
    await edge.put("/s", b"before")
    wire = await edge.wire()
    await wire.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 10\r\n\r\n01234")
    refused = await wire.answer()
    assert (refused.status, refused.is_one_line_of_text) == (408, True)
    assert await wire.is_ended()
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_idle_timeout_s",] == 1
    assert (await edge.get("/s")).body == b"before"


@pytest.mark.http_1
@pytest.mark.parametrize(
    ("head", "pieces", "status"),
    [
        ("Content-Length: 65537", [], 413),
        ("Transfer-Encoding: chunked", [b"10001\r\n" + b"x" * 0x10001], 413),
        ("Transfer-Encoding: chunked", [b"5\r\n01234\r\n"], 408),
        ("Transfer-Encoding: chunked", [b"5\r\n01234\r\n", b"0\r\n\r\n"], 204),
    ],
)
async def test_a_delete_is_sent_with_its_whole_body_or_not_at_all(
    edge: Edge, counters: Counters, head: str, pieces: list[bytes], status: int
) -> None:
    """To delete a stream, the head is enough for many origins."""
    await edge.put("/s", b"before")
    wire = await edge.wire()
    await wire.send(f"DELETE /s HTTP/1.1\r\nHost: h\r\n{head}\r\n\r\n".encode())
    for piece in pieces:
        await pass_turns()
        await wire.send(piece)
    assert (await wire.answer()).status == status
    assert counters.requests[Kind.DELETE] == (status == 204)


@pytest.mark.http_1
@pytest.mark.parametrize("length", [10, 100_001])
async def test_expect_100_is_answered_by_100_or_by_what_is_wrong(edge: Edge, length: int) -> None:
    await edge.put("/s", b"before")
    wire = await edge.wire()
    await wire.send(
        f"POST /s HTTP/1.1\r\nHost: h\r\n{'Content-Type: text/plain'}\r\n"
        f"Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode()
    )
    first = await bounded(wire.reader.readuntil(b"\r\n\r\n"))
    if length > 100_000:
        assert first.startswith(b"HTTP/1.1 413 ")
        return
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n"
    await wire.send(b"0123456789")
    assert (await wire.answer()).status == 204
    assert (await edge.get("/s")).body == b"before0123456789"


async def test_head_is_relayed_whatever_is_in_memory(edge: Edge, origin: RunningOrigin, counters: Counters) -> None:
    await edge.put("/s", b"0123456789", Stream_TTL="500")
    await edge.get("/s")
    await edge.send_to(origin.url, "POST", "/s", TEXT, b"x")
    told = await edge.send("HEAD", "/s")
    itself = await edge.send_to(origin.url, "HEAD", "/s")
    for name in ("Stream-Next-Offset", "Stream-TTL", "Content-Type", "Cache-Control", "ETag"):
        assert told.headers[name] == itself.headers[name]
    assert told.body == b""


async def test_preflights_go_to_the_origin_unless_the_route_answers_them(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    asks = {"Origin": "https://app.test", "Access-Control-Request-Method": "PUT"}
    plain = await start(origin.url)
    assert (await plain.send("OPTIONS", "/s", asks)).headers["Access-Control-Allow-Origin"] == "*"
    assert counters.requests[Kind.OTHER] == 1
    edge = await start(origin.url, cors={"allow_origins": ("https://app.test",), "allow_credentials": True})
    told = await edge.send("OPTIONS", "/s", asks)
    assert (told.status, told.headers["Access-Control-Allow-Origin"]) == (204, "https://app.test")
    assert "If-None-Match" in told.headers["Access-Control-Allow-Headers"]
    assert told.headers["Access-Control-Allow-Credentials"] == "true"
    assert counters.requests[Kind.OTHER] == 1
    await edge.put("/s", b"x")
    for target in ("/s", "/s?offset=now", "/nothing"):
        read = await edge.get(target, {"Origin": "https://app.test"})
        assert read.headers.getall("Access-Control-Allow-Origin") == ["https://app.test"]
        exposed = read.headers["Access-Control-Expose-Headers"].lower()
        assert "stream-next-offset" in exposed
        assert "stream-sse-data-encoding" in exposed
        other = await edge.get(target, {"Origin": "https://evil.test"})
        assert "Access-Control-Allow-Origin" not in other.headers


@pytest.mark.http_1
async def test_an_answer_that_comes_before_the_body_is_read_is_passed_on(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(
            answer("409 Conflict", {"Content-Type": "text/plain", "Connection": "close"}, b"Stream is closed\n")
        )
        await writer.drain()
        await pass_turns(1)

    origin = await hostile(script, leaves_bodies=True)
    edge = await start(origin.url)
    wire = await edge.wire()
    await wire.send(
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 10000000\r\n\r\n" + b"x" * 1000
    )
    try:
        told = await wire.answer()
    except Dropped:
        raise AssertionError("the origin's own word was lost") from None
    assert (told.status, told.body) == (409, b"Stream is closed\n")
    wire.leave()
    await eventually(lambda: edge.gateway.engine.client.open_connections == 0)
