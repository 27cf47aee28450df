"""What an S2 origin or a client of one can make grow, or last, has a bound."""

from __future__ import annotations

import asyncio

import pytest
from s2_sdk import S2, AppendInput, Endpoints, Record

from gateway.engine.s2 import origin as origin_module
from gateway.engine.s2.follower import PAUSES_S
from gateway.origin.s2.calls import Call
from gateway.s2.errors import ErrorCode
from gateway.s2.records import ReadBatch
from gateway.s2.session import Terminal
from gateway.server import relaying
from tests.s2.edge.clients import BASIN, BOUND_S, Edge
from tests.waiting import time_passing


async def test_a_batch_that_is_too_large_is_refused(edge: Edge) -> None:
    await edge.client.append("a")
    edge.faults.replace(200, {"content-type": "application/protobuf"}, bytes(4 * 1024 * 1024 + 1), kind=Call.READ)
    assert (await edge.client.read()).status == 502
    assert (await edge.client.read()).texts == ["a"]


@pytest.mark.parametrize("body", [b"\xff\xff", b""], ids=["broken", "empty"])
async def test_a_batch_that_is_not_one_is_refused(edge: Edge, body: bytes) -> None:
    await edge.client.append("a")
    edge.faults.replace(200, {}, body, kind=Call.READ, times=1)
    assert (await edge.client.read("seq_num=0&count=1")).status == 502
    assert (await edge.client.read("seq_num=0&count=1")).texts == ["a"]


async def test_a_session_at_the_origin_that_falls_silent_is_opened_again(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin_module, "SILENCE_S", 0.2)
    await edge.client.append("a")
    edge.faults.stall(after_bytes=0, kind=Call.READ_SESSION)
    session = await edge.client.session("seq_num=1")
    assert isinstance(await session.next(), ReadBatch)
    async with asyncio.timeout(BOUND_S):
        await edge.counters.reached(Call.READ_SESSION, 2)
    await edge.client.append("b")
    assert await session.texts(1) == ["b"]
    session.close()


async def test_a_stream_is_given_up_after_so_many_attempts(edge: Edge) -> None:
    await edge.client.append("a")
    session = await edge.client.session("seq_num=1")
    assert isinstance(await session.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    edge.counters.reset()
    edge.faults.error(ErrorCode.UNAVAILABLE, times=None, kind=Call.READ_SESSION)
    for connection in tuple(edge.origin._connections):
        connection.abort()
    async with time_passing(edge.clock):
        end = await session.next()
    assert isinstance(end, Terminal)
    assert end.status == 503
    assert edge.counters.requests[Call.READ_SESSION] == len(PAUSES_S)
    # The next reader is a new beginning, once the origin is asked again.
    edge.faults.clear()
    async with asyncio.timeout(BOUND_S), time_passing(edge.clock):
        while (again := await edge.client.session("seq_num=1")).status != 200:
            again.close()
    assert isinstance(await again.next(), ReadBatch)
    await edge.counters.sessions_are(Call.READ_SESSION, 1)
    again.close()


class TestIdleAppendSession:
    @pytest.fixture
    def settings(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
        monkeypatch.setattr(relaying, "SESSION_IDLE_S", 0.2)
        return {"origin_http": "2"}

    async def test_an_append_session_may_be_idle_for_so_long(self, edge: Edge) -> None:
        url = edge.gateway.gateway_url
        async with asyncio.timeout(BOUND_S), S2("token", endpoints=Endpoints(account=url, basin=url)) as s2:
            session = s2.basin(BASIN).stream("s").append_session()
            await (await session.submit(AppendInput(records=[Record(body=b"x")])))
            await edge.counters.sessions_are(Call.APPEND_SESSION, 0)
