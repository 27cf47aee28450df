"""A process with few open files: neither idle admin connections nor too many clients take those of the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest

from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.memory.process import BOUND_S, Gateway
from tests.scenarios.wire import Answer, Wire

OPEN_FILES: Final = 256
IDLE: Final = 300


@pytest.fixture
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin(OriginSettings())
    yield running
    await running.stop()


@pytest.fixture
async def gateway(origin: RunningOrigin, tmp_path: Path) -> AsyncIterator[Gateway]:
    """A gateway that may have 256 open files."""
    running = await asyncio.to_thread(Gateway, origin.url, tmp_path, 32, open_files=OPEN_FILES)
    yield running
    await asyncio.to_thread(running.stop)


async def asked(url: str, target: str, method: str = "GET", body: bytes | None = None) -> Answer:
    """The answer to a request on a connection of its own."""
    wire = await Wire.open(url)
    try:
        await wire.ask(target, {"Content-Type": "text/plain", "Host": urlsplit(url).netloc}, method, body)
        return await wire.answer(method)
    finally:
        await wire.closed()


async def idle_connections(url: str, stack: AsyncExitStack, first_bytes: bytes) -> list[Wire]:
    wires = []
    for _ in range(IDLE):
        wire = await Wire.open(url)
        stack.push_async_callback(wire.closed)
        await wire.send(first_bytes)
        wires.append(wire)
    return wires


@pytest.mark.parametrize("first_bytes", [b"", b"GET /healthz HTTP/1.1\r\nX-Slow: "])
async def test_idle_admin_connections_leave_the_public_port_its_descriptors(
    gateway: Gateway, first_bytes: bytes
) -> None:
    async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
        await idle_connections(gateway.admin_url, stack, first_bytes)
        assert (await asked(gateway.url, "/s", "PUT", b"x")).status in (200, 201)
        assert (await asked(gateway.url, "/s?offset=-1")).body == b"x"
        assert (await asked(gateway.admin_url, "/healthz")).status == 200
        assert gateway.metric("durable_gateway_admin_connections") <= 64
        assert gateway.metric('durable_gateway_admin_connections_closed_total{reason="limit"}') >= IDLE - 64


async def test_too_many_clients_leave_the_admin_port_and_the_origin_their_descriptors(gateway: Gateway) -> None:
    async with asyncio.timeout(BOUND_S), AsyncExitStack() as stack:
        good = await Wire.open(gateway.url)
        stack.push_async_callback(good.closed)
        await good.ask("/s", {"Content-Type": "text/plain"}, "PUT", b"x")
        assert (await good.answer("PUT")).status in (200, 201)
        await idle_connections(gateway.url, stack, b"")
        assert (await asked(gateway.admin_url, "/healthz")).status == 200
        # Each needs a connection to the origin.
        for number in range(20):
            await good.ask(f"/s?offset=now&number={number}")
            assert (await good.answer()).status == 200
        # All clients are of one network, which may have half of the connections.
        assert gateway.metric('durable_gateway_connections_refused_total{reason="client"}') > 0
        open_now = gateway.metric("durable_gateway_connections")
        assert open_now < OPEN_FILES - 64
    assert "max_connections" in gateway.errors.read_text()
    assert gateway.errors.read_text().count("\n") == 1


async def test_the_gateway_is_itself_again_once_the_flood_is_over(gateway: Gateway) -> None:
    async with asyncio.timeout(BOUND_S):
        async with AsyncExitStack() as stack:
            await idle_connections(gateway.url, stack, b"")
            await idle_connections(gateway.admin_url, stack, b"")
        assert (await asked(gateway.url, "/s", "PUT", b"x")).status in (200, 201)
        assert (await asked(gateway.admin_url, "/healthz")).status == 200
