"""S2 streams in the console: among the others, with their records, readers of each kind, and their origin's session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import ClientSession
from playwright.async_api import BrowserContext, expect

from gateway.app import RunningGateway, start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.s2.app import start_s2_origin
from gateway.s2.session import CONTENT_TYPE
from tests.console.conftest import shared_loop
from tests.console.visit import BOUND_S, Modules, Visit
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

OWN = {"s2-basin": "basin-of-tests"}
PATH = "/v1/streams/orders?s2-basin=basin-of-tests"


@dataclass(slots=True)
class S2Stage:
    """A gateway in front of an S2 origin, and its clients."""

    gateway: RunningGateway
    session: ClientSession

    @property
    def stream(self) -> str:
        return f"{self.gateway.gateway_url}/v1/streams/orders"

    @property
    def records(self) -> str:
        return f"{self.stream}/records"

    async def read(self, count: int) -> None:
        async with self.session.get(f"{self.records}?seq_num=0&count={count}", headers=OWN) as reply:
            assert reply.status == 200, await reply.text()

    async def append(self, *bodies: str, headers: Sequence[Sequence[str]] = ()) -> None:
        json = {"records": [{"body": body, "headers": headers} for body in bodies]}
        async with self.session.post(self.records, headers=OWN, json=json) as reply:
            assert reply.status == 200, await reply.text()

    async def admin(self, path: str) -> Any:
        async with self.session.get(self.gateway.admin_url + path) as reply:
            return await reply.json()


@shared_loop
async def stage() -> AsyncIterator[S2Stage]:
    origin = await start_s2_origin()
    settings: dict[str, Any] = {"console_writes": True, "live_linger_s": 0}
    settings |= {"protocol": "s2", "listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "shutdown_timeout_s": 1.0}
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
    events.close()
    session.close()
    await page.get_by_role("button", name="Purge", exact=True).click()
    await page.get_by_role("button", name="Really purge?").click()
    await expect(page.locator(".tape-block")).to_have_count(0)
    assert all("404" in complaint for complaint in visit.complaints)
    visit.complaints.clear()


@pytest.mark.parametrize(("live", "label"), [("sse", "live by SSE"), ("long-poll", "live by long-poll")])
async def test_the_tail_follows_an_s2_stream(visit: Visit, stage: S2Stage, live: str, label: str) -> None:
    await stage.append("first", '{"n": 1}')
    await stage.read(count=2)  # now the gateway knows the stream
    await visit.open("#/streams")
    await visit.page.locator(".streams tbody tr a").click()
    await visit.page.get_by_role("link", name="Tail it live").click()
    await expect(visit.messages).to_have_count(2)
    await visit.page.get_by_role("button", name="Stop").click()
    await visit.page.get_by_label("By").select_option(live)
    await visit.page.get_by_role("button", name="Tail", exact=True).click()
    await expect(visit.state_of_tail).to_have_text(label)
    await stage.append("third")
    await stage.append("fourth", headers=[["kind", "greeting"]])
    await expect(visit.messages).to_have_count(4)
    assert [json.loads(text) if text[0] == "{" else text for text in await visit.texts()] == [
        "first",
        {"n": 1},
        "third",
        {"headers": [["kind", "greeting"]], "body": "fourth"},
    ]
    await expect(visit.page.locator(".tail-head code")).to_have_text("4")


async def test_the_tail_of_an_s2_stream_begins_now_or_at_a_number(visit: Visit, stage: S2Stage) -> None:
    await stage.append(*"abcdef")
    await visit.open(f"#/tail?path={quote(PATH)}")
    await expect(visit.messages).to_have_count(6)
    page = visit.page
    for begin, number, came in (("at", "4", ["e", "f", "g"]), ("now", "", ["h"])):
        await page.get_by_role("button", name="Stop").click()
        await page.get_by_label("From").select_option(begin)
        if number:
            await page.get_by_role("textbox", name="Offset").fill(number)
        await page.get_by_role("button", name="Tail", exact=True).click()
        await expect(visit.state_of_tail).to_have_text("live by SSE")
        await stage.append(came[-1])
        await expect(visit.messages).to_have_count(len(came))
        assert await visit.texts() == came


async def test_an_s2_stream_is_created_appended_to_and_deleted_by_the_forms(visit: Visit, stage: S2Stage) -> None:
    await visit.open("#/tail")
    page, said = visit.page, visit.page.locator(".said")
    await page.locator("#path").fill(PATH)
    await page.get_by_label("TTL in seconds").fill("600")
    await page.get_by_role("button", name="Create").click()
    await expect(said).to_contain_text("201 created")
    await expect(visit.state_of_tail).to_have_text("live by SSE")
    async with stage.session.get(f"{stage.stream}", headers=OWN) as reply:
        assert (await reply.json())["retention_policy"] == {"age": 600}
    await page.locator("#body").fill("wörld")
    await page.get_by_role("button", name="Append").click()
    await expect(said).to_contain_text("200 appended")
    await expect(visit.messages).to_have_count(1)
    assert await visit.texts() == ["wörld"]
    await page.get_by_role("button", name="Close the stream").click()
    await expect(said).to_contain_text("S2 streams are never closed")
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Really delete?").click()
    await expect(said).to_contain_text("202 deleted")
    await expect(visit.state_of_tail).to_contain_text("ended: 404")
    visit.complaints.clear()


async def test_sequence_numbers_are_ordered_as_numbers(modules: Modules) -> None:
    runs = [("10", "12"), ("8", "9"), ("9", "10")]
    tape = [{"start": start, "end": end, "bytes": 9, "tokens": 1, "age_s": None} for start, end in runs]
    readers = [{"mode": "session", "at": "11", "clients": 1, "lived_s": None}]
    plan = await modules.evaluate(
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
