"""A gateway and its origin on one manual clock, and a client of the admin port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import uvloop
from aiohttp import ClientResponse, ClientSession

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.waiting import eventually

BOUND_S = 30.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the programs run on."""
    return {"uvloop": uvloop.new_event_loop}


@dataclass(frozen=True, slots=True)
class Told:
    """An answer of the admin port."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Bench:
    """A gateway, clients of it, and whoever asks its admin port."""

    def __init__(
        self, gateway: RunningGateway, session: ClientSession, readers: ClientSession, clock: ManualClock
    ) -> None:
        self.gateway = gateway
        self.session = session
        self.readers = readers
        """Connections that see nothing but reads, as the door's own answers need them."""
        self.clock = clock

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Told:
        """One request to the admin port; a body goes as JSON."""
        async with self.session.request(
            method,
            self.gateway.admin_url + path,
            json=body,
            headers={k.replace("_", "-"): v for k, v in headers.items()},
        ) as answer:
            is_json = answer.content_type == "application/json"
            return Told(answer.status, await (answer.json() if is_json else answer.text()), answer.headers)

    async def get(self, path: str, **headers: str) -> Any:
        """What a GET of the admin port gives; it succeeds."""
        told = await self.ask("GET", path, **headers)
        assert told.status == 200, told
        return told.body

    async def post(self, path: str, body: Any, **headers: str) -> Any:
        """What a POST to the admin port gives; it succeeds."""
        told = await self.ask("POST", path, body, **headers)
        assert told.status in (200, 202), told
        return told.body

    async def stream(self, path: str) -> Any:
        """The one stream of a path, in detail."""
        (row,) = (await self.get(f"/api/streams?prefix={path}"))["streams"]
        return await self.get(f"/api/streams/{row['id']}")

    async def put(self, path: str, body: bytes = b"hello", *, is_closed: bool = False) -> None:
        """Create a stream through the gateway."""
        url = self.gateway.gateway_url + path
        headers = {"Content-Type": "text/plain", **({"Stream-Closed": "true"} if is_closed else {})}
        async with self.session.put(url, data=body, headers=headers) as answer:
            assert answer.status == 201, answer

    async def read(self, path: str, **headers: str) -> tuple[int, bytes, str]:
        """Read through the gateway: status, body and Cache-Status."""
        async with self.readers.get(self.gateway.gateway_url + path, headers=headers) as answer:
            return answer.status, await answer.read(), answer.headers.get("Cache-Status", "")

    async def warm(self, path: str, **headers: str) -> None:
        """Read a closed stream until it is a hit, and one that the door has at hand."""
        for _ in range(2):
            await self.read(path, **headers)
        assert "; hit" in (await self.read(path, **headers))[2]
        remembered = self.gateway.clients.remembered
        assert remembered is not None
        served = remembered.served
        await self.read(path, **headers)
        assert remembered.served == served + 1

    async def until_readers(self, path: str, count: int) -> None:
        """Wait until a stream has so many live readers."""

        async def has_them() -> bool:
            return bool((await self.stream(path))["readers"] == count)

        await eventually(has_them)

    async def follow(self, path: str) -> ClientResponse:
        """An SSE reader that has its head; it is to be closed."""
        answer = await self.readers.get(self.gateway.gateway_url + path + "?live=sse&offset=-1")
        assert answer.status == 200, answer
        return answer


@pytest.fixture(autouse=True)
async def deadline() -> AsyncIterator[None]:
    """No test hangs: its task is cancelled after a time that none takes."""
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        for task in asyncio.all_tasks(loop):
            if getattr(task.get_coro(), "__name__", "").startswith("test_"):
                task.cancel(f"no end within {BOUND_S} s")

    timer = loop.call_later(BOUND_S, give_up)
    yield
    timer.cancel()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def origin(clock: ManualClock) -> AsyncIterator[RunningOrigin]:
    running = await start_origin(OriginSettings(), clock=clock)
    yield running
    running.origin.faults.clear()
    await running.stop(grace_s=0)


Start = Callable[..., Awaitable[Bench]]


@pytest.fixture
async def start(clock: ManualClock) -> AsyncIterator[Start]:
    """Starts gateways: with the fields of a configuration by name, or with a whole one."""
    async with AsyncExitStack() as stack:

        async def start_one(origin_url: str = "", config: GatewayConfig | None = None, **more: Any) -> Bench:
            load, environ = more.pop("load", None), more.pop("environ", {})
            settings = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 0.5, **more}
            config = config or GatewayConfig.for_origin(origin_url, **settings)
            gateway = await start_gateway(config, clock=clock, rng=Random(7), load=load, environ=environ)
            stack.push_async_callback(gateway.stop)
            session, readers = [await stack.enter_async_context(ClientSession()) for _ in range(2)]
            return Bench(gateway, session, readers, clock)

        yield start_one


@pytest.fixture
async def bench(start: Start, origin: RunningOrigin) -> Bench:
    """A gateway in front of the in-memory origin."""
    return await start(origin.url)
