"""A DELETE whose answer was lost, and that found nothing when it was repeated: no reader is shown what it ended."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, bounded

ALICE = {"Authorization": "Bearer alice"}
BOB = {"Authorization": "Bearer bob"}
OLD = b"old bytes."


async def deleted_at_the_second_attempt(edge: Edge, faults: Faults) -> None:
    """Have the stream deleted by a party of which the answer to the first attempt is lost."""
    lost = faults.refuse(kind=Kind.DELETE)
    assert (await edge.send("DELETE", "/s", ALICE)).status == 502
    assert lost.hits == 1
    assert (await edge.send("DELETE", "/s", ALICE)).status == 404


@pytest.mark.parametrize("mode", ["", "&live=long-poll", "&live=sse"])
async def test_an_origin_that_fails_is_no_reason_to_show_what_may_be_deleted(
    edge: Edge, faults: Faults, mode: str
) -> None:
    await edge.put("/s", OLD)
    assert (await edge.get("/s", BOB)).body == OLD
    await deleted_at_the_second_attempt(edge, faults)
    faults.status(503, kind=Kind.CATCHUP, times=None)
    faults.status(503, kind=Kind.HEAD, times=None)
    async with edge.time_passing():
        answer = await edge.get(f"/s?offset=-1{mode}", BOB)
    assert (answer.status, answer.body.count(OLD)) == (503, 0)


async def test_an_origin_that_fails_an_append_is_a_reason_to_show_what_is_there(edge: Edge, faults: Faults) -> None:
    """An append ends nothing: what is held is as true as before."""
    await edge.put("/s", OLD)
    assert (await edge.get("/s", BOB)).body == OLD
    faults.status(503, times=None)
    assert (await edge.post("/s", b"more")).status == 503
    async with edge.time_passing():
        answer = await edge.get("/s", BOB)
    assert (answer.status, answer.body, answer.headers.get("Stream-Up-To-Date")) == (200, OLD, None)


async def test_live_readers_of_all_parties_are_sent_off_although_their_live_request_is_silent(
    edge: Edge, origin: RunningOrigin, faults: Faults
) -> None:
    """The first attempt came to the origin when the gateway had given it up."""
    await edge.put("/s", OLD, "application/octet-stream")
    tail = (await edge.get("/s", BOB)).next_offset
    # The origin ends this one in vain: nothing of it arrives any more.
    stalled = faults.stall(1, kind=Kind.SSE, times=1)
    events = await edge.begin(f"/s?offset={tail}&live=sse", BOB)
    await bounded(stalled.waiting(1))
    async with edge.time_passing():
        assert (await events.head()).status == 200
    await edge.send_to(origin.url, "DELETE", "/s")
    assert (await edge.send("DELETE", "/s", ALICE)).status == 404
    while (event := await events.event()) is not None:
        assert event.name in ("control", ":")
    stalled.release()


@pytest.mark.parametrize("lifetime", ["Stream_TTL", "Stream_Expires_At"])
async def test_a_stream_made_anew_by_writes_whose_answers_were_lost_has_its_own_lifetime(
    edge: Edge, faults: Faults, counters: Counters, lifetime: str
) -> None:
    """The gateway saw the first one begun, which has no name to tell it from the second by."""
    wall = datetime.fromtimestamp(edge.clock.wall() + 10, UTC).isoformat()
    ends = "10" if lifetime == "Stream_TTL" else wall
    await edge.put("/s", b'["a"]', "application/json", **{lifetime: ends})
    for kind, method in ((Kind.DELETE, "DELETE"), (Kind.CREATE, "PUT")):
        faults.refuse(kind=kind)
        assert (await edge.send(method, "/s", {"Content-Type": "application/json"}, b'["b"]')).status == 502
    read = await edge.get("/s")
    assert read.body == b'["b"]'
    polling = edge.asking(f"/s?offset={read.next_offset}&live=long-poll")
    await bounded(counters.parked_is(1))
    edge.clock.advance(11)
    assert (await edge.get("/s")).body == b'["b"]'
    assert (await edge.send("HEAD", "/s")).headers.get(lifetime.replace("_", "-")) is None
    await edge.post("/s", b'["c"]', "application/json")
    assert (await bounded(polling)).body == b'["c"]'
