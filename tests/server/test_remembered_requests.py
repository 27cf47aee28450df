"""A remembered answer equals what the handler would answer, for as long as it is given."""

from __future__ import annotations

import asyncio
from typing import cast

import aiohttp
import pytest

from gateway.origin.requests import Kind
from gateway.protocol.etag import LONGEST_LIST
from gateway.server.connection import Connection
from tests.server.conftest import (
    BOUND_S,
    Pair,
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
from tests.waiting import eventually

CHANGING = ("date", "age")


async def test_a_repeated_hit_is_answered_without_the_parser(pair: Pair) -> None:
    await create_closed(pair)
    request = get("/s?offset=-1")
    first, second, third, fourth = await ask(pair.fast, request, request, request, request)
    assert hits(pair.fast) == 2
    assert pair.origin.origin.counters.requests[Kind.CATCHUP] == 1
    assert {first.body, second.body, third.body, fourth.body} == {b"x" * 1_000}
    assert second.headers["cache-status"] == fourth.headers["cache-status"] == ["durable-gateway; hit"]


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Origin: https://app.example",),
        ("Accept-Encoding: gzip, br",),
        ("Connection: keep-alive",),
        ("User-Agent: a", "Accept: */*", "traceparent: 00-1-2-01"),
        ('If-None-Match: "nothing"',),
        ("Authorization: Bearer a",),
        ("Cookie: a=b",),
    ],
)
@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
async def test_a_remembered_answer_equals_the_handlers(pair: Pair, lines: tuple[str, ...], content_type: str) -> None:
    await create_closed(pair, body=b"[1,2,3]", content_type=content_type)
    request = get("/s?offset=-1", *lines)
    by_door = (await ask(pair.fast, *[request] * 4))[-1]
    by_strict = (await ask(pair.strict, *[request] * 4))[-1]
    assert hits(pair.fast) == 2
    assert by_door.status == by_strict.status == 200
    assert by_door.body == by_strict.body
    for response in (by_door, by_strict):
        del response.headers["etag"]  # each gateway names incarnations itself
        assert [name for name in CHANGING if name in response.headers] == list(CHANGING)
        del response.headers["date"]
    assert by_door.headers == by_strict.headers


async def test_a_304_is_remembered(pair: Pair) -> None:
    await create_closed(pair)
    etag = (await ask(pair.fast, get("/s?offset=-1")))[0].headers["etag"][0]
    request = get("/s?offset=-1", f"If-None-Match: {etag}")
    by_strict, *by_door = await ask(pair.fast, request, request, request)
    assert hits(pair.fast) == 2
    for response in by_door:
        assert (response.status, response.body) == (304, b"")
        assert {**response.headers, "date": [], "age": []} == {**by_strict.headers, "date": [], "age": []}


async def test_a_list_of_tags_that_no_client_needs_is_not_read(pair: Pair) -> None:
    await create_closed(pair)
    (first,) = await ask(pair.fast, get("/s?offset=-1"))
    (tag,) = first.headers["etag"]
    few = ", ".join(['"other"'] * 20 + [tag])
    assert len(few) <= LONGEST_LIST
    for gateway in (pair.fast, pair.strict):
        for lines in ([f"If-None-Match: {few}"], [f"If-None-Match: {part}" for part in few.split(", ")]):
            assert [one.status for one in await ask(gateway, *[get("/s?offset=-1", *lines)] * 3)] == [304] * 3
        many = [f"If-None-Match: {tag}", *["If-None-Match: " + ",".join(['"other"'] * 900)] * 4]
        answers = await ask(gateway, *[get("/s?offset=-1", *many)] * 3)
        assert [(one.status, one.body) for one in answers] == [(200, b"x" * 1_000)] * 3
        assert answers[-1].headers["etag"] == [tag]


async def test_requests_that_differ_only_in_meaningless_lines_share_an_answer(pair: Pair) -> None:
    await create_closed(pair)
    requests = [get("/s?offset=-1", f"traceparent: 00-{n:032x}-01", f"Cookie: visit={n}") for n in range(10)]
    responses = await ask(pair.fast, *requests)
    assert hits(pair.fast) == 8
    assert {response.body for response in responses} == {b"x" * 1_000}


async def test_credentials_are_never_meaningless(pair: Pair) -> None:
    await create_closed(pair)
    await ask(pair.fast, *[get("/s?offset=-1", "Authorization: Bearer a")] * 3)
    assert hits(pair.fast) == 1
    seen = pair.origin.origin.counters.requests[Kind.CATCHUP]
    await ask(pair.fast, get("/s?offset=-1", "Authorization: Bearer b"))
    assert pair.origin.origin.counters.requests[Kind.CATCHUP] == seen + 1


@pytest.mark.parametrize("method", ["DELETE", "PUT"])
async def test_an_answer_is_forgotten_with_its_stream(pair: Pair, method: str) -> None:
    await create_closed(pair)
    request = get("/s?offset=-1")
    await ask(pair.fast, request, request, request)
    await write(pair.fast, "DELETE", "/s")
    assert len(pair.fast.clients.remembered or ()) == 0
    if method == "PUT":
        await create_closed(pair, body=b"y" * 1_000)
        assert (await ask(pair.fast, request))[0].body == b"y" * 1_000
    else:
        assert (await ask(pair.fast, request))[0].status == 404


async def test_an_answer_is_forgotten_with_its_bytes() -> None:
    pair = await start_pair(max_chunk_bytes=100_000, cache_bytes=400_000, eviction="lru")
    try:
        await create_closed(pair, "/a", b"a" * 90_000)
        await ask(pair.fast, *[get("/a?offset=-1")] * 3)
        assert len(pair.fast.clients.remembered or ()) == 1
        for name in ("b", "c", "d", "e"):
            await create_closed(pair, f"/{name}", name.encode() * 90_000)
            await ask(pair.fast, get(f"/{name}?offset=-1"))
        assert len(pair.fast.clients.remembered or ()) == 0
        assert (await ask(pair.fast, get("/a?offset=-1")))[0].body == b"a" * 90_000
    finally:
        await stop_pair(pair)


async def test_an_answer_is_valid_while_the_stream_is_trusted(pair: Pair) -> None:
    await create_closed(pair)
    request = get("/s?offset=-1")
    await ask(pair.fast, request, request, request)
    seen = pair.origin.origin.counters.requests[Kind.CATCHUP]
    pair.clock.advance(59)
    await ask(pair.fast, request)
    assert pair.origin.origin.counters.requests[Kind.CATCHUP] == seen
    pair.clock.advance(2)
    await ask(pair.fast, request)
    assert pair.origin.origin.counters.requests[Kind.CATCHUP] == seen + 1


async def test_age_and_date_follow_the_clock(pair: Pair) -> None:
    await create_closed(pair)
    request = get("/s?offset=-1")
    await ask(pair.fast, request, request, request)
    served = hits(pair.fast)
    (before,) = await ask(pair.fast, request)
    pair.clock.advance(7)
    (after,) = await ask(pair.fast, request)
    assert hits(pair.fast) == served + 2
    assert int(after.headers["age"][0]) == int(before.headers["age"][0]) + 7
    assert after.headers["date"] != before.headers["date"]


async def test_an_answer_about_the_tail_of_an_open_stream_is_not_remembered(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"a", Content_Type="text/plain")
    request = get("/s?offset=-1")
    bodies = []
    for _ in range(3):
        bodies.append((await ask(pair.fast, request))[0].body)
        await write(pair.fast, "POST", "/s", b"b", Content_Type="text/plain")
    assert bodies == [b"a", b"ab", b"abb"]
    assert hits(pair.fast) == 0


async def test_a_part_before_the_tail_is_remembered_and_stays_correct(pair: Pair) -> None:
    await write(pair.fast, "PUT", "/s", b"p" * 10_000, Content_Type="text/plain")
    request = get("/s?offset=-1")
    await ask(pair.fast, request, request, request)
    assert hits(pair.fast) >= 1
    await write(pair.fast, "POST", "/s", b"q", Content_Type="text/plain")
    (response,) = await ask(pair.fast, request)
    assert set(response.body) == set(b"p")
    assert "stream-up-to-date" not in response.headers


async def test_a_connection_between_two_requests_holds_no_parser_and_no_task(pair: Pair) -> None:
    await create_closed(pair)
    request = get("/s?offset=-1")
    await ask(pair.fast, request, request)
    reader, writer = await connect(pair.fast)
    try:
        for _ in range(3):
            writer.write(request)
            await read_response(reader)
        writer.write(get("/s?offset=-1", "X: y"))
        await read_response(reader)
        (client,) = pair.fast.clients
        assert isinstance(client, Connection)
        assert repr(client) == "<Connection IDLE>"
    finally:
        await close(writer)


async def test_a_large_body_is_sent_from_the_tapes_own_pieces(pair: Pair) -> None:
    body = bytes(range(256)) * 4_000
    async with aiohttp.ClientSession() as session:
        await session.put(pair.fast.gateway_url + "/s", data=b"", headers={"Content-Type": "application/octet-stream"})
        for start in range(0, len(body), 4_000):
            await session.post(
                pair.fast.gateway_url + "/s",
                data=body[start : start + 4_000],
                headers={"Content-Type": "application/octet-stream"},
            )
        await session.post(pair.fast.gateway_url + "/s", headers={"Stream-Closed": "true"})
        offset, read = "-1", b""
        while len(read) < len(body):
            async with session.get(f"{pair.fast.gateway_url}/s?offset={offset}") as response:
                read += await response.read()
                offset = response.headers["Stream-Next-Offset"]
    assert read == body
    request = get("/s?offset=-1")
    responses = await ask(pair.fast, *[request] * 4)
    assert hits(pair.fast) == 3
    assert {response.body for response in responses} == {body}


async def test_a_client_that_sends_nothing_is_closed() -> None:
    pair = await start_pair(client_header_timeout_s=0.05)
    try:
        reader, writer = await connect(pair.fast)
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        await close(writer)
    except ConnectionResetError:
        pass
    finally:
        await stop_pair(pair)


async def test_an_idle_connection_is_closed() -> None:
    pair = await start_pair(keepalive_timeout_s=0.1, client_header_timeout_s=0.1)
    try:
        await create_closed(pair)
        reader, writer = await connect(pair.fast)
        writer.write(get("/s?offset=-1"))
        await read_response(reader)
        async with asyncio.timeout(BOUND_S):
            assert await reader.read() == b""
        await close(writer)
    finally:
        await stop_pair(pair)


async def test_a_client_that_does_not_read_its_remembered_answer_is_closed() -> None:
    pair = await start_pair(max_chunk_bytes=1_000_000, client_write_timeout_s=0.5, send_buffer_bytes="8KiB")
    try:
        await create_closed(pair, body=b"z" * 900_000)
        request = get("/s?offset=-1")
        await ask(pair.fast, request, request)
        reader, writer = await connect(pair.fast, receive_bytes=4_096)
        transport = cast(asyncio.Transport, writer.transport)
        transport.pause_reading()
        writer.write(request)
        await eventually(lambda: hits(pair.fast) > 0 and not len(pair.fast.clients))
        transport.resume_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await read_response(reader)
        await close(writer)
    finally:
        await stop_pair(pair)
