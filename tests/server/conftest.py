"""Two gateways in front of one origin: one answers from remembered bytes, the other parses every request."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import aiohttp
import pytest
import uvloop

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.server.turns import Turns, TurnTaker

BOUND_S = 10.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of the programs: transports of different loops call their protocols differently."""
    return {"uvloop": uvloop.new_event_loop}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two gateways in front of the same origin, on one manual clock."""

    origin: RunningOrigin
    fast: RunningGateway
    strict: RunningGateway
    clock: ManualClock


async def start_pair(max_chunk_bytes: int = 4_096, **settings: object) -> Pair:
    """Start both gateways; the caller has to call `stop_pair`."""
    clock = ManualClock()
    origin = await start_origin(OriginSettings(max_chunk_bytes=max_chunk_bytes), clock=clock)
    gateways = [
        await start_gateway(
            GatewayConfig.for_origin(
                origin.url,
                listen="127.0.0.1:0",
                admin="127.0.0.1:0",
                fast_path=fast_path,
                credential_headers=("authorization",),
                **settings,
            ),
            clock=clock,
            rng=Random(0),
        )
        for fast_path in (True, False)
    ]
    return Pair(origin, gateways[0], gateways[1], clock)


def always_late(
    loop: asyncio.AbstractEventLoop, call_soon: Callable[[Callable[[], None]], object] | None = None
) -> Turns:
    """Turns of a loop that is always late, so that each request waits.  `call_soon` replaces that of the loop."""
    times = itertools.count()
    return _AlwaysLate(call_soon or loop.call_soon, loop.call_later, lambda: float(next(times)))


class _AlwaysLate(Turns):
    """Late from a turn's first request on."""

    def _is_late(self, late_s: float) -> bool:
        super()._is_late(late_s)
        return True


class Held(Turns):
    """Turns that only the test gives."""

    def __init__(self) -> None:
        super().__init__(lambda _: None, lambda *_: None, lambda: 0.0)
        self.takers: list[TurnTaker] = []
        self.are_requests: list[bool] = []
        self.are_crumbs: list[bool] = []

    def must_wait(self, taker: TurnTaker, *, is_request: bool = True) -> bool:
        self.takers.append(taker)
        self.are_requests.append(is_request)
        self.are_crumbs.append(False)
        return True

    def defer_crumbs(self, taker: TurnTaker) -> None:
        self.must_wait(taker, is_request=False)
        self.are_crumbs[-1] = True


async def stop_pair(pair: Pair) -> None:
    await pair.fast.stop()
    await pair.strict.stop()
    await pair.origin.stop(grace_s=0)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    pair = await start_pair()
    try:
        yield pair
    finally:
        await stop_pair(pair)


def port_of(gateway: RunningGateway) -> int:
    return int(gateway.gateway_url.rpartition(":")[2])


async def connect(
    gateway: RunningGateway, receive_bytes: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection whose kernel buffer holds about `receive_bytes` unread bytes at most."""
    sock = socket.socket()
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port_of(gateway)))
    return await asyncio.open_connection(sock=sock)


@dataclass(frozen=True, slots=True)
class Response:
    """One response as received: header names in lower case, all values of each."""

    status: int
    headers: dict[str, list[str]]
    body: bytes


async def read_response(reader: asyncio.StreamReader) -> Response:
    """Read the next response on a connection.  Raises IncompleteReadError if there is none."""
    async with asyncio.timeout(BOUND_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in head[1:-2]:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        status = int(head[0].split(" ")[1])
        body = b""
        if status not in (204, 304):
            if headers.get("transfer-encoding") == ["chunked"]:
                while size := int(await reader.readline(), 16):
                    body += await reader.readexactly(size)
                    await reader.readline()
                await reader.readline()
            else:
                body = await reader.readexactly(int(headers.get("content-length", ["0"])[0]))
        return Response(status, headers, body)


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection and wait until it is closed."""
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def ask(gateway: RunningGateway, *requests: bytes) -> list[Response]:
    """Send requests on one connection, each after the answer to the one before."""
    reader, writer = await connect(gateway)
    try:
        responses = []
        for request in requests:
            writer.write(request)
            responses.append(await read_response(reader))
        return responses
    finally:
        await close(writer)


def get(target: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {target} HTTP/1.1", "Host: edge", *lines, "", ""]).encode()


async def write(gateway: RunningGateway, method: str, path: str, body: bytes = b"", **headers: str) -> None:
    async with aiohttp.ClientSession() as session:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with session.request(method, gateway.gateway_url + path, data=body, headers=named) as response:
            assert response.status < 300


async def create_closed(
    pair: Pair, path: str = "/s", body: bytes = b"x" * 1_000, content_type: str = "text/plain"
) -> None:
    await write(pair.fast, "PUT", path, body, Content_Type=content_type, Stream_Closed="true")


def hits(gateway: RunningGateway) -> int:
    """The number of answers from remembered bytes."""
    remembered = gateway.clients.remembered
    assert remembered is not None
    return remembered.served
