"""Streams of which nothing is left, and reads whose limits let no record through."""

from __future__ import annotations

import base64

import pytest

from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.sse import Done, Ping
from tests.s2.edge.clients import STREAM, Client, Edge
from tests.waiting import eventually


async def trim(client: Client, seq_num: int, timestamp: int) -> None:
    """Trim the stream to this number, by a record of its own."""
    header = [["", base64.b64encode(b"trim").decode()]]
    body = base64.b64encode(seq_num.to_bytes(8)).decode()
    record = {"headers": header, "body": body, "timestamp": timestamp}
    path = f"/v1/streams/{STREAM}/records"
    answer = await client.send("POST", path, {"records": [record]}, s2_format="base64")
    assert answer.status == 200, answer


async def trimmed(edge: Edge) -> None:
    """A stream of which no record is left, and whose tail is at 4."""
    await edge.direct.append(*"abc", timestamp=5)
    await trim(edge.direct, 4, 6)


@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=3", "tail_offset=2", "timestamp=1"])
async def test_a_session_on_a_stream_of_which_nothing_is_left_follows_it(edge: Edge, query: str) -> None:
    await trimmed(edge)
    for _ in range(2):
        session, sse = await edge.client.session(query), await edge.client.events(query)
        assert await session.next() == ReadBatch((), StreamPosition(4, 6))
        ping = await sse.next()
        assert isinstance(ping, Ping)
        assert ping.tail == StreamPosition(4, 6)
        session.close()
        sse.close()
    following = await edge.client.session(query)
    await following.next()
    await edge.client.append("d")
    assert await following.texts(1) == ["d"]
    following.close()


@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=2&count=1", "tail_offset=3", "timestamp=1", "timestamp=7"])
async def test_a_read_of_a_stream_of_which_nothing_is_left_says_the_tail(edge: Edge, query: str) -> None:
    await trimmed(edge)
    for _ in range(2):
        direct, through = await edge.direct.read(query), await edge.client.read(query)
        assert (through.status, through.body) == (direct.status, direct.body)
    if "count" in query:
        assert await (await edge.client.session(query)).next() is None


async def test_a_session_whose_records_are_trimmed_under_it_goes_on_at_the_tail(edge: Edge) -> None:
    await edge.direct.append(*"abcd", timestamp=5)
    assert (await edge.client.read("seq_num=0&count=2")).texts == ["a", "b"]
    # What the session begins with is held; what it lacks is trimmed before it is read.
    gate = edge.faults.hold(kind=Call.READ)
    session = await edge.client.session("seq_num=0")
    assert await session.texts(2) == ["a", "b"]
    await gate.waiting(1)
    await trim(edge.direct, 5, 2**40)
    gate.release()
    beat = await session.next()
    assert isinstance(beat, ReadBatch)
    assert beat.tail is not None
    assert beat.tail.seq_num == 5
    session.close()


@pytest.mark.parametrize("query", ["seq_num=1&bytes=1", "seq_num=1&bytes=8&count=500", "tail_offset=2&bytes=3&until=9"])
async def test_a_record_that_no_limit_lets_through_is_not_asked_for_again_and_again(edge: Edge, query: str) -> None:
    await edge.direct.append(*"abc", timestamp=5)
    assert (await edge.client.read("seq_num=2&count=1")).texts == ["c"]
    edge.counters.reset()
    assert (await edge.client.read(query)).json == {"records": []}
    events = await edge.client.events(query)
    assert await events.rest() == [Done()]
    session = await edge.client.session(query)
    assert await session.next() is None
    await eventually(lambda: edge.gateway.engine.s2.sessions == 0)
    assert edge.counters.total_requests <= 9


async def test_an_answer_without_records_ends_no_session_in_order(edge: Edge) -> None:
    """To S2's clients such an end means that the read is finished.  S2 never says this of the tail."""
    await edge.client.append(*"abc")
    edge.faults.replace(200, {}, b"", times=None, kind=Call.READ)
    session, events = await edge.client.session("seq_num=0"), await edge.client.events("seq_num=0")
    assert b"unavailable" in getattr(await session.next(), "body", b"")
    assert b"unavailable" in getattr(await events.next(), "body", b"")
    edge.faults.clear()
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]
    edge.faults.replace(200, {}, b"", times=None, kind=Call.READ)
    session, events = await edge.client.session("seq_num=0"), await edge.client.events("seq_num=0")
    assert await session.texts(1) == await events.texts(1) == ["a"]
    assert b"unavailable" in getattr(await session.next(), "body", b"")
    assert b"unavailable" in getattr(await events.next(), "body", b"")


@pytest.mark.parametrize("query", ["seq_num=0", "timestamp=1"])
async def test_an_answer_without_records_that_names_the_tail_ends_no_session(edge: Edge, query: str) -> None:
    await trimmed(edge)
    nothing = protobuf.encode_read_batch(ReadBatch((), StreamPosition(4, 6)))
    edge.faults.replace(200, {}, nothing, times=None, kind=Call.READ)
    session, events = await edge.client.session(query), await edge.client.events(query)
    assert await session.next() == ReadBatch((), StreamPosition(4, 6))
    assert isinstance(await events.next(), Ping)
    edge.faults.clear()
    await edge.client.append("d")
    assert await session.texts(1) == await events.texts(1) == ["d"]
    session.close()
    events.close()


@pytest.mark.parametrize("query", ["seq_num=1", "seq_num=1&count=9&wait=60"])
async def test_a_follower_at_the_tail_is_sent_a_whole_append_whatever_it_trims(edge: Edge, query: str) -> None:
    await edge.client.append("a")
    session, sse = await edge.client.session(query), await edge.client.events(query)
    for reader in (session, sse):
        await reader.next()
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await edge.counters.parked_is(1)
    x, trimming, fencing = (
        {"body": ""},
        {"headers": [["", base64.b64encode(b"trim").decode()]], "body": base64.b64encode((99).to_bytes(8)).decode()},
        {"headers": [["", base64.b64encode(b"fence").decode()]], "body": base64.b64encode(b"token").decode()},
    )
    path, records = f"/v1/streams/{STREAM}/records", [x, trimming, fencing]
    assert (await edge.client.send("POST", path, {"records": records}, s2_format="base64")).status == 200
    assert [record.seq_num for record in await session.records(3)] == [1, 2, 3]
    batch = await sse.batch()
    assert [record.seq_num for record in batch.batch.records] == [1, 2, 3]
    session.close()
    sse.close()
    late = await edge.client.read("seq_num=0")
    assert [record["seq_num"] for record in late.json["records"]] == [3]  # type: ignore[attr-defined]
