"""The origins A and B have one address, as behind a load balancer.  A is about to shut down, and B takes new
connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable

import pytest
from s2_sdk import S2, AppendInput, Endpoints, Record

from gateway.origin.s2.app import S2Origin
from gateway.origin.s2.calls import Call
from gateway.s2.records import ReadBatch
from tests.s2.edge.balanced import TIMESTAMP, Replica, Two, serving
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Client, SessionReader, SseReader
from tests.waiting import time_passing

ENCRYPTED = {"s2-encryption-key": "a key"}
"""The gateway relays reads with this header."""


@pytest.fixture(params=["1.1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
async def two(version: str) -> AsyncIterator[Two]:
    async with serving(version, S2Origin(), S2Origin()) as found:
        yield found


@pytest.fixture
async def replicas(version: str) -> AsyncIterator[Two]:
    """Both origins have the same streams."""
    a = S2Origin()
    async with serving(version, a, Replica(a)) as found:
        yield found


@pytest.mark.parametrize("how", ["advice", "terminal"])
async def test_a_session_at_an_origin_that_drains_goes_on_at_another(two: Two, how: str) -> None:
    # The gateway has a connection to A, and opens the session on it.
    assert (await two.client.read("seq_num=0&count=1")).texts == ["0"]
    two.drain(how, Call.READ_SESSION)
    readers: list[SessionReader | SseReader] = [
        await two.client.session("seq_num=0"),
        await two.client.events("seq_num=0"),
    ]
    for reader in readers:
        assert await reader.texts(1) == ["0"]
    async with time_passing(two.clock), asyncio.timeout(BOUND_S):
        await two.b.origin.counters.reached(Call.READ_SESSION, 1)
        await Client(two.client.http, two.b.url).append("1", timestamp=TIMESTAMP)
        for reader in readers:
            assert await reader.texts(1) == ["1"]
            reader.close()
    assert two.a.origin.counters.requests[Call.READ_SESSION] <= 2
    assert two.state == (0, "closed")


async def test_a_session_that_a_draining_origin_refuses_is_opened_at_another(two: Two) -> None:
    assert (await two.client.read("seq_num=0&count=1")).texts == ["0"]
    two.drain("refusal", Call.READ_SESSION)
    session = await two.client.session("seq_num=0")
    async with time_passing(two.clock):
        assert await session.texts(1) == ["0"]
        await two.b.origin.counters.reached(Call.READ_SESSION, 1)
    session.close()
    assert two.state[0] == 0


@pytest.mark.parametrize("call", [Call.READ, Call.CHECK_TAIL])
async def test_a_read_that_a_draining_origin_refuses_is_asked_at_another(two: Two, call: Call) -> None:
    assert (await two.client.tail()).status == 200
    two.drain("refusal", call)
    for _ in range(20):
        answer = await (two.client.tail() if call is Call.CHECK_TAIL else two.client.read("seq_num=0"))
        assert answer.status == 200
    assert two.a.origin.counters.requests[call] <= 3
    assert two.state == (0, "closed")


async def test_an_origin_that_drains_for_good_is_said_to_and_asked_no_faster(two: Two) -> None:
    """There is no other origin, so the balancer leads back to the draining one."""
    two.drain("refusal", Call.READ)
    two.balancer.port = two.a.port
    answer = await two.client.read("seq_num=0")
    assert (answer.status, answer.json["code"]) == (503, "server_draining")
    assert two.a.origin.counters.requests[Call.READ] <= 4
    assert two.state == (0, "closed")


@pytest.mark.parametrize("kind", ["append", "read", "session", "terminal", "events"])
async def test_relayed_requests_leave_a_draining_origin(two: Two, kind: str) -> None:
    """The client gets the answer of the draining origin, and its next request reaches the other origin."""
    path = f"/v1/streams/{STREAM}/records"

    async def ask() -> None:
        match kind:
            case "append":
                await two.client.send("POST", path, {"records": [{"body": "more"}]})
            case "read":
                await two.client.read("seq_num=0", **ENCRYPTED)
            case "events":
                events = await two.client.events("seq_num=0&count=1", **ENCRYPTED)
                while await events.next() is not None:
                    pass
            case _:
                session = await two.client.session("seq_num=0&count=1", **ENCRYPTED)
                while isinstance(await session.next(), ReadBatch):
                    pass

    call = {"append": Call.APPEND, "read": Call.READ, "events": Call.READ_EVENTS}.get(kind, Call.READ_SESSION)
    how = {"append": "refusal", "read": "refusal", "session": "advice"}.get(kind, "terminal")
    await ask()
    two.drain(how, call)
    before = two.a.origin.counters.requests[call]
    for _ in range(10):
        await ask()
    assert two.a.origin.counters.requests[call] - before <= 3
    assert two.b.origin.counters.requests[call] >= 7
    assert two.state == (0, "closed")


@pytest.mark.parametrize("how", ["advice", "terminal", "refusal", "shutdown"])
async def test_an_append_session_of_the_sdk_goes_on_at_another_origin(replicas: Two, how: str) -> None:
    a, b, url = replicas.a, replicas.b, replicas.gateway.gateway_url
    if how != "shutdown":
        replicas.drain(how, Call.APPEND_SESSION, after_messages=10)
        replicas.balancer.port = a.port
    shutdown: Awaitable[None] | None = None
    async with asyncio.timeout(BOUND_S), S2("token", endpoints=Endpoints(account=url, basin=url)) as s2:
        async with s2.basin(BASIN).stream("appended").append_session() as session:
            for number in range(30):
                # Append one batch at a time, because the SDK loses a batch that it takes from its queue while its
                # session breaks.
                ticket = await session.submit(AppendInput([Record(b"%d" % number)]))
                if number == 0:
                    await a.origin.counters.reached(Call.APPEND_SESSION, 1)
                    replicas.balancer.port = b.port
                if number == 10 and how == "shutdown":
                    shutdown = asyncio.ensure_future(a.stop(grace_s=BOUND_S))
                await ticket
        if shutdown is not None:
            await shutdown
    appended = await Client(replicas.client.http, b.url).read("seq_num=0", stream="appended")
    assert appended.texts == [str(number) for number in range(30)]
    assert [one.origin.counters.requests[Call.APPEND_SESSION] for one in (a, b)] == [1, 1]
    assert replicas.state == (0, "closed")
