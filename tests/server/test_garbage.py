"""Requests leave no cyclic garbage behind: whoever looks for it rarely keeps memory all the same."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import start_origin
from tests.scenarios.hostile import Asked, HostileOrigin, answer
from tests.transports import HTTP_1, TLS, listening, made
from tests.waiting import eventually

BOUND_S = 20.0
ROUNDS = 5


async def told(port: int, *requests: str, until: bytes = b"", tls: ssl.SSLContext | None = None) -> bytes:
    """What is answered to requests on one connection, the last of which is to close it, or up to some bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    async with asyncio.timeout(BOUND_S):
        for request in requests:
            line, _, body = request.partition("|")
            length = f"Content-Type: text/plain\r\nContent-Length: {len(body)}\r\n" if "|" in request else ""
            last = "Connection: close\r\n" if request is requests[-1] and not until else ""
            writer.write(f"{line} HTTP/1.1\r\nHost: h\r\n{length}{last}\r\n{body}".encode())
        found = await (reader.readuntil(until) if until else reader.read())
        writer.close()
        await writer.wait_closed()
    return found


def _is_own(kind: type) -> bool:
    return kind.__module__.startswith("gateway.") and ".origin" not in kind.__module__


@contextmanager
def collecting() -> Iterator[list[str]]:
    """What cyclic garbage the gateway makes meanwhile, by the names of its types; known at the end."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(one).__qualname__ for one in gc.garbage if _is_own(type(one))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@pytest.mark.parametrize("transport", [HTTP_1, TLS])
async def test_no_request_leaves_a_reference_cycle(transport: str, tmp_path: Path) -> None:
    origin = await start_origin()
    trust = made(tmp_path)
    tls = None if transport == HTTP_1 else trust.client
    config = GatewayConfig.for_origin(origin.url, admin="127.0.0.1:0", **listening(transport, trust))
    gateway = await start_gateway(config)
    ask = partial(told, tls=tls)
    port = int(gateway.gateway_url.rpartition(":")[2])

    async def use(name: str) -> None:
        assert b" 201 " in await ask(port, f"PUT /{name}|abc")
        assert b"abcdef" in await ask(port, f"POST /{name}|def", f"HEAD /{name}", f"GET /{name}?offset=-1")
        assert b" 404 " in await ask(port, f"GET /{name}/none?offset=-1", f"GET /{name}?offset=-1")
        await ask(port, "GET /first?offset=-1&live=long-poll", f"GET /{name}?offset=nonsense")
        await ask(port, "GET /first?offset=-1&live=sse", until=b"upToDate")

    try:
        await use("first")
        # The stream's topic is to stay: its end, which comes once, may leave something behind.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        writer.write(b"GET /first?offset=-1&live=sse HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(BOUND_S):
            await reader.readuntil(b"upToDate")
        with collecting() as found:
            for number in range(ROUNDS):
                await use(str(number))
    finally:
        writer.close()
        await gateway.stop()
        await origin.stop()
    assert found == []


@pytest.mark.parametrize("how", ["its client leaves", "its answer breaks off"])
async def test_no_relay_that_comes_to_nothing_leaves_its_request_behind(how: str) -> None:
    """The origin's connection ends with it, and is garbage by itself."""

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if how == "its client leaves":
            return
        writer.write(answer("200 OK", {"Content-Length": "9"}, b"part"))
        await writer.drain()
        writer.close()

    origin = HostileOrigin(script)
    await origin.start()
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0"))
    port = int(gateway.gateway_url.rpartition(":")[2])

    async def use(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(BOUND_S):
            writer.write(b"OPTIONS /s HTTP/1.1\r\nHost: h\r\n\r\n")
            await origin.until(lambda: len(origin.asked) > number)
            if how == "its answer breaks off":
                await reader.read()
            writer.transport.abort()
            await eventually(lambda: not gateway.connections and not gateway.engine.client.open_connections)

    try:
        await use(0)
        with collecting() as found:
            for number in range(1, 1 + ROUNDS):
                await use(number)
    finally:
        await gateway.stop()
        await origin.stop()
    assert {"Request", "Relaying", "Relayed", "RequestContext", "Reply"}.isdisjoint(found)
