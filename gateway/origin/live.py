"""Live readers: who waits at a tail, and what wakes them (sections 5.7 and 5.8).

A reader looks at the store and decides in one step, without an await; then it waits for the stream to change, for its
own time to run out, or for the origin to drain, and looks again.  So no append falls between looking and waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from gateway.aio.clock import Clock, wait_until
from gateway.origin import cursors, sse
from gateway.origin.counters import Counters
from gateway.origin.delivery import Delivery
from gateway.origin.positions import Position
from gateway.origin.refusals import Gone, NotFound, Refused
from gateway.origin.replies import CACHE_NEVER, CACHE_REVALIDATE, Reply
from gateway.origin.requests import ReadOrder
from gateway.origin.store import Store
from gateway.origin.streams import Slice, Stream
from gateway.protocol import names

SSE_LIFETIME_SPREAD = 0.1
"""An SSE connection ends within the last tenth of its lifetime, so that readers do not come back as a herd."""


class Drain:
    """Tells live readers of one running origin to end."""

    def __init__(self) -> None:
        self.has_begun = False
        self.watchers: set[Callable[[], object]] = set()

    def begin(self) -> None:
        self.has_begun = True
        for watcher in tuple(self.watchers):
            watcher()


class Givers:
    """Serves long-poll and SSE from the store."""

    def __init__(
        self,
        store: Store,
        counters: Counters,
        clock: Clock,
        random: Random,
        drain: Drain,
        *,
        long_poll_timeout_s: float,
        sse_lifetime_s: float,
        max_chunk_bytes: int,
    ) -> None:
        self._store = store
        self._counters = counters
        self._clock = clock
        self._random = random
        self._drain = drain
        self._long_poll_timeout_s = long_poll_timeout_s
        self._sse_lifetime_s = sse_lifetime_s
        self._max_chunk_bytes = max_chunk_bytes

    async def long_poll(
        self, stream: Stream, order: ReadOrder, found: Callable[[Stream, ReadOrder, Slice], Reply]
    ) -> Reply:
        """Wait until there is something after the offset; `found` makes the reply of it.

        204 when the time is up, the stream is closed at the offset, or the origin drains.  Raises NotFound or Gone
        when the stream ends meanwhile.
        """
        start = stream.tail if order.is_now else order.start
        until = self._clock.now() + self._long_poll_timeout_s
        with self._entered(stream):
            while True:
                self._check(stream)
                piece = stream.read(start, self._max_chunk_bytes)
                # An offset beyond the tail is answered at once with the tail: waiting there could be for ever.
                is_beyond = start is not None and start > stream.tail
                if piece.pieces or is_beyond:
                    return found(stream, order, piece)
                if stream.is_closed or self._drain.has_begun or self._is_over(until):
                    return self._nothing(stream, order.cursor)
                await self._change(stream, until)

    async def events(self, stream: Stream, order: ReadOrder, delivery: Delivery) -> None:
        """Send the stream as events from the offset until it closes or ends, its time is up, or the origin drains.

        A control event is repeated when nothing happened for the long-poll timeout, which renews the cursor.
        """
        at: Position | None = stream.tail if order.is_now else order.start
        spread = 1.0 - SSE_LIFETIME_SPREAD * self._random.random()
        until = self._clock.now() + self._sse_lifetime_s * spread
        headers = {"Content-Type": names.SSE_TYPE, "Cache-Control": CACHE_REVALIDATE}
        if not stream.is_text:
            headers[names.SSE_DATA_ENCODING] = "base64"
        with self._entered(stream):
            if at is not None:
                stream.nearest(at)  # what is wrong with the offset is said before the stream of events begins
            await delivery.open(200, headers)
            # Drawn once: another draw might lie before one that was sent, and a cursor never goes back.
            least_cursor = int(self.cursor(order.cursor))
            say_anyway = True
            was_closed = False
            while not was_closed:
                try:
                    self._check(stream)
                    found = stream.read(at, self._max_chunk_bytes)
                except Refused:
                    return  # deleted, expired or trimmed under the reader: the next request learns why
                if found.pieces or say_anyway or stream.is_closed:
                    was_closed = stream.is_closed and found.up_to_date
                    cursor = str(max(least_cursor, int(self.cursor(None))))
                    at = found.end
                    await delivery.write(sse.batch(found, cursor, is_text=stream.is_text, is_closed=stream.is_closed))
                    say_anyway = False
                elif self._drain.has_begun or self._is_over(until):
                    return
                else:
                    quiet_until = self._clock.now() + self._long_poll_timeout_s
                    say_anyway = not await self._change(stream, min(until, quiet_until))
                if self._drain.has_begun:
                    return  # also in the middle of a long replay: every batch ends with a control event

    # -- waiting

    @contextmanager
    def _entered(self, stream: Stream) -> Iterator[None]:
        stream.enter(self._clock.wall())
        try:
            yield
        finally:
            stream.leave(self._clock.wall())

    def _check(self, stream: Stream) -> None:
        """Raises NotFound or Gone when the stream this reader began on is no more, even if its path has a new one."""
        is_here = not stream.has_ended and not stream.is_soft_deleted
        if not is_here or self._store.get(stream.path, self._clock.wall()) is not stream:
            raise Gone if stream.is_soft_deleted else NotFound

    def _is_over(self, until: float) -> bool:
        # A timer set for the difference of two floats may come due a rounding error early.
        return self._clock.now() >= until - 1e-6

    async def _change(self, stream: Stream, until: float) -> bool:
        """Wait for the stream to change, the drain, expiry or `until`; whether it was not merely the time."""
        delay_s = until - self._clock.now()
        expires_at = stream.lifetime.expires_at
        if expires_at is not None:
            delay_s = min(delay_s, expires_at - self._clock.wall())
        changed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        stream.watchers.add(wake)
        self._drain.watchers.add(wake)
        self._counters.parked_by(1)
        try:
            return await wait_until(changed, self._clock, delay_s)
        finally:
            self._counters.parked_by(-1)
            stream.watchers.discard(wake)
            self._drain.watchers.discard(wake)

    # -- saying

    def cursor(self, client_cursor: str | None) -> str:
        return cursors.next_cursor(client_cursor, self._clock.wall(), self._random)

    def _nothing(self, stream: Stream, client_cursor: str | None) -> Reply:
        headers = {
            names.STREAM_NEXT_OFFSET: stream.tail.token,
            names.STREAM_UP_TO_DATE: "true",
            "Cache-Control": CACHE_NEVER,
        }
        if stream.is_closed:
            headers[names.STREAM_CLOSED] = "true"
        else:
            headers[names.STREAM_CURSOR] = self.cursor(client_cursor)
        return Reply(204, headers)
