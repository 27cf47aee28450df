"""Long-polls: answered at once if there is data, and in time if there is none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.wire import Dropped
from tests.waiting import eventually

EPOCH_S, INTERVAL_S = 1_728_432_000, 20


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"live_linger_s": 5}


async def readers_are(edge: Edge, count: int) -> None:
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: sum(topic.readers for topic in topics()) == count)


async def test_a_reader_that_is_behind_is_answered_at_once(edge: Edge) -> None:
    await edge.put("/s", b"01234")
    start = (await edge.get("/s")).next_offset
    await edge.post("/s", b"56789")
    for offset, body in (("-1", b"0123456789"), (start, b"56789")):
        answer = await edge.get(f"/s?offset={offset}&live=long-poll")
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["Stream-Cursor"].isdigit()


async def test_the_timeout_is_a_204_with_tail_and_cursor(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"0123456789")
    tail = (await edge.get("/s")).next_offset
    current = int((edge.clock.wall() - EPOCH_S) // INTERVAL_S)
    tasks = [edge.asking(f"/s?offset={tail}&live=long-poll&cursor={current + ahead}") for ahead in (-1, 0, 30)]
    await readers_are(edge, 3)
    await bounded(counters.parked_is(1))
    edge.clock.advance(24.9)
    assert not (await asyncio.wait(tasks, timeout=0.05))[0]
    edge.clock.advance(0.2)
    for ahead, task in zip((-1, 0, 30), tasks, strict=True):
        answer = await bounded(task)
        assert (answer.status, answer.body, answer.next_offset) == (204, b"", tail)
        assert (answer.is_up_to_date, answer.is_closed) == (True, False)
        assert int(answer.headers["Stream-Cursor"]) > current + ahead
        assert "Content-Type" not in answer.headers


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "application/json"])
async def test_one_append_wakes_all_and_costs_one_live_request(
    edge: Edge, counters: Counters, content_type: str
) -> None:
    await edge.put("/s", b"", content_type)
    tail = (await edge.get("/s")).next_offset
    tasks = [edge.asking(f"/s?offset={tail}&live=long-poll&cursor={number % 10}") for number in range(50)]
    await readers_are(edge, 50)
    await bounded(counters.parked_is(1))
    assert counters.live_peak == 1
    await edge.post("/s", b"1", content_type)
    answers = await bounded(asyncio.gather(*tasks))
    body = b"[1]" if content_type == "application/json" else b"1"
    assert {(answer.status, answer.body, answer.is_up_to_date) for answer in answers} == {(200, body, True)}
    assert counters.live_peak == 1


async def test_a_closed_stream_is_answered_at_once_and_closing_wakes_waiting_readers(
    edge: Edge, counters: Counters
) -> None:
    await edge.put("/s", b"0123456789")
    tail = (await edge.get("/s")).next_offset
    waiting = edge.asking(f"/s?offset={tail}&live=long-poll")
    # On a busy machine the origin may hear of the reader after all else, and count it then.
    await bounded(counters.parked_is(1))
    assert (await edge.post("/s", b"", Stream_Closed="true")).status == 204
    for answer in (await bounded(waiting), await edge.get(f"/s?offset={tail}&live=long-poll")):
        assert (answer.status, answer.is_closed, answer.is_up_to_date, answer.next_offset) == (204, True, True, tail)
    before = counters.total_requests
    for _ in range(50):
        assert (await edge.get(f"/s?offset={tail}&live=long-poll")).is_closed
    assert counters.total_requests == before


async def test_closing_at_the_origin_wakes_waiting_readers(
    edge: Edge, origin: RunningOrigin, counters: Counters
) -> None:
    await edge.put("/s", b"x", "application/octet-stream")
    tail = (await edge.get("/s")).next_offset
    waiting = edge.asking(f"/s?offset={tail}&live=long-poll")
    await bounded(counters.parked_is(1))
    await edge.send_to(origin.url, "POST", "/s", {"Stream-Closed": "true"}, b"")
    answer = await bounded(waiting)
    assert (answer.status, answer.is_closed) == (204, True)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
async def test_now_is_the_tail_in_every_mode(
    edge: Edge, counters: Counters, is_closed: bool, content_type: str
) -> None:
    body = b"[1]" if content_type == "application/json" else b"1"
    closed = {"Stream_Closed": "true"} if is_closed else {}
    await edge.put("/s", body, content_type, **closed)
    tail = (await edge.send("HEAD", "/s")).next_offset
    now = await edge.get("/s?offset=now")
    empty = b"[]" if content_type == "application/json" else b""
    assert (now.status, now.body, now.next_offset) == (200, empty, tail)
    assert (now.is_up_to_date, now.is_closed) == (True, is_closed)
    assert now.headers["Cache-Control"] == "no-store"
    assert "ETag" not in now.headers
    polling = edge.asking("/s?offset=now&live=long-poll")
    wire = await edge.begin("/s?offset=now&live=sse")
    await wire.head()
    event = await wire.event()
    assert event is not None
    assert event.name == "control"
    assert tail in event.data
    assert '"upToDate":true' in event.data.replace(" ", "")
    if is_closed:
        answer = await bounded(polling)
        assert (answer.status, answer.is_closed, answer.is_up_to_date) == (204, True, True)
        assert "streamClosed" in event.data
        assert await wire.event() is None
        return
    await readers_are(edge, 2)
    await edge.post("/s", b"[2]" if content_type == "application/json" else b"2", content_type)
    answer = await bounded(polling)
    assert answer.body == (b"[2]" if content_type == "application/json" else b"2")
    # Read-your-writes: acknowledged bytes lie before `now`.
    assert (await edge.get("/s?offset=now")).next_offset == answer.next_offset


@pytest.mark.parametrize("mode", ["", "&live=long-poll", "&live=sse"])
async def test_an_invalid_offset_is_a_400(edge: Edge, counters: Counters, mode: str) -> None:
    await edge.put("/s", b"0123456789")
    for offset in ("", "a,b", "a/b", "a%26b", "x" * 257, "%00", "a%20b", "garbage"):
        refused = await edge.get(f"/s?offset={offset}{mode}")
        assert (offset, refused.status, refused.is_one_line_of_text) == (offset, 400, True)
    assert (await edge.get("/s")).body == b"0123456789"


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_live_read_needs_an_offset(edge: Edge, live: str) -> None:
    await edge.put("/s", b"0123456789")
    assert (await edge.get(f"/s?live={live}")).status == 400


async def test_an_offset_beyond_the_tail_gets_the_origins_answer_and_affects_no_other(
    edge: Edge, counters: Counters
) -> None:
    await edge.put("/s", b"0123456789")
    tail = (await edge.get("/s")).next_offset
    waiting = edge.asking(f"/s?offset={tail}&live=long-poll")
    await bounded(counters.parked_is(1))
    beyond = f"{9:016d}_{9_999:016d}"
    for mode in ("", "&live=long-poll"):
        answer = await edge.get(f"/s?offset={beyond}{mode}")
        assert (answer.status, answer.body, answer.next_offset) == (200, b"", tail)
    wire = await edge.begin(f"/s?offset={beyond}&live=sse")
    assert (await wire.head()).status == 200
    await edge.post("/s", b"x")
    assert (await bounded(waiting)).body == b"x"
    assert (await edge.get("/s")).body == b"0123456789x"


async def test_a_long_poll_that_its_client_abandons_is_forgotten(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"0123456789")
    tail = (await edge.get("/s")).next_offset
    wires = [await edge.begin(f"/s?offset={tail}&live=long-poll") for _ in range(5)]
    await readers_are(edge, 5)
    await bounded(counters.live_is(1))
    for wire in wires:
        wire.reset()
    await readers_are(edge, 0)
    assert counters.live_open == 1
    edge.clock.advance(5.1)
    await bounded(counters.live_is(0))
    await edge.until_idle()
    assert counters.requests[Kind.LONGPOLL] == 1


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_an_acknowledged_write_does_not_wait_for_a_stalled_follower(
    edge: Edge, faults: Faults, counters: Counters, live: str
) -> None:
    await edge.put("/s", b"1", "application/json")
    tail = (await edge.get("/s")).next_offset
    stalled = faults.stall(120, kind=Kind.SSE, times=None)
    first = edge.asking(f"/s?offset={tail}&live=long-poll")
    await readers_are(edge, 1)
    await bounded(counters.reached(Kind.SSE, 1))
    assert (await edge.post("/s", b'"%s"' % (b"2" * 200), "application/json")).status == 204
    looks, began = counters.requests[Kind.CATCHUP], edge.clock.now()
    wires = [await edge.begin(f"/s?offset={tail}&live={live}") for _ in range(5)]
    async with edge.time_passing(0.005):
        for wire in wires:
            await wire.head()
            if live == "sse":
                event = await wire.event()
                assert event is not None
                assert event.name == "data"
        assert b"222" in (await bounded(first)).body
    assert edge.clock.now() - began < 5
    assert counters.requests[Kind.CATCHUP] <= looks + 2
    stalled.remove()


async def test_long_polls_that_are_answered_at_once_leave_no_live_request_behind(
    edge: Edge, counters: Counters
) -> None:
    await edge.put("/s", b"0123456789")
    for number in range(20):
        answer = await edge.get(f"/s?offset=-1&live=long-poll&x={number}")
        assert (answer.status, answer.body, answer.is_up_to_date) == (200, b"0123456789", True)
    assert len(edge.gateway.engine.live) == 0
    assert counters.live_peak == 0


class TestAtTheLimitOfFollowedStreams:
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"followed_streams": 1}

    async def test_a_reader_beyond_the_limit_gets_a_503(self, edge: Edge, counters: Counters) -> None:
        for path in ("/a", "/b"):
            await edge.put(path, b"0123456789")
        tail = (await edge.get("/a")).next_offset
        first = edge.asking(f"/a?offset={tail}&live=long-poll")
        await bounded(counters.parked_is(1))
        for live in ("long-poll", "sse"):
            refused = await edge.get(f"/b?offset={tail}&live={live}")
            assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert (await edge.get("/b?offset=-1&live=long-poll")).body == b"0123456789"
        second = edge.asking(f"/a?offset={tail}&live=long-poll")
        await readers_are(edge, 2)
        await edge.post("/a", b"x")
        assert {(await bounded(task)).body for task in (first, second)} == {b"x"}


class TestOfSeveralWebOrigins:
    @pytest.fixture
    def settings(self) -> dict[str, Any]:
        return {"cors": {"allow_origins": ["https://a.example", "https://b.example"]}}

    async def test_an_answer_that_cannot_be_written_closes_the_connections_and_leaves_no_reader(
        self, edge: Edge, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(head: bytes, web_origin: bytes) -> bytes:
            raise RuntimeError

        target = f"/s?offset={(await edge.put('/s', b'0123456789')).next_offset}&live=long-poll"
        waiting = []
        for number in range(4):
            waiting.append(edge.asking(target, {"Origin": f"https://{'ab'[number % 2]}.example"}))
            await readers_are(edge, len(waiting))
        with monkeypatch.context() as patched:
            patched.setattr("gateway.server.poll_group.with_origin", fail)
            await edge.post("/s", b"more")
            found = await bounded(asyncio.gather(*waiting, return_exceptions=True))
        assert [type(one) for one in found] == [Dropped] * 4
        await readers_are(edge, 0)
        assert (await edge.get(target, {"Origin": "https://a.example"})).body == b"more"


@asynccontextmanager
async def reloadable(origin: RunningOrigin, clock: ManualClock, settings: dict[str, Any]) -> AsyncIterator[Edge]:
    """A gateway whose reloads read `settings` again."""

    def load() -> GatewayConfig:
        return GatewayConfig.for_origin(
            origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", live_linger_s=0, **settings
        )

    edge = Edge(await start_gateway(load(), clock=clock, rng=Random(7), load=load), clock)
    try:
        yield edge
    finally:
        await edge.leave()
        await edge.until_idle()
        await edge.gateway.stop()


async def test_long_polls_of_before_and_after_a_reload_have_the_cors_fields_of_their_own_configuration(
    origin: RunningOrigin, clock: ManualClock
) -> None:
    wide: dict[str, Any] = {"allow_origins": ["https://a.example", "https://b.example"], "allow_credentials": True}
    settings: dict[str, Any] = {"cors": {"allow_origins": ["*"]}}
    async with reloadable(origin, clock, settings) as edge:
        target = f"/s?offset={(await edge.put('/s', b'0123456789')).next_offset}&live=long-poll"
        waiting = []
        for cors in ({"allow_origins": ["*"]}, wide, {"allow_origins": ["https://b.example"]}):
            settings["cors"] = cors
            await edge.gateway.reload()
            for name in ("a", "b"):
                waiting.append(edge.asking(target, {"Origin": f"https://{name}.example"}))
                await readers_are(edge, len(waiting))
        await edge.post("/s", b"more")
        names = ("Access-Control-Allow-Origin", "Access-Control-Allow-Credentials")
        answers = [(await bounded(task)).headers for task in waiting]
        assert [tuple(headers.get(name) for name in names) for headers in answers] == [
            ("*", None),
            ("*", None),
            ("https://a.example", "true"),
            ("https://b.example", "true"),
            (None, None),
            ("https://b.example", None),
        ]


@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_no_later_reader_joins_a_live_read_that_a_reload_has_overtaken(
    origin: RunningOrigin, clock: ManualClock, faults: Faults, live: str
) -> None:
    cors = {"allow_origins": ["https://a.example"], "allow_credentials": True}
    settings: dict[str, Any] = {"cors": cors}
    async with reloadable(origin, clock, settings) as edge:
        tail = (await edge.put("/s", b"0123456789")).next_offset
        # A name of its own, of which the gateway knows nothing yet.
        target, page = f"/s?v=1&offset={tail}&live={live}", {"Origin": "https://a.example"}
        gate = faults.hold(kind=Kind.CATCHUP, times=1)
        overtaken = await edge.begin(target, page)
        await bounded(gate.waiting(1))
        settings["cors"] = {**cors, "allow_credentials": False}
        await edge.gateway.reload()
        gate.release()
        await readers_are(edge, 1)
        later = await edge.begin(target, page)
        await readers_are(edge, 2)
        await edge.post("/s", b"more")
        for wire, allows in ((overtaken, "true"), (later, None)):
            headers = (await wire.head()).headers
            assert headers.get("Access-Control-Allow-Credentials") == allows
