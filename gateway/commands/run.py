"""Running a command's coroutine until it ends or until somebody tells it to stop, with what it needs of the system."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop


def allow_many_connections() -> None:
    """As many open files as the system lets this process have: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_rarely() -> None:
    """Look for cyclic garbage only now and then.  Requests leave none behind, only streams and connections to origins
    that end; what looking costs grows with all that is held in memory, and stops every client for as long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def run(work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` came to its end by itself; False where SIGINT or SIGTERM cancelled it."""

    async def until_told() -> bool:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        told = False

        def tell() -> None:
            nonlocal told
            told = True
            if main is not None:
                main.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, tell)
        try:
            await work
        except asyncio.CancelledError:
            if not told:
                raise
        return not told

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until_told())
