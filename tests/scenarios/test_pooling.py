"""Connections to origins are reused; bytes left over on one of them are never read as an answer."""

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from tests.scenarios.conftest import Edge, Hostile, Start
from tests.scenarios.hostile import Asked, part_of_stream
from tests.waiting import eventually

EVIL = part_of_stream(b"evil", "0666")


async def test_an_unsolicited_reply_on_an_idle_connection_is_never_used(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        path = asked.target.partition("?")[0]
        writer.write(part_of_stream(f"of {path}".encode(), "0001"))

    origin = await hostile(script)
    edge = await start(origin.url)
    client = edge.gateway.engine.client
    for number in range(10):
        # Relayed requests first: a read has a HEAD beside it, which would hide a false answer.
        for method in ("POST", "GET"):
            path = f"/{method}{number}"
            body = b"x" if method == "POST" else None
            assert (await edge.send(method, path, {"Content-Type": "text/plain"}, body)).body == f"of {path}".encode()
        await edge.until_idle()
        idle = [writer for writer in origin.writers if not writer.is_closing()]
        assert idle, "the pool keeps connections, or this test shows nothing"
        for writer in idle:
            writer.write(EVIL)
            await writer.drain()
        # Until the bytes have arrived, the gateway cannot detect them.
        await eventually(lambda: client.connections()["shared"].idle == 0)
    assert len({asked.connection for asked in origin.asked}) > 5


@pytest.mark.parametrize("next_method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_late_second_reply_does_not_answer_for_another_stream(
    hostile: Hostile, start: Start, method: str, next_method: str
) -> None:
    """The origin sends it once the next request is on its way."""
    answered: list[asyncio.StreamWriter] = []

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        path = asked.target.partition("?")[0]
        if path == "/next" and answered:
            answered.pop().write(EVIL)
        elif path == "/first":
            answered.append(writer)
        writer.write(part_of_stream(b"" if asked.method == "HEAD" else f"of {path}".encode(), "0001"))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, connection_rest_s=10)
    fields = {"Content-Type": "text/plain"}
    await edge.send(method, "/first", fields, b"x" if method == "POST" else None)
    answer = await edge.send(next_method, "/next", fields, b"x" if next_method == "POST" else None)
    assert answer.headers["Stream-Next-Offset"] == "0001"
    if next_method != "HEAD":
        assert answer.body == b"of /next"
    assert (await edge.get("/next")).body == b"of /next"


@pytest.mark.parametrize("method", ["POST", "DELETE", "HEAD", "PUT"])
@pytest.mark.http_1_origin
async def test_bytes_behind_a_complete_answer_are_never_used(
    edge: Edge, faults: Faults, counters: Counters, method: str
) -> None:
    await edge.put("/s", b"0123456789")
    faults.unsolicited(EVIL, times=None)
    for number in range(5):
        await edge.send(method, "/other", {"Content-Type": "text/plain"}, None if method == "HEAD" else b"x")
        assert (await edge.get(f"/s?x={number}")).body == b"0123456789"
    faults.clear()


@pytest.mark.http_1_origin
async def test_connections_are_used_again(start: Start, origin: RunningOrigin, counters: Counters) -> None:
    edge = await start(origin.url, connection_rest_s=0)
    await edge.put("/s", b"0123456789")
    for _ in range(20):
        await edge.post("/s", b"x")
        assert (await edge.get("/s")).status == 200
    assert counters.connections <= 3


async def test_a_connection_that_the_origin_closed_while_idle_costs_no_reader_an_error(
    hostile: Hostile, start: Start
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"good", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url)
    for number in range(5):
        assert (await edge.get(f"/s{number}")).body == b"good"
        for writer in origin.writers:
            writer.close()


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS"])
async def test_only_reads_are_repeated_after_a_lost_connection(hostile: Hostile, start: Start, method: str) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == method or [asked] == origin.reads:
            writer.transport.abort()
        else:
            writer.write(part_of_stream(b"good" if asked.method == "GET" else b"", "0001"))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, connection_rest_s=0)
    assert (await edge.send("POST", "/s")).status == 200
    assert (await edge.send(method, "/s")).status == 502
    assert [(asked.method, asked.connection) for asked in origin.asked] == [("POST", 0), (method, 0)]
    assert (await edge.send("HEAD", "/s")).status == 200
    async with edge.time_passing():
        assert (await edge.get("/s")).body == b"good"
    assert len(origin.reads) == 2


@pytest.mark.parametrize("by", ["length", "chunks"])
@pytest.mark.http_1
async def test_slow_uploads_leave_slots_for_other_requests(start: Start, origin: RunningOrigin, by: str) -> None:
    edge = await start(origin.url, upstream_connections=4, trusted_proxies=["127.0.0.1"])
    for path in ("/s", "/t"):
        assert (await edge.put(path, b"a")).status == 201
    half = b"x" * 70_000
    framing = "Transfer-Encoding: chunked" if by == "chunks" else f"Content-Length: {2 * len(half)}"
    piece = b"%x\r\n%b\r\n" % (len(half), half) if by == "chunks" else half
    head = f"POST /s HTTP/1.1\r\nHost: edge.test\r\nContent-Type: text/plain\r\n{framing}\r\n"
    slow = [await edge.wire() for _ in range(6)]
    for client, wire in enumerate(slow):
        await wire.send(f"{head}X-Forwarded-For: 192.0.2.{client}\r\n\r\n".encode() + piece)
    exchanges = edge.gateway.engine.client.exchanges
    origins = edge.gateway.engine.origins
    await eventually(lambda: origins.snapshot()[0].in_flight == 6 and exchanges.open_connections == 2)
    for _ in range(3):
        assert (await edge.get("/t")).body.startswith(b"a")
        assert (await edge.post("/t", b"b")).status == 204
        assert (await edge.send("HEAD", "/t")).status == 200
    assert exchanges.open_connections == 2
    for wire in slow:
        await wire.send(piece + (b"0\r\n\r\n" if by == "chunks" else b""))
    for wire in slow:
        assert (await wire.answer()).status == 204
    assert len((await edge.get("/s")).body) == 1 + 6 * 2 * len(half)


@pytest.mark.http_1
async def test_an_abandoned_upload_frees_its_slot(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, upstream_connections=1)
    assert (await edge.put("/s", b"a")).status == 201
    head = b"POST /s HTTP/1.1\r\nHost: edge.test\r\nContent-Type: text/plain\r\nContent-Length: 140000\r\n\r\n"
    first, second = await edge.wire(), await edge.wire()
    await first.send(head + b"x" * 70_000)
    exchanges = edge.gateway.engine.client.exchanges
    await eventually(lambda: exchanges.open_connections == 1)
    await second.send(head + b"y" * 140_000)
    first.reset()
    assert (await second.answer()).status == 204
    assert (await edge.get("/s")).body == b"a" + b"y" * 140_000


@pytest.mark.http_1
async def test_waiting_uploads_leave_room_in_the_queue(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, waiting_requests=4)
    assert (await edge.put("/s", b"a")).status == 201
    head = b"POST /s HTTP/1.1\r\nHost: edge.test\r\nContent-Type: text/plain\r\nContent-Length: 140000\r\n\r\n"
    slow = [await edge.wire() for _ in range(3)]
    for wire in slow:
        await wire.send(head + b"x" * 70_000)
    origins = edge.gateway.engine.origins
    await eventually(lambda: origins.snapshot()[0].in_flight == 3)
    late = await edge.wire()
    await late.send(head + b"x" * 70_000)
    assert (await late.head()).status == 503
    assert (await edge.post("/s", b"b")).status == 204
    assert (await edge.get("/s")).body == b"ab"
    for wire in slow:
        wire.reset()
