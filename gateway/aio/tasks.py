"""Tasks with an owner, and coroutines that become tasks only if they have to wait.

The event loop keeps only weak references to tasks, so a task that nothing else refers to can be collected while it
runs.  `Tasks` keeps strong references, logs tasks that die of an unexpected error, and cancels all of them at shutdown.

A task costs several microseconds, and most reads of bytes in memory never wait.  Coroutines that `begin` runs are the
eager tasks of Python 3.12, except that the first step runs without a task: code that needs one, such as
`asyncio.timeout`, awaits `in_task` first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, TypeVar

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


T = TypeVar("T")


def begin(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], context: Context | None = None
) -> asyncio.Task[T] | None:
    """Run `work` up to its first wait; return the task that runs the rest, None if `work` has ended.

    An error of the first step is raised here.  Like a task, `work` has a context of its own: a copy of `context`, or of
    the current one.
    """
    context = copy_context() if context is None else context.copy()
    if asyncio.current_task(loop) is not None:
        # `work` would take the task that is running for its own.
        return loop.create_task(work, context=context)
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return loop.create_task(_Rest(work, awaited), context=context)


async def in_task() -> None:
    """Go on in a task: wait for the next turn of the loop if none is running."""
    if asyncio.current_task() is None:
        await asyncio.sleep(0)


class _Rest(Coroutine[Any, Any, T]):
    """A coroutine that has begun, and waits for the future `awaited`; None stands for the next turn of the loop."""

    __slots__ = ("_awaited", "_work")

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited: asyncio.Future[Any] | None = awaited
        if awaited is not None:
            # Until the task has it, others may await the same future.
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
            # As a task does that is cancelled while it waits.
            awaited.cancel()
        try:
            return self._work.throw(*error)
        finally:
            # The traceback of the error refers to this frame.
            del error

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        raise TypeError("a task drives it, by `send` and `throw`")
