"""Tests that move gigabytes run on the fastest loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The fastest event loop."""
    return {"uvloop": uvloop.new_event_loop}
