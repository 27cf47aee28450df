"""A viewer of a report, with everything that the browser complained about or requested."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from playwright.async_api import Browser, ConsoleMessage, Page, expect

BOUND_S = 20.0
WIDTHS = (1280, 768, 360)

expect.set_options(timeout=BOUND_S * 1000)

# Boxes of all text in the drawings that are shown, and the one around all shapes; as text, because a report has
# thousands of numbers, and Playwright takes apart one by one what is not.
_CHARTS = """() => JSON.stringify([...document.querySelectorAll("svg.chart")].filter(
  (one) => one.checkVisibility()
).map((chart) => {
  const box = (node) => {
    const { left, top, right, bottom, width, height } = node.getBoundingClientRect()
    return { left, top, right, bottom, width, height }
  }
  const size = (node) => parseFloat(getComputedStyle(node).fontSize) * chart.clientWidth / chart.viewBox.baseVal.width
  const marks = [...chart.querySelectorAll(".role-mark > :not(text)")].map(box)
  return {
    name: chart.closest("article").id,
    card: box(chart.closest("article")),
    plot: box(chart),
    clips: getComputedStyle(chart).overflow !== "visible",
    labels: chart.querySelectorAll(".role-axis-label text").length,
    texts: [...chart.querySelectorAll("text")].map(
      (node) => ({ ...box(node), size: size(node), text: node.textContent })
    ),
    marks: {
      left: Math.min(...marks.map((one) => one.left)),
      right: Math.max(...marks.map((one) => one.right)),
      top: Math.min(...marks.map((one) => one.top)),
      bottom: Math.max(...marks.map((one) => one.bottom)),
      count: marks.length,
      has_area: marks.some((one) => one.width > 0 && one.height > 0),
    },
  }
}))"""


class Sight:
    """One page in one window."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))

    @classmethod
    @asynccontextmanager
    async def of(cls, browser: Browser, file: Path, *, scheme: Any = "light") -> AsyncIterator[Self]:
        context = await browser.new_context(viewport={"width": WIDTHS[0], "height": 900}, color_scheme=scheme)
        context.set_default_timeout(BOUND_S * 1000)
        one = cls(await context.new_page())
        await one.page.goto(file.as_uri())
        try:
            yield one
        finally:
            await context.close()

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning", "assert"):
            self.complaints.append(f"{message.type}: {message.text}")

    async def resize(self, width: int) -> None:
        await self.page.set_viewport_size({"width": width, "height": 900})

    async def charts(self) -> list[dict[str, Any]]:
        """The boxes of every chart that is shown."""
        found: list[dict[str, Any]] = json.loads(await self.page.evaluate(_CHARTS))
        return found

    async def reset(self) -> tuple[list[str], list[str]]:
        """Show the page as it was when it was opened; returns the complaints and requests up to now."""
        told = self.complaints[:], self.asked[:]
        self.complaints.clear()
        del self.asked[1:]
        await self.page.emulate_media(media="screen", color_scheme="light")
        await self.resize(WIDTHS[0])
        await self.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = false })")
        return told
