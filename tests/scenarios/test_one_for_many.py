"""What one client sends never decides what others are answered."""

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Hostile, Start
from tests.scenarios.hostile import Asked, answer, part_of_stream


async def test_names_of_other_gateways_reach_no_fetch_of_those_who_show_none(hostile: Hostile, start: Start) -> None:
    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if "shield" in asked.headers["CDN-Loop"]:
            writer.write(answer("508 Loop Detected", {}))
        elif "live=long-poll" in asked.target:
            await asyncio.Event().wait()
        else:
            writer.write(part_of_stream(b"" if "offset=0001" in asked.target else b"x", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url, live_linger_s=5)
    waiting = edge.asking("/s?offset=0001&live=long-poll")
    await origin.until(lambda: any("live=long-poll" in asked.target for asked in origin.asked))
    for target in ("/s", "/s?offset=-1&live=long-poll"):
        assert (await edge.get(target, {"CDN-Loop": "shield"})).status >= 500
    assert not waiting.done()
    assert (await edge.get("/s")).body == b"x"
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
