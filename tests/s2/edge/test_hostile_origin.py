"""Origins that answer what S2 does not: the client gets an error, and no other client is affected."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.s2.streams import LEAST_S, PAUSES_S
from gateway.origin.s2.calls import Call
from gateway.s2 import protobuf
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import ReadBatch, Record, StreamPosition
from gateway.s2.session import Terminal, encode_message, encode_terminal
from gateway.s2.sse import Done, Failure
from tests.s2.edge.clients import BOUND_S, STREAM, Edge
from tests.waiting import eventually, pass_turns, time_passing


@pytest.mark.parametrize("how", ["heartbeat then end", "reconnect advised"])
async def test_sessions_that_end_at_once_are_not_opened_again_without_a_pause(edge: Edge, how: str) -> None:
    await edge.client.append("a")
    if how == "reconnect advised":
        edge.faults.advise_reconnect(after_messages=0, times=None, kind=Call.READ_SESSION)
    else:
        edge.faults.finish_session(after_messages=1, times=None, kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=1")
    async with asyncio.timeout(BOUND_S):
        for count in range(2, 5):
            await edge.counters.reached(Call.READ_SESSION, count)
            await edge.counters.sessions_are(Call.READ_SESSION, 0)
            # The clock stands still, so another session must not begin.
            for _ in range(20):
                await edge.direct.tail()
            assert edge.counters.requests[Call.READ_SESSION] == count
            edge.clock.advance(LEAST_S)
    session.close()


async def test_sessions_that_bring_something_may_be_lost_any_number_of_times(edge: Edge) -> None:
    await edge.client.append("a")
    edge.faults.finish_session(after_messages=1, times=2 * len(PAUSES_S), kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=1")
    async with time_passing(edge.clock, step_s=0.5), asyncio.timeout(BOUND_S):
        await edge.counters.reached(Call.READ_SESSION, 2 * len(PAUSES_S) + 1)
        await edge.client.append("b")
        assert await session.texts(1) == ["b"]
    session.close()


@pytest.mark.parametrize("code", [S2ErrorCode.RATE_LIMITED, S2ErrorCode.TIMEOUT, S2ErrorCode.HOT_SERVER])
@pytest.mark.parametrize("how", ["refused", "ended"])
async def test_an_error_that_may_pass_loses_no_session(edge: Edge, code: S2ErrorCode, how: str) -> None:
    await edge.client.append("a")
    if how == "refused":
        edge.faults.error(code, times=2, kind=Call.READ_SESSION)
    else:
        edge.faults.fail_session(code, times=2, kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=1")
    async with time_passing(edge.clock, step_s=0.5), asyncio.timeout(BOUND_S):
        await edge.counters.reached(Call.READ_SESSION, 3)
        await edge.client.append("b")
        assert await session.texts(1) == ["b"]
    session.close()


@pytest.mark.parametrize("status", [0, 100, 200, 204, 302, 399, 600])
async def test_a_session_ended_with_a_status_that_is_no_error_is_lost(edge: Edge, status: int) -> None:
    await edge.client.append("a")
    body = encode_terminal(status, b'{"code":"x","message":"y"}')
    edge.faults.replace(200, {"content-type": "s2s/proto"}, body, times=None, kind=Call.READ_SESSION)
    session, sse = await edge.client.session("seq_num=1"), await edge.client.events("seq_num=1")
    waiting = asyncio.ensure_future(edge.client.read("seq_num=1&wait=60"))
    async with time_passing(edge.clock):
        while isinstance(end := await session.next(), ReadBatch):
            pass
        events = await sse.rest()
        answer = await waiting
    assert isinstance(end, Terminal)
    assert end.status == 503
    assert isinstance(events[-1], Failure)
    assert answer.status == 503


async def test_a_record_larger_than_s2_allows_ends_no_session_in_order(edge: Edge) -> None:
    await edge.client.append(*"abc")
    huge = protobuf.encode_read_batch(ReadBatch((Record(1, 2**50, (), b"x" * 1_048_577),)))
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]
    edge.faults.replace(200, {"content-type": "application/protobuf"}, huge, times=None, kind=Call.READ)
    assert (await edge.client.read("seq_num=1&count=1")).status == 502
    session, sse = await edge.client.session("seq_num=0"), await edge.client.events("seq_num=0")
    assert await session.texts(1) == await sse.texts(1) == ["a"]
    assert isinstance(await session.next(), Terminal)
    assert Done() not in await sse.rest()


async def test_a_record_too_large_in_a_session_at_the_origin_loses_it(edge: Edge) -> None:
    await edge.client.append("a")
    huge = encode_message(protobuf.encode_read_batch(ReadBatch((Record(1, 2**50, (), b"x" * 1_048_577),))))
    edge.faults.replace(200, {"content-type": "s2s/proto"}, huge, times=None, kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=1")
    async with time_passing(edge.clock):
        while isinstance(end := await session.next(), ReadBatch):
            assert not end.records
    assert isinstance(end, Terminal)


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "text/html"}, {"content-type": "application/json"}], ids=["none", "html", "json"]
)
@pytest.mark.parametrize("body", [b"<html>", b'{"tail":null}', b'{"records":[]}', b"\xff\xfe", b"[" * 5_000])
async def test_an_answer_that_is_not_s2s_is_a_502(edge: Edge, headers: dict[str, str], body: bytes) -> None:
    await edge.client.append("a")
    edge.faults.replace(200, headers, body, times=None, kind=Call.READ)
    edge.faults.replace(200, headers, body, times=None, kind=Call.CHECK_TAIL)
    for query in ("seq_num=0", "seq_num=0&count=1", "tail_offset=0", "timestamp=0"):
        answer = await edge.client.read(query)
        assert (answer.status, answer.json["code"]) == (502, "other"), query
        assert (await edge.client.status(query)) == 502
    assert (await edge.client.tail()).status == 502
    edge.faults.clear()
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


@pytest.mark.parametrize("body", [b"", b"<html>", b"null", b'{"tail":{"seq_num":-1,"timestamp":0}}', b'{"tail":3}'])
@pytest.mark.parametrize("status", [416, 400, 429, 500])
async def test_an_error_without_s2s_body_is_passed_on(edge: Edge, status: int, body: bytes) -> None:
    await edge.client.append("a")
    edge.faults.replace(status, {"retry-after": "7"}, body, times=None, kind=Call.READ)
    for query in ("seq_num=0", "tail_offset=0", "timestamp=0"):
        answer = await edge.client.read(query)
        assert (answer.status, answer.body, answer.headers["Retry-After"]) == (status, body, "7")
        assert (await edge.client.status(query)) == status
    edge.faults.clear()
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


@pytest.mark.parametrize("status", [204, 206, 301, 307])
async def test_neither_records_nor_an_error_is_a_502(edge: Edge, status: int) -> None:
    await edge.client.append("a")
    for call in (Call.READ, Call.CHECK_TAIL, Call.READ_SESSION):
        edge.faults.replace(status, {"location": "http://elsewhere/"}, b"", times=None, kind=call)
    assert (await edge.client.read("seq_num=0")).status == 502
    assert (await edge.client.tail()).status == 502
    edge.faults.clear()
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


async def test_records_before_the_start_that_was_asked_for_are_not_given(edge: Edge) -> None:
    await edge.client.append(*"abcd")
    early = protobuf.encode_read_batch(ReadBatch((Record(0, 1, (), b"z"),)))
    edge.faults.replace(200, {}, early, times=None, kind=Call.READ)
    assert (await edge.client.read("seq_num=2&count=1")).status == 502
    edge.faults.clear()
    assert (await edge.client.read("seq_num=2&count=1")).texts == ["c"]


async def test_a_stream_that_is_being_deleted_is_dropped(edge: Edge) -> None:
    await edge.client.append("old", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["old"]
    edge.faults.error(S2ErrorCode.STREAM_DELETION_PENDING, kind=Call.READ)
    assert (await edge.client.read("seq_num=0&count=2")).status == 409
    await edge.direct.send("DELETE", f"/v1/streams/{STREAM}")
    await edge.direct.append("new", timestamp=1)
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["new"]


async def test_a_wait_that_passes_while_the_origin_is_away_does_not_end_in_order(edge: Edge) -> None:
    """An end in order says that no record came; while the origin is away that is not known."""
    await edge.client.append("a")
    session = await edge.client.session("seq_num=1&wait=7")
    assert await session.next() == ReadBatch((), await _tail(edge))
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    gate = edge.faults.hold(kind=Call.READ_SESSION)
    edge.origin.cut_connections()
    await gate.waiting(1)
    await edge.direct.append("b")
    edge.clock.advance(8)
    await pass_turns(20)
    gate.release()
    async with time_passing(edge.clock):
        assert await session.texts(1) == ["b"]
        while isinstance(end := await session.next(), ReadBatch):
            pass
    assert end is None


async def _tail(edge: Edge) -> StreamPosition:
    tail = (await edge.direct.tail()).json["tail"]
    assert isinstance(tail, dict)
    return StreamPosition(tail["seq_num"], tail["timestamp"])


async def test_a_client_that_leaves_ends_no_fetch_that_others_wait_for(edge: Edge) -> None:
    await edge.client.append(*"abc")
    gate = edge.faults.hold(kind=Call.READ)
    first = asyncio.ensure_future(edge.client.read("seq_num=0&count=3"))
    await gate.waiting(1)
    second = asyncio.ensure_future(edge.client.read("seq_num=0&count=3"))
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [2])
    first.cancel()
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [1])
    gate.release()
    assert (await second).texts == ["a", "b", "c"]
    assert edge.counters.requests[Call.READ] == 1


async def test_a_client_that_leaves_while_it_waits_is_forgotten(edge: Edge) -> None:
    await edge.client.append("a")
    waiting = [asyncio.ensure_future(edge.client.read("seq_num=1&wait=60")) for _ in range(3)]
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [4])
    for one in waiting:
        one.cancel()
    await eventually(lambda: [one.users for one in edge.gateway.engine.s2.streams] == [1])
    edge.clock.advance(10)
    await eventually(lambda: "0 in use, 0 followed" in repr(edge.gateway.engine.s2))
