"""A viewer of a report, with everything that the browser complained about or requested."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from playwright.async_api import Browser, ConsoleMessage, Page, expect

BOUND_S = 20.0
WIDTHS = (1280, 390)

expect.set_options(timeout=BOUND_S * 1000)

# Boxes of all text and shapes in the visible charts, with their kind.
_CHARTS = """() => [...document.querySelectorAll("svg.chart")].map((chart) => {
  const box = (node) => {
    const { left, top, right, bottom, width, height } = node.getBoundingClientRect()
    return { left, top, right, bottom, width, height, text: node.textContent, kind: node.getAttribute("class") }
  }
  return {
    name: chart.closest("article").id,
    card: box(chart.closest("article")),
    plot: box(chart),
    texts: [...chart.querySelectorAll("text")].map(box).filter((one) => one.width),
    marks: [...chart.querySelectorAll(".plot > *")].map(box),
    points: [...chart.querySelectorAll("circle")].map(box),
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
