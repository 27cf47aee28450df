"""Generated tables, their figures and one Chromium for all tests of the report; none of them needs Spark."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop
from playwright.async_api import Browser, async_playwright

from gateway.config.cache_plan import parse_plan
from gateway.pipeline.report.figures import Figures
from gateway.pipeline.report.gather import Gold, gather
from gateway.pipeline.report.page import page
from tests.chromium import arguments, chromium
from tests.pipeline.report import made_gold
from tests.pipeline.report.sight import Sight


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def gold() -> Gold:
    return made_gold.gold()


@pytest.fixture(scope="session")
def figures(gold: Gold) -> Figures:
    return gather(gold, lambda _: None)


@pytest.fixture(scope="session")
def report(figures: Figures, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole report of the made tables, with a plan."""
    plan = parse_plan(json.dumps(made_gold.PLAN).encode())
    out = tmp_path_factory.mktemp("page") / "report.html"
    out.write_text(page(replace(figures, plan=plan, curves=(plan.memory.policy,)), "Report <of> a morning"))
    return out


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=chromium(), args=arguments())
        yield running
        await running.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def opened(browser: Browser, report: Path) -> AsyncIterator[Sight]:
    """The report in a window, opened once."""
    async with Sight.of(browser, report) as one:
        yield one


@pytest_asyncio.fixture(loop_scope="session")
async def sight(opened: Sight, report: Path) -> AsyncIterator[Sight]:
    """A viewer of the report, which must have had no complaints by the end."""
    yield opened
    complaints, asked = await opened.reset()
    assert complaints == []
    assert asked == [report.as_uri()]
