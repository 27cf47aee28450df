"""A viewer of a report, with everything that the browser complained about or requested."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from playwright.async_api import Browser, ConsoleMessage, Page, expect

BOUND_S = 20.0
WIDTHS = (1280, 768, 360)

expect.set_options(timeout=BOUND_S * 1000)

# Boxes of all text and shapes in the drawings that are shown.
_CHARTS = """() => [...document.querySelectorAll("svg.chart")].filter((one) => one.checkVisibility()).map((chart) => {
  const box = (node) => {
    const { left, top, right, bottom, width, height } = node.getBoundingClientRect()
    const size = parseFloat(getComputedStyle(node).fontSize) * chart.clientWidth / chart.viewBox.baseVal.width
    return { left, top, right, bottom, width, height, size, text: node.textContent }
  }
  const boxes = (selector) => [...chart.querySelectorAll(selector)].map(box)
  return {
    name: chart.closest("article").id,
    card: box(chart.closest("article")),
    plot: box(chart),
    labels: boxes(".role-axis-label text"),
    texts: boxes("text"),
    marks: boxes(".role-mark > :not(text)"),
  }
})"""


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
        """The boxes of every chart."""
        found: list[dict[str, Any]] = await self.page.evaluate(_CHARTS)
        return found
