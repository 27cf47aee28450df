"""The origin sees one gateway, however many members the fleet has."""

from __future__ import annotations

import asyncio

import pytest
from multidict import CIMultiDict

from gateway.engine.confirming import MOST_WAIT_S
from gateway.engine.fleet import PROBE_S
from gateway.origin.delivery import Delivery
from gateway.origin.requests import Kind
from tests.fleet.site import NAMES, Site
from tests.scenarios.wire import pairs
from tests.waiting import eventually, time_passing


async def test_readers_at_all_members_cost_the_origin_one_live_request(site: Site) -> None:
    path = site.path_of("b")
    await site.members["a"].put(path, b"one ")
    wires = [await site.members[name].begin(f"{path}?offset=-1&live=sse") for name in NAMES for _ in range(3)]
    for wire in wires:
        assert (await wire.head()).status == 200
        assert (await anext(pairs(wire)))[0] == "one "
    await site.members["c"].post(path, b"two ")
    for wire in wires:
        assert (await anext(pairs(wire)))[0] == "two "
    assert site.live_requests == 1


async def test_bytes_leave_the_origin_once(site: Site) -> None:
    for owner in NAMES:
        path, body = site.path_of(owner), b"x" * 100_000
        before = site.counters.body_bytes[Kind.CATCHUP]
        await site.members["a"].put(path, body)
        for name in (*NAMES, *reversed(NAMES)):
            answer = await site.members[name].get(f"{path}?offset=-1")
            assert (answer.body, answer.is_up_to_date) == (body, True)
        assert site.counters.body_bytes[Kind.CATCHUP] - before == len(body)


async def test_a_write_is_in_the_next_read_through_the_same_member(apart: Site) -> None:
    # The tail may be repeated for minutes, so only a write lets the owner ask the origin.
    await apart.start_all(tail_fresh_s=600)
    for owner in NAMES:
        path = apart.path_of(owner)
        await apart.members[owner].put(path, written := b"0")
        for number in range(2):
            for name in NAMES:
                member, piece = apart.members[name], f"{number}{name}".encode()
                assert (await member.post(path, piece)).status == 204
                written += piece
                answer = await member.get(f"{path}?offset=-1")
                assert (answer.body, answer.is_up_to_date) == (written, True)


async def test_reads_without_writes_in_between_are_answered_by_the_owner(apart: Site) -> None:
    await apart.start_all(tail_fresh_s=600)
    path = apart.path_of("a")
    await apart.members["b"].put(path, b"x")
    for name in NAMES * 3:
        assert (await apart.members[name].get(f"{path}?offset=-1")).is_up_to_date
    # One fetch, one question because member b has relayed a write, and one HEAD for the lifetime.
    assert (apart.counters.requests[Kind.CATCHUP], apart.counters.requests[Kind.HEAD]) == (2, 1)


async def test_a_stream_that_was_made_again_is_another_one_at_all_members(site: Site) -> None:
    for owner in NAMES:
        path = site.path_of(owner)
        await site.members["a"].put(path, b"first")
        for name in NAMES:
            assert (await site.members[name].get(f"{path}?offset=-1")).body == b"first"
        for number, name in enumerate(NAMES):
            member = site.members[name]
            assert (await member.send("DELETE", path)).status == 204
            assert (await member.get(f"{path}?offset=-1")).status == 404
            await member.put(path, body := b"again%d" % number)
            assert (await member.get(f"{path}?offset=-1")).body == body


async def test_every_member_says_that_bytes_are_stale_while_the_origin_fails(apart: Site) -> None:
    await apart.start_all(trust_s=2, retry_attempts=0)
    path = apart.path_of("a")
    await apart.members["a"].put(path, b"x")
    for _ in range(2):
        assert (await apart.members["a"].get(f"{path}?offset=-1")).body == b"x"
    apart.clock.advance(3)
    apart.origin.origin.faults.status(503, times=None)
    for name in "abcbc":
        answer = await apart.members[name].get(f"{path}?offset=-1")
        said = answer.headers["Cache-Status"], answer.headers.get("Age")
        assert (answer.body, said) == (b"x", (f"{name}; fwd=stale; detail=stale_if_error", "3"))


@pytest.mark.parametrize("knows_stream", [False, True])
@pytest.mark.parametrize("fault", ["failing", "silent"])
async def test_an_acknowledged_write_is_missing_in_no_answer_although_the_owner_has_older_bytes(
    apart: Site, fault: str, knows_stream: bool
) -> None:
    await apart.start_all(retry_attempts=0)
    path, faults = apart.path_of("b"), apart.origin.origin.faults
    writer, owner = apart.members["a"], apart.members["b"]
    await owner.put(path, b"x")
    assert (await owner.get(f"{path}?offset=-1")).body == b"x"
    if knows_stream:
        await writer.get(f"{path}?offset=now")
    assert (await writer.post(path, b"y")).status == 204
    if fault == "failing":
        faults.status(503, times=None)
        assert (await writer.get(f"{path}?offset=-1")).status == 503
        return
    gate, until = faults.hold(times=None), apart.clock.now() + MOST_WAIT_S + 1
    reading = asyncio.create_task(writer.get(f"{path}?offset=-1"))
    async with time_passing(apart.clock, 0.05):
        await eventually(lambda: reading.done() or apart.clock.now() > until)
        gate.release()
        faults.clear()
        assert (await reading).body == b"xy"


@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize("is_probed", [True, False])
async def test_an_append_that_the_owner_has_read_is_sent_to_its_member_though_the_origin_fails(
    apart: Site, monkeypatch: pytest.MonkeyPatch, is_probed: bool, has_cache: bool
) -> None:
    if has_cache:
        # Another gateway states no age for the tail of a stream that it follows.
        headers_of = Delivery._headers

        def from_cache(delivery: Delivery, headers: dict[str, str]) -> CIMultiDict[str]:
            return headers_of(delivery, {**headers, "Cache-Status": "shield; hit"})

        monkeypatch.setattr(Delivery, "_headers", from_cache)
    await apart.start_all(retry_attempts=0)
    path, faults = apart.path_of("b"), apart.origin.origin.faults
    writer, owner = apart.members["a"], apart.members["b"]
    await owner.put(path, b"x")
    assert (await owner.get(f"{path}?offset=-1")).body == b"x"
    assert (await writer.post(path, b"y")).status == 204
    if is_probed:
        until = apart.clock.now() + 2 * PROBE_S
        async with time_passing(apart.clock, 0.05):
            await eventually(lambda: apart.clock.now() > until)
    assert (await owner.get(f"{path}?offset=-1")).body == b"xy"
    # Without a probe in between, the owner hears of the append only after this read.
    faults.status(503, times=None)
    answer = await writer.get(f"{path}?offset=-1")
    assert (answer.status, answer.body == b"xy") == ((200, True) if is_probed and not has_cache else (503, False))


async def test_an_append_of_unknown_outcome_is_no_reason_to_send_nothing_while_the_origin_fails(apart: Site) -> None:
    await apart.start_all(retry_attempts=0)
    path = apart.path_of("b")
    writer, owner = apart.members["a"], apart.members["b"]
    await owner.put(path, b"x")
    assert (await owner.get(f"{path}?offset=-1")).body == b"x"
    assert (await writer.get(f"{path}?offset=-1")).body == b"x"
    apart.origin.origin.faults.status(503, times=None)
    assert (await writer.post(path, b"y")).status == 503
    for member in (writer, owner):
        answer = await member.get(f"{path}?offset=-1")
        assert (answer.body, "stale_if_error" in answer.headers["Cache-Status"]) == (b"x", True)
