"""The overview: current shares spared, the origins' health, and the ten minutes before the page was opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession
from playwright.async_api import BrowserContext, Page, expect

from gateway.aio.clock import ManualClock
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import RunningOrigin
from tests.console.visit import Modules, Stage, Visit
from tests.origins import OPEN, WORDS, Row, origin_row
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def answer_origins(page: Page, origins: list[Row]) -> None:
    """Make `/api/origins` answer the page with these origins."""
    await page.route("**/api/origins", lambda route: route.fulfill(json={"origins": origins}))


class Past:
    """A gateway on a manual clock."""

    def __init__(self, stage: Stage, clock: ManualClock) -> None:
        self.stage = stage
        self.clock = clock

    async def rounds(self, count: int, reads: int) -> None:
        """Let `count` times two seconds pass, with `reads` reads of a closed stream in each."""
        for _ in range(count):
            for _ in range(reads):
                await self.stage.read("/past?offset=-1")
            self.clock.advance(2)


@pytest_asyncio.fixture(loop_scope="session")
async def past(origin: RunningOrigin) -> AsyncIterator[Past]:
    clock = ManualClock()
    config = GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", shutdown_timeout_s=1.0)
    gateway = await start_gateway(config, environ={}, clock=clock)
    async with ClientSession() as session:
        stage = Stage(gateway, origin, session)
        await stage.create("/past", {"n": 0})
        await stage.close("/past")
        yield Past(stage, clock)
    await gateway.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: BrowserContext, past: Past) -> AsyncIterator[Visit]:
    one = Visit(await browser.new_page(), past.stage.gateway.admin_url)
    yield one
    await one.page.close()
    assert one.complaints == []


REMEMBERED = """async () => (await import("/console/overview.js")).memory.history.points.map(
    ({ at, gap, clients, outcomes, requestsSpared }) => [at, gap ?? false, clients, outcomes?.hit, requestsSpared])"""


async def remembered(visit: Visit) -> list[Any]:
    """The data of the charts: time, whether it is a gap, requests and hits per second, reads spared."""
    found: list[Any] = await visit.page.evaluate(REMEMBERED)
    return found


async def test_the_headline_covers_the_last_ten_seconds_only(visitor: Visit, past: Past) -> None:
    await past.rounds(1, reads=400)
    past.clock.advance(30)
    await visitor.open()
    headline = visitor.figure("reads spared")
    await expect(headline.locator("strong")).to_have_text("–")
    await expect(visitor.figure("bytes spared").locator("strong")).to_have_text("–")
    await expect(visitor.page.locator(".caption")).to_have_text("No reads in the last seconds")
    origin_requests = await past.stage.total("durable_gateway_upstream_requests_total")
    share = f"{(1 - origin_requests / 400) * 100:.1f} % since the start"
    await expect(headline.locator("small")).to_have_text(share)

    # In the same two seconds: 50 reads from memory, and 50 of streams that do not exist.
    for number in range(50):
        await past.stage.read("/past?offset=-1")
        await past.stage.read(f"/none/{number}?offset=-1")
    spared = (await past.stage.admin("/api/overview"))["spared"]
    assert (spared["reads"], spared["window_s"]) == (100, 10)
    assert 0 < spared["origin_requests"] <= 100
    shown = spared["requests_spared"] * 100
    await expect(headline.locator("strong")).to_have_text(f"{shown:.1f} %" if shown else "0 %")
    await expect(visitor.figure("client reads/s").locator("strong")).to_have_text("10")
    await expect(visitor.page.locator(".caption")).to_contain_text("in the last 10 s; writes aside")


async def test_a_new_page_shows_the_ten_minutes_before_it(visitor: Visit, past: Past, browser: BrowserContext) -> None:
    await past.rounds(3, reads=20)
    past.clock.advance(590)
    await past.rounds(2, reads=20)
    await visitor.open()
    await expect(visitor.page.locator(".uplot canvas")).to_have_count(5)
    first = await remembered(visitor)
    assert len(first) == 300
    assert first[-1][0] - first[0][0] == 598
    assert first[-1][0] == past.clock.wall()
    assert not any(gap for _, gap, *_ in first)
    # Twenty reads in two seconds.  For the first of them the origin confirmed the bytes, after ten minutes.
    assert [(clients, hits) for _, _, clients, hits, _ in first[-2:]] == [(10, 9.5), (10, 10)]
    assert {clients for _, _, clients, _, _ in first[3:-2]} == {0}
    told = (await past.stage.admin("/api/history"))["samples"]
    assert [share for *_, share in first] == [sample["requests_spared"] for sample in told[1:]]
    assert first[-1][4] > 0.9
    assert first[-10][4] is None

    await visitor.page.reload()
    await expect(visitor.page.locator(".uplot canvas")).to_have_count(5)
    assert await remembered(visitor) == first
    other = Visit(await browser.new_page(), visitor.url)
    await other.open()
    await expect(other.page.locator(".uplot canvas")).to_have_count(5)
    assert await remembered(other) == first
    await other.page.close()


async def test_charts_include_the_time_when_another_view_was_open(visitor: Visit, past: Past) -> None:
    await past.rounds(2, reads=20)
    await visitor.open()
    await expect(visitor.page.locator(".uplot canvas")).to_have_count(5)
    before = await remembered(visitor)
    await visitor.page.keyboard.press("3")
    await expect(visitor.page.locator("h1")).to_have_text("Tail")
    await past.rounds(30, reads=4)
    await visitor.page.keyboard.press("1")

    async def has_come() -> bool:
        return len(await remembered(visitor)) >= len(before) + 30

    await eventually(has_come, look_s=0.02)
    found = await remembered(visitor)
    assert found[: len(before)] == before
    assert not any(gap for _, gap, *_ in found)
    assert {clients for _, _, clients, _, _ in found[len(before) :]} == {2}


async def test_the_words_for_origins_match_those_of_the_terminal(modules: Modules) -> None:
    said = await modules.evaluate(
        """async (cases) => { const { words, worst } = await import("/console/origins.js")
          return cases.map((origins) => [words(origins), worst(origins)]) }""",
        [origins for origins, _, _ in WORDS],
    )
    assert said == [[words, health] for _, words, health in WORDS]


async def test_the_origins_health_is_shown_beside_the_shares_spared(visit: Visit) -> None:
    await answer_origins(visit.page, [origin_row()])
    await visit.open()
    lines = visit.page.locator(".hero .health li")
    await expect(lines).to_have_text(["origin answers"])
    await expect(lines).to_have_class("is-answering")
    await visit.page.unroute("**/api/origins")
    await answer_origins(visit.page, [OPEN])
    await expect(lines).to_have_text(["origin unreachable: connection refused, next try in 1.5 s"])
    await expect(lines).to_have_class("is-unreachable")
    await visit.page.unroute("**/api/origins")
    sick = [{**OPEN, "origin": f"http://sick:{number}"} for number in range(6)]
    await answer_origins(visit.page, [origin_row(), *sick])
    trouble = "unreachable: connection refused, next try in 1.5 s"
    await expect(lines).to_have_text(
        ["1 of 7 origins answer", *(f"http://sick:{number} {trouble}" for number in range(4)), "and 2 more"]
    )
    for width in (1280, 1000, 390):
        await visit.page.set_viewport_size({"width": width, "height": 844})
        await visit.page.wait_for_function("(width) => document.documentElement.scrollWidth <= width", arg=width)
