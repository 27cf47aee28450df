"""The clients here move gigabytes: on the loop that does so fastest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """One loop."""
    return {"uvloop": uvloop.new_event_loop}
