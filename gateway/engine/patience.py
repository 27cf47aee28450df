"""Reads of held bytes do not wait for an origin that is silent.

A read that ends at the known tail asks the origin what follows, and a live read may ask whether the stream is still the
same.  If no request of the route is answered for `PATIENCE_S`, the read is given the held bytes, as if the origin had
failed: without a statement about the tail, so that its client goes on from there.  The fetch goes on for other readers.
Until the origin is heard again, such reads do not wait at all.  If others are answered meanwhile, the read waits for
`MOST_WAIT_S` at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import in_task
from gateway.engine.fetch_table import FetchTable
from gateway.engine.read import Read
from gateway.tape.stream import Stream

PATIENCE_S: Final = 1.0
"""How long a read of held bytes waits for an origin that answers no request."""
MOST_WAIT_S: Final = 5.0
"""How long it waits for one that answers others."""


class Closeable(Protocol):
    """An answer, or a place in a stream."""

    def close(self) -> None: ...


T = TypeVar("T")
H = TypeVar("H", bound=Closeable)


class Patience:
    """Bounds the wait of reads that could be given held bytes.  Keeps no state of its own."""

    def __init__(self, fetches: FetchTable, clock: Clock) -> None:
        self._fetches = fetches
        self._clock = clock

    async def answer(
        self, read: Read, stream: Stream, asking: Callable[[], Coroutine[Any, Any, T]], held: Callable[[], H | None]
    ) -> T | H:
        """The answer of `asking`, or of `held` if that takes too long and `held` returns one."""
        # Held bytes are given by cancelling the task that asks.
        await in_task()
        wait = _Wait(read, self._clock, held, lambda: self._fetches.detach(stream, read.start))
        try:
            return await asking()
        except asyncio.CancelledError:
            if (answer := wait.take_answer()) is not None:
                return answer
            raise
        finally:
            wait.end()


class _Wait(Generic[H]):
    """The wait of one read, in the task that makes it."""

    def __init__(self, read: Read, clock: Clock, held: Callable[[], H | None], give_up: Callable[[], None]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelled_before = task.cancelling()
        self._route = read.route
        self._clock = clock
        self._held = held
        self._give_up = give_up
        self._began = clock.now()
        self._answers = read.route.answers
        self._found: H | None = None
        self._timer: Timer
        if read.route.is_silent:
            # Not before the read has asked: its fetch shows when the origin is back.
            self._timer = asyncio.get_running_loop().call_soon(self._look)
        else:
            self._timer = clock.call_later(PATIENCE_S, self._look)

    def _look(self) -> None:
        """Cancel the task's question if the origin is silent, or has taken too long, and there are held bytes."""
        route, clock = self._route, self._clock
        is_silent = route.is_silent or route.answers == self._answers
        if not is_silent and clock.now() - self._began < MOST_WAIT_S:
            self._answers = route.answers
            self._timer = clock.call_later(PATIENCE_S, self._look)
            return
        self._found = self._held()
        if self._found is not None:
            route.is_silent = is_silent
            self._give_up()
            self._task.cancel()

    def take_answer(self) -> H | None:
        """The held bytes, if the task was cancelled for them alone."""
        if self._found is None or self._task.uncancel() > self._cancelled_before:
            return None
        answer, self._found = self._found, None
        return answer

    def end(self) -> None:
        """The read has been answered, or is over."""
        self._timer.cancel()
        # A cancelled task keeps its traceback, whose frames refer to this wait.
        del self._task
        if self._found is not None:
            self._found.close()
