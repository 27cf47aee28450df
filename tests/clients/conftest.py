"""A gateway in front of each of two origins, and the clients that users have."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop
from aiohttp import ClientSession

from gateway.app import RunningGateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.requests import Kind
from gateway.protocol.mode import Mode
from tests.clients.typescript import TypeScript
from tests.node_tools import node_packages, node_tools
from tests.served import served
from tests.waiting import eventually
from tests.workers.edge import EdgeProcess, start_edge

LONG_POLL_TIMEOUT_S = 2.0
_paths = itertools.count(1)
READS = (Mode.CATCHUP, Mode.LONGPOLL, Mode.SSE, Mode.HEAD)


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@dataclass(slots=True)
class Edge:
    """A gateway and the URL of the origin behind it; `origin` is set if that is the in-memory one."""

    gateway: RunningGateway | EdgeProcess
    origin_url: str
    writer: ClientSession
    origin: RunningOrigin | None

    @property
    def url(self) -> str:
        return self.gateway.gateway_url

    async def create(self, path: str, content_type: str, *bodies: bytes) -> None:
        """Create a stream at the origin itself, past the gateway; the other writes here go there too."""
        await self._write("PUT", path, {"Content-Type": content_type})
        for body in bodies:
            await self.append(path, content_type, body)

    async def append(self, path: str, content_type: str, body: bytes) -> None:
        await self._write("POST", path, {"Content-Type": content_type}, body)

    async def close(self, path: str) -> None:
        await self._write("POST", path, {"Stream-Closed": "true"})

    async def _write(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> None:
        async with self.writer.request(method, self.origin_url + path, headers=headers, data=body) as reply:
            assert reply.ok, (reply.status, await reply.text())

    @property
    def reads_at_origin(self) -> int:
        """Reads that the gateway has sent; the in-memory origin must have counted the same."""
        sent = sum(self.gateway.metrics.upstream_requests(mode).value for mode in READS)
        if self.origin is not None:
            counters = self.origin.origin.counters
            assert sent == sum(counters.requests[kind] for kind in (Kind.CATCHUP, Kind.LONGPOLL, Kind.SSE, Kind.HEAD))
        return sent

    async def until_followed(self, path: str) -> None:
        """Wait until the stream's follower has confirmed the tail to a live reader."""
        gateway = self.gateway
        if isinstance(gateway, EdgeProcess):
            await eventually(lambda: gateway.is_followed(path), look_s=0.02)
            return
        live = gateway.engine.live
        await eventually(
            lambda: any(
                topic.readers and topic.is_confirmed for topic in live.topics() if topic.stream.key.group.path == path
            ),
            state=lambda: live,
        )

    async def restart_gateway(self) -> None:
        """Stop the gateway in order and start another, with an empty memory, at the same address."""
        address = self.url.removeprefix("http://")
        await self.gateway.stop()
        self.gateway = await start_edge(gateway_config(self.origin_url, listen=address))


def gateway_config(origin_url: str, **settings: Any) -> GatewayConfig:
    """A configuration for tests: any port, short long-polls, a quick shutdown."""
    defaults: dict[str, Any] = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "long_poll_timeout_s": LONG_POLL_TIMEOUT_S,
        "shutdown_timeout_s": 0.3,
    }
    return GatewayConfig.for_origin(origin_url, **{**defaults, **settings})


@pytest.fixture(scope="session")
def reference_server() -> Iterator[str]:
    """URL of the real `@durable-streams/server`."""
    tools = node_tools()
    environment = {**tools.environment, "REFERENCE_LONG_POLL_MS": str(int(LONG_POLL_TIMEOUT_S * 1000))}
    command = [tools.node, "reference_server.mjs"]
    with served(command, "reference", environment=environment, cwd=node_packages()) as urls:
        yield urls["reference"]


@pytest.fixture
def gateway_settings() -> dict[str, Any]:
    """Settings of the gateway; overridden by parametrization."""
    return {}


@pytest.fixture(params=["memory", "reference"])
async def edge(request: pytest.FixtureRequest, gateway_settings: dict[str, Any]) -> AsyncIterator[Edge]:
    """A gateway in front of the in-memory origin, and one in front of the reference server."""
    if request.param == "memory":
        origin: RunningOrigin | None = await start_origin(OriginSettings(long_poll_timeout_s=LONG_POLL_TIMEOUT_S))
        assert origin is not None
        origin_url = origin.url
    else:
        origin, origin_url = None, request.getfixturevalue("reference_server")
    async with ClientSession() as writer:
        gateway = await start_edge(gateway_config(origin_url, **gateway_settings))
        if origin is not None and isinstance(gateway, EdgeProcess):
            # A program looks at its origin once when it starts, which is no client's request.
            counters = origin.origin.counters
            await eventually(lambda: counters.requests[Kind.HEAD] == 1)
            counters.reset()
        one = Edge(gateway, origin_url, writer, origin)
        yield one
        await one.gateway.stop()
        if one.origin is not None:
            await one.origin.stop(grace_s=0)


@pytest.fixture
async def typescript() -> AsyncIterator[TypeScript]:
    async with TypeScript.start() as client:
        yield client


@pytest.fixture
def path() -> str:
    """A path unique to the test, because the reference server is shared."""
    return f"/clients/{next(_paths)}"
