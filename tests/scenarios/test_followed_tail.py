"""A followed tail is answered from memory in every mode, for no longer than configured."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.tape.stream import TAIL_READ_BURST
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.following import BODY, JSON, TYPES, followed, followed_until_silent, position
from tests.scenarios.hostile import Asked, part_of_stream
from tests.waiting import eventually


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.http_1_origin
async def test_reads_at_a_followed_tail_cost_the_origin_nothing(
    edge: Edge, counters: Counters, content_type: str
) -> None:
    async with followed(edge, counters, content_type) as tail:
        for _ in range(100):
            whole = await edge.get("/s?offset=-1")
            assert (whole.body, whole.next_offset, whole.is_up_to_date) == (BODY[content_type], tail, True)
            empty = await edge.get(f"/s?offset={tail}")
            assert (empty.next_offset, empty.is_up_to_date) == (tail, True)
            now = await edge.get("/s?offset=now")
            assert (now.next_offset, now.is_up_to_date, now.headers["Cache-Control"]) == (tail, True, "no-store")
            assert {one.headers["Cache-Status"] for one in (whole, empty, now)} == {"durable-gateway; hit"}
        assert sum(counters.requests.values()) == 0


async def test_a_head_is_answered_from_memory_as_the_origin_answers_it(
    edge: Edge, counters: Counters, origin: RunningOrigin
) -> None:
    async with followed(edge, counters) as tail:
        direct = await edge.send_to(origin.url, "HEAD", "/s")
        counters.reset()
        heads = [await edge.send("HEAD", "/s") for _ in range(20)]
        assert counters.requests[Kind.HEAD] <= 1
        named = (
            "Content-Type",
            "Stream-Next-Offset",
            "Stream-TTL",
            "Stream-Expires-At",
            "Stream-Closed",
            "Cache-Control",
        )
        for head in heads:
            assert head.status == 200
            assert {name: head.headers.get(name) for name in named} == {
                name: direct.headers.get(name) for name in named
            }
            assert head.headers["ETag"].endswith(f':-1+head:{tail}"')


@pytest.mark.parametrize("content_type", TYPES)
async def test_what_is_written_through_the_gateway_is_in_the_next_read(
    edge: Edge, counters: Counters, content_type: str
) -> None:
    async with followed(edge, counters, content_type):
        for _ in range(20):
            before = await edge.get("/s?offset=-1")
            acked = await edge.post("/s", BODY[content_type], content_type)
            after = await edge.get("/s?offset=-1")
            assert after.next_offset == acked.next_offset > before.next_offset
            assert after.is_up_to_date
            assert (await edge.get(f"/s?offset={before.next_offset}")).next_offset == acked.next_offset
            assert (await edge.get("/s?offset=now")).next_offset == acked.next_offset
            assert (await edge.send("HEAD", "/s")).next_offset == acked.next_offset


async def test_a_closure_through_the_gateway_is_in_the_next_read_of_all(edge: Edge, counters: Counters) -> None:
    """Also for readers with other tapes, which the write's answer did not confirm."""
    alice = {"Authorization": "Bearer alice"}
    async with followed(edge, counters) as tail:
        wire = await edge.begin(f"/s?offset={tail}&live=sse", alice)
        await wire.head()
        assert not (await edge.get("/s", alice)).is_closed
        await edge.post("/s", b"", JSON, Stream_Closed="true")
        for headers in ({}, alice):
            answer = await edge.get("/s", headers)
            assert (answer.next_offset, answer.is_up_to_date, answer.is_closed) == (tail, True, True)


async def test_a_direct_write_is_delayed_only_by_the_live_request(
    edge: Edge, counters: Counters, origin: RunningOrigin
) -> None:
    async with followed(edge, counters) as tail:
        await edge.send_to(origin.url, "POST", "/s", {"Content-Type": JSON}, b'["b"]')
        await eventually(lambda: position(edge, "/s") != tail)
        counters.reset()
        answer = await edge.get("/s")
        assert (answer.body, answer.is_up_to_date) == (b'["a","b"]', True)
        assert sum(counters.requests.values()) == 0


@pytest.mark.parametrize("read", ["/s", "/s?offset=now"])
async def test_a_silent_live_request_is_trusted_for_tail_heard_s(
    start: Start, origin: RunningOrigin, counters: Counters, faults: Faults, read: str
) -> None:
    edge = await start(origin.url, tail_heard_s=10)
    async with followed_until_silent(edge, counters, faults) as tail:
        await edge.send_to(origin.url, "POST", "/s", {"Content-Type": JSON}, b'["b"]')
        counters.reset()
        edge.clock.advance(9.9)
        assert (await edge.get(read)).next_offset == tail
        assert sum(counters.requests.values()) == 0
        edge.clock.advance(0.2)
        async with edge.time_passing():
            late = await edge.get(read)
        assert late.next_offset > tail


async def test_an_unreported_deletion_is_noticed_within_tail_heard_s(
    start: Start, origin: RunningOrigin, counters: Counters, faults: Faults
) -> None:
    """The reference server leaves the SSE connections of a deleted stream open and silent."""
    edge = await start(origin.url, tail_heard_s=10)
    async with followed_until_silent(edge, counters, faults):
        await edge.send_to(origin.url, "DELETE", "/s")
        edge.clock.advance(10.1)
        assert (await edge.get("/s")).status == 404


async def test_a_silent_live_request_costs_one_look_for_all_in_tail_heard_s(
    start: Start, origin: RunningOrigin, counters: Counters, faults: Faults
) -> None:
    edge = await start(origin.url, tail_heard_s=10)
    async with followed_until_silent(edge, counters, faults):
        for _ in range(3):
            edge.clock.advance(10.1)
            for _ in range(50):
                assert (await edge.get("/s")).is_up_to_date
        assert sum(counters.requests.values()) == counters.requests[Kind.HEAD] == 3


async def test_an_asked_tail_is_asked_for_at_every_read(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, tail="asked")
    async with followed(edge, counters):
        for _ in range(10):
            assert (await edge.get("/s")).is_up_to_date
        assert counters.requests[Kind.HEAD] + counters.requests[Kind.CATCHUP] == 10
        await edge.send_to(origin.url, "POST", "/s", {"Content-Type": JSON}, b'["b"]')
        assert (await edge.get("/s")).body == b'["a","b"]'


# -- frequently read tails


async def test_a_hot_tail_is_followed_until_it_cools_down(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b'["a"]', JSON)
    await edge.get("/s")
    counters.reset()
    live = edge.gateway.engine.live
    for _ in range(200):
        assert (await edge.get("/s")).is_up_to_date
    assert sum(counters.requests.values()) <= 10
    assert len(live.hot) == counters.live_open == 1
    # With further reads it stays; `durable_gateway_subscribers` does not count it.
    for _ in range(4):
        edge.clock.advance(5.0)
        for _ in range(20):
            assert (await edge.get("/s")).is_up_to_date
    assert len(live.hot) == counters.live_open == 1
    edge.clock.advance(20.0)
    await bounded(counters.live_is(0))
    assert len(live.hot) == len(live) == 0


async def test_a_tail_that_is_asked_for_now_and_then_is_not_followed(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b'["a"]', JSON)
    for _ in range(20):
        edge.clock.advance(1.5)
        assert (await edge.get("/s")).is_up_to_date
    assert counters.live_peak == 0


@pytest.mark.parametrize("settings", [{"follow_above_per_s": 0}, {"tail": "asked"}])
async def test_hot_tails_are_not_followed_if_disabled(edge: Edge, counters: Counters, settings: dict[str, Any]) -> None:
    await edge.put("/s", b'["a"]', JSON)
    for _ in range(50):
        await edge.get("/s")
    assert counters.live_peak == 0
    assert edge.gateway.config.routes[0].model_dump().items() >= settings.items()


@pytest.mark.parametrize("settings", [{"followed_streams": 4, "client_followed_streams": 4}])
async def test_hot_tails_leave_room_for_live_readers(edge: Edge, counters: Counters) -> None:
    for number in range(6):
        await edge.put(f"/{number}", b'["a"]', JSON)
        for _ in range(10):
            await edge.get(f"/{number}")
    assert len(edge.gateway.engine.live.hot) == 2
    for number in range(4, 6):
        wire = await edge.begin(f"/{number}?offset=-1&live=sse")
        assert (await wire.head()).status == 200


async def test_a_drain_ends_the_followers_of_hot_tails(edge: Edge, counters: Counters) -> None:
    await edge.put("/s", b'["a"]', JSON)
    for _ in range(10):
        await edge.get("/s")
    assert counters.live_open == 1
    edge.gateway.drain(within_s=1.0)
    edge.clock.advance(0.1)
    await bounded(counters.live_is(0))
    assert (await edge.get("/s")).is_up_to_date


# -- tails that may be reused without a follower


async def test_a_tail_is_reused_as_long_as_configured(start: Start, origin: RunningOrigin, counters: Counters) -> None:
    edge = await start(origin.url, tail_fresh_s=2.0, follow_above_per_s=0)
    await edge.put("/s", b'["a"]', JSON)
    await edge.get("/s")
    counters.reset()
    edge.clock.advance(1.0)
    for _ in range(10):
        answer = await edge.get("/s")
        assert (answer.is_up_to_date, answer.headers["Age"]) == (True, "1")
    assert counters.requests[Kind.CATCHUP] == 0
    acked = await edge.post("/s", b'["b"]', JSON)
    assert (await edge.get("/s")).next_offset == acked.next_offset
    counters.reset()
    edge.clock.advance(2.1)
    await edge.get("/s")
    assert counters.requests[Kind.CATCHUP] == 1


class Cached:
    """An origin that allows its tails to be reused for a while, like a CDN in front of one."""

    def __init__(self, cache_control: str) -> None:
        self.cache_control = cache_control
        self.messages = ["a"]
        self.gate: asyncio.Event | None = None

    async def __call__(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        found = re.search(r"offset=(-?[0-9]+)", asked.target)
        start = 0 if found is None or found[1] == "-1" else int(found[1])
        if self.gate is not None:
            await self.gate.wait()
        body, end = "".join(self.messages[start:]).encode(), f"{len(self.messages):04d}"
        writer.write(part_of_stream(body, end, **{"Cache-Control": self.cache_control}))


async def test_a_tail_is_reused_as_long_as_the_origin_allows(hostile: Hostile, start: Start) -> None:
    """`public, max-age=60, stale-while-revalidate=300` is what section 10.1 recommends."""
    script = Cached("public, max-age=60, stale-while-revalidate=300")
    origin = await hostile(script)
    edge = await start(origin.url, follow_above_per_s=0, trust_s=600)
    for _ in range(2):
        assert (await edge.get("/s")).next_offset == "0001"
    script.messages.append("b")
    asked = len(origin.asked)
    edge.clock.advance(59.0)
    fresh = await edge.get("/s")
    assert (fresh.next_offset, fresh.is_up_to_date, fresh.headers["Age"]) == ("0001", True, "59")
    assert len(origin.asked) == asked
    # Then it is served without `Stream-Up-To-Date` while it is revalidated in the background.
    edge.clock.advance(2.5)
    script.gate = asyncio.Event()
    stale = [await edge.get("/s") for _ in range(5)]
    assert {(one.body, one.next_offset, one.is_up_to_date) for one in stale} == {(b"a", "0001", False)}
    detail = "durable-gateway; hit; ttl=-2; detail=stale-while-revalidate"
    assert {(one.headers["Cache-Status"], one.headers["Age"]) for one in stale} == {(detail, "61")}
    script.gate.set()
    await eventually(lambda: not len(edge.gateway.engine.fetches))
    after = await edge.get("/s")
    assert (after.body, after.is_up_to_date) == (b"ab", True)
    assert len(origin.asked) == asked + 1


@pytest.mark.parametrize(
    "cache_control",
    ["no-cache", "max-age=0", "max-age=60, no-cache", "max-age=-5", "max-age=abc", "must-revalidate", "immutable"],
)
async def test_a_tail_is_revalidated_if_the_origin_forbids_reuse(
    hostile: Hostile, start: Start, cache_control: str
) -> None:
    script = Cached(cache_control)
    origin = await hostile(script)
    edge = await start(origin.url, follow_above_per_s=0)
    for count in range(1, 5):
        assert (await edge.get("/s")).next_offset == f"{count:04d}"
        script.messages.append("b")


async def test_an_asked_tail_is_revalidated_whatever_the_origin_allows(hostile: Hostile, start: Start) -> None:
    script = Cached("max-age=60")
    edge = await start((await hostile(script)).url, tail="asked")
    for count in range(1, 5):
        assert (await edge.get("/s")).next_offset == f"{count:04d}"
        script.messages.append("b")


async def test_an_answer_without_bytes_is_never_stale(hostile: Hostile, start: Start) -> None:
    """A client without bytes and without `Stream-Up-To-Date` would ask again at once, and for ever."""
    script = Cached("max-age=1, stale-while-revalidate=300")
    origin = await hostile(script)
    edge = await start(origin.url, follow_above_per_s=0)
    for _ in range(2):
        await edge.get("/s")
    edge.clock.advance(5.0)
    asked = len(origin.asked)
    assert (await edge.get("/s?offset=0001")).is_up_to_date
    assert len(origin.asked) == asked + 1


async def test_concurrent_readers_see_tails_move(edge: Edge, counters: Counters) -> None:
    async with followed(edge, counters):
        ends: list[str] = []
        for _ in range(5):
            acked = await edge.post("/s", b'["b"]', JSON)
            answers = await asyncio.gather(*(edge.get("/s") for _ in range(20)))
            assert {answer.next_offset for answer in answers} == {acked.next_offset}
            ends.append(acked.next_offset)
        assert ends == sorted(ends)
        # The follower delivers the bytes; an acknowledged write need not be fetched.
        assert counters.requests[Kind.CATCHUP] + counters.requests[Kind.HEAD] == 0


@pytest.mark.parametrize("content_type", TYPES)
@pytest.mark.http_1_origin
async def test_a_live_request_takes_no_bytes_before_the_type_is_known(
    edge: Edge, origin: RunningOrigin, counters: Counters, faults: Faults, content_type: str
) -> None:
    """Only a write has named the tail so far, and no answer has stated the type."""
    message = b"a\r\nb" if content_type == "text/plain" else BODY[content_type]
    await edge.send_to(origin.url, "PUT", "/s", {"Content-Type": content_type})
    head = faults.hold(kind=Kind.HEAD)
    faults.status(405, kind=Kind.HEAD, times=None)
    slow = faults.hold(kind=Kind.CATCHUP, times=1)
    earlier = edge.asking("/s")
    await bounded(slow.waiting(1))
    tail = (await edge.post("/s", message, content_type)).next_offset
    failing = faults.status(500, kind=Kind.CATCHUP, times=None)
    async with edge.time_passing():
        for _ in range(2 * TAIL_READ_BURST):
            assert (await edge.get(f"/s?offset={tail}")).status == 500
        assert any(edge.gateway.engine.live.topics())
        failing.remove()
        head.release()
        await eventually(lambda: position(edge, "/s") == tail)
        for _ in range(2):
            await edge.send_to(origin.url, "POST", "/s", {"Content-Type": content_type}, message)
        end = (await edge.send_to(origin.url, "GET", "/s?offset=now")).next_offset
        await eventually(lambda: position(edge, "/s") == end)
    # Only text is long-polled.
    assert bool(counters.requests[Kind.LONGPOLL]) is (content_type == "text/plain")
    slow.release()
    assert (await bounded(earlier)).status == 200
    for start in ("-1", tail):
        direct = await edge.send_to(origin.url, "GET", f"/s?offset={start}")
        assert (await edge.get(f"/s?offset={start}")).body == direct.body
