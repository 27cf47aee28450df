"""What one client sends never decides what others are answered."""

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Hostile, Start, bounded, eventually
from tests.scenarios.hostile import Asked, answer, part_of_stream


async def test_names_of_other_gateways_reach_no_fetch_of_those_who_show_none(hostile: Hostile, start: Start) -> None:
    gate = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        if "shield" in asked.headers["CDN-Loop"]:
            writer.write(answer("508 Loop Detected", {}))
        else:
            writer.write(part_of_stream(b"x", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url)
    first = edge.asking("/s")
    await origin.until(lambda: len(origin.reads) == 1)
    # Whoever comes while that is on its way shares the next fetch, which this one begins.
    looping = edge.asking("/s", {"CDN-Loop": "shield"})
    await eventually(edge.riders(2))
    others = [edge.asking("/s") for _ in range(3)]
    await eventually(edge.riders(5))
    gate.set()
    assert [read.status for read in await bounded(asyncio.gather(first, looping, *others))] == [200, 508, *[200] * 3]
    assert {asked.headers["CDN-Loop"] for asked in origin.asked} == {"durable-gateway", "shield, durable-gateway"}


async def test_readers_by_way_of_the_same_gateways_share(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url)
    await edge.put("/s", b"x", Stream_Closed="true")
    for members in ("a, b:80;x=1", "B:80, a", "b:80,a, A, =?, "):
        assert (await edge.get("/s", {"CDN-Loop": members})).body == b"x"
    assert counters.requests[Kind.CATCHUP] == 1


@pytest.mark.parametrize("members", [", ".join(f"n{i}" for i in range(9)), "x" * 300])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_chain_of_gateways_without_end_is_refused(
    start: Start, origin: RunningOrigin, counters: Counters, members: str, method: str
) -> None:
    edge = await start(origin.url)
    refused = await edge.send(method, "/s", {"CDN-Loop": members, "Content-Type": "text/plain"})
    assert (refused.status, refused.body.count(b"\n")) == (508, 1)
    assert counters.total_requests == 0
