import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops that the gateway may run on: their transports differ in the order of callbacks."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
