"""Runs the coroutine of a command, and prepares the process: its open files and its garbage collector."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
from collections.abc import Coroutine
from typing import Any

import uvloop


def allow_many_connections() -> None:
    """Raise the limit of open files to the hard limit, because each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def collect_rarely() -> None:
    """Keep the pauses of the garbage collector short.

    A collection delays all clients, by about 0.3 us for each object that it examines.  Requests leave no reference
    cycles (`tests/server/test_garbage.py`).  Therefore new objects are examined once, in small steps, and older objects
    very rarely.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(500, 20_000, 2)


def run(work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end; return False if SIGINT or SIGTERM has cancelled it."""

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
