"""Run a command's coroutine until it ends or a signal cancels it, and prepare the process: open files, garbage."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop


def allow_many_connections() -> None:
    """Raise the limit of open files to the hard limit: every connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_rarely() -> None:
    """Make collections of cyclic garbage rare.

    Requests leave no cycles; only streams and connections to origins do when they end.  A collection takes time in
    proportion to all objects in memory and stops every client meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 5, 1_000)


def run(work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end and return True, or return False if SIGINT or SIGTERM cancelled it."""

    async def until_signalled() -> bool:
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        is_stopped = False

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True
            if main is not None:
                main.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        try:
            await work
        except asyncio.CancelledError:
            if not is_stopped:
                raise
        return not is_stopped

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(until_signalled())
