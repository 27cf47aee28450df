"""S2 streams in the console: among the others, with their records, readers of each kind, and their origin's session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import ClientSession
from playwright.async_api import BrowserContext, expect

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import start_s2_origin
from gateway.s2.session import CONTENT_TYPE
from tests.console.conftest import shared_loop
from tests.console.visit import BOUND_S, Visit
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWN = {"s2-basin": "basin-of-tests"}


@dataclass(slots=True)
class S2Stage:
    """A gateway in front of an S2 origin, and its clients."""

    gateway: RunningGateway
    session: ClientSession

    @property
    def records(self) -> str:
        return f"{self.gateway.gateway_url}/v1/streams/orders/records"

    async def append(self, *bodies: str) -> None:
        json = {"records": [{"body": body} for body in bodies]}
        async with self.session.post(self.records, headers=OWN, json=json) as reply:
            assert reply.status == 200, await reply.text()

    async def admin(self, path: str) -> Any:
        async with self.session.get(self.gateway.admin_url + path) as reply:
            return await reply.json()


@shared_loop
async def stage() -> AsyncIterator[S2Stage]:
    origin = await start_s2_origin()
    settings = {"protocol": "s2", "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 1.0}
    gateway = await start_gateway(GatewayConfig.for_origin(origin.url, **settings))
    async with ClientSession() as session:
        basin = {"basin": "basin-of-tests", "config": {"create_stream_on_append": True}}
        async with session.post(f"{origin.url}/v1/basins", json=basin) as reply:
            assert reply.status == 201
        yield S2Stage(gateway, session)
    await gateway.stop()
    await origin.stop(grace_s=0)


@shared_loop
async def visit(browser: BrowserContext, stage: S2Stage) -> AsyncIterator[Visit]:
    one = Visit(await browser.new_page(), stage.gateway.admin_url)
    yield one
    await one.page.close()
    assert one.complaints == []


async def test_an_s2_stream_is_shown_with_its_readers_and_purged(visit: Visit, stage: S2Stage) -> None:
    await stage.append(*"abcdefghijkl")
    events = await stage.session.get(f"{stage.records}?seq_num=0", headers={**OWN, "Accept": "text/event-stream"})
    session = await stage.session.get(f"{stage.records}?seq_num=0", headers={**OWN, "Content-Type": CONTENT_TYPE})

    async def has_both() -> bool:
        found = (await stage.admin("/api/streams"))["streams"]
        return bool(found) and found[0]["readers"] == 2

    await eventually(has_both, within_s=BOUND_S, look_s=0.02)
    (row,) = (await stage.admin("/api/streams"))["streams"]
    assert (row["protocol"], row["records"], row["tail"]) == ("s2", 12, "12")

    await visit.open("#/streams")
    page = visit.page
    rows = page.locator(".streams tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows.locator("a")).to_have_text("/v1/streams/orders?s2-basin=basin-of-tests")
    await expect(rows.locator(".badge", has_text="S2")).to_be_visible()
    await expect(rows).to_contain_text("12 records")

    await rows.locator("a").click()
    await expect(page.locator(".tape-block")).to_have_count(1)
    await page.locator('.tape-block[tabindex="0"]').focus()
    await expect(page.locator(".tape-told")).to_contain_text("12 records. From 0 to 12")
    await expect(page.locator(".tape-tail text")).to_have_text("tail 12")
    await expect(page.locator(".facts")).to_contain_text("at 12, the tail")
    await expect(page.locator(".readers .is-sse")).to_have_text("1 sse")
    await expect(page.locator(".readers .is-session")).to_have_text("1 session")
    # The tail view speaks Durable Streams.
    await expect(page.get_by_role("link", name="Tail it live")).to_have_count(0)

    events.close()
    session.close()
    await page.get_by_role("button", name="Purge", exact=True).click()
    await page.get_by_role("button", name="Really purge?").click()
    await expect(page.locator(".tape-block")).to_have_count(0)
    assert all("404" in complaint for complaint in visit.complaints)
    visit.complaints.clear()


async def test_sequence_numbers_are_ordered_as_numbers(visit: Visit) -> None:
    await visit.open("#/streams")
    runs = [("10", "12"), ("8", "9"), ("9", "10")]
    tape = [{"start": start, "end": end, "bytes": 9, "tokens": 1, "age_s": None} for start, end in runs]
    readers = [{"mode": "session", "at": "11", "clients": 1, "lived_s": None}]
    plan = await visit.page.evaluate(
        "async (stream) => (await import('/console/tape.js')).layout(stream, 800)",
        {"protocol": "s2", "tape": tape, "tail": "100", "live_readers": readers},
    )
    assert [(run["start"], run.get("isBeside", False)) for run in plan["blocks"]] == [
        ("8", False),
        ("9", False),
        ("10", False),
    ]
    assert [(gap["start"], gap["end"]) for gap in plan["gaps"]] == [("12", "100")]
    last, (pin,) = plan["blocks"][-1], plan["pins"]
    assert last["x"] < pin["x"] < last["x"] + last["width"]
