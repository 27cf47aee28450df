"""Unreachable and silent origins: clear statuses within bounds, and no unverified claim about the tail."""

import asyncio
from typing import Any

import pytest

from gateway.engine.confirming import PATIENCE_S
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Edge, Start, bounded
from tests.scenarios.wire import Answer, Dropped
from tests.waiting import eventually

TARGETS = ["/s", "/s?offset=now", "/s?offset=-1&live=long-poll", "/s?offset=-1&live=sse"]


@pytest.fixture
def settings() -> dict[str, Any]:
    """Each request goes to the origin; test_sick_origin covers the circuit breaker."""
    return {
        "first_byte_timeout_s": 1.0,
        "idle_timeout_s": 1.0,
        "connect_timeout_s": 1.0,
        "retry_attempts": 0,
        "breaker_failures": 0,
    }


@pytest.mark.parametrize("target", TARGETS)
async def test_an_origin_that_refuses_connections_is_a_502(
    edge: Edge, origin: RunningOrigin, target: str, caplog: pytest.LogCaptureFixture
) -> None:
    await origin.stop(grace_s=0)
    refused = await edge.get(target)
    assert (refused.status, refused.is_one_line_of_text) == (502, True)
    assert refused.headers["Retry-After"] == "1"
    assert refused.headers["Cache-Control"] == "no-store"
    for method in ("PUT", "POST", "DELETE", "HEAD"):
        refused = await edge.send(method, "/s", {"Content-Type": "text/plain"}, None if method == "HEAD" else b"x")
        assert refused.status == 502
    assert not caplog.records, "an origin's failure is no failure of the gateway's"


@pytest.mark.parametrize("target", TARGETS)
async def test_an_origin_that_is_silent_before_the_head_is_a_504_within_the_bound(
    edge: Edge, faults: Faults, target: str
) -> None:
    gate = faults.hold()
    refused = await edge.get(target)
    assert (refused.status, refused.is_one_line_of_text) == (504, True)
    gate.release()


async def test_an_origin_that_falls_silent_in_the_body_drops_the_reader_within_the_bound(
    edge: Edge, faults: Faults
) -> None:
    body = bytes(range(256)) * 4096
    await edge.put("/s", body, "application/octet-stream")
    stall = faults.stall(300_000, kind=Kind.CATCHUP, times=1)
    with pytest.raises(Dropped) as dropped:
        await edge.get("/s")
    assert body[:300_000].startswith(dropped.value.body)
    stall.release()
    assert (await edge.get("/s")).body == body


async def test_a_hung_fetch_is_replaced_and_its_late_answer_changes_nothing(
    start: Start, origin: RunningOrigin, faults: Faults, counters: Counters
) -> None:
    edge = await start(origin.url, collapse_wait_s=5)
    await edge.put("/s", b"01234")
    hung = faults.hold(kind=Kind.CATCHUP, times=1, when="reply")
    first = edge.asking("/s")
    await bounded(hung.waiting(1))
    await edge.post("/s", b"56789")
    second = edge.asking("/s")
    await eventually(edge.readers(2))
    edge.clock.advance(4.9)
    assert counters.requests[Kind.CATCHUP] == 1
    edge.clock.advance(0.2)
    answer = await bounded(second)
    assert (answer.body, answer.is_up_to_date) == (b"0123456789", True)
    hung.release()
    # It began before the write and gets the state of that time; later requests do not.
    assert (await bounded(first)).body == b"01234"
    again = await edge.get("/s")
    assert (again.body, again.next_offset) == (b"0123456789", answer.next_offset)
    assert (await edge.get(f"/s?offset={answer.next_offset}")).body == b""


async def test_bytes_in_memory_are_served_without_claims_about_the_tail(edge: Edge, origin: RunningOrigin) -> None:
    await edge.put("/s", b"0123456789")
    whole = await edge.get("/s")
    assert whole.is_up_to_date
    await origin.stop(grace_s=0)
    stale = await edge.get("/s")
    assert (stale.status, stale.body, stale.next_offset) == (200, b"0123456789", whole.next_offset)
    assert (stale.is_up_to_date, stale.is_closed) == (False, False)
    # At the tail itself there is nothing to return.
    assert (await edge.get(f"/s?offset={whole.next_offset}")).status == 502
    assert (await edge.get("/s", {"If-None-Match": whole.headers["ETag"]})).status in (200, 304)


@pytest.mark.parametrize("target", ["/s", "/s?offset={middle}"])
async def test_held_bytes_do_not_wait_for_an_origin_that_is_silent(
    start: Start, origin: RunningOrigin, faults: Faults, target: str
) -> None:
    edge = await start(origin.url, first_byte_timeout_s=300)
    await edge.put("/s", b"01234")
    middle = (await edge.get("/s")).next_offset
    await edge.post("/s", b"56789")
    whole = await edge.get("/s")
    target, held = target.format(middle=middle), b"0123456789" if target == "/s" else b"56789"
    gate = faults.hold()
    first = edge.asking(target)
    await bounded(gate.waiting(1))
    edge.clock.advance(PATIENCE_S - 0.1)
    assert not first.done()
    edge.clock.advance(0.1)
    for answer in (await bounded(first), await edge.get(target), await edge.get(target)):
        assert (answer.status, answer.body, answer.next_offset) == (200, held, whole.next_offset)
        assert not answer.is_up_to_date
    assert gate.held == 1, "the fetch goes on, and later reads need no other"
    # A read that could be given nothing waits.
    at_tail = edge.asking(f"/s?offset={whole.next_offset}")
    await eventually(edge.readers(1))
    gate.release()
    assert (await bounded(at_tail)).is_up_to_date
    assert (await edge.get(target)).is_up_to_date


@pytest.mark.parametrize("target", ["/s", "/s?offset=-1&live=long-poll", "/s?offset=-1&live=sse"])
@pytest.mark.parametrize("age_s", [1.0, 70.0], ids=["trusted", "no longer trusted"])
async def test_no_read_mode_waits_for_a_silent_origin_where_bytes_are_held(
    start: Start, origin: RunningOrigin, faults: Faults, target: str, age_s: float
) -> None:
    edge = await start(origin.url, first_byte_timeout_s=300, live_first_byte_timeout_s=300)
    await edge.put("/s", b"01234")
    await edge.get("/s")
    edge.clock.advance(age_s)
    gate = faults.hold()
    for _ in range(2):
        wire = await edge.begin(target)
        head = asyncio.create_task(wire.head())

        def is_answered(head: asyncio.Task[Answer] = head) -> bool:
            edge.clock.advance(0.05)
            return head.done()

        began = edge.clock.now()
        await eventually(is_answered, look_s=0.01)
        assert head.result().status == 200
        assert edge.clock.now() - began < 30
        assert b"01234" in await bounded(wire.piece())
        await wire.closed()
    gate.release()


async def test_held_bytes_wait_longer_for_an_origin_that_answers_others(
    start: Start, origin: RunningOrigin, faults: Faults
) -> None:
    edge = await start(origin.url, first_byte_timeout_s=300)
    await edge.put("/s", b"01234")
    await edge.get("/s")
    gate = faults.hold(path="/s")
    reading = edge.asking("/s")
    await bounded(gate.waiting(1))
    for second in range(5):
        assert not reading.done(), second
        assert (await edge.post("/other", b"x")).status == 404
        edge.clock.advance(1.0)
    answer = await bounded(reading)
    assert (answer.body, answer.is_up_to_date) == (b"01234", False)
    gate.release()


async def test_held_bytes_that_lack_an_acknowledged_write_wait_for_a_silent_origin(
    start: Start, origin: RunningOrigin, faults: Faults
) -> None:
    edge = await start(origin.url, first_byte_timeout_s=300)
    await edge.put("/s", b"01234")
    await edge.get("/s")
    await edge.post("/s", b"56789")
    gate = faults.hold(kind=Kind.CATCHUP)
    reading = edge.asking("/s")
    await bounded(gate.waiting(1))
    edge.clock.advance(10.0)
    gate.release()
    answer = await bounded(reading)
    assert (answer.body, answer.is_up_to_date) == (b"0123456789", True)


async def test_a_closed_stream_is_answered_to_its_end_without_the_origin(edge: Edge, origin: RunningOrigin) -> None:
    await edge.put("/s", b"0123456789", Stream_Closed="true")
    whole = await edge.get("/s")
    await origin.stop(grace_s=0)
    for target, status in [
        ("/s", 200),
        (f"/s?offset={whole.next_offset}", 200),
        (f"/s?offset={whole.next_offset}&live=long-poll", 204),
    ]:
        answer = await edge.get(target)
        assert (answer.status, answer.is_closed, answer.is_up_to_date) == (status, True, True)


@pytest.mark.parametrize("target", ["/s", "/s?offset=-1&live=long-poll"])
async def test_bytes_that_lack_an_acknowledged_write_are_not_served(
    edge: Edge, origin: RunningOrigin, target: str
) -> None:
    await edge.put("/s", b"01234")
    assert (await edge.get("/s")).is_up_to_date
    assert (await edge.post("/s", b"56789")).status == 204
    await origin.stop(grace_s=0)
    answer = await edge.get(target)
    if target == "/s":
        assert (answer.status, answer.is_one_line_of_text) == (502, True)
    else:
        # A live reader gets bytes in order and no claim about the tail: the next ones come on the next request.
        assert not answer.is_up_to_date


async def test_an_unanswered_write_leaves_no_stale_answer_behind(
    start: Start, origin: RunningOrigin, faults: Faults
) -> None:
    """The origin executed it and the answer was lost: the next read shows the effect."""
    # Long enough for a slow origin to have executed it.
    edge = await start(origin.url, first_byte_timeout_s=1.5)
    await edge.put("/s", b"01234", Stream_Closed="false")
    assert (await edge.get("/s")).is_up_to_date
    gate = faults.hold(kind=Kind.APPEND, when="reply", times=1)
    assert (await edge.post("/s", b"56789")).status in (502, 504)
    assert (await edge.get("/s")).body == b"0123456789"
    gate.release()


async def test_live_readers_notice_a_restart_of_the_origin_as_a_pause_and_nothing_else(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url)
    await edge.put("/s", b"", "application/octet-stream")
    tail = (await edge.get("/s")).next_offset
    events = await edge.begin("/s?offset=-1&live=sse")
    await events.head()
    polling = edge.asking(f"/s?offset={tail}&live=long-poll")
    await bounded(counters.parked_is(1))
    assert (control := await events.event()) is not None
    assert control.name == "control"
    port = origin.port
    await origin.stop(grace_s=0)
    async with edge.time_passing():
        await eventually(lambda: not next(iter(edge.gateway.engine.live.topics())).is_confirmed)
        again = await start_origin(OriginSettings(port=port), origin=origin.origin)
        try:
            await bounded(counters.parked_is(1))
            assert (await edge.post("/s", b"\x00\x01", "application/octet-stream")).status == 204
            answer = await bounded(polling)
            assert (answer.status, answer.body) == (200, b"\x00\x01")
            while (event := await events.event()) is not None and event.name != "data":
                pass
            assert event is not None
            assert event.data == "AAE="
            assert (after := await events.event()) is not None
            assert answer.next_offset in after.data
        finally:
            await edge.leave()
            await again.stop(grace_s=0)


async def test_a_body_that_arrives_slower_than_its_whole_bound_is_given_up(
    start: Start, origin: RunningOrigin, faults: Faults
) -> None:
    edge = await start(origin.url, total_timeout_s=2.0, retry_attempts=0)
    await edge.put("/s", bytes(600_000), "application/octet-stream")
    stall = faults.stall(400_000, kind=Kind.CATCHUP, times=1)
    with pytest.raises(Dropped):
        await bounded(edge.get("/s"))
    stall.release()
