"""Requests leave no cyclic garbage behind: whoever looks for it rarely keeps memory all the same."""

from __future__ import annotations

import asyncio
import gc
import ssl
from functools import partial
from pathlib import Path

import pytest

from gateway.app import start_gateway
from gateway.config import GatewayConfig
from gateway.origin.app import start_origin
from tests.transports import HTTP_1, TRANSPORTS, listening, made

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


@pytest.mark.parametrize("transport", TRANSPORTS)
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
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        for number in range(ROUNDS):
            await use(str(number))
        gc.collect()
        found = [type(one) for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        writer.close()
        await gateway.stop()
        await origin.stop()
    own = [kind for kind in found if kind.__module__.startswith("gateway.") and ".origin" not in kind.__module__]
    assert own == []
