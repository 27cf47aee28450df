"""A broadcast: everyone who waits now is woken by the next firing, and by no earlier one."""

from __future__ import annotations

import asyncio


class Signal:
    """`next` gives the future of the coming firing; `fire` resolves it for all who hold it, at no cost when none do.

    The future is shared, so it is not to be awaited bare: a task that is cancelled takes along what it awaits, and
    here that would be everyone's.  `wait` is the way to await it, `clock.wait_until` the way with a bound.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[object] | None = None

    def next(self) -> asyncio.Future[object]:
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
        return self._future

    async def wait(self) -> None:
        """Wait for the coming firing."""
        await asyncio.shield(self.next())

    def fire(self) -> None:
        future, self._future = self._future, None
        if future is not None and not future.done():
            future.set_result(None)
