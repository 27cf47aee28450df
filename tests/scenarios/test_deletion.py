"""Streams that are deleted, or deleted and re-created, while they are read."""

from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, bounded
from tests.scenarios.wire import Answer, Wire
from tests.waiting import eventually

OLD = b"old bytes."
NEW = b"new bytes!"


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"live_linger_s": 5}


async def with_live_readers(edge: Edge, counters: Counters, content_type: str) -> tuple[Answer, Wire, Wire]:
    """A stream with an SSE reader and a long-poll at its tail."""
    await edge.put("/s", OLD, content_type)
    read = await edge.get("/s")
    assert read.body == OLD
    events = await edge.begin(f"/s?offset={read.next_offset}&live=sse")
    assert (await events.head()).status == 200
    polling = await edge.begin(f"/s?offset={read.next_offset}&live=long-poll")
    await bounded(counters.parked_is(1))
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: sum(topic.readers for topic in topics()) == 2)
    return read, events, polling


async def ends(events: Wire) -> None:
    """The SSE response ends cleanly, without further data."""
    while (event := await events.event()) is not None:
        assert event.name in ("control", ":")


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_delete_through_the_gateway_ends_live_readers_at_once(
    edge: Edge, counters: Counters, content_type: str, is_recreated: bool
) -> None:
    read, events, polling = await with_live_readers(edge, counters, content_type)
    assert (await edge.send("DELETE", "/s")).status == 204
    await ends(events)
    assert (await polling.answer()).status == 404
    if is_recreated:
        assert (await edge.put("/s", NEW, content_type)).status == 201
    await no_old_bytes(edge, read, is_recreated)


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_delete_behind_the_gateways_back_ends_live_readers_at_once(
    edge: Edge, origin: RunningOrigin, counters: Counters, content_type: str, is_recreated: bool
) -> None:
    """The new stream has the same length and offsets: only its identity differs from the old one."""
    read, events, polling = await with_live_readers(edge, counters, content_type)
    await edge.send_to(origin.url, "DELETE", "/s")
    if is_recreated:
        await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": content_type}, NEW)
    async with edge.time_passing():
        await ends(events)
        assert (await polling.answer()).status == 404
    await no_old_bytes(edge, read, is_recreated)


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
async def test_live_readers_end_if_the_stream_is_recreated_between_two_follower_connections(
    edge: Edge, origin: RunningOrigin, counters: Counters, faults: Faults, content_type: str
) -> None:
    _, events, polling = await with_live_readers(edge, counters, content_type)
    await edge.send_to(origin.url, "DELETE", "/s")
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": content_type}, NEW)
    await edge.send_to(origin.url, "POST", "/s", {"Content-Type": content_type}, b"of the new one")
    async with edge.time_passing():
        await ends(events)
        assert (await polling.answer()).status == 404
    assert (await edge.get("/s")).body == NEW + b"of the new one"


async def no_old_bytes(edge: Edge, old: Answer, is_recreated: bool) -> None:
    """New readers, in every mode, see the new stream or none."""
    tail = old.next_offset
    targets = ["/s", "/s?offset=-1&live=long-poll", f"/s?offset={tail}"]
    for target in targets:
        answer = await edge.get(target, {"If-None-Match": old.headers["ETag"]})
        if is_recreated:
            assert (answer.status, answer.body) == (200, b"" if "000" in target else NEW)
        else:
            assert answer.status == 404
    events = await edge.begin("/s?offset=-1&live=sse")
    async with edge.time_passing():
        if not is_recreated:
            assert (await events.answer()).status == 404
            return
        await events.head()
        assert (event := await events.event()) is not None
        assert event.data in (NEW.decode(), "bmV3IGJ5dGVzIQ==")


@pytest.mark.parametrize("is_recreated", [False, True])
async def test_a_read_in_flight_across_a_delete_does_not_restore_the_old_stream(
    edge: Edge, faults: Faults, is_recreated: bool
) -> None:
    await edge.put("/s", OLD)
    gate = faults.hold(kind=Kind.CATCHUP, when="reply", times=1)
    early = edge.asking("/s")
    await bounded(gate.waiting(1))
    assert (await edge.send("DELETE", "/s")).status == 204
    if is_recreated:
        assert (await edge.put("/s", NEW)).status == 201
    gate.release()
    answer = await bounded(early)
    # The read began before the deletion: the old bytes, the new ones and 404 are all correct answers.
    assert answer.status in (200, 404)
    for _ in range(3):
        late = await edge.get("/s")
        assert (late.status, late.body) == ((200, NEW) if is_recreated else (404, late.body))
        if answer.status == 200 and answer.body == OLD:
            assert answer.headers["ETag"] != late.headers.get("ETag")


async def test_a_put_on_an_existing_stream_affects_no_reader(edge: Edge, counters: Counters) -> None:
    _, events, polling = await with_live_readers(edge, counters, "text/plain")
    assert (await edge.put("/s", OLD)).status == 200
    await edge.post("/s", b"more")
    assert (await polling.answer()).body == b"more"
    data = None
    while data is None or data.name != "data":
        data = await events.event()
        assert data is not None
    assert data.data == "more"


async def test_a_post_that_is_told_404_forgets_the_writers_tape(
    edge: Edge, origin: RunningOrigin, counters: Counters
) -> None:
    await edge.put("/s", OLD, Stream_Closed="true")
    assert (await edge.get("/s")).is_closed
    await edge.send_to(origin.url, "DELETE", "/s")
    assert (await edge.post("/s", b"x")).status == 404
    assert (await edge.get("/s")).status == 404


async def test_a_head_that_is_told_404_forgets_the_readers_tape(
    edge: Edge, origin: RunningOrigin, counters: Counters
) -> None:
    await edge.put("/s", OLD, Stream_Closed="true")
    assert (await edge.get("/s")).is_closed
    await edge.send_to(origin.url, "DELETE", "/s")
    assert (await edge.send("HEAD", "/s")).status == 404
    assert (await edge.get("/s")).status == 404


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream"])
async def test_a_waiter_for_one_stream_never_gets_another_streams_bytes(
    edge: Edge, origin: RunningOrigin, content_type: str
) -> None:
    await edge.put("/s", b"old bytes", content_type)
    tail = (await edge.get("/s")).next_offset
    # The first waiter: the follower confirms the stream only afterwards.
    poll = edge.asking(f"/s?offset={tail}&live=long-poll")
    topics = edge.gateway.engine.live.topics
    await eventually(lambda: any(topic.is_confirmed and topic.readers_now for topic in topics()))
    await edge.send_to(origin.url, "DELETE", "/s")
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": content_type}, b"new bytes")
    await edge.send_to(origin.url, "POST", "/s", {"Content-Type": content_type}, b"of the new one")
    async with edge.time_passing():
        answer = await bounded(poll)
    assert (answer.status, b"new" in answer.body) == (404, False)
