"""Live readers: long-poll and SSE at the tail (sections 5.7 and 5.8).

A reader reads the store and decides in one step, without an await.  Then it waits for a change of the stream, its own
timeout or the drain of the origin, and repeats.  No append can be missed between the read and the wait.
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
from gateway.origin.refusals import Gone, NotFound, RequestError
from gateway.origin.replies import CACHE_NEVER, CACHE_REVALIDATE, Reply
from gateway.origin.requests import ReadParams
from gateway.origin.store import Store
from gateway.origin.streams import Slice, Stream
from gateway.protocol import names

SSE_LIFETIME_SPREAD = 0.1
"""The last part of an SSE connection's lifetime in which it ends at random, so that readers do not all return at
once."""


class Drain:
    """Ends the live readers of one running origin."""

    def __init__(self) -> None:
        self.has_begun = False
        self.watchers: set[Callable[[], object]] = set()

    def begin(self) -> None:
        self.has_begun = True
        for watcher in tuple(self.watchers):
            watcher()

    @contextmanager
    def calling(self, watcher: Callable[[], object]) -> Iterator[None]:
        """Have `begin` call `watcher` while the `with` block runs."""
        self.watchers.add(watcher)
        try:
            yield
        finally:
            self.watchers.discard(watcher)


class LiveReads:
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
        self, stream: Stream, params: ReadParams, found: Callable[[Stream, ReadParams, Slice], Reply]
    ) -> Reply:
        """Wait until there is data after the offset; `found` builds the reply.

        Replies 204 at the timeout, at the end of a closed stream, and when the origin drains.  Raises NotFound or Gone
        if the stream ends meanwhile.
        """
        start = stream.tail if params.is_now else params.start
        until = self._clock.now() + self._long_poll_timeout_s
        with self._entered(stream):
            while True:
                self._check(stream)
                piece = stream.read(start, self._max_chunk_bytes)
                # A wait beyond the tail might never end, so answer with the tail immediately.
                is_beyond = start is not None and start > stream.tail
                if piece.pieces or is_beyond:
                    return found(stream, params, piece)
                if stream.is_closed or self._drain.has_begun or self._is_over(until):
                    return self._no_content(stream, params.cursor)
                await self._change(stream, until)

    async def events(self, stream: Stream, params: ReadParams, delivery: Delivery) -> None:
        """Send the stream as events from the offset on.

        The response ends when the stream closes or ends, after its lifetime, or when the origin drains.  If nothing
        changes for the length of a long-poll timeout, another control event is sent, which renews the cursor.
        """
        position: Position | None = stream.tail if params.is_now else params.start
        spread = 1.0 - SSE_LIFETIME_SPREAD * self._random.random()
        until = self._clock.now() + self._sse_lifetime_s * spread
        headers = {"Content-Type": names.SSE_TYPE, "Cache-Control": CACHE_REVALIDATE}
        if not stream.is_text:
            headers[names.SSE_DATA_ENCODING] = "base64"
        with self._entered(stream):
            stream.read(position, 0)  # reports a trimmed offset before the reply begins
            await delivery.open(200, headers)
            # Drawn once: another draw might be lower, and cursors must not go back.
            least_cursor = int(self.cursor(params.cursor))
            is_control_due = True
            was_closed = False
            while not was_closed:
                try:
                    self._check(stream)
                    found = stream.read(position, self._max_chunk_bytes)
                except RequestError:
                    return  # deleted, expired or trimmed meanwhile: the reader's next request gets the reason
                if found.pieces or is_control_due or stream.is_closed:
                    was_closed = stream.is_closed and found.up_to_date
                    cursor = str(max(least_cursor, int(self.cursor(None))))
                    position = found.end
                    await delivery.write(sse.batch(found, cursor, is_text=stream.is_text, is_closed=stream.is_closed))
                    is_control_due = False
                elif self._drain.has_begun or self._is_over(until):
                    return
                else:
                    quiet_until = self._clock.now() + self._long_poll_timeout_s
                    is_control_due = not await self._change(stream, min(until, quiet_until))
                if self._drain.has_begun:
                    return  # even in the middle of a long replay: every batch ends with a control event

    # -- waiting

    @contextmanager
    def _entered(self, stream: Stream) -> Iterator[None]:
        stream.enter(self._clock.wall())
        try:
            yield
        finally:
            stream.leave(self._clock.wall())

    def _check(self, stream: Stream) -> None:
        """Raise NotFound or Gone if the reader's stream no longer exists, even if there is a new one at its path."""
        exists = not stream.has_ended and not stream.is_soft_deleted
        if not exists or self._store.get(stream.path, self._clock.wall()) is not stream:
            raise Gone if stream.is_soft_deleted else NotFound

    def _is_over(self, until: float) -> bool:
        # Tolerate rounding errors: the timer's delay is the difference of two floats.
        return self._clock.now() >= until - 1e-6

    async def _change(self, stream: Stream, until: float) -> bool:
        """Wait for a change of the stream, the drain, expiry or `until`; return False if only time has passed."""
        delay_s = until - self._clock.now()
        expires_at = stream.lifetime.expires_at
        if expires_at is not None:
            delay_s = min(delay_s, expires_at - self._clock.wall())
        changed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not changed.done():
                changed.set_result(None)

        stream.watchers.add(wake)
        self._counters.parked_by(1)
        try:
            with self._drain.calling(wake):
                return await wait_until(changed, self._clock, delay_s)
        finally:
            self._counters.parked_by(-1)
            stream.watchers.discard(wake)

    # -- replies

    def cursor(self, client_cursor: str | None) -> str:
        return cursors.next_cursor(client_cursor, self._clock.wall(), self._random)

    def _no_content(self, stream: Stream, client_cursor: str | None) -> Reply:
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
