"""Runs work that may block on the disk in a separate thread.

The thread is a daemon thread, so the process can exit while the disk hangs.  The loop's default executor is not used,
because Python waits for its threads at the exit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def in_daemon_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Call `work` in a new thread; return a future of its result."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except Exception as error:
            _resolve_soon(loop, done, done.set_exception, error)
        else:
            _resolve_soon(loop, done, done.set_result, result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return done


def _resolve_soon(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Any], resolve: Callable[[Any], object], value: object
) -> None:
    # The loop may have been closed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(lambda: None if done.done() else resolve(value))
