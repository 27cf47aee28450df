"""Claims about a tail or an absent stream stay true across writes, unusual origins and closing streams."""

from __future__ import annotations

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.following import followed_until_silent
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.waiting import eventually

JSON = "application/json"


async def test_a_head_that_found_nothing_is_not_repeated_across_the_put_that_was_under_way(
    edge: Edge, faults: Faults
) -> None:
    gate = faults.hold(kind=Kind.CREATE, when="request", times=1)
    creating = asyncio.create_task(edge.put("/s", b'["a"]', JSON))
    await bounded(gate.waiting(1))
    late = faults.hold(kind=Kind.HEAD, when="reply", times=1)
    heading = asyncio.create_task(edge.send("HEAD", "/s"))
    await bounded(late.waiting(1))
    gate.release()
    assert (await bounded(creating)).status == 201
    late.release()
    assert (await bounded(heading)).status == 404
    assert (await edge.send("HEAD", "/s")).status == 200


@pytest.mark.parametrize("read", ["/s?offset=-1&live=long-poll", "/s?offset=-1"])
async def test_a_tail_that_a_probe_has_passed_is_no_tail_any_more(
    edge: Edge, counters: Counters, faults: Faults, read: str
) -> None:
    """The live request has stalled, a write was acknowledged, and another read has shown the new tail."""
    async with followed_until_silent(edge, counters, faults):
        acked = await edge.post("/s", b'["b"]', JSON)
        assert (await edge.get("/s?offset=now")).next_offset == acked.next_offset
        async with edge.time_passing():
            found = await edge.get(read)
        assert found.next_offset == acked.next_offset or not found.is_up_to_date


async def test_a_head_that_memory_may_not_answer_is_relayed(hostile: Hostile, start: Start) -> None:
    more: dict[str, str] = {}

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = b"" if "0001" in asked.target else b"a"
        writer.write(part_of_stream(body, "0001", **{"Stream-Closed": "true", **more}))

    closed = {"Content-Type": "text/plain", "Stream-Next-Offset": "0001", "Stream-Closed": "true"}
    edge = await start((await hostile(script, metadata=answer("200 OK", closed))).url)
    for _ in range(2):
        assert (await edge.get("/s")).status == 200
    more = {"Set-Cookie": "x=1"}
    edge.clock.advance(100_000)
    assert (await edge.send("HEAD", "/s")).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_live_answers_that_are_personal_say_nothing_of_catch_up(
    hostile: Hostile, start: Start, method: str
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=" in asked.target:
            headers = {"Content-Type": "text/event-stream", "Cache-Control": "private"}
            writer.write(answer("200 OK", headers))
        else:
            writer.write(part_of_stream(b"" if "offset=0001" in asked.target else b"a", "0001"))

    edge = await start((await hostile(script)).url)
    await edge.get("/s")
    answers = [await edge.send(method, "/s") for _ in range(12)]
    assert {one.status for one in answers} == {200}
    if method == "GET":
        assert not any("bypass" in one.headers["Cache-Status"] for one in answers)


async def test_a_hot_stream_that_closes_frees_its_follower(edge: Edge) -> None:
    await edge.put("/s", b'["a"]', JSON)
    for _ in range(20):
        await edge.get("/s")
    assert len(edge.gateway.engine.live.hot) == 1
    await edge.post("/s", b"", JSON, Stream_Closed="true")
    for _ in range(12):
        for _ in range(10):
            assert (await edge.get("/s")).is_closed
        edge.clock.advance(1.0)
    assert len(edge.gateway.engine.live.hot) == 0


async def test_long_polls_answered_at_once_leave_a_tail_that_may_be_repeated(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, tail_fresh_s=60, follow_above_per_s=0)
    await edge.put("/s", b'["a"]', JSON)
    for _ in range(3):
        await edge.get("/s")
    counters.reset()
    for _ in range(10):
        assert (await edge.get("/s?offset=-1&live=long-poll")).is_up_to_date
        assert (await edge.get("/s")).is_up_to_date
    assert sum(counters.requests.values()) <= 2


async def test_a_write_without_an_offset_in_its_answer_affects_fetches_in_flight(
    hostile: Hostile, start: Start
) -> None:
    has_written = is_late = False
    asked_late, gate = asyncio.Event(), asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal has_written, is_late
        if asked.method == "POST":
            has_written = True
            writer.write(answer("204 No Content", {}))
            return
        start_at = 0 if "offset=-1" in asked.target else int(asked.target[-1])
        end = 2 if has_written else 1
        reply = part_of_stream(b"ab"[start_at:end], f"000{end}", **{"Cache-Control": "max-age=60"})
        if is_late:
            is_late = False
            asked_late.set()
            await gate.wait()
        writer.write(reply)

    edge = await start((await hostile(script)).url, follow_above_per_s=0)
    for _ in range(2):
        await edge.get("/s?offset=-1")
    edge.clock.advance(61)
    is_late = True
    early = edge.asking("/s?offset=-1")
    await bounded(asked_late.wait())
    assert (await edge.post("/s", b"b")).status == 204
    gate.set()
    await bounded(early)
    found = await edge.get("/s?offset=-1")
    assert found.body == b"ab" or not found.is_up_to_date


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_an_offset_beyond_the_tail_of_a_closed_stream_is_answered_as_closed(
    hostile: Hostile, start: Start, live: str
) -> None:
    closed: dict[str, str] = {}

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.method == "POST":
            closed["Stream-Closed"] = "true"
            writer.write(answer("204 No Content", {"Stream-Next-Offset": "0001", **closed}))
        else:
            body = b"a" if "offset=-1" in asked.target else b""
            writer.write(part_of_stream(body, "0001", **{"Cache-Control": "max-age=600", **closed}))

    edge = await start((await hostile(script)).url, follow_above_per_s=0)
    await edge.get("/s?offset=-1")
    for _ in range(2):
        assert not (await edge.get(f"/s?offset=0005{live}")).is_closed
    assert (await edge.post("/s", b"", Stream_Closed="true")).is_closed
    for _ in range(2):
        found = await edge.get(f"/s?offset=0005{live}")
        assert found.is_closed
        assert found.next_offset == "0001"


async def test_what_a_follower_brings_closed_while_the_origin_is_asked_is_up_to_date(
    start: Start, origin: RunningOrigin, counters: Counters, faults: Faults
) -> None:
    """The origin has named the tail before it; the closed end that the follower has brought since is the end all the
    same."""
    edge = await start(origin.url, tail="asked")
    await edge.put("/s", b'["a"]', JSON)
    tail = (await edge.get("/s")).next_offset
    events = await edge.begin(f"/s?offset={tail}&live=sse")
    assert (await events.head()).status == 200
    await bounded(counters.parked_is(1))
    await eventually(lambda: any(topic.is_confirmed for topic in edge.gateway.engine.live.topics()))
    late = faults.hold(kind=Kind.HEAD, when="reply", times=1)
    reading = edge.asking("/s")
    await bounded(late.waiting(1))
    closing = {"Content-Type": JSON, "Stream-Closed": "true"}
    await edge.send_to(origin.url, "POST", "/s", closing, b'["b"]')
    await eventually(lambda: any(stream.tape.closed_at for stream in edge.gateway.engine.store))
    late.release()
    found = await bounded(reading)
    assert (found.body, found.is_closed, found.is_up_to_date) == (b'["a","b"]', True, True)


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_an_offset_beyond_the_tail_is_asked_for_although_the_tail_is_fresh(
    hostile: Hostile, start: Start, live: str
) -> None:
    """A reader of another gateway, or of the origin itself, has the offset before this gateway sees the append."""
    body = b"a"

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        offset = asked.target.partition("offset=")[2].partition("&")[0]
        at = 0 if offset in ("", "-1") else int(offset)
        writer.write(part_of_stream(body[at:], f"{len(body):04d}", **{"Cache-Control": "max-age=600"}))

    edge = await start((await hostile(script)).url, follow_above_per_s=0)
    for offset in ("-1", "-1", "0003", "0003"):
        assert (await edge.get(f"/s?offset={offset}{live if offset == '0003' else ''}")).next_offset == "0001"
    body = b"abcd"
    assert (await edge.get("/s?offset=0001")).next_offset == "0001"
    found = await edge.get(f"/s?offset=0003{live}")
    assert (found.next_offset, found.body) == ("0004", b"d")
