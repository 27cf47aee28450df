"""Origins A and B behind one address, as behind a load balancer: A is about to leave, and B takes new connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

import aiohttp
import pytest
from s2_sdk import S2, AppendInput, Endpoints, Record

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.account import Account
from gateway.origin.s2.app import RunningS2Origin, S2Origin, start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from gateway.s2.records import ReadBatch
from tests.s2.edge.clients import BASIN, BOUND_S, STREAM, Client, SessionReader, SseReader
from tests.waiting import time_passing

TIMESTAMP = 1_000
ENCRYPTED = {"s2-encryption-key": "a key"}
"""Such reads are relayed."""


class Balancer:
    """Passes each new connection on to the origin that takes them now."""

    def __init__(self) -> None:
        self.port = 0
        self._pipes: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection("127.0.0.1", self.port)
        self._pipes |= {asyncio.ensure_future(_pipe(reader, down)), asyncio.ensure_future(_pipe(up, writer))}

    async def close(self) -> None:
        for pipe in self._pipes:
            pipe.cancel()
        await asyncio.wait(self._pipes)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()


@dataclass(frozen=True, slots=True)
class Two:
    a: RunningS2Origin
    b: RunningS2Origin
    balancer: Balancer
    gateway: RunningGateway
    client: Client
    clock: ManualClock

    def drain(self, how: str, call: Call, after_messages: int = 0) -> None:
        """A is about to leave, and B is what new connections come to.  A session at A learns it after some messages."""
        self.balancer.port = self.b.port
        faults = self.a.origin.faults
        match how:
            case "advice":
                faults.advise_reconnect(after_messages=after_messages, times=None, kind=call)
            case "terminal":
                faults.fail_session(S2ErrorCode.SERVER_DRAINING, after_messages=after_messages, times=None, kind=call)
            case "refusal":
                faults.error(S2ErrorCode.SERVER_DRAINING, times=None, kind=call)
            case _:
                raise ValueError(how)


@pytest.fixture(params=["1.1", "2"])
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


class Replica(S2Origin):
    """Serves the streams of another origin."""

    def __init__(self, other: S2Origin) -> None:
        super().__init__()
        self._other = other

    def account_of(self, authorization: str) -> Account:
        return self._other.account_of(authorization)


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


@asynccontextmanager
async def serving(version: str, *origins: S2Origin) -> AsyncIterator[Two]:
    a, b = [await start_s2_origin(origin=origin) for origin in origins]
    balancer, clock = Balancer(), ManualClock()
    balancer.port = a.port
    server = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    config = GatewayConfig.for_origin(
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",
        protocol="s2",
        origin_http=version,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        shutdown_timeout_s=2,
    )
    gateway = await start_gateway(config, clock=clock, rng=Random(0))
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        for origin in (a, b):
            direct = Client(http, origin.url)
            await direct.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
            await direct.append("0", timestamp=TIMESTAMP)
        client = Client(http, gateway.gateway_url)
        yield Two(a, b, balancer, gateway, client, clock)
        client.close()
    await gateway.stop()
    server.close()
    await balancer.close()
    for origin in (a, b):
        origin.origin.faults.clear()
        await origin.stop(grace_s=0)


def state(two: Two) -> tuple[int, str]:
    """Failures counted against the origin, and the state of its breaker."""
    (origin,) = two.gateway.engine.origins.snapshot()
    return origin.failures, origin.state.value


@pytest.mark.parametrize("how", ["advice", "terminal"])
async def test_a_session_at_an_origin_that_drains_goes_on_at_another(two: Two, how: str) -> None:
    # A connection to A is there, and the session is opened on it.
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
    assert state(two) == (0, "closed")


async def test_a_session_that_a_draining_origin_refuses_is_opened_at_another(two: Two) -> None:
    assert (await two.client.read("seq_num=0&count=1")).texts == ["0"]
    two.drain("refusal", Call.READ_SESSION)
    session = await two.client.session("seq_num=0")
    async with time_passing(two.clock):
        assert await session.texts(1) == ["0"]
        await two.b.origin.counters.reached(Call.READ_SESSION, 1)
    session.close()
    assert state(two)[0] == 0


@pytest.mark.parametrize("call", [Call.READ, Call.CHECK_TAIL])
async def test_a_read_that_a_draining_origin_refuses_is_asked_at_another(two: Two, call: Call) -> None:
    assert (await two.client.tail()).status == 200
    two.drain("refusal", call)
    for _ in range(20):
        answer = await (two.client.tail() if call is Call.CHECK_TAIL else two.client.read("seq_num=0"))
        assert answer.status == 200
    assert two.a.origin.counters.requests[call] <= 3
    assert state(two) == (0, "closed")


async def test_an_origin_that_drains_for_good_is_said_to_and_asked_no_faster(two: Two) -> None:
    """There is no other: the balancer leads back to it."""
    two.drain("refusal", Call.READ)
    two.balancer.port = two.a.port
    answer = await two.client.read("seq_num=0")
    assert (answer.status, answer.json["code"]) == (503, "server_draining")
    assert two.a.origin.counters.requests[Call.READ] <= 4
    assert state(two) == (0, "closed")


@pytest.mark.parametrize("kind", ["append", "read", "session", "terminal", "events"])
async def test_relayed_requests_leave_a_draining_origin(two: Two, kind: str) -> None:
    """The client is given the origin's answer, and its next request comes to another one."""
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
    assert state(two) == (0, "closed")


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
                # One at a time: the SDK loses a batch that it takes from its queue while its session breaks.
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
    assert state(replicas) == (0, "closed")
