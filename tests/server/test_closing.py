"""How a gateway that stops closes its connections."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import start_origin
from tests.server.conftest import connect, get, write
from tests.waiting import eventually


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    origin = await start_origin()
    running = await start_gateway(
        GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=0.5)
    )
    yield running
    await running.stop()
    await origin.stop(grace_s=0)


class Lag:
    """In place of the signal that no connection is left: makes the loop late, and a request arrive meanwhile."""

    def __init__(self, descriptor: int, request: bytes, until: float) -> None:
        self._descriptor = descriptor
        self._request = request
        self._until = until

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        read, written = os.pipe()

        def lag() -> None:
            # The loop reads, and runs timers next.
            loop.remove_reader(read)
            os.close(read)
            os.close(written)
            os.write(self._descriptor, self._request)
            while loop.time() < self._until:
                pass

        loop.add_reader(read, lag)
        os.write(written, b"x")
        await loop.create_future()


async def test_a_request_that_arrives_while_the_loop_is_late_is_answered_before_idle_connections_close(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = gateway.clients
    await write(gateway, "PUT", "/s", Content_Type="text/plain")
    await eventually(lambda: not len(clients))
    reader, writer = await connect(gateway)
    await eventually(lambda: len(clients) == 1)
    until = asyncio.get_running_loop().time() + 0.02
    lag = Lag(writer.get_extra_info("socket").fileno(), get("/s?offset=-1"), until)
    with monkeypatch.context() as patched:
        patched.setattr(clients, "_emptied", cast(Any, lag))
        assert not await clients.emptied(0.01)
    clients.close_idle()
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_worker_tells_that_it_has_no_connections_only_when_it_has_none(gateway: RunningGateway) -> None:
    told: list[int] = []

    async def others_are_empty(within_s: float) -> None:
        told.append(len(gateway.clients))

    gateway.wait_for_others(others_are_empty)
    _, writer = await connect(gateway)
    await eventually(lambda: len(gateway.clients) == 1)
    await gateway.stop()
    assert told == [0]
    writer.close()


async def test_a_worker_answers_other_workers_until_none_has_connections(gateway: RunningGateway) -> None:
    may_end, told, closed = asyncio.Event(), [], []

    async def others_are_empty(within_s: float) -> None:
        told.append(within_s > 0)
        if len(told) > 1:
            await may_end.wait()

    async def close() -> None:
        closed.append("closed")

    gateway.wait_for_others(others_are_empty)
    gateway._hop_server = cast(Any, SimpleNamespace(close=close))
    stopping = asyncio.create_task(gateway.stop())
    await eventually(lambda: len(told) == 2)
    assert (told, closed) == ([True] * 2, [])
    may_end.set()
    await stopping
    assert closed == ["closed"]
