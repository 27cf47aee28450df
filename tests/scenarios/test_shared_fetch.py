"""One fetch, many readers: the reader that started it has no special role."""

import asyncio

import pytest
from multidict import CIMultiDict

from gateway.engine.route import Route
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from gateway.origin.requests import Kind
from gateway.protocol.sharing import Group, Partition, StreamKey
from gateway.protocol.target import parse_target
from tests.scenarios.conftest import Edge, Hostile, Start, bounded
from tests.scenarios.hostile import Asked, answer, part_of_stream
from tests.scenarios.wire import Dropped
from tests.waiting import eventually

LARGE = bytes(range(256)) * 2048
"""Larger than a body that is awaited before its head is sent."""


async def test_followers_get_everything_although_the_leader_leaves_before_the_head(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    await edge.put("/s", b"0123456789")
    gate = faults.hold(kind="catchup")
    leader = await edge.begin("/s")
    await bounded(gate.waiting(1))
    followers = [edge.asking("/s") for _ in range(5)]
    await eventually(edge.readers(6))
    leader.reset()
    await eventually(lambda: not edge.readers(6)())
    gate.release()
    assert [answer.body for answer in await asyncio.gather(*followers)] == [b"0123456789"] * 5


async def test_followers_get_everything_although_the_leader_leaves_in_the_body(
    edge: Edge, faults: Faults, counters: Counters
) -> None:
    await edge.put("/s", LARGE, "application/octet-stream")
    stall = faults.stall(100_000, kind="catchup")
    leader = await edge.begin("/s")
    await bounded(stall.waiting(1))
    followers = [await edge.begin("/s") for _ in range(3)]
    for follower in followers:
        assert (await follower.head()).status == 200
    await leader.head()
    leader.reset()
    await eventually(lambda: not edge.readers(4)())
    stall.release()
    assert await asyncio.gather(*(follower.body() for follower in followers)) == [LARGE] * 3
    # The followers joined after the fetch was sent: they shared its bytes and looked at the tail themselves.
    assert counters.body_bytes[Kind.CATCHUP] == len(LARGE)
    assert counters.requests[Kind.CATCHUP] <= 1 + len(followers)


async def test_readers_that_arrive_together_cost_one_request(edge: Edge, faults: Faults, counters: Counters) -> None:
    await edge.put("/s", b"0123456789")
    gate = faults.hold(kind="catchup", times=1)
    first = edge.asking("/s")
    await bounded(gate.waiting(1))
    others = [edge.asking("/s") for _ in range(20)]
    await eventually(edge.readers(21))
    gate.release()
    answers = await asyncio.gather(first, *others)
    assert {(answer.status, answer.body) for answer in answers} == {(200, b"0123456789")}
    # The second request is the look at the tail by which late readers learn that nothing was added meanwhile.
    assert counters.requests[Kind.CATCHUP] == 2
    assert counters.body_bytes[Kind.CATCHUP] == 10
    assert all(answer.is_up_to_date for answer in answers)


@pytest.mark.parametrize("has_head", [False, True])
async def test_the_last_reader_to_leave_takes_the_upstream_connection_along(
    edge: Edge, faults: Faults, counters: Counters, has_head: bool
) -> None:
    await edge.put("/s", LARGE, "application/octet-stream")
    where = faults.stall(100_000, kind="catchup") if has_head else faults.hold(kind="catchup")
    readers = [await edge.begin("/s")]
    await bounded(where.waiting(1))
    readers.append(await edge.begin("/s"))
    await eventually(edge.readers(2))
    readers[0].reset()
    await eventually(lambda: not edge.readers(2)())
    assert where.held == 1
    readers[1].reset()
    await bounded(counters.until(lambda now: now.finished[Kind.CATCHUP] == now.requests[Kind.CATCHUP]))
    assert where.held == 0
    await edge.until_idle()
    where.release()
    assert (await edge.get("/s")).body == LARGE


async def test_a_leaders_headers_do_not_shape_its_followers_answers(hostile: Hostile, start: Start) -> None:
    gate = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        if "Range" in asked.headers:
            writer.write(answer("206 Partial Content", {"Content-Range": "bytes 0-1/10"}, b"01"))
        elif "If-None-Match" in asked.headers or "If-Modified-Since" in asked.headers:
            writer.write(answer("304 Not Modified", {}))
        elif asked.headers["Accept-Encoding"] != "identity":
            writer.write(part_of_stream(b"packed", "0001", **{"Content-Encoding": "gzip"}))
        else:
            writer.write(part_of_stream(b"0123456789", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url)
    entries = {
        "If-None-Match": '"someone-elses"',
        "If-Modified-Since": "Sat, 01 Jan 2050 00:00:00 GMT",
        "Range": "bytes=0-1",
        "Accept-Encoding": "gzip, br",
        "Cache-Control": "no-cache",
        "X-Trace": "1",
    }
    leader = edge.asking("/s", entries)
    await origin.until(lambda: bool(origin.reads))
    followers = [edge.asking("/s") for _ in range(3)]
    await eventually(edge.readers(4))
    gate.set()
    assert [follower.body for follower in await asyncio.gather(*followers)] == [b"0123456789"] * 3
    assert (await leader).body == b"0123456789"
    assert not any("X-Trace" in asked.headers for asked in origin.reads)


async def test_a_reader_that_leaves_as_it_comes_leaves_no_flight_behind(edge: Edge) -> None:
    """A fetch that is cancelled before its first step must not stay joinable."""
    await edge.put("/s", b"0123456789")
    engine = edge.gateway.engine
    (stream,) = list(engine.store)
    route = Route(edge.gateway.config.routes[0], "n", edge.clock)
    target = parse_target("/s")
    source = route.source(target, route.source_headers(CIMultiDict()))
    flight = engine.fetches.join_fetch(stream, "-1", route, source).fetch
    flight.attach().detach()
    await edge.until_idle()
    assert (await edge.get("/s")).body == b"0123456789"


async def test_a_failure_reaches_every_reader_of_the_fetch(edge: Edge, faults: Faults) -> None:
    await edge.put("/s", LARGE, "application/octet-stream")
    stall = faults.stall(100_000, kind="catchup", times=1)
    faults.drop(120_000, kind="catchup", times=1)
    wires = [await edge.begin("/s")]
    await bounded(stall.waiting(1))
    wires += [await edge.begin("/s") for _ in range(3)]
    for wire in wires:
        assert (await wire.head()).status == 200
    stall.release()
    for wire in wires:
        with pytest.raises(Dropped) as dropped:
            await wire.body()
        assert LARGE.startswith(dropped.value.body)
    assert (await edge.get("/s")).body == LARGE


async def test_a_large_body_evicts_others_bit_by_bit_while_it_arrives(hostile: Hostile, start: Start) -> None:
    budget, parts, gate = 16 << 20, 6, asyncio.Semaphore(0)

    async def in_parts(asked: Asked, writer: asyncio.StreamWriter) -> None:
        whole = part_of_stream(b"x" * (parts << 20), "0001", "application/octet-stream")
        for begin in range(0, len(whole), 1 << 20):
            await gate.acquire()
            writer.write(whole[begin : begin + (1 << 20)])
            await writer.drain()

    origin = await hostile(in_parts)
    edge = await start(origin.url, cache_bytes=budget)
    store = edge.gateway.engine.store
    while store.cost < budget - 10_000:
        store.open(StreamKey(Group(origin.url, f"/small{len(store)}"), "", Partition("")), edge.clock.now())
    reading = edge.asking("/large?offset=-1")
    held = [len(store)]
    for part in range(1, parts + 1):
        gate.release()
        await eventually(lambda part=part: store.arriving >= (part << 20) - 4_096)
        assert store.cost + store.lent <= budget
        held.append(len(store))
    gate.release()
    assert len((await bounded(reading)).body) == parts << 20
    assert store.arriving == 0
    assert store.cost + store.lent <= budget
    evicted = [before - after for before, after in zip(held, [*held[1:], len(store)], strict=True)]
    assert max(evicted) < 2 * sum(evicted) / parts, evicted
