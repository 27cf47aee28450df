"""Origins that answer a shared fetch with invalid, refusing or unshareable replies."""

import asyncio

import pytest

from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Answer, Dropped
from tests.waiting import eventually

TEXT = {"Content-Type": "text/plain", "Stream-Up-To-Date": "true"}
NEXT = {**TEXT, "Stream-Next-Offset": "0001"}


async def read_by_many(edge: Edge, faults: Faults, target: str = "/s") -> list[Answer]:
    """A leader and three followers of one fetch, which is answered once all four wait."""
    gate = faults.hold(kind=Kind.CATCHUP, times=1)
    tasks = [edge.asking(target)]
    await bounded(gate.waiting(1))
    tasks += [edge.asking(target) for _ in range(3)]
    await eventually(edge.readers(4))
    async with edge.time_passing():
        gate.release()
        return await bounded(asyncio.gather(*tasks))


@pytest.mark.parametrize("status", [500, 502, 503, 504, 403, 429])
async def test_an_origin_error_reaches_all_waiters_and_is_not_kept(
    edge: Edge, faults: Faults, counters: Counters, status: int
) -> None:
    await edge.put("/s", b"0123456789")
    faults.status(status, kind=Kind.CATCHUP, times=None, headers={"Retry-After": "7", "ETag": '"x"'})
    answers = await read_by_many(edge, faults)
    assert {answer.status for answer in answers} == {status}
    assert all(answer.is_one_line_of_text for answer in answers)
    assert {answer.headers["Retry-After"] for answer in answers} == {"7"}
    assert {answer.headers["Cache-Control"] for answer in answers} == {"no-store"}
    assert not any("ETag" in answer.headers for answer in answers)
    # Retry-After says that a repetition is useless now: the gateway does not retry.
    assert counters.requests[Kind.CATCHUP] <= 4
    faults.clear()
    assert (await edge.get("/s")).body == b"0123456789"


@pytest.mark.parametrize("status", [404, 410])
async def test_a_404_reaches_all_waiters(edge: Edge, faults: Faults, status: int) -> None:
    await edge.put("/s", b"0123456789")
    assert (await edge.get("/s")).body == b"0123456789"
    faults.status(status, kind=Kind.CATCHUP, times=None)
    answers = await read_by_many(edge, faults)
    assert {answer.status for answer in answers} == {status}
    faults.clear()
    # The refusal is repeated for a moment, and not for longer.
    edge.clock.advance(edge.gateway.config.routes[0].absent_s)
    assert (await edge.get("/s")).body == b"0123456789"


async def test_a_retried_read_succeeds_invisibly(edge: Edge, faults: Faults, counters: Counters) -> None:
    await edge.put("/s", b"0123456789")
    faults.status(503, kind=Kind.CATCHUP, times=1)
    async with edge.time_passing():
        assert (await edge.get("/s")).body == b"0123456789"
    assert counters.requests[Kind.CATCHUP] == 2


async def test_retries_are_a_small_share_of_requests(edge: Edge, faults: Faults, counters: Counters) -> None:
    """At most a burst of 10 and one for every fifth request: an origin that is down does not get twice the load."""
    await edge.put("/s", b"0123456789")
    faults.status(503, kind=Kind.CATCHUP, times=None)
    async with edge.time_passing():
        for _ in range(60):
            assert (await edge.get("/s")).status == 503
    assert counters.requests[Kind.CATCHUP] <= 60 + 10 + 60 // 5


@pytest.mark.parametrize("way", ["reset", "503", "hang"])
async def test_a_post_is_never_sent_twice(edge: Edge, faults: Faults, counters: Counters, way: str) -> None:
    await edge.put("/s", b"0123456789")
    if way == "reset":
        faults.refuse(kind=Kind.APPEND, times=None)
    elif way == "503":
        faults.status(503, kind=Kind.APPEND, times=None)
    else:
        faults.raw(b"", kind=Kind.APPEND, times=None)
    async with edge.time_passing():
        refused = await edge.post("/s", b"x")
    assert refused.status == (503 if way == "503" else 502)
    assert refused.is_one_line_of_text
    assert counters.requests[Kind.APPEND] == 1


@pytest.mark.parametrize("method", ["POST", "PUT"])
async def test_a_write_on_a_connection_that_the_origin_has_just_closed_is_not_sent_again_without_its_body(
    hostile: Hostile, start: Start, method: str
) -> None:
    bodies: list[tuple[str, str]] = []

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "GET":
            writer.write(part_of_stream(b"", "0001"))
            return
        bodies.append((asked.method, asked.headers.get("Content-Length", "chunked")))
        writer.transport.abort()

    origin = await hostile(script)
    edge = await start(origin.url)
    assert (await edge.get("/s")).status == 200
    refused = await edge.send(method, "/s", {"Content-Type": "text/plain"}, b"0123456789")
    assert (refused.status, refused.is_one_line_of_text) == (502, True)
    assert bodies == [(method, "10")]


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param({**TEXT, "Stream-Next-Offset": "a b"}, b"x", id="malformed"),
        pytest.param({**TEXT, "Stream-Next-Offset": "a/b"}, b"x", id="forbidden character"),
        pytest.param({**TEXT, "Stream-Next-Offset": "0" * 257}, b"x", id="overlong"),
        pytest.param({**TEXT, "Stream-Next-Offset": "-1"}, b"x", id="sentinel start"),
        pytest.param({**TEXT, "Stream-Next-Offset": "now"}, b"x", id="sentinel now"),
        pytest.param({**NEXT, "Content-Type": "application/json"}, b'{"a":1}', id="json object"),
        pytest.param({**NEXT, "Content-Type": "application/json"}, b"[1", id="json cut"),
        pytest.param({**NEXT, "Content-Type": "application/json"}, b"", id="json nothing"),
    ],
)
async def test_an_invalid_reply_is_a_502_for_all_and_not_kept(
    edge: Edge, faults: Faults, headers: dict[str, str], body: bytes
) -> None:
    await edge.put("/s", b"[1,2]", "application/json")
    faults.replace(200, headers, body, times=None, kind=Kind.CATCHUP)
    answers = await read_by_many(edge, faults)
    assert {answer.status for answer in answers} == {502}
    assert all(answer.is_one_line_of_text for answer in answers)
    faults.clear()
    assert (await edge.get("/s")).body == b"[1,2]"


async def test_bytes_without_a_next_offset_are_a_502(edge: Edge, faults: Faults) -> None:
    await edge.put("/s", b"0123456789")
    tail = (await edge.get("/s")).next_offset
    faults.replace(200, {**TEXT, "Stream-Next-Offset": tail}, b"more", times=None, kind=Kind.CATCHUP)
    async with edge.time_passing():
        refused = await edge.get(f"/s?offset={tail}")
    assert (refused.status, refused.is_one_line_of_text) == (502, True)
    faults.clear()
    assert (await edge.get(f"/s?offset={tail}")).body == b""
    assert (await edge.get("/s")).body == b"0123456789"


@pytest.mark.http_1_origin
async def test_an_offset_that_goes_back_means_another_stream(edge: Edge, faults: Faults, counters: Counters) -> None:
    await edge.put("/s", b"01234")
    await edge.post("/s", b"56789")
    tail = (await edge.get("/s")).next_offset
    await edge.send("GET", f"/s?offset={tail}")
    # Directly at the origin: the stream is re-created, and shorter.
    origin = edge.gateway.config.routes[0].members[0].url
    await edge.send_to(origin, "DELETE", "/s")
    await edge.send_to(origin, "PUT", "/s", {"Content-Type": "text/plain"}, b"abc")
    again = await edge.get("/s")
    assert again.body == b"abc"
    assert again.is_up_to_date


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"garbage\r\n\r\n", id="garbage"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", id="two lengths"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n", id="length no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="negative length"),
        pytest.param(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", id="101"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\n\r\n", id="unsolicited 304"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", id="overlong header"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("target", ["/s", "/s?offset=now", "/s?offset=-1&live=long-poll", "/s?offset=-1&live=sse"])
@pytest.mark.http_1_origin
async def test_a_reply_that_is_not_http_is_a_502(edge: Edge, faults: Faults, raw: bytes, target: str) -> None:
    await edge.send_to(
        edge.gateway.config.routes[0].members[0].url, "PUT", "/s", {"Content-Type": "text/plain"}, b"0123456789"
    )
    faults.raw(raw, times=None)
    async with edge.time_passing():
        refused = await edge.get(target)
    assert (refused.status, refused.is_one_line_of_text) == (502, True)
    faults.clear()
    assert (await edge.get("/s")).body == b"0123456789"


@pytest.mark.parametrize(
    ("status", "headers", "is_kept"),
    [
        pytest.param(200, {**NEXT, "Cache-Control": "no-store"}, False, id="no-store"),
        pytest.param(200, {**NEXT, "Cache-Control": "private, max-age=60"}, False, id="private"),
        pytest.param(200, {**NEXT, "Set-Cookie": "id=1"}, False, id="cookie"),
        pytest.param(200, {**NEXT, "Vary": "X-User"}, False, id="vary"),
        pytest.param(200, {**NEXT, "Vary": "*"}, False, id="vary star"),
        pytest.param(200, {**NEXT, "Content-Encoding": "gzip"}, False, id="encoded"),
        pytest.param(200, {"Content-Type": "text/html"}, False, id="no stream"),
        pytest.param(206, {**NEXT, "Content-Range": "bytes 0-9/10"}, False, id="partial"),
        pytest.param(302, {"Location": "/elsewhere"}, False, id="redirect"),
        pytest.param(200, {**NEXT, "Vary": "Accept-Encoding, Authorization"}, True, id="vary that is known"),
    ],
)
async def test_an_unshareable_reply_is_relayed_to_each_reader(
    edge: Edge, faults: Faults, counters: Counters, status: int, headers: dict[str, str], is_kept: bool
) -> None:
    faults.replace(status, headers, b"0123456789", times=None, kind=Kind.CATCHUP)
    faults.status(200, kind=Kind.HEAD, times=None, headers=NEXT, text="")
    answers = await read_by_many(edge, faults)
    assert {(answer.status, answer.body) for answer in answers} == {(status, b"0123456789")}
    for name in ("Set-Cookie", "Content-Encoding", "Content-Range", "Location"):
        assert {answer.headers.get(name) for answer in answers} == {headers.get(name)}
    if not is_kept:
        assert edge.gateway.engine.store.cost < 5_000
        before = counters.requests[Kind.CATCHUP]
        await edge.get("/s")
        assert counters.requests[Kind.CATCHUP] == before + 1


async def test_waiters_for_an_uncacheable_reply_continue_in_parallel_and_later_ones_do_not_wait(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    """One after the other, ten waiters of an origin that takes 0.4 s would need 4 s."""
    await edge.put("/s", b"shared again")
    faults.replace(200, {**NEXT, "Cache-Control": "no-store"}, b"0123456789", times=None, kind=Kind.CATCHUP)
    faults.delay(0.4, kind=Kind.CATCHUP)
    tasks = [edge.asking("/s")]
    await bounded(counters.reached(Kind.CATCHUP, 1))
    tasks += [edge.asking("/s") for _ in range(9)]
    await eventually(edge.readers(10))
    began = edge.clock.now()
    edge.clock.advance(0.4)
    # All ten requests are at the origin at once, at the same moment.
    await bounded(counters.reached(Kind.CATCHUP, 11))
    edge.clock.advance(0.4)
    assert {answer.body for answer in await bounded(asyncio.gather(*tasks))} == {b"0123456789"}
    assert edge.clock.now() - began < 0.9
    later = [edge.asking("/s") for _ in range(10)]
    await bounded(counters.reached(Kind.CATCHUP, 21))
    assert not len(edge.gateway.engine.fetches)
    edge.clock.advance(0.4)
    assert {answer.body for answer in await bounded(asyncio.gather(*later))} == {b"0123456789"}
    edge.clock.advance(121.0)
    faults.clear()
    assert (await edge.get("/s")).body == b"shared again"
    counters.reset()
    assert (await edge.get("/s")).body == b"shared again"
    assert counters.body_bytes[Kind.CATCHUP] == 0


async def test_a_stream_that_becomes_private_is_no_longer_served_from_memory(hostile: Hostile, start: Start) -> None:
    more: dict[str, str] = {}

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "offset=0001" in asked.target:
            writer.write(part_of_stream(b"two", "0002", **more))
        else:
            headers = {"Content-Type": "text/plain", "Stream-Next-Offset": "0001", **more}
            writer.write(answer("200 OK", headers, b"one"))

    origin = await hostile(script)
    edge = await start(origin.url)
    for _ in range(4):
        assert (await edge.get("/s?offset=-1")).body == b"one"
    assert len(origin.reads) == 1
    more = {"Cache-Control": "private"}
    # One reader continues to the point where the origin must be asked.
    await edge.get("/s?offset=0001")
    before = len(origin.reads)
    for _ in range(3):
        assert (await edge.get("/s?offset=-1")).headers["Cache-Control"] == "private"
    # The first of them by a look at the tail: stored bytes may not be shareable any more either.
    assert len(origin.reads) == before + 1 + 3


async def test_a_body_longer_than_announced_is_never_read_as_the_next_answer(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        path = asked.target.partition("?")[0]
        writer.write(part_of_stream(b"good", "0001") + (part_of_stream(b"evil", "0002") if path == "/a" else b""))

    origin = await hostile(script)
    edge = await start(origin.url)
    for _ in range(5):
        assert (await edge.get("/a?x=1")).body == b"good"
        assert (await edge.get("/b?x=1")).body == b"good"
        await edge.send("DELETE", "/a?x=1")


async def test_a_body_shorter_than_announced_is_refused(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("200 OK", {**NEXT, "Content-Length": "100"}, b"short"))

    origin = await hostile(script)
    edge = await start(origin.url, idle_timeout_s=0.2, retry_attempts=0)
    refused = await edge.get("/s")
    assert (refused.status, refused.is_one_line_of_text) == (504, True)
    assert edge.gateway.engine.store.cost < 5_000


async def test_a_chunked_json_reply_that_is_no_array_never_ends_cleanly(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        head = {**NEXT, "Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        writer.write(answer("200 OK", head, b"6\r\n[1,2,3\r\n0\r\n\r\n"))

    origin = await hostile(script, metadata=answer("200 OK", {**NEXT, "Content-Type": "application/json"}))
    edge = await start(origin.url, retry_attempts=0)
    with pytest.raises(Dropped):
        await edge.get("/s")
    assert edge.gateway.engine.store.cost < 5_000


@pytest.mark.http_1_origin
async def test_an_origin_without_head_is_followed_once_for_all(edge: Edge, faults: Faults, counters: Counters) -> None:
    """Even if the HEAD is refused after the first bytes have arrived."""
    url = edge.gateway.config.routes[0].members[0].url
    await edge.send_to(url, "PUT", "/s", {"Content-Type": "application/octet-stream"}, b"0123456789")
    gate = faults.hold(kind=Kind.HEAD)
    faults.status(405, kind=Kind.HEAD, times=None)
    assert (await edge.get("/s")).body == b"0123456789"
    wires = [await edge.begin("/s?offset=-1&live=sse") for _ in range(3)]
    # Their one live request first asks for the stream's identity.
    await eventually(edge.readers(1))
    gate.release()
    for wire in wires:
        assert (await wire.head()).status == 200
    await bounded(counters.parked_is(1))
    assert counters.live_peak == 1
    counters.reset()
    assert (await edge.get("/s")).body == b"0123456789"
    assert counters.body_bytes[Kind.CATCHUP] == 0


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("status", "field"),
    [
        pytest.param("200 OK", "a\x01b", id="control character"),
        pytest.param("200 OK", "a\x7fb", id="delete"),
        pytest.param("200 OK", "a\rSet-Cookie: b", id="carriage return"),
        pytest.param("200 O\x01K", "a", id="reason"),
        pytest.param("401 Unauthorized", "a\x01b", id="refusal"),
    ],
)
async def test_a_head_with_control_characters_is_a_502_and_not_kept(
    hostile: Hostile, start: Start, method: str, status: str, field: str
) -> None:
    is_broken = True

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        more = {"X-Field": field} if is_broken else {}
        writer.write(answer(status if is_broken else "200 OK", {**NEXT, **more}, b"x"))

    origin = await hostile(script)
    edge = await start(origin.url)
    async with edge.time_passing():
        refused = await edge.send(method, "/s", {"Content-Type": "text/plain"}, b"x" if method == "POST" else None)
    assert (refused.status, refused.is_one_line_of_text) == (502, True)
    is_broken = False
    assert (await edge.get("/s")).body == b"x"


@pytest.mark.parametrize("mode", ["", "&live=long-poll"])
async def test_metadata_without_a_content_type_contradicts_nothing(hostile: Hostile, start: Start, mode: str) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"x", "0001"))

    metadata = answer("200 OK", {"Stream-Next-Offset": "0001"})
    origin = await hostile(script, metadata=metadata)
    edge = await start(origin.url)
    for _ in range(2):
        read = await edge.get(f"/s?offset=-1{mode}")
        assert (read.status, read.body, read.headers["Content-Type"]) == (200, b"x", "text/plain")
