"""The origin over HTTP, beyond what the conformance suite covers."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession

from gateway.aio.clock import ManualClock
from gateway.origin.app import OriginSettings, RunningOrigin
from gateway.origin.requests import Kind
from tests.origin.conftest import Start

BYTES = {"Content-Type": "application/octet-stream"}
TEXT = {"Content-Type": "text/plain"}
JSON = {"Content-Type": "application/json"}
FINAL = "public, max-age=60, stale-while-revalidate=300"


@pytest.fixture
async def origin(start: Start) -> RunningOrigin:
    return await start(OriginSettings(max_chunk_bytes=8, max_body_bytes=100))


@pytest.fixture
def url(origin: RunningOrigin) -> str:
    return f"{origin.url}/v1/stream/s"


async def raw(origin: RunningOrigin, request: bytes) -> bytes:
    """All bytes of the origin's answer to these bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection(origin.host, origin.port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_reply_short_of_the_tail_is_not_marked_up_to_date(http: ClientSession, url: str) -> None:
    async with http.put(url, headers={**BYTES, "Stream-Closed": "true"}, data=b"0123456789") as created:
        tail = created.headers["Stream-Next-Offset"]
    async with http.get(url) as first:
        assert await first.read() == b"01234567"
        assert first.headers["Cache-Control"] == FINAL
        assert "Stream-Up-To-Date" not in first.headers
        assert "Stream-Closed" not in first.headers
    async with http.get(url, params={"offset": first.headers["Stream-Next-Offset"]}) as last:
        assert await last.read() == b"89"
        assert last.headers["Cache-Control"] == "no-cache"
        assert last.headers["Stream-Up-To-Date"] == last.headers["Stream-Closed"] == "true"
        assert last.headers["Stream-Next-Offset"] == tail


async def test_json_comes_back_as_it_was_sent(http: ClientSession, url: str) -> None:
    await http.put(url, headers=JSON, data=b'[1.0, {"b":1e400 ,"a":2}]')
    found = b""
    offset = "-1"
    async with http.get(url, params={"offset": offset}) as first:
        found, offset = await first.read(), first.headers["Stream-Next-Offset"]
    assert found == b"[1.0]"
    async with http.get(url, params={"offset": offset}) as rest:
        assert await rest.read() == b'[{"b":1e400 ,"a":2}]'


async def test_a_chunked_body_is_one_append(http: ClientSession, url: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"a", b"bc", b"d"):
            yield part

    await http.put(url, headers=BYTES)
    async with http.post(url, headers=BYTES, data=parts()) as appended:
        assert appended.status == 204
        assert appended.request_info.headers["Transfer-Encoding"] == "chunked"
    async with http.get(url) as read:
        assert await read.read() == b"abcd"


async def test_a_body_is_stored_as_it_came(http: ClientSession, url: str) -> None:
    await http.put(url, headers=BYTES)
    async with http.post(url, headers={**BYTES, "Content-Encoding": "gzip"}, data=b"not gzip") as appended:
        assert appended.status == 204
    async with http.get(url) as read:
        assert await read.read() == b"not gzip"


@pytest.mark.parametrize("nonsense", ["", "nonsense", "text/plain; x=é"])
async def test_an_invalid_content_type_means_the_default(http: ClientSession, url: str, nonsense: str) -> None:
    async with http.put(url, headers={"Content-Type": nonsense}) as created:
        assert created.headers["Content-Type"] == "application/octet-stream"


async def test_an_etag_names_the_instance_the_range_and_closure(http: ClientSession, url: str) -> None:
    tags: list[str] = []

    async def tag() -> str:
        async with http.get(url) as read:
            tags.append(read.headers["ETag"])
            return tags[-1]

    await http.put(url, headers=BYTES, data=b"abc")
    first = await tag()
    for if_none_match in (first, f"W/{first}", f'"x", {first}', "*"):
        async with http.get(url, headers={"If-None-Match": if_none_match}) as unchanged:
            assert unchanged.status == 304
            assert await unchanged.read() == b""
            assert unchanged.headers["ETag"] == first
    await http.post(url, headers={"Stream-Closed": "true"})
    closed = await tag()
    async with http.get(url, headers={"If-None-Match": first}) as changed:
        assert (changed.status, changed.headers["Stream-Closed"]) == (200, "true")
    await http.delete(url)
    await http.put(url, headers=BYTES, data=b"xyz")
    recreated = await tag()
    assert len({first, closed, recreated}) == 3


async def test_head_tells_about_the_stream_and_is_not_stored(http: ClientSession, url: str) -> None:
    await http.put(url, headers={**TEXT, "Stream-TTL": "60"}, data=b"abc")
    async with http.head(url) as head:
        assert (head.status, head.headers["Stream-TTL"], head.headers["Cache-Control"]) == (200, "60", "no-store")
        assert "Content-Length" not in head.headers


async def test_a_preflight_allows_what_the_protocol_needs(http: ClientSession, url: str) -> None:
    async with http.options(url) as preflight:
        assert preflight.status == 204
        allowed = preflight.headers["Access-Control-Allow-Headers"]
        assert {"If-None-Match", "Stream-Seq", "Producer-Epoch", "Stream-Forked-From"} <= set(allowed.split(", "))
        exposed = preflight.headers["Access-Control-Expose-Headers"].lower().split(", ")
        assert {"stream-next-offset", "location", "etag", "stream-sse-data-encoding", "producer-seq"} <= set(exposed)


async def test_a_body_beyond_the_limit_is_refused_however_it_is_framed(http: ClientSession, url: str) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"0123456789"

    await http.put(url, headers=BYTES)
    async with http.post(url, headers=BYTES, data=b"x" * 101) as known:
        assert known.status == 413
    async with http.post(url, headers=BYTES, data=parts()) as counted:
        assert (counted.status, await counted.text()) == (413, "Request body too large\n")
    async with http.get(url) as read:
        assert await read.read() == b""


async def test_trimmed_data_is_gone_and_the_rest_remains(http: ClientSession, url: str, origin: RunningOrigin) -> None:
    async with http.put(url, headers=BYTES, data=b"old") as created:
        offset = created.headers["Stream-Next-Offset"]
    await http.post(url, headers=BYTES, data=b"new")
    async with http.get(url, params={"offset": "0000000000000000_0000000000000000"}) as before:
        assert await before.read() == b"oldnew"
    origin.origin.store.trim("/v1/stream/s", offset, origin.origin.clock.wall())
    for live in ({}, {"live": "long-poll"}, {"live": "sse"}):
        async with http.get(url, params={"offset": "0000000000000000_0000000000000000", **live}) as trimmed:
            assert (trimmed.status, await trimmed.text()) == (410, "Offset is no longer retained\n")
    async with http.get(url) as rest:
        assert await rest.read() == b"new"


@pytest.mark.parametrize(
    ("method", "query", "headers", "status"),
    [
        ("GET", "?offset=-1&offset=now", {}, 400),
        ("GET", "?offset=", {}, 400),
        ("GET", "?offset=1", {}, 400),
        ("GET", "?offset=%00", {}, 400),
        ("GET", "?offset=snapshot", {}, 400),
        ("GET", "?offset=0000000000000001_0000000000000001_snapshot", {}, 400),
        ("GET", "?live=sse", {}, 400),
        ("GET", "?live=long-poll", {}, 400),
        ("PUT", "2", {"Stream-TTL": "01"}, 400),
        ("PUT", "2", {"Stream-TTL": "9" * 5000}, 400),
        ("PUT", "2", {"Stream-TTL": "1", "Stream-Expires-At": "2030-01-01T00:00:00Z"}, 400),
        ("PUT", "2", {"Stream-Expires-At": "2030-02-30T00:00:00Z"}, 400),
        ("PUT", "2", {"Stream-Expires-At": "2030-01-01"}, 400),
        ("PUT", "2", {"Stream-Expires-At": "0001-01-01T00:00:00+23:59"}, 400),
        ("PUT", "2", {"Stream-Fork-Offset": "0000000000000000_0000000000000000"}, 400),
        ("PUT", "2", {"Stream-Forked-From": "/nowhere"}, 404),
        ("PUT", "2", {"Stream-Forked-From": "//["}, 400),
        ("POST", "", {"Producer-Id": "p"}, 400),
        ("POST", "", {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": "9" * 5000}, 400),
        ("POST", "", {"Producer-Id": "p", "Producer-Epoch": "-1", "Producer-Seq": "0"}, 400),
        ("POST", "/missing", BYTES, 404),
        ("DELETE", "/missing", {}, 404),
        ("PATCH", "", {}, 405),
        ("GET", "/__ds/subscriptions", {}, 501),
    ],
)
async def test_bad_input_gets_one_line(
    http: ClientSession, url: str, method: str, query: str, headers: dict[str, str], status: int
) -> None:
    await http.put(url, headers=BYTES, data=b"abcdef")
    body = b"x" if method in ("PUT", "POST") else None
    async with http.request(method, url + query, headers=headers, data=body) as refused:
        assert refused.status == status
        assert refused.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert refused.headers["X-Content-Type-Options"] == "nosniff"
        line = await refused.text()
        assert line.endswith("\n")
        assert len(line.splitlines()) == 1


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: x\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    ],
)
async def test_what_is_not_http_gets_one_line(origin: RunningOrigin, request_bytes: bytes) -> None:
    head, _, body = (await raw(origin, request_bytes)).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == b"400"
    assert body in (b"Malformed request\n", b"Malformed request body\n")


async def test_a_body_that_breaks_off_appends_nothing(origin: RunningOrigin, http: ClientSession, url: str) -> None:
    await http.put(url, headers=BYTES, data=b"whole")
    _, writer = await asyncio.open_connection(origin.host, origin.port)
    writer.write(b"POST /v1/stream/s HTTP/1.1\r\nHost: h\r\nContent-Type: application/octet-stream\r\n")
    writer.write(b"Content-Length: 10\r\n\r\nhalf")
    await origin.origin.counters.reached("append", 1)
    writer.close()
    await writer.wait_closed()
    await origin.origin.counters.until(lambda counters: counters.finished[Kind.APPEND] == 1)
    async with http.get(url) as read:
        assert await read.read() == b"whole"


async def test_reads_renew_a_sliding_window_and_head_does_not(start: Start, http: ClientSession) -> None:
    clock = ManualClock()
    url = (await start(clock=clock)).url + "/s"

    async def status(method: str, **query: str) -> int:
        async with http.request(method, url, params=query) as answered:
            return answered.status

    await http.put(url, headers={**TEXT, "Stream-TTL": "10"})
    for query in ({}, {"offset": "now"}, {"offset": "-1"}):
        clock.advance(9)
        assert await status("GET", **query) == 200
    clock.advance(9)
    assert await status("HEAD") == 200
    clock.advance(1)
    assert await status("GET") == 404
