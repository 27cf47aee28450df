"""Append sessions through the gateway: both directions go on side by side, for as long as both parties like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from s2_sdk import S2, AppendInput, Endpoints, Record, S2Stream

from gateway.origin.s2.calls import Call
from tests.s2.edge.clients import BASIN, BOUND_S, Edge
from tests.waiting import eventually


def batch(text: str) -> AppendInput:
    return AppendInput(records=[Record(body=text.encode())])


@pytest.fixture
def settings() -> dict[str, object]:
    return {
        "origin_http": "2",
        "max_request_bytes": "64KiB",
        "client_idle_timeout_s": 0.1,
        "client_min_rate": 1_000_000,
    }


def sdk(edge: Edge) -> S2:
    url = edge.gateway.gateway_url
    found: S2 = S2("token", endpoints=Endpoints(account=url, basin=url))
    return found


def stream_of(s2: S2) -> S2Stream:
    found: S2Stream = s2.basin(BASIN).stream("a stream")
    return found


async def stalled_upload(edge: Edge) -> int:
    """The status that an append gets whose body stops coming."""

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.get_running_loop().create_future()

    url = f"{edge.gateway.gateway_url}/v1/streams/other/records"
    async with edge.client.http.post(url, data=body(), headers={"s2-basin": BASIN}) as reply:
        return reply.status


async def test_an_append_is_acknowledged_before_the_session_ends(edge: Edge) -> None:
    async with asyncio.timeout(BOUND_S), sdk(edge) as s2:
        stream = stream_of(s2)
        async with stream.append_session() as session:
            for number in range(3):
                ticket = await session.submit(batch(str(number)))
                assert (await ticket).end.seq_num == number + 1
            assert edge.counters.sessions[Call.APPEND_SESSION] == 1


async def test_a_session_sends_more_than_a_request_may_and_may_be_idle(edge: Edge) -> None:
    async with asyncio.timeout(BOUND_S), sdk(edge) as s2:
        stream = stream_of(s2)
        async with stream.append_session() as session:
            for _ in range(8):
                ticket = await session.submit(batch("x" * 32_768))
                await ticket
            # The session is idle for longer than a client may be within the body of any other request.
            assert await stalled_upload(edge) == 408
            ticket = await session.submit(batch("last"))
            assert (await ticket).end.seq_num == 9
    assert edge.counters.requests[Call.APPEND_SESSION] == 1


async def test_the_session_at_the_origin_ends_with_the_clients(edge: Edge) -> None:
    async with asyncio.timeout(BOUND_S):
        async with sdk(edge) as s2:
            stream = stream_of(s2)
            session = stream.append_session()
            await (await session.submit(batch("x")))
            await edge.counters.sessions_are(Call.APPEND_SESSION, 1)
        await edge.counters.sessions_are(Call.APPEND_SESSION, 0)
        await eventually(lambda: not edge.gateway.engine.pending_writes)
