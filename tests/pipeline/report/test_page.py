"""The report in a real browser, at the widths of a desktop, a tablet and a phone."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from gateway.pipeline.report import write_report
from gateway.pipeline.report.figures import Figures
from gateway.pipeline.report.page import page
from tests.effort import some
from tests.pipeline.report import made_gold
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
    "latency",
    "streams-by-bytes",
    "streams-by-requests",
    "fan-out",
    "routes",
]
LISTS = ["streams-by-bytes", "streams-by-requests", "routes", "latency"]
FINDINGS = ["errors", "storms", "slow-consumers", "closed-loops", "anomalies"]
SLACK_PX = 1.5
LEAST_TEXT_PX = 8.5

# What a page might try; gives the errors it got, what ran, and the directives that blocked nothing.
_ATTEMPTS = """async () => {
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
        marks = chart["marks"]
        assert marks["count"], where
        assert plot["left"] - SLACK_PX <= marks["left"] <= marks["right"] <= plot["right"] + SLACK_PX, where
        assert plot["top"] - SLACK_PX <= marks["top"] <= marks["bottom"] <= plot["bottom"] + SLACK_PX, where
        # A list has one axis, all others two.
        assert chart["labels"] >= (2 if chart["name"] in LISTS else 4), where
        # A browser's letters may be wider than those that the drawing was made for.
        room = plot if chart["clips"] else card
        for text in chart["texts"]:
            assert room["left"] < text["left"] < text["right"] < room["right"], (where, text)
            assert text["size"] >= LEAST_TEXT_PX, (where, text)
        for one, other in itertools.combinations(chart["texts"], 2):
            assert apart(one, other), (where, one["text"], other["text"])


async def test_nothing_overlaps_overflows_or_is_missing(sight: Sight) -> None:
    for is_dark, width in (*((False, width) for width in WIDTHS), (True, WIDTHS[0])):
        await sight.page.emulate_media(color_scheme="dark" if is_dark else "light")
        await sight.resize(width)
        assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
        charts = await sight.charts()
        assert [chart["name"] for chart in charts] == CHARTS
        check(charts, width)
        for chart in charts:
            assert chart["marks"]["has_area"], chart["name"]


async def test_tables_open_and_scroll_by_themselves(sight: Sight) -> None:
    names = [*CHARTS, *FINDINGS, "plan"]
    for number, width in enumerate(WIDTHS):
        await sight.resize(width)
        # Each is opened at one of the widths, and seen at all that follow.
        for name in names[number :: len(WIDTHS)]:
            table = sight.page.locator(f"#{name} table")
            await expect(table).to_be_hidden()
            await sight.page.locator(f"#{name} summary").click()
            await expect(table).to_be_visible()
    for width in WIDTHS:
        await sight.resize(width)
        assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
    await sight.page.locator("#plan summary").click()
    await expect(sight.page.locator("#plan table")).to_be_hidden()


async def test_every_chart_is_named_and_says_what_it_shows(sight: Sight) -> None:
    for name in CHARTS:
        card = sight.page.locator(f"#{name}")
        title = await card.locator("h3").inner_text()
        figure = card.get_by_role("img")
        await expect(figure).to_have_count(1)
        said = await figure.get_attribute("aria-label") or ""
        assert said.startswith(f"{title}. ")
        assert len(said) > len(title) + 10
    await expect(sight.page.locator("h1")).to_have_text("Report <of> a morning")
    assert await sight.page.title() == "Report <of> a morning"


async def test_a_value_below_the_chart_is_marked_and_told(sight: Sight, figures: Figures) -> None:
    lowest = min(moment["byte_offload"] or 0 for moment in figures.moments)
    assert lowest < -10
    offload = sight.page.locator("#offload")
    await expect(offload.locator(".legend li").last).to_have_text(
        f"Below −100 %: 1 time, the lowest −{-lowest:,.0%}".replace("%", " %")
    )
    await expect(offload.locator(".legend .out")).to_be_visible()
    # Lines, and a symbol for the value below.
    await expect(offload.locator("svg:visible .mark-symbol path")).to_have_count(1)


async def test_a_table_is_saved_as_csv_with_measured_values(sight: Sight, figures: Figures, tmp_path: Path) -> None:
    saved = tmp_path / "saved.csv"
    for name in ("offload", "slow-consumers"):
        card = sight.page.locator(f"#{name}")
        await card.locator("summary").click()
        async with sight.page.expect_download() as download:
            await card.locator("a.csv").click()
        value = await download.value
        assert value.suggested_filename == f"{name}.csv"
        await value.save_as(saved)
        rows = list(csv.reader(io.StringIO(saved.read_bytes().decode())))
        if name == "offload":
            assert rows[0][:3] == ["From (UTC)", "Reads without a request", "Bytes spared"]
            offload = [moment["spared_ratio"] for moment in figures.moments]
            assert [float(row[1]) if row[1] else None for row in rows[1:]] == offload
        else:
            # A spreadsheet reads a field that begins with "=" as a formula.
            assert {row[1][:2] for row in rows[1:]} == {"'="}
            assert {row[2] for row in rows[1:]} == {made_gold.EVIL}
    sight.asked[:] = [url for url in sight.asked if not url.startswith("data:text/csv")]


async def test_hostile_names_are_text_and_run_nothing(sight: Sight) -> None:
    assert await sight.page.evaluate("window.ran") is None
    assert await sight.page.locator("img, iframe, object, embed, form, link, script, [style]").count() == 0
    for name in ("streams-by-bytes", "slow-consumers"):
        await sight.page.locator(f"#{name} summary").click()
        await expect(sight.page.locator(f"#{name} table").get_by_text(made_gold.EVIL).first).to_be_visible()
    agent = sight.page.locator("#slow-consumers tbody tr").first.locator("td").nth(1)
    await expect(agent).to_have_text(made_gold.EVIL_AGENT.replace("\u202e", "\\u202e"))
    await expect(sight.page.locator("#plan li").last).to_contain_text("<script>window.ran=3</script>")


async def test_the_policy_blocks_other_scripts_and_all_requests(browser: Browser, report: Path) -> None:
    async with Sight.of(browser, report) as sight:
        violated = await sight.page.evaluate(_ATTEMPTS)
        assert violated == [["TypeError", "TypeError"], None, []]
        assert sight.complaints


async def test_everything_is_there_without_a_script(browser: Browser, report: Path) -> None:
    context = await browser.new_context(java_script_enabled=False)
    shown = await context.new_page()
    await shown.goto(report.as_uri())
    await expect(shown.locator("svg.chart:visible")).to_have_count(len(CHARTS))
    await shown.locator("#offload summary").click()
    await expect(shown.locator("#offload table")).to_be_visible()
    await context.close()


async def test_it_prints_on_paper(sight: Sight) -> None:
    await sight.page.emulate_media(media="print", color_scheme="dark")
    await expect(sight.page.locator("summary:visible")).to_have_count(0)
    ground = await sight.page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
    assert ground == "rgb(255, 254, 251)"
    assert (await sight.page.pdf(format="A4")).startswith(b"%PDF-")


async def test_every_part_of_an_empty_report_says_why_it_is_empty(browser: Browser, tmp_path: Path) -> None:
    out = tmp_path / "empty.html"
    out.write_text(page(Figures(), "Nothing"))
    async with Sight.of(browser, out) as sight:
        await expect(sight.page.locator("svg, table")).to_have_count(0)
        await expect(sight.page.locator(".headline-nothing")).to_contain_text("durable-gateway pipeline ingest")
        for name in [*CHARTS, *FINDINGS, "plan"]:
            said = await sight.page.locator(f"#{name} .nothing").inner_text()
            assert len(said) > 20, name
            assert "`" not in said
        for width in WIDTHS:
            await sight.resize(width)
            assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
    assert sight.complaints == []


@pytest.mark.parametrize(
    ("steps", "step_s"), some([(1, 60), (256, 3 * 3600)], [(1, 60), (2, 60), (8, 60), (256, 3 * 3600)])
)
async def test_marks_never_overlap_for_any_time_and_memory(
    browser: Browser, tmp_path: Path, steps: int, step_s: int
) -> None:
    plan = tmp_path / "plan.json"
    memory = {**made_gold.PLAN["memory"], "cache_bytes": 1 << 40, "policy": "lru", "expected_hit_ratio": 0.0}
    plan.write_text(json.dumps({**made_gold.PLAN, "target_hit_ratio": 0.001, "memory": memory}))
    out = tmp_path / "wide.html"
    write_report(made_gold.gold(made_gold.wide(steps, step_s)), out, title="W" * 300, plan=plan)
    async with Sight.of(browser, out) as sight:
        for width in WIDTHS:
            await sight.resize(width)
            charts = await sight.charts()
            assert [chart["name"] for chart in charts] == [name for name in CHARTS if "streams" not in name]
            check(charts, width)
            assert await sight.page.evaluate("document.documentElement.scrollWidth") <= width
    assert sight.complaints == []
