"""Origins A and B behind one address, as behind a load balancer: A is about to leave, and B takes new connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from random import Random

import aiohttp

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.account import Account
from gateway.origin.s2.app import RunningS2Origin, S2Origin, start_s2_origin
from gateway.origin.s2.calls import Call
from gateway.s2.errors import S2ErrorCode
from tests.s2.edge.clients import BASIN, Client

TIMESTAMP = 1_000


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
        await asyncio.gather(*self._pipes, return_exceptions=True)


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

    @property
    def state(self) -> tuple[int, str]:
        """Failures counted against the origin, and the state of its breaker."""
        (origin,) = self.gateway.engine.origins.snapshot()
        return origin.failures, origin.state.value


class Replica(S2Origin):
    """Serves the streams of another origin."""

    def __init__(self, other: S2Origin) -> None:
        super().__init__()
        self._other = other

    def account_of(self, authorization: str) -> Account:
        return self._other.account_of(authorization)


@asynccontextmanager
async def serving(version: str, *origins: S2Origin, **settings: object) -> AsyncIterator[Two]:
    """Serve two origins, and a gateway in front of both, that asks over this version of HTTP.  The stream of the tests
    has one record."""
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
        shutdown_timeout_s=0.4,
        **settings,
    )
    gateway = await start_gateway(config, clock=clock, rng=Random(0))
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        for running in (a, b):
            if isinstance(running.origin, Replica):
                continue
            direct = Client(http, running.url)
            await direct.send("POST", "/v1/basins", {"basin": BASIN, "config": {"create_stream_on_append": True}})
            await direct.append("0", timestamp=TIMESTAMP)
        client = Client(http, gateway.gateway_url)
        yield Two(a, b, balancer, gateway, client, clock)
        client.close()
    await gateway.stop()
    server.close()
    await balancer.close()
    for running in (a, b):
        running.origin.faults.clear()
        await running.stop(grace_s=0)
