"""Requests leave no cyclic garbage behind, so that memory stays low even if the collector runs rarely."""

from __future__ import annotations

import asyncio
import gc
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType

import pytest
from hyperframe.frame import RstStreamFrame, WindowUpdateFrame

from gateway.aio.clock import Clock, ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import start_origin
from tests.scenarios.hostile import Asked, HostileOrigin, Script, answer, part_of_stream
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Dropped
from tests.transports import HTTP_1, TLS, listening, made
from tests.waiting import eventually

BOUND_S = 20.0
ROUNDS = 5


async def exchange(port: int, *requests: str, until: bytes = b"", tls: ssl.SSLContext | None = None) -> bytes:
    """Everything answered on one connection, up to `until` or to its end; the last request has to close it."""
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


def _is_own(one: object, shared: tuple[str, ...]) -> bool:
    if isinstance(one, TracebackType):
        return f"{Path('gateway', 'origin')}{os.sep}" not in one.tb_frame.f_code.co_filename
    module = type(one).__module__
    return module.startswith("gateway.") and not module.startswith(("gateway.origin.", *shared))


@contextmanager
def collecting(*shared: str) -> Iterator[list[str]]:
    """Collect the type names of the gateway's cyclic garbage, tracebacks included, until the block ends; the list is
    filled at the end.  Types of the `shared` modules may be those of the origin, and are left out."""
    found: list[str] = []
    gc.collect()
    # What is there now is not looked at again, neither here nor by the tests to come.
    gc.freeze()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [type(one).__qualname__ for one in gc.garbage if _is_own(one, shared)]
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
    ask = partial(exchange, tls=tls)
    port = int(gateway.gateway_url.rpartition(":")[2])

    async def use(name: str) -> None:
        assert b" 201 " in await ask(port, f"PUT /{name}|abc")
        assert b"abcdef" in await ask(port, f"POST /{name}|def", f"HEAD /{name}", f"GET /{name}?offset=-1")
        assert b" 404 " in await ask(port, f"GET /{name}/none?offset=-1", f"GET /{name}?offset=-1")
        await ask(port, "GET /first?offset=-1&live=long-poll", f"GET /{name}?offset=nonsense")
        await ask(port, "GET /first?offset=-1&live=sse", until=b"upToDate")

    try:
        await use("first")
        # Keep the stream's topic: its end happens only once, and may leave something behind.
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
async def test_a_failed_relay_releases_its_request(how: str) -> None:
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
            await asyncio.gather(*(use(number) for number in range(1, 1 + ROUNDS)))
    finally:
        await gateway.stop()
        await origin.stop()
    assert found == []


async def _refuse(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def _talk_nonsense(asked: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"nonsense\r\n\r\n")


async def _break_off(asked: Asked, writer: asyncio.StreamWriter) -> None:
    head = {"Content-Length": "9", "Content-Type": "text/plain", "Stream-Next-Offset": "0_9"}
    writer.write(answer("200 OK", head, b"part"))
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    "request_line", ["GET /%d?offset=-1", "HEAD /%d", "POST /%d|abc", "GET /%d?offset=-1&live=sse"]
)
@pytest.mark.parametrize("script", [None, _refuse, _talk_nonsense, _break_off])
@pytest.mark.parametrize("is_logged", [False, True])
async def test_a_failed_request_leaves_no_reference_cycle(
    script: Script | None, request_line: str, is_logged: bool, tmp_path: Path
) -> None:
    origin = HostileOrigin(script or _refuse, takes_head=True)
    await origin.start()
    if script is None:
        # The port is free: no process listens there.
        await origin.stop()
    settings = {"retry_attempts": 1, "breaker_failures": 10_000, "breaker_requests": 10_000, "live_linger_s": 0}
    log = {"sink": "file", "path": str(tmp_path / "access.log")} if is_logged else {}
    gateway = await start_gateway(
        GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", **settings, **log)
    )
    port = int(gateway.gateway_url.rpartition(":")[2])

    async def use(number: int) -> None:
        await exchange(port, request_line.replace("%d", str(number)))
        await eventually(lambda: not (gateway.connections or gateway.engine.client.open_connections))

    try:
        await use(0)
        with collecting() as found:
            for number in range(1, 1 + ROUNDS):
                await use(number)
    finally:
        await gateway.stop()
        if script is not None:
            await origin.stop()
    assert found == []


READS = ["GET /%d?offset=-1", "HEAD /%d", "GET /%d?offset=now&live=long-poll", "GET /%d?offset=-1&live=sse"]


async def _answer_never(asked: Asked, writer: asyncio.StreamWriter) -> None:
    await writer.wait_closed()


@asynccontextmanager
async def _gateway(
    script: Script, clock: Clock | None = None, **settings: object
) -> AsyncIterator[tuple[RunningGateway, int, HostileOrigin]]:
    """A gateway before an origin that does what `script` says, and the gateway's port."""
    origin = HostileOrigin(script, takes_head=True)
    await origin.start()
    gateway = await start_gateway(
        GatewayConfig.for_origin(
            origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", retry_attempts=0, live_linger_s=0, **settings
        ),
        clock=clock,
    )
    try:
        yield gateway, int(gateway.gateway_url.rpartition(":")[2]), origin
    finally:
        await gateway.stop()
        await origin.stop()


async def _until_idle(gateway: RunningGateway) -> None:
    engine = gateway.engine
    await eventually(
        lambda: not (gateway.connections or engine.client.open_connections or engine.tasks or engine.fetches)
    )


@pytest.mark.parametrize("request_line", READS)
async def test_a_refused_read_leaves_no_reference_cycle(request_line: str) -> None:
    async with _gateway(_refuse, client_new_streams_per_s=1) as (gateway, port, _):

        async def use(number: int) -> bytes:
            got = await exchange(port, request_line.replace("%d", str(number)))
            await _until_idle(gateway)
            return got

        for number in range(3):
            await use(number)
        with collecting() as found:
            for number in range(10, 10 + ROUNDS):
                assert b" 429 " in await use(number)
    assert found == []


@pytest.mark.parametrize("is_asked", [True, False], ids=["after the origin is asked", "at once"])
@pytest.mark.parametrize("request_line", READS)
async def test_a_client_that_leaves_leaves_no_reference_cycle(request_line: str, is_asked: bool) -> None:
    async with _gateway(_answer_never) as (gateway, port, origin):

        async def use(number: int) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{request_line.replace('%d', str(number))} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            await writer.drain()
            if is_asked:
                await origin.until(lambda: any(asked.target.startswith(f"/{number}") for asked in origin.asked))
            writer.transport.abort()
            await _until_idle(gateway)

        await use(0)
        with collecting() as found:
            await asyncio.gather(*(use(number) for number in range(10, 10 + ROUNDS)))
    assert found == []


@pytest.mark.parametrize("request_line", ["GET /s?offset=-1", "GET /s?offset=-1&live=sse"])
async def test_a_client_that_leaves_while_held_bytes_wait_for_the_origin_leaves_no_reference_cycle(
    request_line: str,
) -> None:
    is_silent = False

    async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
        if is_silent:
            await _answer_never(asked, writer)
        writer.write(part_of_stream(b"held", "0001"))

    # No time goes by: a read whose origin is silent for too long would be given the held bytes.
    async with _gateway(script, ManualClock(), trust_s=0, follow_above_per_s=0, shutdown_timeout_s=1) as running:
        gateway, port, origin = running

        async def use() -> None:
            count = len(origin.asked)
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"{request_line} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
            await writer.drain()
            await origin.until(lambda: len(origin.asked) > count)
            writer.transport.abort()
            await _until_idle(gateway)

        assert b"held" in await exchange(port, "GET /s?offset=-1")
        await _until_idle(gateway)
        is_silent = True
        await use()
        with collecting() as found:
            await use()
    assert found == []


@pytest.mark.parametrize("how", ["close", "reset", "fail"])
@pytest.mark.parametrize("request_line", READS)
async def test_http2_requests_leave_no_reference_cycle(request_line: str, how: str) -> None:
    async with _gateway(_answer_never) as (gateway, port, origin):
        method, target = request_line.split(" ")

        async def use(number: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            wire = Http2Wire(reader, writer)
            await wire.ask(target.replace("%d", str(number)), method=method)
            await origin.until(lambda: any(asked.target.startswith(f"/{number}") for asked in origin.asked))
            if how == "reset":
                await wire.frame(RstStreamFrame(1, error_code=8))
            elif how == "fail":
                await wire.frame(WindowUpdateFrame(0, (1 << 31) - 1))
                with suppress(Dropped):
                    while True:
                        await wire.read()
            writer.transport.abort()
            await _until_idle(gateway)

        await use(0)
        with collecting() as found:
            await asyncio.gather(*(use(number) for number in range(10, 10 + ROUNDS)))
    assert found == []
