"""Absent, gone and invalid reads: the origin is asked once for all of them, and no stream suffers."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.read import MOST_CHANGES
from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.waiting import eventually

JSON = "application/json"


# -- cold reads


@pytest.mark.parametrize("live", ["", "&live=long-poll"])
async def test_a_cold_read_costs_one_request(edge: Edge, origin: RunningOrigin, counters: Counters, live: str) -> None:
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": JSON}, b'["a"]')
    counters.reset()
    assert (await edge.get(f"/s?offset=-1{live}")).body == b'["a"]'
    assert sum(counters.requests.values()) == 1


async def test_the_first_answer_from_memory_alone_asks_how_long_the_stream_lives(
    edge: Edge, origin: RunningOrigin, counters: Counters
) -> None:
    expires_at = "2026-09-21T14:13:25Z"
    headers = {"Content-Type": JSON, "Stream-Expires-At": expires_at, "Stream-Closed": "true"}
    await edge.send_to(origin.url, "PUT", "/s", headers, b'["a"]')
    counters.reset()
    for _ in range(5):
        assert (await edge.get("/s")).is_closed
    assert (counters.requests[Kind.CATCHUP], counters.requests[Kind.HEAD]) == (1, 1)
    edge.clock.advance(3_600.0)
    assert (await edge.get("/s")).status == 404


@pytest.mark.parametrize("live", ["long-poll", "sse"])
@pytest.mark.parametrize(
    ("content_type", "follower"),
    [
        ("application/json", {Kind.SSE: 1}),
        # Long-poll does not name the tail before something is appended, so one read does.
        ("text/plain", {Kind.CATCHUP: 1, Kind.LONGPOLL: 1}),
    ],
)
async def test_a_live_read_with_an_invented_query_costs_one_head_beside_its_live_request(
    edge: Edge, origin: RunningOrigin, counters: Counters, live: str, content_type: str, follower: dict[Kind, int]
) -> None:
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": content_type}, b'["a"]')
    for number in range(3):
        counters.reset()
        await edge.begin(f"/s?offset=now&live={live}&x={number}")
        await bounded(counters.parked_is(number + 1))
        # What a follower asks beside its live request has been answered by then.
        await eventually(lambda: all(topic.is_confirmed for topic in edge.gateway.engine.live.topics()))
        assert {kind: count for kind, count in counters.requests.items() if count} == {Kind.HEAD: 1, **follower}


async def test_an_origin_without_head_is_read_from_now_on(
    edge: Edge, origin: RunningOrigin, counters: Counters, faults: Faults
) -> None:
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": JSON}, b'["a"]')
    faults.status(405, kind=Kind.HEAD)
    wire = await edge.begin("/s?offset=now&live=long-poll")
    await bounded(counters.parked_is(1))
    assert (await edge.post("/s", b'["b"]', JSON)).status == 204
    assert (await wire.answer()).body == b'["b"]'
    assert counters.requests[Kind.HEAD]
    assert counters.requests[Kind.CATCHUP]


# -- absent streams


@pytest.mark.parametrize(
    "kind",
    [
        "/s",
        "/s?offset=now",
        "/s?offset=-1&live=long-poll",
        "/s?offset=-1&live=sse",
        "/s?offset=now&live=long-poll",
        "/s?offset=now&live=sse",
        "/s?offset=0000000000000000_0000000000000003&live=long-poll",
    ],
)
async def test_a_stream_that_does_not_exist_is_asked_for_once(edge: Edge, counters: Counters, kind: str) -> None:
    for _ in range(20):
        assert (await edge.get(kind)).status == 404
        assert (await edge.send("HEAD", "/s")).status == 404
    assert sum(counters.requests.values()) == 1
    edge.clock.advance(1.01)
    assert (await edge.get(kind)).status == 404
    assert sum(counters.requests.values()) == 2


async def test_a_stream_exists_for_all_as_soon_as_its_put_is_answered(edge: Edge, counters: Counters) -> None:
    alice = {"Authorization": "Bearer alice"}
    for headers in ({}, alice):
        assert (await edge.get("/s", headers)).status == 404
    assert (await edge.put("/s", b'["a"]', JSON)).status == 201
    for headers in ({}, alice):
        assert (await edge.get("/s", headers)).body == b'["a"]'


@pytest.mark.parametrize("when", ["request", "reply"])
async def test_absence_is_not_remembered_across_a_put(
    edge: Edge, faults: Faults, counters: Counters, when: str
) -> None:
    """The PUT is in flight; the origin may or may not have created the stream."""
    assert (await edge.get("/s")).status == 404
    gate = faults.hold(kind=Kind.CREATE, when=when, times=1)
    creating = asyncio.create_task(edge.put("/s", b'["a"]', JSON))
    await bounded(gate.waiting(1))
    assert (await edge.get("/s")).status == (404 if when == "request" else 200)
    gate.release()
    assert (await bounded(creating)).status == 201
    assert (await edge.get("/s")).body == b'["a"]'


async def test_a_404_in_flight_across_a_put_is_not_remembered(edge: Edge, faults: Faults) -> None:
    gate = faults.hold(kind=Kind.CATCHUP, when="reply", times=1)
    early = edge.asking("/s")
    await bounded(gate.waiting(1))
    assert (await edge.put("/s", b'["a"]', JSON)).status == 201
    gate.release()
    assert (await bounded(early)).status in (200, 404)
    assert (await edge.get("/s")).body == b'["a"]'


async def test_a_404_for_one_reader_is_repeated_to_no_other(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.headers.get("Authorization") == "Bearer alice":
            writer.write(part_of_stream(b"secret", "0001"))
        else:
            writer.write(answer("404 Not Found", {"Content-Type": "text/plain"}, b"Stream not found"))

    edge = await start((await hostile(script)).url, credentials="shared")
    for _ in range(3):
        assert (await edge.get("/s", {"Authorization": "Bearer mallory"})).status == 404
    assert (await edge.get("/s", {"Authorization": "Bearer alice"})).body == b"secret"


async def test_an_asked_route_repeats_no_404(start: Start, origin: RunningOrigin, counters: Counters) -> None:
    edge = await start(origin.url, tail="asked")
    for _ in range(3):
        assert (await edge.get("/s")).status == 404
    assert sum(counters.requests.values()) == 3
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": JSON}, b'["a"]')
    assert (await edge.get("/s")).body == b'["a"]'


async def test_a_flood_of_unknown_names_costs_the_origin_a_bounded_rate(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, absent_per_s=10)
    await edge.put("/known", b'["a"]', JSON)
    await edge.get("/known")
    counters.reset()
    statuses = [(await edge.get(f"/unknown/{number}")).status for number in range(200)]
    # Of five seconds' worth, one client leaves half to others.
    assert statuses == [404] * 25 + [503] * 175
    refused = await edge.get("/unknown/200")
    assert (refused.headers["Retry-After"], refused.is_one_line_of_text) == ("1", True)
    assert (await edge.send("HEAD", "/unknown/201")).status == 503
    # Streams in memory are answered as before, and written streams exist.
    assert (await edge.get("/known")).body == b'["a"]'
    assert (await edge.put("/new", b'["a"]', JSON)).status == 201
    assert (await edge.get("/new")).body == b'["a"]'
    edge.clock.advance(1.0)
    assert [(await edge.get(f"/unknown/{number}")).status for number in range(300, 312)] == [404] * 10 + [503] * 2


# -- gone


async def test_a_410_for_one_old_offset_costs_that_offset_and_not_the_tape(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "offset=0003" in asked.target:
            writer.write(answer("410 Gone", {"Content-Type": "text/plain"}, b"Stream is gone"))
        elif "offset=0010" in asked.target:
            writer.write(part_of_stream(b"", "0010"))
        else:
            writer.write(part_of_stream(b"0123456789", "0010"))

    origin = await hostile(script, metadata=answer("200 OK", {"Stream-Next-Offset": "0010"}))
    edge = await start(origin.url, tail_fresh_s=600)
    assert (await edge.get("/s")).body == b"0123456789"
    incarnation = (await edge.get("/s")).headers["ETag"]
    asked = len(origin.asked)
    for _ in range(10):
        assert (await edge.get("/s?offset=0003")).status == 410
    # Once for the offset, and once at the tail, which shows that the stream exists.
    assert (await edge.get("/s")).headers["ETag"] == incarnation
    assert (await edge.get("/s")).body == b"0123456789"
    assert len(origin.asked) <= asked + 2
    assert sum("offset=-1" in one.target for one in origin.reads) == 1


async def test_a_410_at_the_tail_is_the_end_of_the_stream(hostile: Hostile, start: Start) -> None:
    is_gone = False

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if is_gone:
            writer.write(answer("410 Gone", {"Content-Type": "text/plain"}, b"Stream is gone"))
        else:
            writer.write(part_of_stream(b"0123456789" if "0010" not in asked.target else b"", "0010"))

    edge = await start((await hostile(script)).url)
    assert (await edge.get("/s")).body == b"0123456789"
    is_gone = True
    assert (await edge.get("/s")).status == 410
    assert not len(edge.gateway.engine.store)


async def test_a_recreated_stream_exists_at_once(edge: Edge, origin: RunningOrigin, counters: Counters) -> None:
    """Clients treat a 404 as final."""
    await edge.put("/s", b'["a"]', JSON, Stream_Expires_At="2026-09-21T14:13:25Z")
    assert (await edge.get("/s")).body == b'["a"]'
    edge.clock.advance(3_600.0)
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": JSON}, b'["b"]')
    assert (await edge.get("/s")).body == b'["b"]'


@pytest.mark.parametrize("refuses_live", [False, True])
async def test_an_origin_that_refuses_the_tail_that_it_names_is_asked_few_times_for_a_long_poll(
    hostile: Hostile, start: Start, refuses_live: bool
) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=long-poll" in asked.target:
            writer.write(answer("204 No Content", {"Stream-Next-Offset": "0005", "Stream-Cursor": "1"}))
        elif "live=sse" in asked.target and not refuses_live:
            await asyncio.Event().wait()
        elif "offset=-1" in asked.target:
            writer.write(part_of_stream(b"[]", "0005", JSON))
        else:
            writer.write(answer("410 Gone", {"Cache-Control": "no-store"}))

    origin = await hostile(script)
    edge = await start(origin.url)
    waiting = edge.asking("/s?offset=-1&live=long-poll")
    if not refuses_live:
        await eventually(lambda: any("live=sse" in asked.target for asked in origin.reads))
        edge.clock.advance(301)
    assert (await bounded(waiting)).status == 204
    assert len(origin.reads) < 3 * (MOST_CHANGES + 1)
    for writer in origin.writers:
        writer.close()


# -- one unshareable reply


async def test_an_unshareable_reply_stops_sharing_of_its_own_shape_only(hostile: Hostile, start: Start) -> None:
    """Such as a redirect at one offset."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "offset=join" in asked.target:
            writer.write(answer("307 Temporary Redirect", {"Location": "/s?offset=-1", "Cache-Control": "private"}))
        elif "live=sse" in asked.target:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            event = b'event: control\ndata: {"streamNextOffset":"0001","streamCursor":"1","upToDate":true}\n\n'
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
        else:
            writer.write(part_of_stream(b"" if "offset=0001" in asked.target else b"[1]", "0001", JSON))

    metadata = answer("200 OK", {"Content-Type": JSON, "Stream-Next-Offset": "0001"})
    origin = await hostile(script, metadata=metadata)
    edge = await start(origin.url)
    for _ in range(3):
        redirect = await edge.get("/s?offset=join")
        assert (redirect.status, "Location" in redirect.headers) == (307, True)
    wires = [await edge.begin("/s?offset=0001&live=sse") for _ in range(5)]
    for wire in wires:
        assert (await wire.head()).status == 200
    for _ in range(5):
        assert (await edge.get("/s")).body == b"[1]"
    assert sum("live=sse" in asked.target for asked in origin.reads) == 1
    assert sum("offset=-1" in asked.target for asked in origin.reads) == 1


async def test_several_unshareable_replies_stop_sharing_of_a_streams_catch_up(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(part_of_stream(b"x", "0009", Vary="X-User"))

    origin = await hostile(script)
    edge = await start(origin.url)
    for number in range(4):
        await edge.get(f"/s?offset=000{number}")
    # Each was tried once as a shared read and then relayed; later ones are not tried.
    assert len(origin.reads) == 8
    await edge.get("/s?offset=0005")
    assert len(origin.reads) == 9
    edge.clock.advance(121.0)
    await edge.get("/s?offset=0006")
    assert len(origin.reads) == 11


async def test_live_answers_that_are_personal_are_relayed(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=sse" in asked.target:
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=b\r\nConnection: close\r\n\r\n"
                b'event: control\ndata: {"streamNextOffset":"0001","streamCursor":"1","upToDate":true}\n\n'
            )
        else:
            writer.write(part_of_stream(b"", "0001", JSON))

    metadata = answer("200 OK", {"Content-Type": JSON, "Stream-Next-Offset": "0001"})
    origin = await hostile(script, metadata=metadata)
    edge = await start(origin.url)
    wires = [await edge.begin("/s?offset=0001&live=sse") for _ in range(3)]
    heads = [await wire.head() for wire in wires]
    assert [head.headers.get("Set-Cookie") for head in heads] == ["a=b"] * 3


# -- offsets that are not positions


@pytest.mark.parametrize("offset", ["snapshot", "0001_snapshot"])
async def test_an_offset_that_is_no_position_is_relayed_and_not_stored(
    hostile: Hostile, start: Start, offset: str
) -> None:
    """If it were stored, the next reader would get a snapshot in front of the updates that it contains."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if offset in asked.target:
            headers = {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "0002"}
            writer.write(answer("200 OK", headers, b"SNAPSHOT"))
        else:
            body = b"" if "offset=0001" in asked.target or "offset=0002" in asked.target else b"update"
            writer.write(part_of_stream(body, "0001", "application/octet-stream"))

    metadata = answer("200 OK", {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "0001"})
    origin = await hostile(script, metadata=metadata)
    edge = await start(origin.url, follow_above_per_s=0)
    for _ in range(3):
        assert (await edge.get(f"/s?offset={offset}")).body == b"SNAPSHOT"
        assert (await edge.get("/s")).body == b"update"
        # A Yjs client continues at one behind the snapshot; the idle origin names the tail.
        after = await edge.get("/s?offset=0002")
        assert (after.body, after.next_offset, after.is_up_to_date) == (b"", "0001", True)
    assert sum("offset=-1" in asked.target for asked in origin.reads) == 1
    assert sum(offset in asked.target for asked in origin.reads) == 3
    assert sum("offset=0002" in asked.target for asked in origin.reads) <= 3


async def test_other_patterns_may_be_configured(start: Start, origin: RunningOrigin, counters: Counters) -> None:
    edge = await start(origin.url, relayed_offsets=["0*"])
    await edge.put("/s", b'["a"]', JSON)
    tail = (await edge.get("/s")).next_offset
    assert (await edge.get(f"/s?offset={tail}")).headers["Cache-Status"].startswith("durable-gateway; fwd=bypass")


# -- offsets behind the tail, and of an earlier life


async def test_live_readers_behind_the_tail_share_the_streams_one_live_request(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b'["a"]', JSON)
    tail = (await edge.get("/s")).next_offset
    beyond = f"{9:016d}_{9:016d}"
    wires = [await edge.begin(f"/s?offset={beyond}&live=sse") for _ in range(20)]
    for wire in wires:
        assert (await wire.head()).status == 200
        event = await wire.event()
        assert event is not None
        assert (event.name, f'"streamNextOffset":"{tail}"' in event.data) == ("control", True)
    assert counters.live_peak == 1
    await edge.post("/s", b'["b"]', JSON)
    for wire in wires:
        event = await wire.event()
        assert event is not None
        assert (event.name, event.data) == ("data", '["b"]')
    counters.reset()
    answers = await asyncio.gather(*(edge.get(f"/s?offset={beyond}") for _ in range(50)))
    assert {(answer.body, answer.is_up_to_date) for answer in answers} == {(b"[]", True)}
    # One request at a time.
    assert sum(counters.requests.values()) <= 10


@pytest.mark.http_1_origin
async def test_an_offset_that_the_tail_has_passed_is_fetched(edge: Edge, counters: Counters) -> None:
    """A reader behind that offset must not get the bytes before it."""
    await edge.put("/s", b"0123456789", "text/plain")
    tail = (await edge.get("/s")).next_offset
    beyond = tail[:-1] + str(int(tail[-1]) + 1)
    for _ in range(3):
        assert (await edge.get(f"/s?offset={beyond}")).next_offset == tail
    acked = await edge.post("/s", b"x" * 20, "text/plain")
    answer = await edge.get(f"/s?offset={beyond}")
    direct = await edge.send_to(edge.gateway.config.routes[0].members[0].url, "GET", f"/s?offset={beyond}")
    assert (answer.status, answer.body) == (direct.status, direct.body)
    assert acked.next_offset > beyond


async def test_a_reader_with_an_offset_of_an_earlier_life_is_answered_as_the_origin_answers_it(
    edge: Edge, origin: RunningOrigin, counters: Counters
) -> None:
    await edge.put("/s", b"0123456789", "text/plain")
    old = (await edge.post("/s", b"0123456789", "text/plain")).next_offset
    wire = await edge.begin(f"/s?offset={old}&live=sse")
    await wire.head()
    await edge.send_to(origin.url, "DELETE", "/s")
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": "text/plain"}, b"new")
    async with edge.time_passing():
        await eventually(lambda: not any(stream.is_followed for stream in edge.gateway.engine.store))
    for read in (f"/s?offset={old}", f"/s?offset={old}&live=long-poll"):
        direct = await edge.send_to(origin.url, "GET", read)
        answer = await edge.get(read)
        assert (answer.status, answer.body) == (direct.status, direct.body)
        assert answer.headers.get("Stream-Next-Offset") == direct.headers.get("Stream-Next-Offset")
    assert (await edge.get("/s")).body == b"new"


async def test_a_long_poll_answered_while_the_origin_cannot_be_asked_says_so(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    await edge.put("/s", b"0123456789", "text/plain")
    assert (await edge.get("/s")).body == b"0123456789"
    faults.status(503, times=None)
    async with edge.time_passing():
        answer = await edge.get("/s?offset=-1&live=long-poll")
    assert (answer.status, answer.body, answer.is_up_to_date) == (200, b"0123456789", False)
    assert answer.headers["Cache-Status"] == "durable-gateway; fwd=stale; detail=stale_if_error"


async def test_an_origin_that_is_down_is_not_asked_twice_for_one_read(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    await edge.put("/s", b'["a"]', JSON)
    wire = await edge.begin("/s?offset=-1&live=sse")
    await wire.head()
    await edge.get("/s")
    edge.clock.advance(11.0)
    faults.status(503, times=None)
    counters.reset()
    async with edge.time_passing():
        answer = await edge.get("/s")
    assert (answer.body, answer.is_up_to_date) == (b'["a"]', False)
    # One request, and one retry.
    assert counters.requests[Kind.HEAD] + counters.requests[Kind.CATCHUP] <= 2


# -- replies too large for a tape


@pytest.mark.parametrize("content_type", [JSON, "application/octet-stream"])
async def test_replays_too_large_for_a_tape_need_no_live_connection_each(
    start: Start, origin: RunningOrigin, counters: Counters, content_type: str
) -> None:
    edge = await start(origin.url, max_flight_bytes="1KiB", sse_lifetime_s=60)
    body = b'["' + b"x" * 5_000 + b'"]' if content_type == JSON else b"x" * 5_000
    tail = (await edge.put("/s", body, content_type)).next_offset
    wires = [await edge.begin("/s?offset=-1&live=sse") for _ in range(5)]
    for wire in wires:
        assert (await wire.head()).status == 200
        last = ""
        while (event := await wire.event()) is not None:
            last = event.data
        assert f'"streamNextOffset":"{tail}"' in last
        assert '"upToDate":true' in last
    # Only the stream's own lingering connection is left.
    await bounded(counters.live_is(1))
    # At the tail the readers share again.
    wires = [await edge.begin(f"/s?offset={tail}&live=sse") for _ in range(5)]
    for wire in wires:
        assert (await wire.head()).status == 200
    assert counters.live_open == 1


async def test_a_replay_with_a_length_ends_as_a_complete_answer(hostile: Hostile, start: Start) -> None:
    first = b'event: data\ndata: eA==\n\nevent: control\ndata: {"streamNextOffset":"0001","upToDate":true}\n\n'
    rest = b'event: data\ndata: eQ==\n\nevent: control\ndata: {"streamNextOffset":"0002","upToDate":true}\n\n'

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "live=sse" in asked.target:
            headers = {"Content-Type": "text/event-stream", "Stream-SSE-Data-Encoding": "base64"}
            headers["Content-Length"] = str(len(first + rest))
            writer.write(answer("200 OK", headers) + first)
        elif "offset=0001" in asked.target:
            writer.write(part_of_stream(b"", "0001", "application/octet-stream"))
        else:
            writer.write(part_of_stream(b"x" * 5_000, "0001", "application/octet-stream"))

    metadata = answer("200 OK", {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "0001"})
    edge = await start((await hostile(script, metadata=metadata)).url, max_flight_bytes="1KiB")
    wire = await edge.begin("/s?offset=-1&live=sse")
    assert (await wire.answer()).body == first
    await wire.ask("/s?offset=0001")
    assert (await wire.answer()).next_offset == "0001"
