"""A thread for work that may block the event loop: writing to disks and pipes.

It is a daemon thread: a write to a pipe without a reader may never return, and must not keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class WorkThread:
    """Runs functions one after another for one event loop.  Its owner must call `stop`."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, or raise its exception.  If the caller is cancelled, the work continues."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def resolve(result: T | None, error: Exception | None) -> None:
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(resolve, result, error)
            except RuntimeError:
                # The loop is closed, so no caller waits for the result.
                return

        self._jobs.put(job)
        return await done

    def stop(self, last: Callable[[], None] = lambda: None) -> None:
        """Accept no more work.  The thread finishes its jobs, calls `last` and ends.  This call does not wait for the
        thread.
        """
        self._jobs.put(last)
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
