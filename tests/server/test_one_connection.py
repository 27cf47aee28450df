"""Answers on one connection stay in order and within their bounds, for all kinds of answers."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import cast

import aiohttp
import pytest

from gateway.app import RunningGateway
from gateway.engine.read import Read
from gateway.protocol.cursor import interval
from gateway.server import connection
from gateway.server.connection import Connection
from gateway.server.phase import Phase
from gateway.upstream.dialer import Dialer
from gateway.upstream.failures import NotConnected
from tests.server.conftest import (
    BOUND_S,
    Pair,
    always_late,
    ask,
    close,
    connect,
    create_closed,
    get,
    hits,
    read_response,
    start_pair,
    stop_pair,
    write,
)
from tests.waiting import eventually, pass_turns, pause


def clients_of(gateway: RunningGateway) -> list[Connection]:
    return [client for client in gateway.clients if isinstance(client, Connection)]


async def waiting(gateway: RunningGateway) -> None:
    """Wait until a live reader waits at the tail of a followed stream."""
    topics = gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and topic.readers_now for topic in topics()))


async def deaf(gateway: RunningGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection whose client reads nothing."""
    reader, writer = await connect(gateway, receive_bytes=4_096)
    cast(asyncio.Transport, writer.transport).pause_reading()
    return reader, writer


async def tail_of(gateway: RunningGateway, path: str) -> str:
    return (await ask(gateway, get(f"{path}?offset=-1")))[0].headers["stream-next-offset"][0]


@pytest.mark.parametrize("kind", ["fast", "strict"])
@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_request_behind_a_live_one_is_answered_after_it(pair: Pair, kind: str, live: str) -> None:
    gateway: RunningGateway = getattr(pair, kind)
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    tail = await tail_of(gateway, "/s")
    reader, writer = await connect(gateway)
    writer.write(get(f"/s?offset={tail}&live={live}") + get("/s?offset=-1"))
    await waiting(gateway)
    await write(gateway, "POST", "/s", b"def", Content_Type="text/plain", Stream_Closed="true")
    assert b"def" in (await read_response(reader)).body
    assert (await read_response(reader)).body == b"abcdef"
    await close(writer)


async def test_an_sse_reader_that_waits_holds_no_request(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    tail = await tail_of(pair.fast, "/s")
    _, writer = await connect(pair.fast)
    writer.write(get(f"/s?offset={tail}&live=sse"))
    await waiting(pair.fast)
    await eventually(lambda: [repr(client) for client in clients_of(pair.fast)] == ["<Connection LIVE>"])
    await close(writer)


@pytest.mark.parametrize("kind", ["fast", "strict"])
async def test_half_a_request_behind_a_live_one_is_not_lost(pair: Pair, kind: str) -> None:
    gateway: RunningGateway = getattr(pair, kind)
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    tail = await tail_of(gateway, "/s")
    reader, writer = await connect(gateway)
    writer.write(get(f"/s?offset={tail}&live=long-poll") + b"GET /s?offset=-1 HTTP/1.1\r\nHost: edge\r\nX: ")
    await waiting(gateway)
    await write(gateway, "POST", "/s", b"def", Content_Type="text/plain")
    assert (await read_response(reader)).body == b"def"
    # The value of a header, and not another request; with it the request has two Host headers.
    writer.write(b"DELETE /s HTTP/1.1\r\nHost: edge\r\n\r\n")
    assert (await read_response(reader)).status == 400
    assert (await ask(gateway, get("/s?offset=-1")))[0].status == 200
    await close(writer)


@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("before", ["GET", "PUT"])
async def test_a_request_in_the_turn_in_which_a_live_answer_ends_is_not_lost(
    pair: Pair, before: str, turns: int
) -> None:
    await create_closed(pair)
    await ask(pair.fast, *[get("/s?offset=-1")] * 3)
    reader, writer = await connect(pair.fast)
    if before == "PUT":
        writer.write(b"PUT /t HTTP/1.1\r\nHost: edge\r\nContent-Type: text/plain\r\nContent-Length: 1\r\n\r\nx")
        assert (await read_response(reader)).status == 201
    writer.write(get("/s?offset=-1&live=sse"))
    await pass_turns(turns)
    writer.write(get("/s?offset=-1"))
    assert b"streamClosed" in (await read_response(reader)).body
    assert (await read_response(reader)).body == b"x" * 1_000
    await close(writer)


@contextmanager
def calls_counted(module: ModuleType) -> Iterator[list[int]]:
    """Count the calls of the module's functions until the block ends."""
    counted = [0]

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == module.__file__:
            counted[0] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield counted
    finally:
        sys.setprofile(before)


async def test_a_connection_that_closes_does_not_wait_for_itself() -> None:
    pair = await start_pair(max_chunk_bytes=1_000_000, send_buffer_bytes="256KiB", compression=())
    try:
        await create_closed(pair, body=b"z" * 230_000)
        request = get("/s?offset=-1")
        await ask(pair.fast, request, request)
        for turns in range(4):
            served = hits(pair.fast)
            _, writer = await deaf(pair.fast)
            writer.write(request)
            await eventually(lambda served=served: hits(pair.fast) > served)
            # The parser refuses this, and the connection ends.
            writer.write(get("/s?offset=%zz", "Bad Header\x01: x"))
            await pass_turns(turns)
            writer.write(request)
            with calls_counted(connection) as calls:
                await pass_turns(200)
            assert calls[0] < 50
            writer.transport.abort()
            await eventually(lambda: not clients_of(pair.fast))
    finally:
        await stop_pair(pair)


async def test_a_client_that_reads_nothing_holds_at_most_the_send_buffer() -> None:
    pair = await start_pair(max_chunk_bytes=64 << 20, send_buffer_bytes="64KiB", max_reply_bytes="1MiB", compression=())
    try:
        await create_closed(pair, body=b"z" * 900_000)
        await create_closed(pair, "/large", b"b" * 1_000_000)
        request = get("/s?offset=-1")
        await ask(pair.fast, request, request)
        served = hits(pair.fast)
        _, writer = await deaf(pair.fast)
        writer.write(request)
        await eventually(lambda: hits(pair.fast) > served and clients_of(pair.fast)[0].is_full)
        left = clients_of(pair.fast)[0].unsent_bytes
        writer.write(get("/large?offset=-1"))
        await eventually(lambda: clients_of(pair.fast)[0].has_pending)
        await pass_turns(300)
        assert clients_of(pair.fast)[0].unsent_bytes <= left + 256 * 1024
        writer.transport.abort()
        await eventually(lambda: not clients_of(pair.fast))
    finally:
        await stop_pair(pair)


async def test_a_known_request_that_has_waited_is_not_answered_while_the_client_reads_nothing() -> None:
    pair = await start_pair(max_chunk_bytes=64 << 20, send_buffer_bytes="64KiB", max_reply_bytes="1MiB", compression=())
    try:
        await create_closed(pair, body=b"z" * 900_000)
        request = get("/s?offset=-1")
        await ask(pair.fast, request, request)
        served = hits(pair.fast)
        reader, writer = await deaf(pair.fast)
        writer.write(request)
        await eventually(lambda: hits(pair.fast) > served and clients_of(pair.fast)[0].is_full)
        client = clients_of(pair.fast)[0]
        pair.fast.clients.turns = always_late(asyncio.get_running_loop())
        left = client.unsent_bytes
        writer.write(request)
        await eventually(lambda: pair.fast.clients.turns.waited > 0 and not pair.fast.clients.turns)
        writer.write(request)
        await pass_turns(300)
        assert client.unsent_bytes <= left
        cast(asyncio.Transport, writer.transport).resume_reading()
        assert [(await read_response(reader)).status for _ in range(3)] == [200] * 3
        await close(writer)
    finally:
        await stop_pair(pair)


@pytest.mark.parametrize("how", ["idle", "close", "sse", "live"])
async def test_a_client_that_does_not_read_the_rest_is_closed(how: str) -> None:
    pair = await start_pair(
        max_chunk_bytes=1_000_000,
        keepalive_timeout_s=1.0,
        client_header_timeout_s=1.0,
        client_write_timeout_s=1.0,
        send_buffer_bytes="256KiB" if how != "live" else "64KiB",
        compression=(),
    )
    try:
        await create_closed(pair, body=b"z" * (230_000 if how != "live" else 900_000))
        await write(pair.fast, "PUT", "/open", b"x", Content_Type="text/plain")
        request = get("/s?offset=-1")
        await ask(pair.fast, request, request)
        served = hits(pair.fast)
        _, writer = await deaf(pair.fast)
        match how:
            case "idle":
                writer.write(request)
            case "close":
                writer.write(get("/s?offset=-1", "Connection: close"))
            case "sse":
                writer.write(get("/s?offset=-1&live=sse", "Connection: close"))
            case "live":
                writer.write(request)
                await eventually(lambda: hits(pair.fast) > served)
                writer.write(get("/open?offset=-1&live=sse"))
        await eventually(lambda: bool(clients_of(pair.fast)))
        await eventually(lambda: not clients_of(pair.fast))
        writer.transport.abort()
    finally:
        await stop_pair(pair)


@pytest.mark.parametrize("kind", ["fast", "strict"])
async def test_a_slow_client_that_keeps_reading_is_not_cut_off(kind: str) -> None:
    pair = await start_pair(
        max_chunk_bytes=64 << 20, send_buffer_bytes="64KiB", client_write_timeout_s=2.0, compression=()
    )
    try:
        await create_closed(pair, body=b"z" * 1_000_000)
        gateway: RunningGateway = getattr(pair, kind)
        await ask(gateway, get("/s?offset=-1"), get("/s?offset=-1"))
        reader, writer = await connect(gateway, receive_bytes=32_768)
        writer.write(get("/s?offset=-1"))
        got = 0
        async with asyncio.timeout(BOUND_S):
            while got < 1_000_000:
                data = await reader.read(32_768)
                assert data, f"cut off at {got}"
                got += len(data)
                # A client that reads a third of a megabyte a second: in total longer than the bound, at a time never.
                await pause(0.1)
        await close(writer)
    finally:
        await stop_pair(pair)


async def test_one_of_two_connection_lines_may_close(pair: Pair) -> None:
    await create_closed(pair)
    request = get("/s?offset=-1", "Connection: keep-alive", "Connection: close")
    for gateway in (pair.fast, pair.strict):
        for _ in range(4):
            reader, writer = await connect(gateway)
            writer.write(request)
            assert (await read_response(reader)).status == 200
            async with asyncio.timeout(BOUND_S):
                assert await reader.read() == b""
            await close(writer)


async def test_a_large_write_behind_a_long_poll_arrives_whole(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    tail = await tail_of(pair.fast, "/s")
    reader, writer = await connect(pair.fast)
    writer.write(get(f"/s?offset={tail}&live=long-poll"))
    await waiting(pair.fast)
    body = b"y" * 900_000
    writer.write(b"PUT /t HTTP/1.1\r\nHost: edge\r\nContent-Type: text/plain\r\nContent-Length: 900000\r\n\r\n" + body)
    await eventually(lambda: any(client.has_pending for client in clients_of(pair.fast)))
    await write(pair.fast, "POST", "/s", b"def", Content_Type="text/plain")
    assert (await read_response(reader)).body == b"def"
    assert (await read_response(reader)).status == 201
    await close(writer)
    async with aiohttp.ClientSession() as session, session.head(pair.fast.gateway_url + "/t") as response:
        assert response.headers["Stream-Next-Offset"].endswith("900005")


async def test_many_live_requests_behind_a_long_poll_are_answered_in_order(pair: Pair) -> None:
    """Far more requests than the stack could nest, and more than is read while the first one waits."""
    await write(pair.fast, "PUT", "/s", b"abc", Content_Type="text/plain")
    tail = await tail_of(pair.fast, "/s")
    reader, writer = await connect(pair.fast)
    writer.write(get(f"/s?offset={tail}&live=long-poll"))
    await waiting(pair.fast)
    writer.write(get("/s?offset=-1&live=long-poll") * 3_000 + get("/s?offset=-1"))
    await eventually(lambda: any(client.has_pending for client in clients_of(pair.fast)))
    await write(pair.fast, "POST", "/s", b"def", Content_Type="text/plain")
    assert (await read_response(reader)).body == b"def"
    for _ in range(3_001):
        assert (await read_response(reader)).body == b"abcdef"
    await close(writer)


async def follow(gateway: RunningGateway, path: str, tail: str) -> asyncio.StreamWriter:
    """Open a live read, so that the stream is followed."""
    _, writer = await connect(gateway)
    writer.write(get(f"{path}?offset={tail}&live=sse"))
    await waiting(gateway)
    return writer


@pytest.mark.parametrize("cut", [1, 12, 60])
async def test_input_behind_a_live_request_is_not_part_of_its_alias(pair: Pair, cut: int) -> None:
    """Otherwise the next client with these bytes would lose the beginning of its second request, and the rest of that,
    perhaps a body, would be read as another request."""
    gateway = pair.fast
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    tail = await tail_of(gateway, "/s")
    follower = await follow(gateway, "/s", tail)
    live = get(f"/s?offset={tail}&live=long-poll")
    body = b"DELETE /s HTTP/1.1\r\nHost: edge\r\n\r\n"
    behind = (
        b"POST /t HTTP/1.1\r\nHost: edge\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )
    connections = []
    for number in range(2):
        reader, writer = await connect(gateway)
        writer.write(live + behind[:cut])
        await eventually(
            lambda wanted=2 + number: sum(one.phase is Phase.LIVE for one in clients_of(gateway)) == wanted
        )
        connections.append((reader, writer))
    for _, writer in connections:
        writer.write(behind[cut:])
    await write(gateway, "POST", "/s", b"def", Content_Type="text/plain")
    for reader, writer in connections:
        assert (await read_response(reader)).body == b"def"
        assert (await read_response(reader)).status == 404
        await close(writer)
    assert (await ask(gateway, get("/s?offset=-1")))[0].body == b"abcdef"
    await close(follower)


async def test_an_unread_body_does_not_stop_the_reading_of_its_connection(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def dial(*_: object) -> None:
        await gate.wait()
        raise NotConnected

    monkeypatch.setattr(Dialer, "dial", dial)
    reader, writer = await connect(pair.strict)
    body = b"x" * 300_000
    writer.write(b"POST /s HTTP/1.1\r\nHost: edge\r\nContent-Type: text/plain\r\nContent-Length: 300000\r\n\r\n" + body)
    await eventually(lambda: any("whole body" in repr(client) for client in clients_of(pair.strict)))
    gate.set()
    first = await read_response(reader)
    assert (first.status, first.headers.get("connection")) == (502, None)
    writer.write(b"DELETE /s HTTP/1.1\r\nHost: edge\r\n\r\n")
    assert (await read_response(reader)).status == 502
    await close(writer)


async def test_a_request_behind_a_live_answer_that_ends_at_once_notices_its_client_leaving(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would not notice that its client has left, and would read on without one."""
    gateway = pair.strict
    await write(gateway, "PUT", "/closed", b"abc", Content_Type="text/plain", Stream_Closed="true")
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    gate, has_come, open_sse = asyncio.Event(), asyncio.Event(), gateway.engine.open_sse

    async def held(read: Read) -> object:
        if read.key.group.path == "/s":
            has_come.set()
            await gate.wait()
        return await open_sse(read)

    monkeypatch.setattr(gateway.engine, "open_sse", held)
    _, writer = await connect(gateway)
    writer.write(get("/closed?offset=-1&live=sse") + get("/s?offset=-1&live=sse"))
    async with asyncio.timeout(BOUND_S):
        await has_come.wait()
    await close(writer)
    await eventually(lambda: not clients_of(gateway))
    gate.set()
    await pass_turns(50)
    assert not any(topic.readers for topic in gateway.engine.live.topics())


async def test_no_shared_answer_moves_a_cursor_back(pair: Pair) -> None:
    gateway = pair.strict
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    start = await tail_of(gateway, "/s")
    follower = await follow(gateway, "/s", start)
    await write(gateway, "POST", "/s", b"def", Content_Type="text/plain")
    now = interval(pair.clock.wall())
    for cursor, lines in ((now + 50_000, ["Origin: https://other"]), (now + 10, []), (now + 50_000, [])):
        (answer,) = await ask(gateway, get(f"/s?offset={start}&live=long-poll&cursor={cursor}", *lines))
        assert answer.body == b"def"
        assert int(answer.headers["stream-cursor"][0]) > cursor
    await close(follower)


async def test_a_connection_that_closes_with_pending_input_is_released(pair: Pair) -> None:
    """The last request is answered at once, and the connection closes while more is pending."""
    gateway = pair.fast
    await write(gateway, "PUT", "/s", b"abc", Content_Type="text/plain")
    start = await tail_of(gateway, "/s")
    follower = await follow(gateway, "/s", start)
    await write(gateway, "POST", "/s", b"def", Content_Type="text/plain")
    for last in (
        f"GET /s?offset={start}&live=long-poll HTTP/1.0\r\nConnection: keep-alive\r\n\r\n".encode(),
        get(f"/s?offset={start}&live=long-poll", "Connection: close"),
    ):
        reader, writer = await connect(gateway)
        writer.write(last + get("/s?offset=-1") * 2)
        assert (await read_response(reader)).body == b"def"
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        await close(writer)
    await eventually(lambda: len(clients_of(gateway)) == 1)
    await close(follower)


async def test_line_breaks_do_not_keep_a_connection_open() -> None:
    pair = await start_pair(client_header_timeout_s=0.3, keepalive_timeout_s=0.3)
    try:
        reader, writer = await connect(pair.fast)
        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(BOUND_S):
            while not ended.done():
                writer.write(b"\r\n")
                await asyncio.wait([ended], timeout=0.05)
        # A write at the moment in which the gateway closes gets a reset.
        (found,) = await asyncio.gather(ended, return_exceptions=True)
        assert found == b"" or isinstance(found, ConnectionResetError)
        await close(writer)
    finally:
        await stop_pair(pair)


async def test_requests_behind_a_large_body_are_read(pair: Pair) -> None:
    """Reading pauses for the body and for the requests behind it, and resumes when both have been taken."""
    gateway = pair.fast
    await write(gateway, "PUT", "/s", b"", Content_Type="text/plain")
    body = b"y" * 700_000
    post = b"POST /s HTTP/1.1\r\nHost: edge\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader, writer = await connect(gateway)
    for _ in range(4):
        writer.write(post + body + get("/s?offset=now") * 200 + get("/missing", "X: " + "z" * 6_000))
    for _ in range(4):
        assert (await read_response(reader)).status == 204
        for _ in range(200):
            assert (await read_response(reader)).status == 200
        assert (await read_response(reader)).status == 404
    await close(writer)
