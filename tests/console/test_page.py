"""The page as a whole: its views, its policy, its figures, its keys, its colours."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import expect

from tests.console.visit import JSON, Stage, Visit
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

VIEWS = ["", "#/streams", "#/tail"]


async def some_load(stage: Stage) -> None:
    """Misses, hits, and reads that share one fetch."""
    await stage.create("/orders/1", *({"n": number} for number in range(20)))
    await stage.create("/orders/2", {"n": 1})
    for path in ("/orders/1", "/orders/2"):
        await stage.close(path)
    for _ in range(30):
        await stage.read("/orders/1?offset=-1")
    held = stage.origin.origin.faults.hold(path="/orders/2", kind="catchup")
    reading = [asyncio.create_task(stage.read("/orders/2?offset=-1")) for _ in range(12)]
    await held.waiting(1)
    await eventually(lambda: stage.gateway.engine.fetches.readers >= 12)
    held.release()
    await asyncio.gather(*reading)


async def test_every_view_loads_without_a_complaint_in_both_themes_and_on_a_phone(visit: Visit, stage: Stage) -> None:
    await some_load(stage)
    (row,) = (await stage.admin("/api/streams?prefix=/orders/1"))["streams"]
    for theme in ("light", "dark"):
        await visit.page.emulate_media(color_scheme=theme)
        for width in (1280, 390):
            await visit.page.set_viewport_size({"width": width, "height": 844})
            for view in (*VIEWS, f"#/streams/{row['id']}"):
                await visit.open(view)
                await expect(visit.page.locator("main h1")).to_have_count(1)
                assert await visit.page.evaluate("document.documentElement.scrollWidth") <= width, (view, width)


async def test_scripts_from_elsewhere_and_in_the_page_are_stopped(visit: Visit) -> None:
    await visit.open()
    violated = await visit.page.evaluate(
        """async () => {
          const wanted = ["connect-src", "frame-src", "script-src-elem", "style-src-attr"]
          const seen = new Set()
          const over = new Promise((resolve) => document.addEventListener("securitypolicyviolation", (event) => {
            seen.add(event.effectiveDirective)
            if (wanted.every((one) => seen.has(one))) resolve()
          }))
          const typed = []
          const attempt = (work) => { try { work() } catch (error) { typed.push(error.name) } }
          const image = document.createElement("img")
          attempt(() => image.setAttribute("onerror", "window.ran = 1"))
          attempt(() => { document.body.innerHTML = "<b>x</b>" })
          attempt(() => { document.createElement("script").textContent = "window.ran = 1" })
          document.body.setAttribute("style", "color: red")
          const module = document.createElement("link")
          module.rel = "modulepreload"
          module.href = "http://127.0.0.1:1/a.js"
          document.head.append(module)
          const frame = document.createElement("iframe")
          frame.src = "https://example.org/"
          document.body.append(frame)
          fetch("http://127.0.0.1:1/").catch(() => {})
          await over
          return [typed, window.ran]
        }"""
    )
    assert violated == [["TypeError", "TypeError", "TypeError"], None]
    assert visit.complaints
    visit.complaints.clear()


async def test_the_figures_are_those_of_the_metrics(visit: Visit, stage: Stage) -> None:
    await some_load(stage)
    await visit.open()
    await expect(visit.figure("client reads/s").locator("small")).to_have_text("42 requests since the start")
    asked = await stage.total("durable_gateway_requests_total")
    assert asked == 42
    origin = await stage.total("durable_gateway_upstream_requests_total")
    await expect(visit.figure("origin requests/s").locator("small")).to_have_text(f"{origin:.0f} since the start")

    # Nobody wrote through the gateway: all requests were reads.
    requests_spared = f"{(1 - origin / asked) * 100:.1f} % since the start"
    await expect(visit.figure("reads spared").locator("small")).to_have_text(requests_spared)
    fetched = await stage.total("durable_gateway_upstream_bytes_total")
    got = await stage.total("durable_gateway_downstream_bytes_total") + await stage.total(
        "durable_gateway_response_saved_bytes_total"
    )
    bytes_spared = f"{(1 - fetched / got) * 100:.1f} % since the start"
    await expect(visit.figure("bytes spared").locator("small")).to_have_text(bytes_spared)
    await expect(visit.figure("on tapes").locator("small")).to_contain_text("2 tapes")
    rows = visit.page.locator(".streams tbody tr")
    await expect(rows).to_have_count(2)
    busiest = (await stage.admin("/api/top?by=requests"))["streams"][0]
    await expect(rows.first.locator("a")).to_have_text(busiest["path"])
    await expect(rows.first.locator('[data-label="reads"]')).to_have_text(str(busiest["reads"]))
    sent = await stage.total("durable_gateway_downstream_bytes_total")
    await expect(visit.figure("sent to clients").locator("strong")).to_have_text(f"{sent / 1024:.1f} KiB")


async def test_live_readers_and_what_they_cost_are_seen(visit: Visit, stage: Stage) -> None:
    await stage.create("/live", 1)
    readers = [
        await stage.session.get(f"{stage.gateway.gateway_url}/live?offset=-1&live=sse&cursor={number}")
        for number in range(3)
    ]
    await stage.until_readers(3)
    await visit.open()
    live = visit.figure("live readers")
    await expect(live.locator("strong")).to_have_text("3")
    await expect(live.locator("small")).to_have_text("3 SSE, 0 long-poll")
    await expect(visit.figure("streams followed").locator("strong")).to_have_text("1")
    for reader in readers:
        reader.close()
    await expect(live.locator("strong")).to_have_text("0")


async def test_the_delivery_delay_is_that_of_the_histogram(visit: Visit, stage: Stage) -> None:
    await visit.open()
    delay = visit.figure("delivery delay")
    await expect(delay.locator("small")).to_have_text("nothing delivered yet")
    for _ in range(100):
        stage.gateway.metrics.delivered(50, 0.003)
    bounds = sorted(
        (float(labels["le"]), value)
        for name, labels, value in await stage.samples()
        if name == "durable_gateway_delivery_delay_seconds_bucket" and labels["le"] != "+Inf"
    )
    upper = next(bound for bound, count in bounds if count)
    lower = max((bound for bound, _ in bounds if bound < upper), default=0.0)
    await expect(delay.locator("strong")).to_have_text(f"{(lower + upper) / 2 * 1000:.1f} ms")
    await expect(delay.locator("small")).to_have_text(f"p99 {(lower + (upper - lower) * 0.99) * 1000:.1f} ms")


async def test_charts_are_drawn_and_follow_the_theme(visit: Visit, stage: Stage) -> None:
    await some_load(stage)
    await visit.page.emulate_media(color_scheme="light")
    await visit.open()
    await expect(visit.page.locator(".uplot canvas")).to_have_count(5)
    await expect(visit.page.locator(".legend .key").filter(has_text="hit").first.locator("b")).to_have_text(
        re.compile(r"\d|^0$")
    )
    colours = """() => { const canvas = document.querySelector(".uplot canvas"); const seen = new Set()
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
        for (let at = 0; at < data.length; at += 4) if (data[at + 3]) seen.add(data.slice(at, at + 3).join())
        return [...seen].sort() }"""
    light = await visit.page.evaluate(colours)
    assert len(light) > 3
    await visit.page.keyboard.press("t")
    await visit.page.keyboard.press("t")
    await expect(visit.page.locator("html")).to_have_attribute("data-theme", "dark")
    dark = await visit.page.evaluate(colours)
    assert dark != light
    await visit.page.reload()
    await expect(visit.page.locator("html")).to_have_attribute("data-theme", "dark")


async def test_the_page_is_used_by_keys_alone(visit: Visit, stage: Stage) -> None:
    await some_load(stage)
    await visit.open()
    keys = visit.page.keyboard
    await keys.press("?")
    await expect(visit.page.locator("#keys-dialog")).to_be_visible()
    await keys.press("2")
    await keys.press("Escape")
    await expect(visit.page.locator("#keys-dialog")).to_be_hidden()
    await keys.press("2")
    await expect(visit.page.locator("h1")).to_have_text("Streams")
    await keys.press("/")
    await keys.type("/orders/2")
    await expect(visit.page.locator(".streams tbody tr")).to_have_count(1)
    await keys.press("Escape")
    await keys.press("1")
    await expect(visit.page.locator("h1")).to_have_text("Overview")
    await keys.press("3")
    await expect(visit.page.locator("h1")).to_have_text("Tail")
    await keys.press("/")
    await keys.type("/orders/1")
    await keys.press("Enter")
    await expect(visit.messages).to_have_count(20)


@pytest.mark.parametrize("environ", [{"DURABLE_GATEWAY_ADMIN_TOKEN": "open-sesame"}])
async def test_the_token_is_asked_for_once_and_again_where_it_was_wrong(visit: Visit) -> None:
    page = visit.page
    await page.goto(visit.url)
    await expect(page.locator("#token-dialog")).to_be_visible()
    await page.keyboard.type("guess")
    await page.keyboard.press("Enter")
    await expect(page.locator("#token-error")).to_have_text("That was not it.")
    await page.keyboard.type("open-sesame")
    await page.keyboard.press("Enter")
    await expect(page.locator("#state")).to_have_text("live")
    await page.reload()
    await expect(page.locator("#state")).to_have_text("live")
    await expect(page.locator("#token-dialog")).to_be_hidden()
    # The browser itself notes the two refusals.
    assert all("401" in complaint for complaint in visit.complaints)
    visit.complaints.clear()


async def test_a_gateway_that_is_gone_is_said_to_be(visit: Visit, stage: Stage) -> None:
    await stage.create("/x", 1, content_type=JSON)
    await visit.open()
    await visit.page.route("**/api/overview", lambda route: route.abort())
    await expect(visit.page.locator("#state")).to_have_text("not reachable")
    await visit.page.unroute("**/api/overview")
    await expect(visit.page.locator("#state")).to_have_text("live")
    assert all("ERR_FAILED" in complaint for complaint in visit.complaints)
    visit.complaints.clear()
