"""Invalid requests from bare sockets: a status, one line of text, and nothing left behind."""

import asyncio
import socket
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.test_client_limits import counted
from tests.waiting import eventually, pass_turns

pytestmark = pytest.mark.http_1

GOOD = b"GET /s HTTP/1.1\r\nHost: h\r\n"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"client_header_timeout_s": 0.3}


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        pytest.param(b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414, id="overlong line"),
        pytest.param(GOOD + b"X: " + b"y" * 9_000 + b"\r\n\r\n", 431, id="overlong header"),
        pytest.param(GOOD + b"".join(b"X%d: y\r\n" % n for n in range(200)) + b"\r\n", 431, id="too many headers"),
        pytest.param(GOOD + (b"Accept-Encoding: " + b"a," * 4_000 + b"\r\n") * 128 + b"\r\n", 431, id="large head"),
        pytest.param(GOOD + b"Host: other\r\n\r\n", 400, id="two hosts"),
        pytest.param(GOOD + b"Host: h\r\n\r\n", 400, id="two equal hosts"),
        pytest.param(b"GET /s HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET /s%zz HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="bad percent"),
        pytest.param(b"GET /s% HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="lone percent"),
        pytest.param(b"GET /s%0d%0aX:y HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="encoded line end"),
        pytest.param(b"GET /s%00 HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="encoded nul"),
        pytest.param(b"GET s HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="no slash"),
        pytest.param(b"GET /s#f HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="fragment"),
        pytest.param(b"GET ftp://h/s HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="other scheme"),
        pytest.param(b"GET http://h@evil/s HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="userinfo"),
        pytest.param(b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="connect"),
        pytest.param(b"GET /s?offset=-1&offset=-1 HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="two offsets"),
        pytest.param(b"GET /s?offset=\xff HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="an offset that is no text"),
        pytest.param(b"GET /s?cursor=%20\xff HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="an escaped cursor that is no text"),
        pytest.param(b"GET /s?offset=-1&%6Fffset=now HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="two offsets, disguised"),
        pytest.param(b"GET /s?live=sse&live=sse&offset=-1 HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="two lives"),
        pytest.param(b"GET /s?offset=-1&live=sse&cursor=1&cursor=2 HTTP/1.1\r\nHost: h\r\n\r\n", 400, id="two cursors"),
        pytest.param(b"GET /s HTTP/1.1\r\nHost : h\r\n\r\n", 400, id="space before colon"),
        pytest.param(b"GET /s HTTP/1.1\r\nHost: h\r\n X: folded\r\n\r\n", 400, id="folded header"),
        pytest.param(b"GET /s HTTP/1.1\r\nHost: h\r\nX\x00Y: 1\r\n\r\n", 400, id="nul in a header's name"),
        pytest.param(b"GET /s HTTP/9.9\r\nHost: h\r\n\r\n", 400, id="unknown version"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 \r\n\r\n", 400, id="a tls hello"),
    ],
)
async def test_an_invalid_request_is_a_400_and_never_reaches_the_origin(
    edge: Edge, counters: Counters, raw: bytes, status: int
) -> None:
    wire = await edge.wire()
    await wire.send(raw)
    refused = await wire.answer()
    assert (refused.status, refused.is_one_line_of_text) == (status, True)
    assert len(refused.body) < 80
    assert counters.total_requests == 0


SMUGGLED = b"DELETE /s HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", id="length and chunked"),
        pytest.param(b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", id="chunked and length"),
        pytest.param(b"Content-Length: 5\r\nContent-Length: 6\r\n", id="two lengths"),
        pytest.param(b"Content-Length: 5, 5\r\n", id="a list of lengths"),
        pytest.param(b"Content-Length: +5\r\n", id="length with a sign"),
        pytest.param(b"Content-Length: 0x5\r\n", id="length in hex"),
        pytest.param(b"Transfer-Encoding: xchunked\r\n", id="unknown coding"),
        pytest.param(b"Transfer-Encoding: chunked, identity\r\n", id="chunked not last"),
        pytest.param(b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", id="chunked twice"),
        pytest.param(b"Transfer-Encoding : chunked\r\n", id="space before colon"),
        pytest.param(b"Transfer-Encoding:\x0bchunked\r\n", id="vertical tab"),
        pytest.param(
            b"Content-Length: 5\r\nTransfer_Encoding: chunked\r\nX: \rTransfer-Encoding: chunked\r\n", id="bare cr"
        ),
    ],
)
async def test_a_request_with_two_possible_ends_is_refused_and_the_connection_ends(
    edge: Edge, origin: RunningOrigin, counters: Counters, head: bytes
) -> None:
    await edge.put("/s", b"0123456789")
    wire = await edge.wire()
    await wire.send(b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\n" + head + b"\r\n0\r\n\r\n" + SMUGGLED)
    refused = await wire.answer()
    assert (refused.status, refused.is_one_line_of_text) == (400, True)
    assert await wire.is_ended()
    assert counters.requests[Kind.DELETE] == 0
    assert (await edge.get("/s")).body == b"0123456789"


@pytest.mark.parametrize(
    "chunk", [b"5;x\x00\r\n01234\r\n0\r\n\r\n", b"g\r\n", b"-5\r\n", b"5\r\n01234567\r\n0\r\n\r\n"]
)
async def test_a_broken_chunk_makes_no_write(edge: Edge, counters: Counters, chunk: bytes) -> None:
    await edge.put("/s", b"before")
    wire = await edge.wire()
    await wire.send(
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"
    )
    await bounded(counters.reached(Kind.APPEND, 1))
    await wire.send(chunk)
    refused = await wire.answer()
    assert (refused.status, refused.is_one_line_of_text) == (400, True)
    assert await wire.is_ended()
    await bounded(counters.until(lambda now: now.finished[Kind.APPEND] == 1))
    assert (await edge.get("/s")).body == b"before"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/a/../s", "/s"),
        ("/a/%2e%2E/s", "/s"),
        ("/./s", "/s"),
        ("/%73", "/s"),
        ("http://EDGE.test/s", "/s"),
        ("/a//s", "/a//s"),
        ("/a%2Fs", "/a%2Fs"),
        ("/a%2fs", "/a%2Fs"),
        ("/../../etc/passwd", "/etc/passwd"),
    ],
)
async def test_one_stream_has_one_name_here_and_at_the_origin(
    edge: Edge, origin: RunningOrigin, counters: Counters, target: str, path: str
) -> None:
    assert (await edge.put(target, b"0123456789", Stream_Closed="true")).status == 201
    assert (await edge.send_to(origin.url, "GET", path)).body == b"0123456789"
    assert (await edge.get(target)).body == b"0123456789"
    reads = counters.requests[Kind.CATCHUP]
    for spelling in (target, path, f"{target}?", f"{path}?offset=-1"):
        assert (await edge.get(spelling)).body == b"0123456789"
    assert counters.requests[Kind.CATCHUP] == reads


async def test_a_path_that_begins_with_two_slashes_without_its_prefix_is_refused(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    prefix = "/a/b"
    edge = await start(origin.url, prefix=prefix, strip_prefix=True)
    below = await start(f"{origin.url}/v1", prefix=prefix, strip_prefix=True)
    assert (await edge.put(f"{prefix}/s", b"0123456789")).status == 201
    asked = counters.total_requests
    for method in ("GET", "PUT", "DELETE"):
        refused = await edge.send(method, f"{prefix}//x/s", {"Content-Type": "text/plain"})
        assert (refused.status, refused.is_one_line_of_text) == (400, True)
    assert counters.total_requests == asked
    # Behind the path of the origin's URL, no origin reads them as the begin of an authority.
    assert (await below.put(f"{prefix}//x/s", b"0123456789")).status == 201


async def test_parameters_in_any_order_are_one_key_and_unknown_ones_another(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"0123456789", Stream_Closed="true")
    await edge.get("/s?a=1&b=2&offset=-1")
    reads = counters.requests[Kind.CATCHUP]
    for query in ("b=2&a=1", "offset=-1&b=2&a=1", "a=%31&b=2", "%61=1&b=2&&"):
        assert (await edge.get(f"/s?{query}")).status == 200
    assert counters.requests[Kind.CATCHUP] == reads
    await edge.get("/s?a=1&b=3")
    assert counters.requests[Kind.CATCHUP] == reads + 1


@pytest.mark.parametrize("sent", [b"", b"GET /s HT", b"GET /s HTTP/1.1\r\nHost: h\r\nX: "])
@pytest.mark.parametrize("is_second", [False, True])
async def test_an_incomplete_head_times_out(start: Start, origin: RunningOrigin, sent: bytes, is_second: bool) -> None:
    edge = await start(origin.url, client_header_timeout_s=0.5, keepalive_timeout_s=2.0)
    wire = await edge.wire()
    if is_second:
        await wire.send(b"HEAD /s HTTP/1.1\r\nHost: h\r\n\r\n")
        await wire.answer("HEAD")
    if sent:
        await wire.send(sent)
    assert await wire.is_ended()


async def test_a_slow_head_times_out(edge: Edge) -> None:
    """Sending single bytes does not keep a connection alive."""
    wire = await edge.wire()
    ended = asyncio.create_task(wire.is_ended())
    for byte in GOOD * 40:
        wire.writer.write(bytes([byte]))
        done, _ = await asyncio.wait([ended], timeout=0.02)
        if done:
            break
    assert await ended
    assert counted(edge.gateway, "durable_gateway_client_limited_total")["client_header_timeout_s",] == 1


async def test_pipelined_requests_are_answered_in_order(edge: Edge) -> None:
    for name in "abc":
        await edge.put(f"/{name}", name.encode() * 5)
    wire = await edge.wire()
    await wire.send(b"".join(b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n" % name for name in (b"a", b"b", b"c", b"a")))
    assert [(await wire.answer()).body for _ in range(4)] == [b"aaaaa", b"bbbbb", b"ccccc", b"aaaaa"]


async def test_an_http_1_0_answer_ends_with_the_connection(edge: Edge) -> None:
    await edge.put("/s", b"0123456789" * 100_000, "application/octet-stream", Stream_Closed="true")
    for head in (b"", b"Host: h\r\n"):
        for target in (b"/s", b"/s?offset=-1&live=long-poll"):
            wire = await edge.wire()
            await wire.send(b"GET " + target + b" HTTP/1.0\r\n" + head + b"\r\n")
            answer = await wire.answer()
            assert (answer.status, answer.body) == (200, b"0123456789" * 100_000)
            assert "Transfer-Encoding" not in answer.headers
            assert await wire.is_ended()


async def test_a_relayed_request_without_a_host_asks_no_name_server(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def look_up(name: str = "") -> str:
        asked.append(name)
        return "looked.up"

    monkeypatch.setattr(socket, "getfqdn", look_up)
    wire = await edge.wire()
    await wire.send(b"HEAD /s HTTP/1.0\r\n\r\n")
    assert (await wire.answer("HEAD")).status == 404
    assert asked == []


async def test_clients_that_vanish_at_any_moment_leave_nothing_behind(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    await edge.put("/s", bytes(300_000), "application/octet-stream")
    gate = faults.hold(kind=Kind.CATCHUP)
    targets = ["/s", "/s?offset=now", "/s?offset=-1&live=long-poll", "/s?offset=-1&live=sse", "/t"] * 6
    for number, target in enumerate(targets):
        wire = await edge.begin(target, method="HEAD" if target == "/t" else "GET")
        if number % 3 == 0:
            wire.reset()
        elif number % 3 == 1:
            wire.leave()
    await edge.leave()
    await edge.until_idle()
    gate.release()
    await eventually(lambda: not edge.gateway.connections)
    await bounded(counters.live_is(0))
    await bounded(counters.until(lambda now: sum(now.finished.values()) == now.total_requests))


async def test_a_body_in_a_transfer_coding_that_is_not_undone_here_is_refused(edge: Edge, counters: Counters) -> None:
    await edge.put("/s")
    wire = await edge.wire()
    await wire.send(
        b"POST /s HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
        b"2\r\nab\r\n0\r\n\r\n"
    )
    assert (await wire.answer()).status == 501
    assert counters.requests[Kind.APPEND] == 0


async def test_answers_are_in_a_version_that_is_spoken_here(edge: Edge) -> None:
    await edge.put("/s", b"abc")
    wire = await edge.wire()
    await wire.send(b"GET /s?offset=-1 HTTP/2.0\r\nHost: h\r\nConnection: close\r\n\r\n")
    said = await bounded(wire.reader.read())
    assert said.startswith(b"HTTP/1.1 505 ")


async def test_invalid_bytes_behind_a_read_do_not_prevent_its_answer(edge: Edge, faults: Faults) -> None:
    await edge.put("/s", b"abc")
    gate = faults.hold(kind="catchup")
    wire = await edge.wire()
    await wire.send(GOOD + b"\r\n")
    await bounded(gate.waiting(1))
    await wire.send(b"\x00nonsense\r\n\r\n")
    await pass_turns(20)
    gate.release()
    assert (await wire.answer()).body == b"abc"
    assert (await wire.answer()).status == 400
