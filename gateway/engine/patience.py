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
from typing import Any, Final, Protocol, TypeVar

from gateway.aio.clock import Clock, Timer
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
        self, read: Read, stream: Stream, asking: Coroutine[Any, Any, T], held: Callable[[], H | None]
    ) -> T | H:
        """The answer of `asking`, or of `held` if that takes too long and `held` returns one."""
        route, clock, began = read.route, self._clock, self._clock.now()
        answers = route.answers
        task = asyncio.current_task()
        assert task is not None
        cancelled_before = task.cancelling()
        found: H | None = None
        timer: Timer

        def give_up() -> None:
            nonlocal found, answers, timer
            is_silent = route.is_silent or route.answers == answers
            if not is_silent and clock.now() - began < MOST_WAIT_S:
                answers = route.answers
                timer = clock.call_later(PATIENCE_S, give_up)
                return
            found = held()
            if found is not None:
                route.is_silent = is_silent
                self._fetches.detach(stream, read.start)
                task.cancel()

        if route.is_silent:
            # Not before `asking` has begun: what it fetches shows when the origin is back.
            timer = asyncio.get_running_loop().call_soon(give_up)
        else:
            timer = clock.call_later(PATIENCE_S, give_up)
        try:
            return await asking
        except asyncio.CancelledError:
            if found is not None and task.uncancel() <= cancelled_before:
                answer, found = found, None
                return answer
            raise
        finally:
            timer.cancel()
            if found is not None:
                found.close()
