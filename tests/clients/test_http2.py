"""Common clients over HTTP/2: Node's own and httpx with prior knowledge, a browser by ALPN."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import async_playwright

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, start_origin
from tests.chromium import arguments, chromium
from tests.node_tools import NODE_FOLDER, node_tools
from tests.transports import HTTP_2_TLS, listening, made

BOUND_S = 60.0
TEXT = {"Content-Type": "text/plain"}


@pytest.fixture
async def gateway() -> AsyncIterator[RunningGateway]:
    origin = await start_origin(OriginSettings())
    config = GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1)
    running = await start_gateway(config)
    yield running
    await running.stop()
    await origin.stop(grace_s=0)


async def test_node_reads_fifty_streams_live_on_one_connection(gateway: RunningGateway) -> None:
    async with httpx.AsyncClient(http1=False, http2=True) as client:
        assert (await client.put(f"{gateway.gateway_url}/s", headers=TEXT)).status_code == 201
    tools = node_tools()
    program = await asyncio.create_subprocess_exec(
        tools.node,
        str(NODE_FOLDER / "http2.mjs"),
        f"{gateway.gateway_url}/s",
        "50",
        "for all of them",
        stdout=asyncio.subprocess.PIPE,
        env=tools.environment,
    )
    async with asyncio.timeout(BOUND_S):
        out, _ = await program.communicate()
    assert json.loads(out) == {"written": 204, "saw": 50, "streams": 50}


async def test_httpx_writes_and_reads(gateway: RunningGateway) -> None:
    url, body = f"{gateway.gateway_url}/s", bytes(range(256)) * 2_000
    async with httpx.AsyncClient(http1=False, http2=True, timeout=BOUND_S) as client:
        # The end of a closed stream is final.
        headers = {"Content-Type": "application/octet-stream", "Stream-Closed": "true"}
        created = await client.put(url, headers=headers, content=body)
        assert (created.status_code, created.http_version) == (201, "HTTP/2")
        for _ in range(3):
            read = await client.get(url, params={"offset": "-1"})
            assert read.content == body
        assert read.headers["Cache-Status"] == "durable-gateway; hit"
        again = await client.get(url, params={"offset": "-1"}, headers={"If-None-Match": read.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert (await client.head(url)).headers["Stream-Next-Offset"] == read.headers["Stream-Next-Offset"]
        assert (await client.delete(url)).status_code == 204
        assert (await client.get(url, params={"offset": "-1"})).status_code == 404


FIFTY_READERS = """async () => {
    const events = Array(50).fill(0)
    const readers = events.map((_, at) => {
        const reader = new EventSource("/s?offset=-1&live=sse")
        reader.addEventListener("control", () => events[at]++)
        return reader
    })
    const all = async (count) => {
        while (events.some((seen) => seen < count)) await new Promise((go) => setTimeout(go, 10))
    }
    await all(1)
    const headers = { "content-type": "text/plain" }
    const written = await fetch("/s", { method: "POST", headers, body: "for all of them" })
    await all(2)
    readers.forEach((reader) => reader.close())
    return [written.status, performance.getEntriesByType("navigation")[0].nextHopProtocol]
}"""


async def test_a_page_reads_fifty_streams_live(tmp_path: Path) -> None:
    """Over HTTP/1.1 a browser has six connections to an origin, and the seventh reader would wait for ever."""
    trust = made(tmp_path)
    origin = await start_origin(OriginSettings())
    listeners = listening(HTTP_2_TLS, trust)
    gateway = await start_gateway(
        GatewayConfig.for_origin(origin.url, admin="127.0.0.1:0", shutdown_timeout_s=1, **listeners)
    )
    async with httpx.AsyncClient() as client:
        assert (await client.put(f"{origin.url}/s", headers=TEXT)).status_code == 201
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=chromium(), args=arguments())
        context = await browser.new_context(ignore_https_errors=True)
        page = await context.new_page()
        await page.goto(f"{gateway.gateway_url}/s?offset=-1")
        async with asyncio.timeout(BOUND_S):
            assert await page.evaluate(FIFTY_READERS) == [204, "h2"]
        assert gateway.connections == 1
        await browser.close()
    await gateway.stop()
    await origin.stop(grace_s=0)
