"""Tasks with an owner, and coroutines that become tasks only if they must wait.

The event loop keeps only weak references to tasks, so a running task without other references may be garbage-collected.
`Tasks` keeps strong references, logs unexpected exceptions, and cancels its tasks at shutdown.

A task costs several microseconds, and most reads of bytes in memory never wait.  `begin` runs a coroutine without a
task up to its first wait, much like the eager tasks of Python 3.12.  Code that needs a current task, such as
`asyncio.timeout`, must await `in_task` first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

_log = logging.getLogger("gateway.aio.tasks")


class Tasks:
    """An owner of background tasks."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        return f"{len(self._tasks)} tasks: {', '.join(sorted(task.get_name() for task in self._tasks))}"

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` in a task until it ends, or until `close`."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.own(task)
        return task

    def own(self, task: asyncio.Task[Any]) -> None:
        """Add a task that was created elsewhere."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("task %s died", task.get_name(), exc_info=error)

    async def finished(self) -> None:
        """Wait for the ends of all running tasks."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel all running tasks and wait for their ends."""
        pending = list(self._tasks)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.gather(*pending, return_exceptions=True)


T = TypeVar("T")


def begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context | None = None
) -> asyncio.Task[T] | None:
    """Run `work` up to its first wait; return a task that runs the rest, or None if `work` has ended.

    Raises an exception that `work` raises before its first wait.  Like a task, `work` runs in a copy of `context`, or
    of the current context.
    """
    context = copy_context() if context is None else context.copy()
    if asyncio.current_task(loop) is not None:
        # Run `work` in its own task at once.  Otherwise, `work` would mistake the current task for its own task.
        return loop.create_task(work, context=context)
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return loop.create_task(_Rest(work, awaited), context=context)


async def in_task() -> None:
    """Make sure that the caller runs in a task.  If not, wait for the next iteration of the loop."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine that has started and waits for the future `awaited`, or for the next iteration of the loop (None)."""

    __slots__ = ("_awaited", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited: asyncio.Future[Any] | None = awaited
        if awaited is not None:
            # The flag marks a future that a task is about to await.  Clear the flag now.  `send` sets it again when the
            # new task awaits the future.
            awaited._asyncio_future_blocking = False

    def send(self, value: Any) -> Any:
        awaited = self._awaited
        if awaited is None:
            return self._work.send(value)
        self._awaited = None
        awaited._asyncio_future_blocking = True
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited, self._awaited = self._awaited, None
        if awaited is not None:
            # Cancel the awaited future, as a cancelled task does.
            awaited.cancel()
        try:
            return self._work.throw(*error)
        finally:
            # Break a reference cycle: the error's traceback refers to this frame.
            del error

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a task drives it, by `send` and `throw`")
