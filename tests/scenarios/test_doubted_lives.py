"""A DELETE whose answer was lost, and that found nothing when it was repeated: no reader is shown what it ended."""

from __future__ import annotations

import pytest

from gateway.origin.app import RunningOrigin
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
