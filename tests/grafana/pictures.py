"""The README's picture of dashboard queries: `python -m tests.grafana.pictures` takes it again after two minutes' load.

The queries come from the dashboards' files, a real Prometheus answers them from a gateway under load, and a Chromium
draws the answers with the console's charts.  Only Grafana itself is missing; it would draw them in its own style.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import ClientSession, TCPConnector
from playwright.async_api import Route, async_playwright

from gateway.aio.tasks import Tasks
from gateway.app import start_gateway
from gateway.config.gateway import GatewayConfig
from gateway.origin.app import start_origin
from tests.chromium import arguments, chromium
from tests.console.pictures import DOCS, JSON, ORDERS, ROOMS, read_often, read_on, write_on
from tests.grafana.prometheus import Prometheus, running_prometheus
from tests.grafana.queries import GRAFANA
from tests.waiting import pause

LOAD_S = 120.0
VISITORS = 24
READERS = 90
STAY_S = 60.0
"""How long a live reader stays, on average."""
RATE_WINDOW = "10s"
"""Grafana uses at least four scrapes; this Prometheus scrapes twice a second."""
STEP = "1s"

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Dashboard queries</title>
<link rel="stylesheet" href="/console/vendor/uplot/uPlot.min.css">
<link rel="stylesheet" href="/console/console.css"><link rel="stylesheet" href="/console/views.css">
<style>
  body { padding: 14px }
  .cards { margin: 0 }
  .card p { margin: 0; color: var(--quiet); font-size: 12px }
  pre { margin: 10px 0 0; padding: 8px 10px; border-radius: 7px; background: var(--raised); color: var(--quiet);
        font-size: 10.5px; white-space: pre-wrap; overflow-wrap: anywhere }
</style>
<body></body></html>"""

DRAW = """async (panels) => {
  const { Chart } = await import("/console/charts.js")
  const { OUTCOMES } = await import("/console/rates.js")
  const { h } = await import("/console/dom.js")
  const say = await import("/console/format.js")
  const formats = { reqps: say.rate, percentunit: say.share, short: say.count }
  const colours = { sse: "--o-followed", longpoll: "--o-collapsed", requests: "--clients", bytes: "--o-followed" }
  const cards = h("div", { class: "cards" })
  document.body.append(cards)
  for (const { board, title, unit, isStacked, most, query, times, series } of panels) {
    series.sort((a, b) => OUTCOMES.indexOf(a.label) - OUTCOMES.indexOf(b.label))
    const chart = new Chart({
      label: title, format: formats[unit], isStacked, most,
      series: series.map(({ label }) => {
        const colour = OUTCOMES.includes(label) ? `--o-${label.replaceAll("_", "-")}` : colours[label] ?? "--o-hit"
        return { label: label.replaceAll("_", " "), colour, isFilled: true }
      }),
    })
    const card = [h("p", {}, board), h("h2", {}, title), chart.element, h("pre", {}, query)]
    cards.append(h("section", { class: "card" }, card))
    chart.show(times, series.map((one) => one.values))
  }
}"""


class Shown(NamedTuple):
    """A dashboard's file and one of its panels."""

    board: str
    title: str


SHOWN = (Shown("overview", "Spared over time"), Shown("overview", "By outcome"), Shown("live", "Live readers"))


async def answered(prometheus: Prometheus, shown: Shown, start: float, end: float) -> dict[str, Any]:
    """The page's data: the panel's query and Prometheus's answer, second by second between two Unix times."""
    board = json.loads((GRAFANA / "dashboards" / f"{shown.board}.json").read_text())
    panel = next(panel for panel in board["panels"] if panel["title"] == shown.title)
    columns = []
    for target in panel["targets"]:
        asked = target["expr"].replace("$instance", ".*").replace("$route", ".*")
        asked = asked.replace("$__rate_interval", RATE_WINDOW)
        answer = await prometheus.get("query_range", query=asked, start=f"{start}", end=f"{end}", step=STEP)
        for one in answer["result"]:
            label = target["legendFormat"]
            for name, value in one["metric"].items():
                label = label.replace(f"{{{{{name}}}}}", value)
            # NaN, a ratio without data, is a gap.
            columns.append((label, {at: None if value == "NaN" else float(value) for at, value in one["values"]}))
    times = sorted({at for _, values in columns for at in values})
    defaults = panel["fieldConfig"]["defaults"]
    return {
        "board": board["title"],
        "title": shown.title,
        "unit": defaults["unit"],
        "isStacked": "stacking" in defaults["custom"],
        "most": defaults.get("max"),
        "query": panel["targets"][0]["expr"],
        "times": times,
        "series": [{"label": label, "values": [values.get(at) for at in times]} for label, values in columns],
    }


async def come_and_go(session: ClientSession, urls: list[str], live: str, rng: random.Random) -> None:
    """Run a live reader that reads one stream for a while, and later others."""
    while True:
        await pause(rng.expovariate(2 / STAY_S))
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.expovariate(1 / STAY_S)):
                await read_on(session, rng.choice(urls), live)


async def under_load(session: ClientSession, url: str, rng: random.Random, load: Tasks) -> None:
    """Run rooms and orders, some of them closed, with writers, readers from the start, and live readers."""
    at = [url + path for path in (*ROOMS, *ORDERS)]
    for one in at:
        async with session.put(one, headers=JSON):
            pass
        items = [{"order": number, "note": "x" * 200} for number in range(100)]
        async with session.post(one, data=json.dumps(items), headers=JSON):
            pass
    opened, closed = at[: len(ROOMS)], at[len(ROOMS) :]
    for one in closed:
        async with session.post(one, headers={"Stream-Closed": "true"}):
            pass
    for one in opened:
        load.start(write_on(session, one, rng), f"writer of {one}")
    for _ in range(VISITORS):
        load.start(read_often(session, at, rng), "visitor")
    for number in range(READERS):
        live = "long-poll" if number % 4 == 0 else "sse"
        load.start(come_and_go(session, opened, live, rng), "live reader")


async def draw(admin: str, panels: list[dict[str, Any]], path: Path) -> None:
    """Draw the page on the console's origin, because it uses the console's files."""

    async def page_itself(route: Route) -> None:
        await route.fulfill(body=PAGE, content_type="text/html")

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=arguments())
        page = await browser.new_page(viewport={"width": 1200, "height": 420}, color_scheme="light")
        await page.route(f"{admin}/dashboard-picture", page_itself)
        await page.goto(f"{admin}/dashboard-picture")
        await page.evaluate(DRAW, panels)
        await page.screenshot(path=path)
        await browser.close()


async def main() -> None:
    rng = random.Random(11)
    origin = await start_origin()
    config = GatewayConfig.for_origin(origin.url, listen="127.0.0.1:0", admin="127.0.0.1:0", long_poll_timeout_s=10)
    gateway = await start_gateway(config, environ={})
    load = Tasks()
    with tempfile.TemporaryDirectory() as folder:
        async with (
            ClientSession(connector=TCPConnector(limit=0)) as session,
            running_prometheus(Path(folder), gateway.admin_url.removeprefix("http://"), session) as prometheus,
        ):
            # Rates begin with the second sample, so the zeros have to be scraped first.
            await prometheus.scrapes(2)
            start = time.time()
            await under_load(session, gateway.gateway_url, rng, load)
            await pause(LOAD_S)
            end = time.time()
            panels = [await answered(prometheus, shown, start, end) for shown in SHOWN]
            await load.close()
    await draw(gateway.admin_url, panels, DOCS / "dashboard.png")
    await gateway.stop()
    await origin.stop(grace_s=0)


if __name__ == "__main__":
    asyncio.run(main())
