"""The report in a real browser, at the width of a desktop and of a phone."""

from __future__ import annotations

import csv
import io
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from gateway.pipeline.report.figures import CurvePoint, Figures, Moment, Percentiles, Plan, Saved, Shared, Traffic, Wait
from gateway.pipeline.report.page import page
from tests.pipeline.report import made_lake
from tests.pipeline.report.sight import WIDTHS, Sight

pytestmark = pytest.mark.asyncio(loop_scope="session")

CHARTS = [
    "offload",
    "reads",
    "bytes",
    "savers",
    "curve-bytes",
    "curve-reads",
    "first-byte",
    "delivery",
    "fan-out",
]
LISTS = ["streams-by-bytes", "streams-by-requests", "routes", "latency"]
FINDINGS = ["errors", "storms", "slow-consumers", "closed-loops", "anomalies"]
SLACK_PX = 1.5
STROKE_PX = 3.0


def apart(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return bool(
        one["right"] <= other["left"] + SLACK_PX
        or other["right"] <= one["left"] + SLACK_PX
        or one["bottom"] <= other["top"] + SLACK_PX
        or other["bottom"] <= one["top"] + SLACK_PX
    )


def check(charts: list[dict[str, Any]], width: int) -> None:
    """Assert that everything is inside, that there is something, and that no two texts overlap."""
    for chart in charts:
        where = (chart["name"], width)
        plot, card = chart["plot"], chart["card"]
        assert plot["width"] > width / 5, where
        assert chart["marks"], where
        for mark in chart["marks"]:
            assert plot["left"] - STROKE_PX <= mark["left"] <= mark["right"] <= plot["right"] + STROKE_PX, where
            assert plot["top"] - STROKE_PX <= mark["top"] <= mark["bottom"] <= plot["bottom"] + STROKE_PX, where
        assert len([text for text in chart["texts"] if text["kind"] == "y-label"]) >= 3, where
        assert len([text for text in chart["texts"] if text["kind"].startswith("x-label")]) >= 2, where
        for text in chart["texts"]:
            assert card["left"] < text["left"] < text["right"] < card["right"], (where, text)
        for one, other in itertools.combinations(chart["texts"], 2):
            assert apart(one, other), (where, one["text"], other["text"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
async def test_nothing_overlaps_overflows_or_is_missing(
    browser: Browser, report: Path, width: int, scheme: str
) -> None:
    async with Sight.of(browser, report, scheme=scheme) as sight:
        await sight.resize(width)
        assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
        charts = await sight.charts()
        assert [chart["name"] for chart in charts] == CHARTS
        check(charts, width)
        for chart in charts:
            assert any(mark["width"] > 0 and mark["height"] > 0 for mark in chart["marks"]), chart["name"]
        for name in LISTS:
            assert await sight.page.locator(f"#{name} .bars li").count() >= 3
            for edge in await sight.page.locator(f"#{name} .bars li").evaluate_all(
                "(rows) => rows.map((row) => Math.max(...[...row.children].map((one) => one.getBoundingClientRect()"
                ".right)) - row.getBoundingClientRect().right)"
            ):
                assert edge <= SLACK_PX
    assert sight.complaints == []
    assert sight.asked == [report.as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
async def test_tables_open_singly_and_together_and_scroll_by_themselves(sight: Sight, width: int) -> None:
    await sight.resize(width)
    offload = sight.page.locator("#offload")
    await expect(offload.locator("table")).to_be_hidden()
    await offload.locator("summary").click()
    await expect(offload.locator("table")).to_be_visible()
    await offload.locator("summary").click()
    await expect(offload.locator("table")).to_be_hidden()
    await sight.page.locator("#all-numbers").click()
    for name in [*CHARTS, *LISTS, *FINDINGS, "plan"]:
        await expect(sight.page.locator(f"#{name} table")).to_be_visible()
    assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
    await sight.page.locator("#all-numbers").click()
    await expect(sight.page.locator("table:visible")).to_have_count(0)


async def test_every_chart_is_named_and_says_what_it_shows(sight: Sight) -> None:
    for name in CHARTS:
        card = sight.page.locator(f"#{name}")
        title = await card.locator("h3").inner_text()
        assert len(await card.locator("svg.chart").get_attribute("aria-label") or "") > 30
        assert title in (await card.locator(".frame").get_attribute("aria-label") or "")
    await expect(sight.page.locator("h1")).to_have_text("Report <of> a morning")
    assert await sight.page.title() == "Report <of> a morning"


async def test_pointing_at_a_chart_shows_its_numbers_by_mouse_and_keys(sight: Sight, figures: Figures) -> None:
    card = sight.page.locator("#savers")
    frame = card.locator(".frame")
    tip = card.locator(".tip")
    await expect(tip).to_be_hidden()
    await frame.scroll_into_view_if_needed()
    await card.locator("svg.chart").hover(position={"x": 400, "y": 100})
    await expect(tip).to_be_visible()
    said = await tip.locator("b").inner_text()
    assert re.fullmatch(r"2026-11-2[01] \d\d:\d\d", said)
    row = card.locator("tbody tr").filter(has_text=said)
    cells = await row.locator("td").all_text_contents()
    assert await tip.locator("dd").all_text_contents() == cells[1:]
    await sight.page.mouse.move(2, 2)
    await expect(tip).to_be_hidden()
    await frame.focus()
    await sight.page.keyboard.press("End")
    await expect(tip.locator("b")).to_have_text("2026-11-21 05:28")
    await sight.page.keyboard.press("ArrowLeft")
    await expect(tip.locator("b")).to_have_text("2026-11-21 05:26")
    await sight.page.keyboard.press("Home")
    await expect(tip.locator("b")).to_have_text("2026-11-20 22:30")
    await sight.page.keyboard.press("Escape")
    await expect(tip).to_be_hidden()


async def test_a_table_is_sorted_by_measured_values(sight: Sight, figures: Figures) -> None:
    card = sight.page.locator("#streams-by-bytes")
    await card.locator("summary").click()
    head = card.locator("th").filter(has_text="To readers")
    cells = card.locator("tbody tr td:nth-child(5)")
    fallen = [str(one.read_bytes) for one in figures.by_bytes]

    async def measured() -> list[str]:
        return [await cell.get_attribute("data-raw") or "" for cell in await cells.all()]

    assert await measured() == fallen
    await head.locator("button").click()
    await expect(head).to_have_attribute("aria-sort", "ascending")
    assert await measured() == fallen[::-1]
    await head.locator("button").click()
    await expect(head).to_have_attribute("aria-sort", "descending")
    assert await measured() == fallen


async def test_a_table_is_saved_as_csv_with_measured_values(sight: Sight, figures: Figures, tmp_path: Path) -> None:
    saved = tmp_path / "saved.csv"
    for name in ("offload", "slow-consumers"):
        card = sight.page.locator(f"#{name}")
        await card.locator("summary").click()
        async with sight.page.expect_download() as download:
            await card.locator("button.csv").click()
        value = await download.value
        assert value.suggested_filename == f"{name}.csv"
        await value.save_as(saved)
        rows = list(csv.reader(io.StringIO(saved.read_bytes().decode())))
        if name == "offload":
            assert rows[0] == ["From (UTC)", "Requests spared", "Bytes spared", "Tape alone"]
            offload = [moment.traffic.request_offload for moment in figures.moments]
            assert [float(row[1]) if row[1] else None for row in rows[1:]] == offload
        else:
            # A spreadsheet reads a field that begins with "=" as a formula.
            assert {row[1][:2] for row in rows[1:]} == {"'="}
            assert {row[2] for row in rows[1:]} == {made_lake.EVIL}
    sight.asked[:] = [url for url in sight.asked if not url.startswith("blob:")]


async def test_hostile_names_are_text_and_run_nothing(sight: Sight) -> None:
    await sight.page.locator("#all-numbers").click()
    assert await sight.page.evaluate("window.ran") is None
    assert await sight.page.locator("img, iframe, object, embed, form, link").count() == 0
    assert await sight.page.locator("script").count() == 1
    for name in ("streams-by-bytes", "slow-consumers"):
        await expect(sight.page.locator(f"#{name} table").get_by_text(made_lake.EVIL).first).to_be_visible()
    agent = sight.page.locator("#slow-consumers tbody tr").first.locator("td").nth(1)
    await expect(agent).to_have_text(made_lake.EVIL_AGENT.replace("\u202e", "\\u202e"))
    await expect(sight.page.locator("#plan li").last).to_contain_text("<script>window.ran=3</script>")


async def test_the_policy_blocks_other_scripts_and_all_requests(sight: Sight) -> None:
    violated = await sight.page.evaluate(
        """async () => {
          const wanted = ["connect-src", "img-src", "script-src-elem", "style-src-attr", "font-src"]
          const seen = new Set()
          const over = new Promise((resolve) => document.addEventListener("securitypolicyviolation", (event) => {
            seen.add(event.effectiveDirective)
            if (wanted.every((one) => seen.has(one))) resolve()
          }))
          const typed = []
          const attempt = (work) => { try { work() } catch (error) { typed.push(error.name) } }
          attempt(() => { document.body.innerHTML = "<img src=x onerror=window.ran=1>" })
          attempt(() => { document.createElement("script").textContent = "window.ran = 1" })
          const module = document.createElement("link")
          module.rel = "modulepreload"
          module.href = "http://127.0.0.1:1/a.js"
          document.head.append(module)
          document.body.setAttribute("style", "color: red")
          new FontFace("x", "url(http://127.0.0.1:1/x.woff2)").load().catch(() => {})
          const image = new Image()
          image.src = "http://127.0.0.1:1/x.png"
          fetch("http://127.0.0.1:1/").catch(() => {})
          await Promise.race([over, new Promise((resolve) => setTimeout(resolve, 10000))])
          return [typed, window.ran ?? null, wanted.filter((one) => !seen.has(one))]
        }"""
    )
    assert violated == [["TypeError", "TypeError"], None, []]
    assert sight.complaints
    sight.complaints.clear()
    del sight.asked[1:]


async def test_everything_is_there_without_a_script(browser: Browser, report: Path) -> None:
    context = await browser.new_context(java_script_enabled=False)
    shown = await context.new_page()
    await shown.goto(report.as_uri())
    await expect(shown.locator("svg.chart")).to_have_count(len(CHARTS))
    await shown.locator("#offload summary").click()
    await expect(shown.locator("#offload table")).to_be_visible()
    await expect(shown.locator("#all-numbers")).to_be_hidden()
    await context.close()


async def test_it_prints_on_paper(sight: Sight) -> None:
    await sight.page.emulate_media(media="print", color_scheme="dark")
    await expect(sight.page.locator("#all-numbers")).to_be_hidden()
    await expect(sight.page.locator("summary:visible")).to_have_count(0)
    ground = await sight.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert ground == "rgb(255, 254, 251)"
    assert (await sight.page.pdf(format="A4")).startswith(b"%PDF-")


@pytest.mark.parametrize("width", WIDTHS)
async def test_every_part_of_an_empty_report_says_why_it_is_empty(browser: Browser, tmp_path: Path, width: int) -> None:
    out = tmp_path / "empty.html"
    out.write_text(page(Figures(), "Nothing"))
    async with Sight.of(browser, out) as sight:
        await sight.resize(width)
        await expect(sight.page.locator("svg.chart, table")).to_have_count(0)
        await expect(sight.page.locator(".headline-nothing")).to_contain_text("durable-gateway pipeline ingest")
        for name in [*CHARTS, *LISTS, *FINDINGS, "plan"]:
            said = await sight.page.locator(f"#{name} .nothing").inner_text()
            assert len(said) > 20, name
            assert "`" not in said
        assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
    assert sight.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("steps", [1, 2, 8, 128])
async def test_marks_never_overlap_for_any_time_and_memory(
    browser: Browser, tmp_path: Path, width: int, steps: int
) -> None:
    step_s = 3 * 3600
    first = 1_793_491_200
    moments = tuple(
        Moment(first + at * step_s, Traffic(Saved(tape=10**9, origin=at), at * 30, 2**40, 2**41)) for at in range(steps)
    )
    taken = Percentiles(9, 0.00001, 0.002, 4000.0)
    waits = tuple(Wait(moment.at, taken) for moment in moments)
    wide = Figures(
        first=first,
        last=moments[-1].at,
        step_s=step_s,
        requests=steps * 10**9,
        total=moments[0].traffic,
        moments=moments,
        first_byte=waits,
        first_byte_all=taken,
        delivery=waits,
        delivery_all=taken,
        fan_out=tuple(Shared(2**power, 5, 3) for power in range(20)),
        curve=tuple(CurvePoint("lru", 1000 << power, 1.0, 1.0, None, 9, 9, 1.0) for power in range(steps % 100)),
        plan=Plan(1 << 62, "lru", 0.001, 0.0, 0.0, 0.0),
    )
    out = tmp_path / "wide.html"
    out.write_text(page(wide, "W" * 300))
    async with Sight.of(browser, out) as sight:
        await sight.resize(width)
        check(await sight.charts(), width)
        assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
    assert sight.complaints == []
