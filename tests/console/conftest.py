"""A gateway in front of the in-memory origin, and a real Chromium that opens its console.

The browser is started once, so all tests here share a loop (each file says so in its `pytestmark`).  A test with a
`visit` has its own gateway and origin; their new ports give it a page without stored state.  Tests of functions of the
page's modules share `modules`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import uvloop
from aiohttp import ClientSession
from playwright.async_api import BrowserContext, async_playwright

from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, RunningOrigin, start_origin
from tests.chromium import arguments, chromium
from tests.console.visit import BOUND_S, Modules, Stage, Visit

shared_loop = pytest_asyncio.fixture(loop_scope="session")


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[BrowserContext]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium(), args=arguments())
        context = await running.new_context(viewport={"width": 1280, "height": 860})
        context.set_default_timeout(BOUND_S * 1000)
        yield context
        await running.close()


@shared_loop
async def origin() -> AsyncIterator[RunningOrigin]:
    running = await start_origin(OriginSettings())
    yield running
    await running.stop(grace_s=0)


@pytest.fixture
def settings() -> dict[str, Any]:
    """Fields of the gateway's configuration; overridden by parametrization."""
    return {}


@pytest.fixture
def environ() -> dict[str, str]:
    """Environment of the gateway, with the admin port's token; overridden by parametrization."""
    return {}


@shared_loop
async def stage(origin: RunningOrigin, settings: dict[str, Any], environ: dict[str, str]) -> AsyncIterator[Stage]:
    defaults = {
        "listen": "127.0.0.1:0",
        "admin": "127.0.0.1:0",
        "console_writes": True,
        "shutdown_timeout_s": 0.3,
        "live_linger_s": 0,
    }
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, **{**defaults, **settings}), environ=environ)
    async with ClientSession() as session:
        yield Stage(gateway, origin, session)
    await gateway.stop()


@shared_loop
async def visit(browser: BrowserContext, stage: Stage) -> AsyncIterator[Visit]:
    """A visitor whose browser must not have complained by the end."""
    one = Visit(await browser.new_page(), stage.gateway.admin_url)
    yield one
    await one.page.close()
    assert one.complaints == []


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def module_page(browser: BrowserContext) -> AsyncIterator[Modules]:
    # Nothing that these tests call asks the origin.
    ports = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 0.3}
    gateway = await start_gateway(GatewayConfig.for_origin("http://127.0.0.1:9", **ports), environ={})
    shown = Visit(await browser.new_page(), gateway.admin_url)
    empty = "<!doctype html><title>Modules</title><link rel=icon href=data:,>"
    await shown.page.route("**/empty", lambda route: route.fulfill(content_type="text/html", body=empty))
    await shown.page.goto(f"{gateway.admin_url}/empty")
    yield Modules(shown)
    await shown.page.close()
    await gateway.stop()


@shared_loop
async def modules(module_page: Modules) -> AsyncIterator[Modules]:
    """The console's modules in a browser that must not have complained by the end."""
    yield module_page
    assert module_page.complaints == []
