"""The bridge's S2 origin is about to shut down.  The next connection reaches another origin behind the same address."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.origin.s2.app import S2Origin
from gateway.origin.s2.calls import Call
from tests.bridge.clients import Reader, Writer
from tests.s2.edge.balanced import Replica, Two, serving
from tests.s2.edge.clients import BASIN, BOUND_S, Client
from tests.waiting import time_passing


@pytest.fixture(params=["1.1", "2"])
async def two(request: pytest.FixtureRequest) -> AsyncIterator[Two]:
    """Both origins have the same streams."""
    a = S2Origin()
    async with serving(request.param, a, Replica(a), present="durable-streams", bridge={"basin": BASIN}) as found:
        yield found


@pytest.fixture
def reader(two: Two) -> Reader:
    return Reader(two.client.http, two.gateway.gateway_url)


@pytest.fixture
def writer(two: Two) -> Writer:
    """Return a function that appends at B, to the stream with one message."""
    return Writer(Client(two.client.http, two.b.url))


def asked(two: Two, call: Call) -> list[int]:
    """Return the requests of this kind at A and at B."""
    return [one.origin.counters.requests[call] for one in (two.a, two.b)]


@pytest.mark.parametrize("how", ["advice", "terminal", "refusal", "shutdown"])
async def test_a_followed_stream_goes_on_at_another_origin(two: Two, reader: Reader, writer: Writer, how: str) -> None:
    if how != "shutdown":
        two.drain(how, Call.READ_SESSION, after_messages=1)
        two.balancer.port = two.a.port
    async with time_passing(two.clock), asyncio.timeout(BOUND_S):
        opening = asyncio.ensure_future(reader.events())
        await two.a.origin.counters.reached(Call.READ_SESSION, 1)
        two.balancer.port = two.b.port
        events = await opening
        assert await events.messages(1) == [0]
        if how == "shutdown":
            await two.a.stop(grace_s=BOUND_S)
        for number in range(1, 10):
            await writer.append(b"%d" % number)
            assert await events.messages(1) == [number]
        events.close()
    assert asked(two, Call.READ_SESSION) == [1, 1]
    assert two.state == (0, "closed")


async def test_reads_that_a_draining_origin_refuses_are_answered_by_another(
    two: Two, reader: Reader, writer: Writer
) -> None:
    assert (await reader.read()).json == [0]
    two.drain("refusal", Call.READ)
    before, _ = asked(two, Call.READ)
    async with time_passing(two.clock):
        for number in range(1, 10):
            await writer.append(b"%d" % number)
            two.clock.advance(60.0)
            assert (await reader.send("HEAD")).status == 200
            assert await reader.all() == list(range(number + 1))
    after, others = asked(two, Call.READ)
    assert after - before <= 2
    assert others >= 9
    assert two.state == (0, "closed")


async def test_writes_that_a_draining_origin_refuses_are_taken_by_another(
    two: Two, reader: Reader, writer: Writer
) -> None:
    json = {"Content_Type": "application/json"}
    assert (await reader.send("POST", body=b"1", **json)).status in (200, 204)
    two.drain("refusal", Call.APPEND)
    async with time_passing(two.clock):
        statuses = []
        for number in range(2, 10):
            for _ in range(3):
                statuses.append((await reader.send("POST", body=b"%d" % number, **json)).status)
                if statuses[-1] != 503:
                    break
        assert await reader.all() == list(range(10))
    # The client gets a 503 at most once.
    assert statuses.count(503) <= 1
    assert statuses.count(204) == 8
    assert two.state == (0, "closed")
