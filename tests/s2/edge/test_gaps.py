"""Reads from before everything that is left of a stream: there is nothing to send before the tail.

S2 answers such a read with no records, not with 416.  To its clients the end of a session means that the read is
finished, so a session that finds nothing goes on from the tail.
"""

from __future__ import annotations

import asyncio

import pytest

from gateway.origin.faults import When
from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch, StreamPosition
from gateway.s2.sse import Done, Ping
from tests.s2.edge.clients import STREAM, Edge

TAIL = StreamPosition(3, 5)


async def trim_everything(edge: Edge) -> None:
    """Append two records and remove them, and the record of the trim itself."""
    await edge.direct.append("a", "b", timestamp=5)
    trim = {"headers": [["", "trim"]], "body": "99999999", "timestamp": 5}
    assert (await edge.direct.send("POST", f"/v1/streams/{STREAM}/records", {"records": [trim]})).status == 200


@pytest.mark.parametrize("query", ["seq_num=0", "seq_num=1&count=9&wait=60", "timestamp=0", "tail_offset=2"])
async def test_a_session_goes_on_from_the_tail(edge: Edge, query: str) -> None:
    await trim_everything(edge)
    session, sse = await edge.client.session(query), await edge.client.events(query)
    assert await session.next() == ReadBatch((), TAIL)
    ping = await sse.next()
    assert isinstance(ping, Ping)
    assert ping.tail == TAIL
    await edge.direct.append("c")
    assert await session.texts(1) == await sse.texts(1) == ["c"]
    session.close()
    sse.close()


async def test_a_session_that_may_not_wait_ends_in_order(edge: Edge) -> None:
    await trim_everything(edge)
    session, sse = await edge.client.session("seq_num=0&count=5"), await edge.client.events("seq_num=0&count=5")
    assert (session.status, await session.next()) == (200, None)
    assert (sse.status, await sse.rest()) == (200, [Done()])


async def test_a_unary_read_is_answered_as_by_the_origin_and_may_wait(edge: Edge) -> None:
    await trim_everything(edge)
    for query in ("seq_num=0", "tail_offset=3", "timestamp=0", "seq_num=3"):
        direct, through = await edge.direct.read(query), await edge.client.read(query)
        assert (through.status, through.body) == (direct.status, direct.body), query
    waiting = [asyncio.ensure_future(edge.client.read(f"{start}&wait=60")) for start in ("seq_num=0", "timestamp=0")]
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    await edge.direct.append("c")
    for answer in await asyncio.gather(*waiting):
        assert answer.texts == ["c"]


async def test_what_is_appended_while_the_tail_is_asked_for_is_not_passed_over(edge: Edge) -> None:
    await trim_everything(edge)
    opening = edge.faults.hold(kind=Call.READ, when=When.REPLY)
    opened = asyncio.ensure_future(edge.client.session("seq_num=0"))
    await opening.waiting(1)
    fetching = edge.faults.hold(kind=Call.READ, when=When.REPLY)
    opening.release()
    # The origin has found nothing for the session, and the gateway does not know it yet.
    await fetching.waiting(1)
    await edge.direct.append("c")
    fetching.release()
    session = await opened
    assert await session.texts(1) == ["c"]
    session.close()


async def test_a_record_larger_than_what_is_left_of_a_read_ends_it(edge: Edge) -> None:
    """No records are an answer for this read too, and it is over."""
    await edge.direct.append("a" * 100)
    session = await edge.client.session("seq_num=0&bytes=50&wait=60")
    assert await session.next() is None
    assert (await edge.client.read("seq_num=0&bytes=50&wait=60")).texts == []


async def test_a_session_from_before_the_tail_has_it_with_the_record_that_reaches_it(edge: Edge) -> None:
    """S2's clients have caught up once they have read that record, and not only at the next heartbeat."""
    await edge.direct.append("a", "b", "c", timestamp=5)
    for client in (edge.direct, edge.client):
        session = await client.session("tail_offset=2")
        batch = await session.next()
        assert isinstance(batch, ReadBatch)
        assert ([record.seq_num for record in batch.records], batch.tail) == ([1, 2], TAIL)
        session.close()
    follower = await edge.client.session("seq_num=3")
    assert await follower.next() == ReadBatch((), TAIL)
    # What the origin told the follower may be old by the time of a later request, for which it is asked again.
    late = await edge.client.session("seq_num=0")
    batch = await late.next()
    assert isinstance(batch, ReadBatch)
    assert ([record.seq_num for record in batch.records], batch.tail) == ([0, 1, 2], None)
    assert await late.next() == ReadBatch((), TAIL)
    for session in (follower, late):
        session.close()
