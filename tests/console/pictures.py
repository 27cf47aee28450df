"""The README's pictures of the console: `python -m tests.console.pictures` takes them again, with a minute of load.

Everything in them is real: an origin, a gateway, live readers and writers in this process, and a Chromium.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path

from aiohttp import ClientError, ClientSession, TCPConnector
from playwright.async_api import async_playwright

from gateway.aio.tasks import Tasks
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import OriginSettings, start_origin
from tests.chromium import arguments, chromium
from tests.waiting import pause

DOCS = Path(__file__).parents[2] / "docs"
LOAD_S = 75.0
ROOMS = [f"/chat/{name}" for name in ("lobby", "support", "release-day", "random")]
ORDERS = [f"/orders/eu-west/{number}" for number in range(1, 9)]
JSON = {"Content-Type": "application/json"}


async def read_on(session: ClientSession, url: str, live: str) -> None:
    """Run one live reader for ever; it resumes at the offset of the previous answer."""
    offset = "-1"
    while True:
        with suppress(ClientError):
            async with session.get(f"{url}?offset={offset}&live={live}") as reply:
                if live == "sse":
                    async for line in reply.content:
                        if line.startswith(b"data:{"):
                            with suppress(ValueError):
                                offset = json.loads(line[5:]).get("streamNextOffset", offset)
                else:
                    await reply.read()
                    offset = reply.headers.get("Stream-Next-Offset", offset)


async def read_often(session: ClientSession, urls: list[str], rng: random.Random) -> None:
    """Run readers that connect, read to the tail and leave."""
    while True:
        async with session.get(f"{rng.choice(urls)}?offset=-1") as reply:
            await reply.read()
        await pause(rng.expovariate(8))


async def write_on(session: ClientSession, url: str, rng: random.Random) -> None:
    number = 0
    while True:
        number += 1
        order = {"order": number, "item": rng.choice(["tape", "reel", "splicer"]), "paid": rng.random() < 0.7}
        async with session.post(url, data=json.dumps(order), headers=JSON):
            pass
        await pause(rng.expovariate(1))


async def main() -> None:
    rng = random.Random(11)
    origin = await start_origin(OriginSettings(max_chunk_bytes=1 << 16))
    config = GatewayConfig.for_origin(
        origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", console_writes=True, long_poll_timeout_s=10
    )
    gateway = await start_gateway(config, environ={})
    load = Tasks()
    async with ClientSession(connector=TCPConnector(limit=0)) as session:
        at = [gateway.gateway_url + path for path in (*ROOMS, *ORDERS)]
        for url in at:
            async with session.put(url, headers=JSON):
                pass
        for place, url in enumerate(at[len(ROOMS) :]):
            size = rng.randrange(100, 400) if place else 3_600
            items = [{"order": number, "note": "x" * 900} for number in range(size)]
            for first in range(0, len(items), 100):
                async with session.post(url, data=json.dumps(items[first : first + 100]), headers=JSON):
                    pass
        for url in at[-3:]:
            async with session.post(url, headers={"Stream-Closed": "true"}):
                pass
        for url in at[: len(ROOMS) + 2]:
            load.start(write_on(session, url, rng), f"writer of {url}")
            for number in range(rng.randrange(20, 60)):
                live = "long-poll" if number % 4 == 0 else "sse"
                load.start(read_on(session, url, live), f"reader of {url}")
        busy = at[-3:]
        for _ in range(40):
            load.start(read_often(session, busy, rng), "visitor")
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments())
            dark = await browser.new_page(viewport={"width": 1180, "height": 760}, color_scheme="dark")
            await dark.goto(gateway.admin_url)
            await pause(LOAD_S)
            await dark.screenshot(path=DOCS / "console-overview.png")
            light = await browser.new_page(viewport={"width": 1180, "height": 560}, color_scheme="light")
            await light.goto(f"{gateway.admin_url}/#/streams")
            await light.get_by_role("link", name=ORDERS[0]).first.click()
            await light.locator(".tape-block").first.wait_for()
            await pause(2)
            await light.screenshot(path=DOCS / "console-stream.png")
            phone = await browser.new_page(viewport={"width": 390, "height": 760}, color_scheme="dark")
            await phone.goto(f"{gateway.admin_url}/#/tail?path={ROOMS[0]}")
            await pause(3)
            await phone.screenshot(path=DOCS / "console-tail.png")
            await browser.close()
        await load.close()
    await gateway.stop()
    await origin.stop(grace_s=0)


if __name__ == "__main__":
    asyncio.run(main())
