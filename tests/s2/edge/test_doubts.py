"""What is held of a stream that may be another by now, and what answers show beside what was asked for."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.s2.stream import VERIFIED_S
from gateway.origin.faults import When
from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from gateway.s2.sse import BatchEvent, Ping
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Edge
from tests.s2.edge.test_trims import trim
from tests.waiting import eventually, time_passing


async def recreate(edge: Edge, *texts: str, timestamp: int) -> None:
    """Another stream in place of this one, without the gateway."""
    await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
    await edge.direct.append(*texts, timestamp=timestamp)


@pytest.mark.parametrize("between", ["tail_offset=2", "seq_num=6&count=2", "timestamp=7&count=1"])
async def test_records_apart_from_those_held_do_not_vouch_for_them(edge: Edge, between: str) -> None:
    await edge.client.append("old", "older", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["old", "older"]
    await recreate(edge, *"abcdefgh", timestamp=7)
    edge.clock.advance(VERIFIED_S + 1)
    await edge.client.read(between)
    await edge.client.tail()
    query = "seq_num=0&count=8"
    assert (await edge.client.read(query)).body == (await edge.direct.read(query)).body


@pytest.mark.parametrize("after_s", [0, VERIFIED_S - 1, VERIFIED_S + 1])
async def test_records_held_are_not_continued_by_those_of_another_stream(edge: Edge, after_s: float) -> None:
    await edge.client.append("old 0", timestamp=1)
    assert (await edge.client.read("seq_num=0")).texts == ["old 0"]
    await recreate(edge, "new 0", "new 1", "new 2", timestamp=7)
    edge.clock.advance(after_s)
    assert (await edge.client.read("seq_num=0&count=3")).texts == ["new 0", "new 1", "new 2"]


async def test_a_first_session_opened_after_failures_does_not_go_on_in_another_stream(edge: Edge) -> None:
    await edge.client.append("old", "older", timestamp=1)
    edge.faults.replace(503, {}, b"", times=1, kind=Call.READ_SESSION)
    gate = edge.faults.hold(kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=0")
    assert await session.texts(2) == ["old", "older"]
    assert isinstance(await session.next(), ReadBatch)
    await gate.waiting(1)
    await recreate(edge, *"abc", timestamp=7)
    gate.release()
    async with time_passing(edge.clock):
        while isinstance(end := await session.next(), ReadBatch):
            assert not end.records
    assert isinstance(end, Terminal)
    assert (await edge.client.read("seq_num=0&count=3")).texts == ["a", "b", "c"]


@pytest.mark.parametrize("status", [500, 502, 504])
async def test_a_delete_of_a_basin_whose_outcome_is_not_known_drops_what_is_held(edge: Edge, status: int) -> None:
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
    edge.faults.replace(status, {}, b"", kind=Call.CONTROL, method="DELETE")
    assert (await edge.client.send("DELETE", f"/v1/basins/{BASIN}")).status == status
    await recreate(edge, "new", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]


@pytest.mark.parametrize("path", [f"/v1/basins/{BASIN}", f"/v1/streams/{STREAM}"])
async def test_a_delete_whose_answer_is_lost_drops_what_is_held(edge: Edge, path: str) -> None:
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
    edge.faults.refuse(kind=Call.CONTROL, method="DELETE", times=1)
    assert (await edge.client.send("DELETE", path)).status == 502
    await recreate(edge, "new", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]


async def test_what_an_answer_shows_as_trimmed_is_dropped(edge: Edge) -> None:
    await edge.client.append(*"abcdef", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    await trim(edge.direct, 4, 1)
    # The read does not come to the record of the trim.
    assert (await edge.client.read("seq_num=2&count=1")).texts == ["e"]
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["e"]


async def test_what_a_tail_shows_as_trimmed_is_dropped(edge: Edge) -> None:
    await edge.client.append(*"abcdef", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    await trim(edge.direct, 7, 1)
    for query in ("seq_num=2&count=1", "seq_num=0&count=1"):
        assert (await edge.client.read(query)).json == {"records": []}


async def test_what_is_asked_for_again_and_is_trimmed_is_dropped(edge: Edge) -> None:
    await edge.client.append(*"abcdef", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=3")).texts == ["a", "b", "c"]
    await trim(edge.direct, 4, 1)
    edge.clock.advance(VERIFIED_S + 1)
    answer = await edge.client.read("seq_num=3&count=1")
    assert answer.texts == ["e"]
    assert (await edge.client.read("seq_num=1&count=1")).texts == ["e"]


async def test_a_stream_is_read_anew_after_a_purge_in_the_middle(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    gate = edge.faults.hold(kind=Call.READ, when=When.REPLY)
    reading = asyncio.ensure_future(edge.client.read("seq_num=0&count=4"))
    session = asyncio.ensure_future(edge.client.session("seq_num=2&count=2"))
    await gate.waiting(1)
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [2])
    async with edge.client.http.post(edge.gateway.admin_url + "/api/purge", json={"all": True}) as purged:
        assert purged.status == 200, await purged.text()
    gate.release()
    assert (await reading).texts == list("abcd")
    assert await (await session).texts(2) == ["c", "d"]


async def test_a_read_from_memory_is_counted_as_one(edge: Edge) -> None:
    await edge.client.append(*"ab", timestamp=5)
    await edge.client.append(*"cd", timestamp=9)
    first = await edge.client.read("timestamp=6&count=1")
    assert "fwd=uri-miss" in first.headers["Cache-Status"]
    await edge.client.read("seq_num=0&count=4")
    edge.counters.reset()
    again = await edge.client.read("timestamp=6&count=1")
    assert again.texts == ["c"]
    assert edge.counters.total_requests == 0
    assert again.headers["Cache-Status"].endswith("; hit")


@pytest.mark.parametrize("query", ["seq_num=6", "seq_num=2&bytes=1", "seq_num=9", "tail_offset=0", "timestamp=7"])
async def test_a_read_that_finds_nothing_drops_nothing_that_is_there(edge: Edge, query: str) -> None:
    await edge.client.append(*"abcdef", timestamp=5)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    await edge.client.read(query)
    edge.counters.reset()
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    assert edge.counters.total_requests == 0


async def test_what_a_session_brings_does_not_vouch_for_what_was_held_before_it(edge: Edge) -> None:
    await edge.client.append("old", "older", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["old", "older"]
    await recreate(edge, *"abcdefgh", timestamp=7)
    edge.clock.advance(VERIFIED_S + 1)
    session = await edge.client.session("tail_offset=0")
    await session.next()
    await eventually(lambda: edge.counters.sessions[Call.READ_SESSION] == 1 or edge.gateway.engine.s2.sessions == 0)
    await edge.direct.append("i", timestamp=7)
    await session.next()
    query = "seq_num=0&count=9"
    assert (await edge.client.read(query)).body == (await edge.direct.read(query)).body
    session.close()


async def test_a_read_that_waits_goes_on_after_a_purge(edge: Edge) -> None:
    await edge.client.append("a")
    waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=60"))
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await eventually(lambda: [one.topic is not None for one in edge.gateway.engine.s2.streams] == [True])
    async with edge.client.http.post(edge.gateway.admin_url + "/api/purge", json={"all": True}) as purged:
        assert purged.status == 200, await purged.text()
    async with asyncio.timeout(BOUND_S):
        await edge.counters.reached(Call.READ_SESSION, 2)
    await edge.direct.append("b")
    assert (await waiting).texts == ["b"]


NEW = tuple(f"new {number}" for number in range(6))


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(["seq_num=0&count=1"], id="before"),
        pytest.param(["seq_num=1&count=1"], id="after"),
        pytest.param(["seq_num=0&count=1", "seq_num=2&count=1"], id="on both sides"),
    ],
)
@pytest.mark.parametrize("timestamp", [1, 7])
@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=0&count=3", "seq_num=1", "timestamp=1", "tail_offset=6"])
async def test_records_of_another_stream_are_not_joined_with_those_held(
    edge: Edge, held: list[str], timestamp: int, query: str
) -> None:
    """The timestamps may be the writer's, and so the same in both streams."""
    await edge.client.append("old 0", "old 1", "old 2", timestamp=1)
    for one in held:
        await edge.client.read(one)
    await recreate(edge, *NEW, timestamp=timestamp)
    texts = (await edge.client.read(query)).texts
    assert texts in ([*NEW], [*NEW[:3]], [*NEW[1:]]), texts
    assert (await edge.client.read("seq_num=0")).texts == [*NEW]


@pytest.mark.parametrize("is_sse", [False, True])
async def test_a_session_does_not_go_on_in_another_stream_with_the_same_timestamps(edge: Edge, is_sse: bool) -> None:
    await edge.client.append("old 0", "old 1", timestamp=1)
    await edge.client.read("seq_num=0&count=2")
    await recreate(edge, *NEW, timestamp=1)
    query, texts = "seq_num=0&count=6", list[str]()
    if is_sse:
        events = await edge.client.events(query)
        while isinstance(event := await events.next(), BatchEvent | Ping):
            texts += [record.body.decode() for record in event.batch.records] if isinstance(event, BatchEvent) else []
    else:
        session = await edge.client.session(query)
        while isinstance(batch := await session.next(), ReadBatch):
            texts += [record.body.decode() for record in batch.records]
    # It got the records held, and an error, so that it comes again; or else the new stream.
    assert texts in (["old 0", "old 1"], [*NEW])


async def test_a_first_session_at_the_tail_reads_the_stream_whose_tail_was_asked_for(edge: Edge) -> None:
    await edge.client.append("old 0", "old 1", timestamp=1)
    await edge.client.read("seq_num=0&count=2")
    gate = edge.faults.hold(kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=0")
    assert await session.texts(2) == ["old 0", "old 1"]
    await gate.waiting(1)
    await recreate(edge, *NEW, timestamp=1)
    gate.release()
    while isinstance(end := await session.next(), ReadBatch):
        assert not end.records
    assert isinstance(end, Terminal)
    assert (await edge.client.read("seq_num=0")).texts == [*NEW]


async def test_a_joint_is_confirmed_after_the_fetch_that_makes_it(edge: Edge) -> None:
    """The stream is created again after the held record was asked for and before its successors are."""
    await edge.client.append("old 0", "old 1", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["old 0"]
    edge.clock.advance(VERIFIED_S + 1)
    gate = edge.faults.hold(kind=Call.READ, when=When.REPLY, times=1)
    reading = asyncio.ensure_future(edge.client.read("seq_num=0"))
    await gate.waiting(1)
    await recreate(edge, *NEW, timestamp=1)
    gate.release()
    assert (await reading).texts in (["old 0", "old 1"], [*NEW])
    assert (await edge.client.read("seq_num=0")).texts == [*NEW]
