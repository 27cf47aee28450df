"""One client's headers never decide what others get."""

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from tests.scenarios.conftest import Hostile, Start, bounded
from tests.scenarios.hostile import METADATA, Asked, answer, part_of_stream
from tests.waiting import eventually


async def test_names_of_other_gateways_do_not_enter_shared_fetches(hostile: Hostile, start: Start) -> None:
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
    # Later readers share the next fetch, which this one starts.
    looping = edge.asking("/s", {"CDN-Loop": "shield"})
    await eventually(edge.readers(2))
    others = [edge.asking("/s") for _ in range(3)]
    await eventually(edge.readers(5))
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


@pytest.mark.parametrize("status", ["401 Unauthorized", "403 Forbidden", "431 Request Header Fields Too Large"])
async def test_refused_credentials_do_not_affect_other_readers(hostile: Hostile, start: Start, status: str) -> None:
    gate = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        refused = answer(status, {"Content-Type": "text/plain"}, b"")
        is_bad = asked.headers.get("Authorization") == "bad"
        writer.write(refused if is_bad else part_of_stream(b"x", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url, credentials="shared")
    first = edge.asking("/s", {"Authorization": "good"})
    await origin.until(lambda: len(origin.reads) == 1)
    bad = edge.asking("/s", {"Authorization": "bad"})
    await eventually(edge.readers(2))
    others = [edge.asking("/s", {"Authorization": f"good{number}"}) for number in range(3)]
    await eventually(edge.readers(5))
    gate.set()
    reads = await bounded(asyncio.gather(first, bad, *others))
    assert [read.status for read in reads] == [200, int(status[:3]), 200, 200, 200]


async def test_a_follower_keeps_credentials_that_are_good(hostile: Hostile, start: Start) -> None:
    go_on = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.headers["Authorization"] == "bad":
            writer.write(answer("401 Unauthorized", {"Content-Type": "text/plain"}))
        elif "live=long-poll" in asked.target:
            await (go_on.wait() if "offset=0001" in asked.target else asyncio.Event().wait())
            writer.write(part_of_stream(b"y", "0002"))
        else:
            writer.write(part_of_stream(b"", "0001"))

    origin = await hostile(script)
    edge = await start(origin.url, credentials="shared", live_linger_s=5)
    good = edge.asking("/s?offset=0001&live=long-poll", {"Authorization": "good"})
    await origin.until(lambda: any("live=long-poll" in asked.target for asked in origin.asked))
    bad = edge.asking("/s?offset=0001&live=long-poll", {"Authorization": "bad"})
    topic = next(iter(edge.gateway.engine.live.topics()))
    await eventually(lambda: topic.readers == 2)
    go_on.set()
    for read in (good, bad):
        assert (await bounded(read)).body == b"y"
    await origin.until(lambda: any("offset=0002" in asked.target for asked in origin.asked))
    live = [asked for asked in origin.asked if "live=long-poll" in asked.target]
    assert {asked.headers["Authorization"] for asked in live} == {"good"}


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_token_that_is_refused_drops_the_stream_only_where_nothing_else_is_refused(
    hostile: Hostile, start: Start, is_known: bool
) -> None:
    """A 400 may be due to a reader's own headers, or to a re-created stream that does not know the old tokens."""
    is_anew = False

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.headers.get("Authorization") == "bad" or (is_anew and "offset=0001" in asked.target):
            writer.write(answer("400 Bad Request", {"Content-Type": "text/plain"}))
        elif asked.method == "HEAD":
            writer.write(METADATA if is_known else answer("405 Method Not Allowed", {}))
        elif "offset=0001" in asked.target:
            writer.write(part_of_stream(b"", "0001"))
        else:
            writer.write(part_of_stream(b"anew" if is_anew else b"x", "0001"))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, credentials="shared")
    first = await edge.get("/s", {"Authorization": "good"})
    assert (await edge.get("/s?offset=0001", {"Authorization": "bad"})).status == 400
    assert (await edge.get("/s", {"Authorization": "bad"})).status == 400
    again = await edge.get("/s", {"Authorization": "good"})
    assert again.headers["ETag"] == first.headers["ETag"]
    is_anew = True
    read = await edge.get("/s", {"Authorization": "good"})
    assert (read.body, read.headers["ETag"] == first.headers["ETag"]) == (b"anew", False)


@pytest.mark.parametrize("status", ["404 Not Found", "410 Gone"])
@pytest.mark.parametrize(
    ("method", "target"),
    [("GET", "/s?offset=0000"), ("POST", "/s"), ("DELETE", "/s")],
)
async def test_an_origin_that_hides_a_stream_from_one_client_hides_it_from_no_other(
    hostile: Hostile, start: Start, method: str, target: str, status: str
) -> None:
    """Live readers of the stream wait on, and others are given what is held."""
    go_on = asyncio.Event()

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if asked.headers.get("Authorization") != "good":
            writer.write(answer(status, {"Content-Type": "text/plain"}))
        elif asked.method == "HEAD":
            writer.write(METADATA)
        elif "live=" in asked.target:
            await go_on.wait()
            writer.write(part_of_stream(b"y", "0002"))
        else:
            writer.write(part_of_stream(b"" if "offset=0001" in asked.target else b"x", "0001"))

    origin = await hostile(script, takes_head=True)
    edge = await start(origin.url, credentials="shared", follow_above_per_s=0)
    for _ in range(2):
        assert (await edge.get("/s", {"Authorization": "good"})).body == b"x"
    waiting = edge.asking("/s?offset=0001&live=long-poll", {"Authorization": "good"})
    await origin.until(lambda: any("live=" in asked.target for asked in origin.asked))
    refused = await edge.send(method, target, {"Content-Type": "text/plain"})
    assert refused.status == int(status[:3])
    bytes_requests = len([asked for asked in origin.asked if asked.target == "/s?offset=-1"])
    assert (await edge.get("/s", {"Authorization": "good"})).body == b"x"
    assert len([asked for asked in origin.asked if asked.target == "/s?offset=-1"]) == bytes_requests
    assert not waiting.done()
    go_on.set()
    assert (await bounded(waiting)).body == b"y"
