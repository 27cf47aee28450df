"""A gateway in front of a real origin, both on one manual clock; after each test both are checked for leftovers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from random import Random
from typing import Any, Final, TypeVar
from zlib import crc32

import pytest
import uvloop

from gateway.aio.clock import ManualClock
from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from gateway.origin.counters import Counters
from gateway.origin.faults import Faults
from tests.http2_front import Http2Front
from tests.ports import kept_port
from tests.scenarios.hostile import HostileOrigin, Script
from tests.scenarios.http2_wire import Http2Wire
from tests.scenarios.wire import BOUND_S, Answer, Wire
from tests.transports import HTTP_1, OVER_HTTP_2, SOME, Trust, chosen, listening, made
from tests.waiting import eventually, time_passing

T = TypeVar("T")

TEST_BOUND_S = 30.0


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the programs run on: these tests depend on its transports."""
    return {"uvloop": uvloop.new_event_loop}


async def bounded(work: Awaitable[T]) -> T:
    """Await `work` with a bound; on loopback it takes almost no time."""
    async with asyncio.timeout(BOUND_S):
        return await work


class Edge:
    """A gateway, its origin, and its clients."""

    def __init__(
        self,
        gateway: RunningGateway,
        clock: ManualClock,
        tls: ssl.SSLContext | None = None,
        kind: type[Wire] = Wire,
    ) -> None:
        self.gateway = gateway
        self._kind = kind
        self.clock = clock
        self.tls = tls
        """The TLS trust of the gateway's clients; None for plain HTTP."""
        self._wires: list[Wire] = []
        self._tasks: list[asyncio.Task[Answer]] = []

    @property
    def url(self) -> str:
        return self.gateway.gateway_url

    @property
    def scheme(self) -> str:
        """The scheme of the gateway's URL."""
        return "http" if self.tls is None else "https"

    async def wire(self, receive_bytes: int | None = None) -> Wire:
        """A new connection."""
        self._wires.append(await self._kind.open(self.url, receive_bytes, self.tls))
        return self._wires[-1]

    async def begin(self, target: str, headers: Mapping[str, str] | None = None, **more: Any) -> Wire:
        """A new connection on which a request has been sent."""
        wire = await self.wire(more.pop("receive_bytes", None))
        await wire.ask(target, headers, **more)
        return wire

    async def get(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return await self.send("GET", target, headers)

    async def send(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """One request on a new connection."""
        return await self.send_to(self.url, method, target, headers, body)

    async def send_to(
        self, url: str, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Answer:
        """One request to the server at `url`, such as to the origin directly, without the gateway."""
        wire = await (self._kind.open(url, tls=self.tls) if url == self.url else Wire.open(url))
        try:
            await wire.ask(target, headers, method, body)
            return await wire.answer(method)
        finally:
            await wire.closed()

    def asking(self, target: str, headers: Mapping[str, str] | None = None) -> asyncio.Task[Answer]:
        """A read that runs beside the test."""
        self._tasks.append(asyncio.create_task(self.get(target, headers)))
        return self._tasks[-1]

    async def put(self, path: str, body: bytes = b"", content_type: str = "text/plain", **headers: str) -> Answer:
        return await self.send(
            "PUT", path, {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}, body
        )

    async def post(self, path: str, body: bytes, content_type: str = "text/plain", **headers: str) -> Answer:
        return await self.send(
            "POST", path, {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}, body
        )

    def readers(self, count: int) -> Callable[[], bool]:
        """Whether this many readers have joined shared fetches."""
        fetches = self.gateway.engine.fetches
        return lambda: fetches.readers >= count

    def time_passing(self, step_s: float = 0.05) -> AbstractAsyncContextManager[None]:
        """Advance the manual clock continuously while the test waits for the effects."""
        return time_passing(self.clock, step_s)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for wire in self._wires:
            await wire.closed()

    @property
    def is_idle(self) -> bool:
        """Whether no trace of any request is left."""
        engine = self.gateway.engine
        return (
            not engine.fetches
            and not engine.live
            and not engine.tasks
            and not engine.client.open_connections
            and all(not stream.holds for stream in engine.store)
        )

    async def until_idle(self) -> None:
        """Wait until no trace of any request is left; the clock ends lingering topics."""

        def has_come_to_rest() -> bool:
            self.clock.advance(1.0)
            return self.is_idle

        engine = self.gateway.engine
        await eventually(
            has_come_to_rest,
            state=lambda: (
                f"left behind: {engine.fetches}, {engine.live}, {engine.tasks}, {engine.client.open_connections} "
                f"connections, pins {[stream.holds for stream in engine.store]}"
            ),
        )


@pytest.fixture(autouse=True)
async def deadline() -> AsyncIterator[None]:
    """Cancel a scenario that hangs, after a time that none takes."""
    loop = asyncio.get_running_loop()

    def give_up() -> None:
        for task in asyncio.all_tasks(loop):
            if getattr(task.get_coro(), "__name__", "").startswith("test_"):
                task.cancel(f"no end within {TEST_BOUND_S} s")

    timer = loop.call_later(TEST_BOUND_S, give_up)
    yield
    timer.cancel()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def origin_settings() -> OriginSettings:
    return OriginSettings()


@pytest.fixture
async def origin(origin_settings: OriginSettings, clock: ManualClock) -> AsyncIterator[RunningOrigin]:
    with kept_port() as port:
        running = await start_origin(replace(origin_settings, port=port), clock=clock)
        yield running
        running.origin.faults.clear()
        await running.stop(grace_s=0)


@pytest.fixture
def faults(origin: RunningOrigin) -> Faults:
    return origin.origin.faults


@pytest.fixture
def counters(origin: RunningOrigin) -> Counters:
    return origin.origin.counters


Start = Callable[..., Awaitable[Edge]]
Hostile = Callable[..., Awaitable[HostileOrigin]]


@pytest.fixture
async def hostile() -> AsyncIterator[Hostile]:
    """Starts hostile origins."""
    running: list[HostileOrigin] = []

    async def start_one(script: Script, **more: Any) -> HostileOrigin:
        running.append(HostileOrigin(script, **more))
        await running[-1].start()
        return running[-1]

    yield start_one
    for one in running:
        await one.stop()


WAY: Final = ("transport", "fast_path", "origin_http")
"""The parameters that say how a test's requests come, are answered, and reach the origin."""
USUAL_WAY: Final = (HTTP_1, True, "1.1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "transport" not in metafunc.fixturenames:
        return
    is_judging = metafunc.definition.get_closest_marker("judging") is not None
    ways = [(one, is_fast) for one in chosen(metafunc) for is_fast in ((True,) if is_judging else (True, False))]
    if metafunc.config.getoption("--transports") == "some":
        # Remembered answers have the same bytes over every transport.
        ways = [(transport, is_fast) for transport, is_fast in ways if is_fast or transport == HTTP_1]
    ids = [
        ("" if transport == HTTP_1 else f"{transport}, ") + ("fast path" if is_fast else "strict")
        for transport, is_fast in ways
    ]
    found = [(transport, is_fast, "1.1") for transport, is_fast in ways]
    if ways and not is_judging and _may_ask_over_http_2(metafunc):
        # Once: the versions of the two sides know nothing of each other.
        found.append((*ways[0], "2"))
        ids.append("origin over HTTP/2")
    metafunc.parametrize(WAY, found, indirect=True, ids=ids)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the transports (ways) with which each test runs: for every input the usual way, and for a test's first
    input also one other way.

    The inputs of one test differ in their requests and answers, not in the way.  The other way depends on the test's
    name, so that many tests use each way.  The files of `SOME` keep every way of the first input.  `--transports all`
    keeps every way of every input.
    """
    if config.getoption("--transports") != "some":
        return
    first: dict[str, dict[str, object]] = {}
    others: dict[str, list[pytest.Item]] = {}
    left_out: set[pytest.Item] = set()
    for item in items:
        inputs = dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        if not inputs.keys() >= set(WAY) or tuple(inputs.pop(name) for name in WAY) == USUAL_WAY:
            continue
        name = item.nodeid.partition("[")[0]
        if inputs != first.setdefault(name, inputs):
            left_out.add(item)
        elif item.path.stem not in SOME:
            others.setdefault(name, []).append(item)
    for name, found in others.items():
        left_out |= {*found} - {found[crc32(name.encode()) % len(found)]}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _may_ask_over_http_2(metafunc: pytest.Metafunc) -> bool:
    """Whether the test's origin is the in-memory one, which can be put behind a server of HTTP/2."""
    return "edge" in metafunc.fixturenames and metafunc.definition.get_closest_marker("http_1_origin") is None


@pytest.fixture
def origin_http(request: pytest.FixtureRequest) -> str:
    """The HTTP version that the origin is asked over; clients must not see a difference."""
    value: str = request.param
    return value


@pytest.fixture
async def fronts() -> AsyncIterator[list[Http2Front]]:
    """Servers of HTTP/2 in front of the origins."""
    running: list[Http2Front] = []
    yield running
    for front in running:
        await front.stop()
        assert front.errors == []


@pytest.fixture
def fast_path(request: pytest.FixtureRequest) -> bool:
    """Whether remembered answers are served by the fast path; clients must not see a difference."""
    value: bool = request.param
    return value


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    """The transport of requests; clients must not see a difference."""
    value: str = request.param
    return value


@pytest.fixture(scope="session")
def trust(tmp_path_factory: pytest.TempPathFactory) -> Trust:
    """The TLS trust of the clients of gateways over TLS."""
    return made(tmp_path_factory.mktemp("trust"))


async def _fronted(origin_url: str, fronts: list[Http2Front]) -> str:
    """The URL of a server of HTTP/2 in front of an origin."""
    for front in fronts:
        if front.origin_url == origin_url:
            return front.url
    fronts.append(Http2Front(origin_url))
    await fronts[-1].start()
    return fronts[-1].url


@pytest.fixture
async def start(
    clock: ManualClock,
    hostile: Hostile,
    fast_path: bool,
    transport: str,
    trust: Trust,
    origin_http: str,
    fronts: list[Http2Front],
) -> AsyncIterator[Start]:
    """Starts gateways, which stop before the hostile origins; before that each must become idle by itself."""
    edges: list[Edge] = []

    async def start_one(origin_url: str, **settings: Any) -> Edge:
        settings = {
            **listening(transport, trust), "admin": "127.0.0.1:0", "shutdown_timeout_s": 1, "live_linger_s": 0,
            "fast_path": fast_path, "origin_http": origin_http, **settings
        }  # fmt: skip
        if origin_http == "2":
            origin_url = await _fronted(origin_url, fronts)
        config = GatewayConfig.for_origin(origin_url, **settings)
        gateway = await start_gateway(config, clock=clock, rng=Random(7))
        kind = Http2Wire if transport in OVER_HTTP_2 else Wire
        edges.append(Edge(gateway, clock, trust.believed_by(transport), kind))
        return edges[-1]

    yield start_one
    for edge in edges:
        await edge.leave()
        try:
            await edge.until_idle()
        finally:
            await edge.gateway.stop()


@pytest.fixture
async def edge(origin: RunningOrigin, start: Start, settings: dict[str, Any]) -> Edge:
    """A gateway in front of the in-memory origin."""
    return await start(origin.url, **settings)


@pytest.fixture
def settings() -> dict[str, Any]:
    """Fields of the gateway's configuration; override it."""
    return {}


def as_json(answer: Answer) -> Any:
    return json.loads(answer.body)
