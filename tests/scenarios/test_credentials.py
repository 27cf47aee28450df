"""Bytes fetched with one reader's credentials never reach a reader with others."""

import asyncio

import pytest

from gateway.origin.app import RunningOrigin
from gateway.origin.counters import Counters
from gateway.origin.requests import Kind
from gateway.tape import paths
from tests.scenarios.conftest import Hostile, Start, bounded
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.waiting import eventually

ALICE = {"Authorization": "Bearer alice"}
BOB = {"Authorization": "Bearer bob"}
COOKIE = {"Cookie": "session=alice"}


async def personal(hostile: Hostile, gate: asyncio.Event | None = None) -> HostileOrigin:
    """An origin that shows each user another stream, and one user none."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if gate is not None and asked.method == "GET":
            await gate.wait()
        who = asked.headers.get("Authorization", asked.headers.get("Cookie", "nobody"))
        if "mallory" in who:
            writer.write(
                answer("404 Not Found", {"Content-Type": "text/plain"}, b"" if asked.method == "HEAD" else b"none")
            )
            return
        body = b"" if "offset=000" in asked.target else f"for {who}".encode()
        headers = {"Content-Type": "text/plain", "Stream-Next-Offset": "0001", "Stream-Closed": "true"}
        writer.write(answer("200 OK", headers, b"" if asked.method == "HEAD" else body))

    return await hostile(script, takes_head=True)


async def test_readers_with_different_credentials_share_no_tape(hostile: Hostile, start: Start) -> None:
    origin = await personal(hostile)
    edge = await start(origin.url)
    for _ in range(2):
        for who in ({}, ALICE, BOB, COOKIE, {**ALICE, **COOKIE}):
            expected = who.get("Authorization", who.get("Cookie", "nobody"))
            for mode in ("", "&live=long-poll"):
                read = await edge.get(f"/s?offset=-1{mode}", who)
                assert read.body == f"for {expected}".encode()
            events = await edge.begin("/s?offset=-1&live=sse", who)
            await events.head()
            event = await events.event()
            assert event is not None
            assert event.data == f"for {expected}"
            # Caches between gateway and client do not have these partitions.
            assert read.headers["Cache-Control"].startswith("private") or not who


async def test_readers_with_different_credentials_share_no_fetch(hostile: Hostile, start: Start) -> None:
    gate = asyncio.Event()
    origin = await personal(hostile, gate)
    edge = await start(origin.url)
    tasks = {who: edge.asking("/s", {"Authorization": who}) for who in ("alice", "bob", "carol")}
    twins = [edge.asking("/s", {"Authorization": "alice"}) for _ in range(3)]
    await origin.until(lambda: len(origin.reads) >= 3)
    await eventually(edge.readers(6))
    gate.set()
    for who, task in tasks.items():
        assert (await bounded(task)).body == f"for {who}".encode()
    assert {twin.body for twin in await bounded(asyncio.gather(*twins))} == {b"for alice"}
    assert {asked.headers["Authorization"] for asked in origin.reads} == {"alice", "bob", "carol"}


async def test_readers_with_different_credentials_share_no_live_request(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, live_linger_s=5)
    await edge.put("/s")
    wires = [await edge.begin("/s?offset=-1&live=sse", who) for who in (ALICE, BOB, ALICE)]
    for wire in wires:
        await wire.head()
    await bounded(counters.live_is(2))
    await edge.post("/s", b"x")
    for wire in wires:
        while (event := await wire.event()) is not None and event.name != "data":
            pass
        assert event is not None


async def test_a_404_for_one_reader_drops_no_other_tape(hostile: Hostile, start: Start) -> None:
    origin = await personal(hostile)
    edge = await start(origin.url)
    assert (await edge.get("/s", ALICE)).body == b"for Bearer alice"
    assert (await edge.get("/s")).body == b"for nobody"
    reads = len(origin.reads)
    mallory = {"Authorization": "mallory"}
    assert (await edge.get("/s", mallory)).status == 404
    assert (await edge.send("DELETE", "/s", mallory)).status == 404
    assert (await edge.send("HEAD", "/s", mallory)).status == 404
    assert (await edge.send("POST", "/s", {**mallory, "Content-Type": "text/plain"}, b"x")).status == 404
    assert (await edge.get("/s", ALICE)).body == b"for Bearer alice"
    assert (await edge.get("/s")).body == b"for nobody"
    # Closed to the end: both are answered from their remaining tapes, after one look each since the DELETE.
    assert len(origin.reads) == reads + 3
    assert [(await edge.get("/s", who)).body for who in ({}, ALICE)] == [b"for nobody", b"for Bearer alice"]
    assert len(origin.reads) == reads + 3


@pytest.mark.parametrize("mode", ["", "&live=long-poll", "&live=sse"])
async def test_a_delete_answered_404_makes_others_revalidate(start: Start, origin: RunningOrigin, mode: str) -> None:
    """An earlier attempt of the client may have deleted the stream, with its answer lost on the way."""
    edge = await start(origin.url)
    await edge.put("/s", b"0", Stream_Closed="true")
    for _ in range(2):
        assert [(await edge.get("/s", who)).body for who in (ALICE, BOB, {})] == [b"0"] * 3
    await edge.send_to(origin.url, "DELETE", "/s")
    assert (await edge.send("DELETE", "/s", ALICE)).status == 404
    assert [(await edge.get(f"/s?offset=-1{mode}", who)).status for who in (ALICE, BOB, {})] == [404] * 3


async def test_an_acknowledged_write_of_one_is_seen_by_all(start: Start, origin: RunningOrigin) -> None:
    edge = await start(origin.url)
    await edge.put("/s", b"0")
    assert [(await edge.get("/s", who)).body for who in (ALICE, BOB, {})] == [b"0"] * 3
    await edge.send("POST", "/s", {**ALICE, "Content-Type": "text/plain"}, b"1")
    assert [(await edge.get("/s", who)).body for who in (BOB, {}, ALICE)] == [b"01"] * 3
    await edge.send("DELETE", "/s", BOB)
    assert [(await edge.get("/s", who)).status for who in (ALICE, BOB, {})] == [404] * 3


async def test_the_shared_policy_shares_what_one_reader_may_see(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, credentials="shared")
    await edge.put("/s", b"0123456789", Stream_Closed="true")
    for who in (ALICE, BOB, {}):
        read = await edge.get("/s", who)
        assert read.body == b"0123456789"
        assert not read.headers["Cache-Control"].startswith("private")
    assert counters.requests[Kind.CATCHUP] == 1


async def test_the_bypass_policy_asks_the_origin_for_everyone_with_credentials(
    start: Start, origin: RunningOrigin, counters: Counters
) -> None:
    edge = await start(origin.url, credentials="bypass")
    await edge.put("/s", b"0123456789", Stream_Closed="true")
    for number, who in enumerate((ALICE, BOB, ALICE), 1):
        assert (await edge.get("/s", who)).body == b"0123456789"
        assert counters.requests[Kind.CATCHUP] == number
    await edge.get("/s")
    await edge.get("/s")
    assert counters.requests[Kind.CATCHUP] == 4
    assert edge.gateway.engine.store.find is not None


@pytest.mark.parametrize("method", ["DELETE", "HEAD", "POST"])
async def test_under_bypass_a_404_with_credentials_keeps_the_public_tape(
    hostile: Hostile, start: Start, method: str
) -> None:
    origin = await personal(hostile)
    edge = await start(origin.url, credentials="bypass")
    assert (await edge.get("/s")).body == b"for nobody"
    reads = len(origin.reads)
    headers = {"Authorization": "mallory", "Content-Type": "text/plain"}
    assert (await edge.send(method, "/s", headers, b"x" if method == "POST" else None)).status == 404
    assert (await edge.get("/s")).body == b"for nobody"
    assert len(origin.reads) == reads + (method == "DELETE")


async def test_answers_of_a_deleted_stream_are_forgotten_however_many_streams_of_the_path_are_held(
    start: Start, origin: RunningOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MOST_AWAKE", 2)
    edge = await start(origin.url)
    closed = {"Content-Type": "text/plain", "Stream-Closed": "true"}
    assert (await edge.send("PUT", "/s", closed, b"first")).status == 201
    tokens = [{"Authorization": f"Bearer {number}"} for number in range(8)]
    for token in tokens * 3:
        for _ in range(2):
            assert (await edge.get("/s?offset=-1", token)).body == b"first"
    await edge.send("DELETE", "/s")
    assert (await edge.send("PUT", "/s", closed, b"other")).status == 201
    for token in tokens:
        assert (await edge.get("/s?offset=-1", token)).body == b"other"


async def test_a_read_after_a_write_has_it_however_many_streams_of_the_path_are_held(
    start: Start, origin: RunningOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "MOST_AWAKE", 2)
    edge = await start(origin.url)
    await edge.put("/s", b"first")
    tokens = [{"Authorization": f"Bearer {number}"} for number in range(8)]
    for token in tokens:
        for _ in range(3):
            # A hit that was a hit before is sent from remembered bytes.
            assert (await edge.get("/s?offset=-1", token)).body == b"first"
    await edge.post("/s", b"second")
    for token in tokens:
        assert (await edge.get("/s?offset=-1", token)).body == b"firstsecond"
    await edge.send("DELETE", "/s")
    await edge.put("/s", b"other")
    for token in tokens:
        assert (await edge.get("/s?offset=-1", token)).body == b"other"
