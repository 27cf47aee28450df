"""Background tasks with an owner.

The event loop keeps only weak references to tasks, so a task that nothing else refers to can be collected while it
runs.  `Tasks` keeps strong references, logs tasks that die of an unexpected error, and cancels all of them at shutdown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger("gateway.aio.tasks")


class Tasks:
    """Owns background tasks: holds strong references, logs errors, cancels them together."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"{len(self._tasks)} tasks: {', '.join(sorted(task.get_name() for task in self._tasks))}"

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` until it ends or the owner closes."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.own(task)
        return task

    def own(self, task: asyncio.Task[Any]) -> None:
        """Own a task that has been made elsewhere."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s died", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Cancel the tasks that still run and wait for them to end."""
        pending = list(self._tasks)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)
