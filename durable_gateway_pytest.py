"""pytest fixtures: a real Durable Streams or S2 origin, and a gateway in front of it, on free ports of 127.0.0.1.

The package installs them, so every project that tests against Durable Streams can use them:

    async def test_my_reader(durable_origin):
        durable_origin.origin.faults.status(503, times=2)
        await my_reader(durable_origin.url + "/orders")
        assert durable_origin.origin.counters.requests["catchup"] == 3

    durable_origin            a running in-memory origin: `.url`, `.origin.store`, `.origin.faults`, `.origin.counters`,
                              `await .stop()`
    durable_gateway           a gateway in front of it: `.gateway_url`, `.admin_url`, `await .stop()`
    durable_origin_settings   override to return other `OriginSettings`
    durable_gateway_settings  override to return fields of the gateway's configuration, by name

    s2_origin, s2_gateway, s2_origin_settings, s2_gateway_settings
                              the same for S2: the origin has `.url`, `.origin.account`, `.origin.faults` and
                              `.origin.counters`, and needs a basin before a stream

Origins and gateways are asynchronous and have function scope.  They need pytest-asyncio, which pytest-aiohttp installs,
and the test must run under it: set `asyncio_mode = "auto"` in pytest's configuration, or mark the test
`@pytest.mark.asyncio`.  Without pytest-asyncio this module still loads, so that installing the gateway does not break a
synchronous project.

pytest loads this module in every project of an environment with the gateway installed.  It is therefore a module
outside the package, and imports the package only when a fixture is used.  A project with a folder named `gateway` hides
the package; only its tests that request a fixture fail, with an error that names the folder.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pytest

if TYPE_CHECKING:
    from gateway.app import RunningGateway
    from gateway.origin.app import OriginSettings, RunningOrigin
    from gateway.origin.s2.app import RunningS2Origin, S2OriginSettings


Fixture = TypeVar("Fixture", bound=Callable[..., Any])


def _asynchronous(function: Fixture) -> Fixture:
    try:
        import pytest_asyncio
    except ImportError:  # a test that requests the fixture then fails with pytest's own message about async fixtures
        return cast(Fixture, pytest.fixture(function))
    return cast(Fixture, pytest_asyncio.fixture(function))


@contextmanager
def _naming_what_hides_the_package() -> Iterator[None]:
    """Fail the test with one line if an import fails because another package named `gateway` hides this one."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "gateway":
            raise
        import gateway

        found = ", ".join(gateway.__path__)
        pytest.fail(f"the package gateway of durable-gateway is hidden by another one: {found}", pytrace=False)


@pytest.fixture
def durable_origin_settings() -> OriginSettings:
    """Settings of `durable_origin`: a free port, long-polls of 30 s, chunks of 1 MiB."""
    with _naming_what_hides_the_package():
        from gateway.origin.app import OriginSettings

    return OriginSettings()


@pytest.fixture
def durable_gateway_settings() -> dict[str, Any]:
    """Configuration of `durable_gateway`: fields of its server, limits and route, by their names."""
    return {}


@_asynchronous
async def durable_origin(durable_origin_settings: OriginSettings) -> AsyncIterator[RunningOrigin]:
    """A running in-memory origin, stopped after the test."""
    with _naming_what_hides_the_package():
        from gateway.origin.app import start_origin

    running = await start_origin(durable_origin_settings)
    try:
        yield running
    finally:
        running.origin.faults.clear()
        await running.stop(grace_s=1.0)


@_asynchronous
async def durable_gateway(
    durable_origin: RunningOrigin, durable_gateway_settings: dict[str, Any]
) -> AsyncIterator[RunningGateway]:
    """A running gateway in front of `durable_origin`, stopped after the test."""
    async with _gateway(durable_origin.url, durable_gateway_settings) as running:
        yield running


@pytest.fixture
def s2_origin_settings() -> S2OriginSettings:
    """Settings of `s2_origin`: a free port, heartbeats as often as S2's own."""
    with _naming_what_hides_the_package():
        from gateway.origin.s2.app import S2OriginSettings

    return S2OriginSettings()


@pytest.fixture
def s2_gateway_settings() -> dict[str, Any]:
    """Configuration of `s2_gateway`: fields of its server, limits and route, by their names."""
    return {}


@_asynchronous
async def s2_origin(s2_origin_settings: S2OriginSettings) -> AsyncIterator[RunningS2Origin]:
    """A running in-memory S2 origin, stopped after the test."""
    with _naming_what_hides_the_package():
        from gateway.origin.s2.app import start_s2_origin

    running = await start_s2_origin(s2_origin_settings)
    try:
        yield running
    finally:
        running.origin.faults.clear()
        await running.stop(grace_s=1.0)


@_asynchronous
async def s2_gateway(s2_origin: RunningS2Origin, s2_gateway_settings: dict[str, Any]) -> AsyncIterator[RunningGateway]:
    """A running gateway in front of `s2_origin`, stopped after the test."""
    # Append sessions need HTTP/2 towards the origin.
    async with _gateway(s2_origin.url, {"protocol": "s2", "origin_http": "2", **s2_gateway_settings}) as running:
        yield running


@asynccontextmanager
async def _gateway(origin: str, settings: dict[str, Any]) -> AsyncIterator[RunningGateway]:
    with _naming_what_hides_the_package():
        from gateway.app import start_gateway
        from gateway.config.gateway import GatewayConfig

    # All clients of a test share one address, and may read any number of streams.
    defaults = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "client_new_streams_per_s": 0}
    running = await start_gateway(GatewayConfig.for_origin(origin, **{**defaults, **settings}))
    try:
        yield running
    finally:
        await running.stop()
