"""The TypeScript client, bundled into a page on another origin, reads through the gateway: CORS and exposed headers."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from playwright.async_api import BrowserContext, Page

from tests.console.visit import BOUND_S, Stage
from tests.node_tools import node_packages, node_tools

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = "<!doctype html><title>Elsewhere</title><link rel=icon href=data:,><script type=module src=page.js></script>"
EDGE_CORS = {"cors": {"allow_origins": ["*"]}}


def bundled() -> bytes:
    """`tests/node/page.mjs` with its imports, as one module."""
    tools, folder = node_tools(), node_packages()
    command = [str(folder / "node_modules" / ".bin" / "esbuild"), "page.mjs", "--bundle", "--format=esm"]
    done = subprocess.run(command, cwd=folder, env=tools.environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def foreign_url() -> AsyncIterator[str]:
    """A page with the bundle, on an origin other than the gateway's."""
    script = await asyncio.to_thread(bundled)

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def module(_: web.Request) -> web.Response:
        return web.Response(body=script, content_type="text/javascript")

    application = web.Application()
    application.add_routes([web.get("/", page), web.get("/page.js", module)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="session")
async def foreign(browser: BrowserContext, foreign_url: str) -> AsyncIterator[Page]:
    page = await browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.goto(foreign_url)
    await page.wait_for_function("typeof globalThis.follow === 'function'")
    yield page
    await page.close()
    assert complaints == []


both_answers = pytest.mark.parametrize("settings", [{}, EDGE_CORS], ids=["the origin's CORS", "the edge's CORS"])


@both_answers
@pytest.mark.parametrize("live", ["long-poll", "sse"])
async def test_a_page_of_another_origin_follows_a_stream_to_its_end(foreign: Page, stage: Stage, live: str) -> None:
    await stage.create("/far", {"n": 0}, {"n": 1})
    url = stage.gateway.gateway_url + "/far"
    following = asyncio.create_task(foreign.evaluate("([url, live]) => follow(url, live, 'json')", [url, live]))
    try:
        await foreign.wait_for_function("globalThis.received?.length === 2")
        for number in range(2, 5):
            await stage.append("/far", {"n": number})
            await foreign.wait_for_function(f"globalThis.received.length === {number + 1}")
        assert await stage.total("durable_gateway_requests_total", mode="catchup") == 1
        await stage.close("/far")
        async with asyncio.timeout(BOUND_S):
            read: dict[str, Any] = await following
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert [item for batch in read["batches"] for item in batch["batch"]] == [{"n": number} for number in range(5)]
    async with stage.session.head(stage.origin.url + "/far") as reply:
        assert (read["closed"], read["offset"]) == (True, reply.headers["Stream-Next-Offset"])
    other = "sse" if live == "long-poll" else "longpoll"
    assert await stage.total("durable_gateway_requests_total", mode=other) == 0


@pytest.mark.parametrize("settings", [EDGE_CORS])
async def test_a_script_of_another_origin_sees_the_protocols_headers(foreign: Page, stage: Stage) -> None:
    await stage.create("/seen", 1)
    await stage.close("/seen")
    seen = await foreign.evaluate("(url) => look(url)", f"{stage.gateway.gateway_url}/seen?offset=-1")
    wanted = {"stream-next-offset", "stream-up-to-date", "stream-closed", "etag", "content-type", "cache-status"}
    assert seen["status"] == 200
    assert wanted <= seen["headers"].keys()
