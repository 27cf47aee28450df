"""Server-sent events: lifetimes, heartbeats, framing, cursors, closure, drain."""

import asyncio
import base64
import json
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.wire import Answer, Event, Wire, pairs
from tests.waiting import eventually

EPOCH_S, INTERVAL_S = 1_728_432_000, 20


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"live_linger_s": 5}


async def control(wire: Wire) -> dict[str, Any]:
    """The next event that is not a comment; it must be a control event."""
    while (event := await wire.event()) is not None:
        if event.name != ":":
            assert event.name == "control"
            fields: dict[str, Any] = json.loads(event.data)
            return fields
    raise AssertionError("ended without a control event")


async def events(edge: Edge, counters: Counters, target: str = "/s?offset=-1&live=sse") -> Wire:
    wire = await edge.begin(target)
    head = await wire.head()
    assert (head.status, head.headers["Content-Type"]) == (200, "text/event-stream")
    await bounded(counters.parked_is(1))
    return wire


async def test_connections_end_within_the_last_fifth_of_their_lifetime_and_not_together(
    edge: Edge, counters: Counters
) -> None:
    await edge.put("/s")
    wires = [await events(edge, counters) for _ in range(20)]
    for wire in wires:
        await control(wire)
    edge.clock.advance(47)
    ended_at: list[float] = []

    async def until_end(wire: Wire) -> None:
        while await wire.event() is not None:
            pass
        ended_at.append(edge.clock.now() - 1_000.0)

    async with edge.time_passing(0.2):
        await bounded(asyncio.gather(*(until_end(wire) for wire in wires)))
    assert min(ended_at) >= 47.9
    assert max(ended_at) <= 62
    assert len({round(at, 1) for at in ended_at}) > 8


async def test_no_connection_lives_under_a_second_not_even_in_a_drain(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url, sse_lifetime_s=1)
    await edge.put("/s")
    wire = await edge.begin("/s?offset=-1&live=sse")
    await wire.head()
    await control(wire)
    edge.gateway.engine.begin_drain(0.0)
    edge.clock.advance(0.99)
    ending = asyncio.create_task(wire.event())
    assert not (await asyncio.wait([ending], timeout=0.05))[0]
    edge.clock.advance(0.1)
    assert await bounded(ending) is None


async def test_an_idle_connection_has_heartbeats_and_a_busy_one_has_none(edge: Edge, counters: Counters) -> None:
    await edge.put("/s")
    wire = await events(edge, counters)
    await control(wire)
    edge.clock.advance(14)
    await edge.post("/s", b"x")
    assert await wire.event() == Event("data", "x")
    await control(wire)
    edge.clock.advance(14)
    await edge.post("/s", b"y")
    assert await wire.event() == Event("data", "y")
    await control(wire)
    edge.clock.advance(15.1)
    beat = await wire.event()
    assert beat is not None
    assert beat.name == ":"


@pytest.mark.parametrize("is_closed_before", [False, True])
@pytest.mark.parametrize("has_last_words", [False, True])
async def test_closure_is_told_once_with_no_cursor_and_ends_the_connection(
    edge: Edge, counters: Counters, is_closed_before: bool, has_last_words: bool
) -> None:
    await edge.put("/s", b"first")
    last = b"last" if has_last_words else b""
    if is_closed_before:
        await edge.post("/s", last, Stream_Closed="true")
    wire = await edge.begin("/s?offset=-1&live=sse")
    await wire.head()
    if not is_closed_before:
        assert await wire.event() == Event("data", "first")
        await control(wire)
        assert (await edge.post("/s", last, Stream_Closed="true")).status == 204
    got = [pair async for pair in pairs(wire)]
    assert "".join(data for data, _ in got).removeprefix("first") == last.decode()
    fields = [json.loads(event.data) for _, event in got]
    assert [one.get("streamClosed") for one in fields].count(True) == 1
    assert fields[-1]["streamClosed"] is True
    assert fields[-1]["upToDate"] is True
    assert "streamCursor" not in fields[-1]
    await edge.until_idle()


TEXTS = [
    b"one\ntwo\n",
    b"cr\rcr\r",
    b"crlf\r\ncrlf\r\n",
    b"\n\n\n",
    b" lead",
    b"event: x\ndata: y\n\n",
    "ünï☃".encode(),
]


async def test_text_is_split_at_every_kind_of_line_end_and_the_tape_keeps_the_bytes(
    edge: Edge, counters: Counters
) -> None:
    """The origin is followed by long-poll, because SSE would lose the CRs."""
    await edge.put("/s", b"", "text/plain; charset=utf-8")
    wire = await events(edge, counters)
    await control(wire)
    for text in TEXTS:
        await edge.post("/s", text, "text/plain")
        event = await wire.event()
        assert event is not None
        assert event.name == "data"
        assert event.data == text.decode().replace("\r\n", "\n").replace("\r", "\n")
        await control(wire)
    assert counters.requests[Kind.SSE] == 0
    wire.leave()
    fetched = counters.body_bytes[Kind.CATCHUP]
    assert (await edge.get("/s")).body == b"".join(TEXTS)
    assert counters.body_bytes[Kind.CATCHUP] == fetched


@pytest.mark.parametrize(
    ("content_type", "encoding"),
    [("application/octet-stream", "base64"), ("image/png", "base64"), ("text/html", None), ("application/json", None)],
)
async def test_every_content_type_is_carried_and_says_how(
    edge: Edge, counters: Counters, content_type: str, encoding: str | None
) -> None:
    body = b'[1, 2.50, "a"]' if content_type == "application/json" else b"bytes"
    await edge.put("/s", body, content_type)
    wire = await edge.begin("/s?offset=-1&live=sse")
    assert (await wire.head()).headers.get("Stream-SSE-Data-Encoding") == encoding
    event = await wire.event()
    assert event is not None
    if encoding:
        assert base64.b64decode(event.data, validate=True) == body
    elif content_type == "application/json":
        assert event.data.replace(" ", "") == '[1,2.50,"a"]'
    else:
        assert event.data == "bytes"


@pytest.mark.http_1_origin
async def test_every_data_event_has_its_control_event_and_offsets_only_grow(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"[0]", "application/json")
    wire = await events(edge, counters)
    for number in range(1, 30):
        await edge.post("/s", str(number).encode(), "application/json")
        if number % 10 == 9:
            edge.gateway.engine.live.restart(next(iter(edge.gateway.engine.store)))
    got: list[int] = []
    offsets: list[str] = []
    async with edge.time_passing():
        async for data, event in pairs(wire):
            got += json.loads(data) if data else []
            offsets.append(json.loads(event.data)["streamNextOffset"])
            # A control event is never ahead of the bytes before it.
            read = await edge.send_to(edge.gateway.config.routes[0].members[0].url, "GET", f"/s?offset={offsets[-1]}")
            assert json.loads(read.body) == list(range(len(got), 30))
            if len(got) == 30:
                break
    assert got == list(range(30))
    assert all(left <= right for left, right in pairwise(offsets))


async def test_up_to_date_is_said_at_the_tail_only(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b"first")
    await edge.get("/s")
    await edge.post("/s", b"second")
    wire = await events(edge, counters)
    got: list[tuple[str, dict[str, Any]]] = []
    while not got or not got[-1][1].get("upToDate"):
        event = await wire.event()
        assert event is not None
        if event.name == "data":
            got.append((event.data, await control(wire)))
        else:
            got.append(("", json.loads(event.data)))
    assert "".join(data for data, _ in got) == "firstsecond"
    tail = (await edge.send("HEAD", "/s")).next_offset
    for _, fields in got:
        assert fields["streamNextOffset"] == tail or not fields.get("upToDate")


@pytest.mark.parametrize("ahead", [None, -5, 0, 1, 500, 5_000])
async def test_a_cursor_is_above_the_clients_own_and_never_below_the_clock(
    edge: Edge, counters: Counters, ahead: int | None
) -> None:
    await edge.put("/s")
    current = int((edge.clock.wall() - EPOCH_S) // INTERVAL_S)
    other = await events(edge, counters)
    await control(other)
    own = "" if ahead is None else f"&cursor={current + ahead}"
    wire = await events(edge, counters, f"/s?offset=-1&live=sse{own}")
    for _ in range(3):
        told = int((await control(wire))["streamCursor"])
        assert told >= current
        if ahead is not None:
            assert told > current + ahead
        await edge.post("/s", b"x")
        await wire.event()
    if ahead is not None:
        # Both readers get one frame.
        await other.event()
        assert int((await control(other))["streamCursor"]) > current + ahead


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_headers_of_the_origins_replies_are_on_live_replies_too(
    edge: Edge, origin: RunningOrigin, counters: Counters, mode: str
) -> None:
    """A browser without an earlier catch-up read may also read this one."""
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": "text/plain"}, b"x")
    wire = await edge.begin(f"/s?offset=now&live={mode}")
    await bounded(counters.parked_is(1))
    edge.clock.advance(26 if mode == "long-poll" else 0)
    head = await wire.head()
    assert head.headers["Access-Control-Allow-Origin"] == "*"
    assert head.headers["X-Content-Type-Options"] == "nosniff"


async def test_a_drain_ends_live_reads_cleanly_and_in_time(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, shutdown_timeout_s=4)
    await edge.put("/s")
    wires = []
    for _ in range(10):
        wires.append(await edge.begin("/s?offset=-1&live=sse"))
        await wires[-1].head()
        await control(wires[-1])
    topics = edge.gateway.engine.live.topics
    # Readers that arrive after the first wait with it as one group.
    polling = [edge.asking("/s?offset=now&live=long-poll")]
    await eventually(lambda: sum(topic.readers for topic in topics()) == 11)
    polling += [edge.asking("/s?offset=now&live=long-poll") for _ in range(4)]
    await eventually(lambda: sum(topic.readers for topic in topics()) == 15)
    edge.clock.advance(2)

    async def until_end(wire: Wire) -> float:
        while await wire.event() is not None:
            pass
        return edge.clock.now()

    began = edge.clock.now()
    stopping = asyncio.create_task(edge.gateway.stop())
    async with edge.time_passing(0.01):

        async def until_answered(poll: Awaitable[Answer]) -> tuple[int, float]:
            return (await poll).status, edge.clock.now()

        answers, ended_at = await bounded(
            asyncio.gather(
                asyncio.gather(*(until_answered(poll) for poll in polling)),
                asyncio.gather(*(until_end(wire) for wire in wires)),
            )
        )
        await bounded(stopping)
    assert {status for status, _ in answers} == {204}
    assert len({round(at, 1) for _, at in answers}) > 1
    ended_at += [at for _, at in answers]
    assert all(at - began <= 2.5 for at in ended_at)
    assert len({round(at, 1) for at in ended_at}) > 3
    assert edge.is_idle


async def test_shared_frames_are_bounded_by_their_bytes(edge: Edge) -> None:
    await edge.put("/s", b"", "application/octet-stream")
    sizes = (600_000, 600_000, 2_000_000)
    ends = [(await edge.post("/s", b"x" * size, "application/octet-stream")).next_offset for size in sizes]
    for offset in ("-1", *ends[:-1]):
        wire = await edge.begin(f"/s?offset={offset}&live=sse")
        await wire.head()
        assert await wire.event() is not None
    (topic,) = edge.gateway.engine.live.topics()
    assert topic.frames.kept_bytes <= 1 << 20


@pytest.mark.parametrize("is_live", [False, True], ids=["replayed", "appended"])
async def test_text_that_grows_to_many_times_its_size_in_frames_arrives_whole(
    edge: Edge, counters: Counters, is_live: bool
) -> None:
    body = b"\n" * 200_000
    await edge.put("/s", b"" if is_live else body)
    wires = [await edge.begin("/s?offset=-1&live=sse") for _ in range(2)]
    for wire in wires:
        assert (await wire.head()).status == 200
        if is_live:
            await control(wire)
    if is_live:
        await edge.post("/s", body)
    for wire in wires:
        event = await wire.event()
        assert event is not None
        assert event == Event("data", body.decode())
        fields = await control(wire)
        assert fields["streamNextOffset"] == (await edge.send("HEAD", "/s")).next_offset
    (topic,) = edge.gateway.engine.live.topics()
    assert topic.frames.kept_bytes <= 1 << 20
