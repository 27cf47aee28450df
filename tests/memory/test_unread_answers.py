"""Waiting readers that take nothing of a large answer share its bytes, over every transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import pytest

from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.effort import examples, some
from tests.memory.process import BOUND_S, LISTENS, MIB, Gateway
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import Wire
from tests.transports import HTTP_1, HTTP_2_TLS, OVER_HTTP_2, SECURE, TRANSPORTS, Trust, made
from tests.waiting import eventually

CLIENTS: Final = examples(80, 200)
BINARY: Final = {"Content-Type": "application/octet-stream"}
LARGE: Final = bytes(range(256)) * (2 * MIB // 256)


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin(OriginSettings(max_chunk_bytes=64 * MIB))
    yield running
    await running.stop()


@pytest.fixture(scope="module")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    return made(tmp_path_factory.mktemp("trust"))


def listeners(transport: str, trust: Trust) -> str:
    if transport not in SECURE:
        return LISTENS
    pair = trust.pair.as_config()
    files = f'{{certificate = "{pair["certificate"]}", key = "{pair["key"]}"}}'
    return f'[[listener]]\naddress = "127.0.0.1:0"\n[listener.tls]\ncertificates = [{files}]'


async def peak_of(origin: RunningOrigin, transport: str, trust: Trust, folder: Path, body: bytes) -> int:
    """The peak memory of a gateway whose clients wait for `body` and then take only the beginning of it."""
    kind = Http2Wire if transport in OVER_HTTP_2 else Wire
    tls = trust.believed_by(transport)
    gateway = await asyncio.to_thread(Gateway, origin.url, folder, 32, listeners=listeners(transport, trust))
    try:
        async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
            writer = await kind.open(gateway.url, tls=tls)
            stack.push_async_callback(writer.closed)
            await writer.ask("/s", BINARY, "PUT", b"")
            assert (await writer.answer("PUT")).status in (200, 201)
            wires = []
            for _ in range(CLIENTS):
                wire = await kind.open(gateway.url, 16_384, tls)
                stack.push_async_callback(wire.closed)
                if isinstance(wire, Http2Wire):
                    # Windows that would let the whole answer through.
                    await wire.greet(INITIAL_WINDOW_SIZE=1 << 24)
                await wire.ask("/s?live=long-poll&offset=now")
                wires.append(wire)

            def waiting() -> int:
                return gateway_waiting(gateway)

            await eventually(lambda: asyncio.to_thread(lambda: waiting() == CLIENTS), look_s=0.02)
            await writer.ask("/s", BINARY, "POST", body)
            assert (await writer.answer("POST")).status == 204
            for wire in wires:
                assert (await wire.head()).status == 200
    finally:
        peak = await asyncio.to_thread(gateway.stop)
    return peak


def gateway_waiting(gateway: Gateway) -> int:
    """Long-polls that wait now."""
    return int(gateway.metric('durable_gateway_subscribers{mode="longpoll",route="all"}'))


@pytest.mark.parametrize("transport", some((HTTP_1, HTTP_2_TLS), TRANSPORTS))
async def test_unread_answers_to_long_polls_are_not_copied_for_each_client(
    transport: str, origin: RunningOrigin, trust: Trust, tmp_path: Path
) -> None:
    idle = await peak_of(origin, transport, trust, tmp_path, b"x")
    peak = await peak_of(origin, transport, trust, tmp_path, LARGE)
    # The tape, the answer and its copies in flight; and for each client its bound on unsent bytes, over TLS twice:
    # plain and encrypted.  The allocator may keep half as much again.  A copy for each client would be 2 MiB each.
    assert peak - idle < 12 * MIB + CLIENTS * 0.75 * MIB, f"{(peak - idle) / MIB:.0f} MiB"
