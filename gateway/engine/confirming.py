"""Confirmation of bytes in memory by the origin, and a limit on how long reads wait for the origin.

Bytes in memory are sent without a request to the origin while they are fresh, and for `route.trust_s` at most
(`Stream.reusable_s`).  After that they must be confirmed.  A confirmation is a request for the bytes at the position
where a reader starts.  All readers share this request.  Only a reply for that position shows whether the origin has
trimmed the bytes.  A client's `no-cache` or `max-age` requires a more recent confirmation.  A confirmation that is at
most `LEAST_AGE_S` old is recent enough, so these clients cause at most one request a second for each stream.

A reader that begins before the first confirmed position needs another confirmation.  If one confirmation is already
valid, the next confirmation begins at the first position in memory, so that it covers all readers.  A third
confirmation may be needed for the start sentinel (`-1`), because the sentinel can mean any position.  So a stream needs
at most three confirmations, whatever the order of its readers.

If the origin has trimmed the first position in memory, the bytes at this position are dropped from the tape (the
stream's bytes in memory).  The next confirmation begins at the reader's own position.  Further confirmations begin
midway between the first position that is still in memory and the reader's position.  Each reply halves the number of
positions between these two, whether it refuses or confirms.  A trim of n positions therefore costs about 2 log2(n)
requests.

`Patience` limits the wait for a silent origin.  A read may have to ask the origin although its bytes are in memory.  A
catch-up read asks at the known tail for more bytes, and a live read asks whether the stream is still the same.  If the
origin answers no request of the route for `PATIENCE_S`, the read gets the bytes in memory, as after a failure.  Such an
answer does not state the tail, so the client continues from the end of these bytes.  The fetch continues for other
readers.  Until the origin answers again, other reads with bytes in memory do not wait at all.  If the origin answers
other requests of the route, a read waits for at most `MOST_WAIT_S`.  An answer from the memory of another process does
not count as an answer of the origin.

These limits do not apply when a stream's owner asks for the confirmation of bytes of another process.  The other
process limits the waits of its own readers.  Only that process knows which of its readers cannot get the bytes in
memory, for example because these bytes lack an acknowledged write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar

from gateway.aio.clock import Clock, Timer
from gateway.aio.tasks import in_task
from gateway.engine.fetch_table import FetchTable
from gateway.engine.read import Closeable, Read
from gateway.errors import TailMovedBack, UpstreamUnavailable
from gateway.protocol.names import START, is_before
from gateway.tape.stream import Stream
from gateway.upstream.collapse import Lead
from gateway.upstream.flight import CONFIRMATION, Head, OriginError, StreamHead, as_seen_by


class Confirming:
    """Asks the origin to confirm bytes in memory.  Keeps no state of its own."""

    def __init__(self, fetches: FetchTable, clock: Clock) -> None:
        self._fetches = fetches
        self._clock = clock

    async def confirm(self, read: Read, stream: Stream) -> Head | None:
        """Ask the origin to confirm the bytes after the read's offset.  Return the origin's answer.

        Returns None if another read's request has confirmed these bytes.  Bytes that the origin has trimmed are
        dropped.  Raises TailMovedBack if the dropped bytes include bytes of this read.
        """
        fetches, route, source, start = self._fetches, read.route, read.source, stream.tape.resolve(read.start)
        due = stream.confirmed_before(self._clock.now(), route.trust_s, read.max_age_s)
        is_refused = False
        while True:
            await fetches.join_earlier(stream, CONFIRMATION, route, source.client)
            if stream.ended is not None or not stream.tape.knows_after(start):
                raise TailMovedBack
            if stream.confirmed_at(start) > due:
                return None
            first = start
            if start != START and not is_refused and stream.confirmed.asked_at > due:
                tape, is_cut = stream.tape, stream.confirmed.refused_at > due
                first = (tape.midway(start) if is_cut else tape.first()) or start
            joined = fetches.join_fetch(stream, first, route, source, CONFIRMATION)
            flight = joined.fetch
            if isinstance(joined, Lead):
                stream.confirmed.asked_at = self._clock.now()
            flight.watch()
            try:
                await flight.until_over()
            finally:
                flight.unwatch()
            found = flight.error or flight.head
            assert found is not None
            if isinstance(found, StreamHead) and found.is_stale:
                # The stream's owner, another worker, has sent bytes from its memory.  The origin has not confirmed
                # them.
                found = UpstreamUnavailable()
            is_trimmed = isinstance(found, OriginError) and found.status == 410
            if is_trimmed and flight.start == start != read.start:
                # The origin has trimmed the first position in memory, so the start sentinel now means a later position.
                # The read must start again.
                raise TailMovedBack
            if not (is_trimmed and flight.start != start) and not is_before(start, flight.start):
                return as_seen_by(found, source.headers)
            if is_trimmed:
                is_refused = True
                stream.confirmed.refused_at = self._clock.now()


PATIENCE_S: Final = 1.0
"""How long a read with bytes in memory waits if the origin answers no request, in seconds."""
MOST_WAIT_S: Final = 5.0
"""How long a read with bytes in memory waits if the origin answers only other requests, in seconds."""


T = TypeVar("T")
H = TypeVar("H", bound=Closeable)


class Patience:
    """Limits the wait of reads whose bytes are in memory.  Keeps no state of its own."""

    def __init__(self, fetches: FetchTable, clock: Clock) -> None:
        self._fetches = fetches
        self._clock = clock

    async def answer_or_held(
        self, read: Read, stream: Stream, asking: Callable[[], Coroutine[Any, Any, T]], held: Callable[[], H | None]
    ) -> T | H:
        """Return the result of `asking`.  If `asking` takes too long, return the result of `held` instead.  If the
        result of `held` is None, continue to wait for `asking`."""
        # A timeout cancels the task, so the read must run in a separate task.
        await in_task()
        wait = _Wait(read, self._clock, held, lambda: self._fetches.detach(stream, read.start))
        try:
            return await asking()
        except asyncio.CancelledError:
            if (answer := wait.take_answer()) is not None:
                return answer
            raise
        finally:
            wait.settle()


class _Wait(Generic[H]):
    """The wait of one read, in a separate task."""

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
            # Wait for one turn of the loop, in which the read sends its request.  Only a request can show that the
            # origin answers again.
            self._timer = asyncio.get_running_loop().call_soon(self._look)
        else:
            self._timer = clock.call_later(PATIENCE_S, self._look)

    def _look(self) -> None:
        """If the origin is silent or has taken too long, cancel the read's request and take the bytes in memory."""
        route, clock = self._route, self._clock
        is_silent = route.is_silent or route.answers == self._answers
        if not is_silent and clock.now() - self._began < MOST_WAIT_S:
            self._answers = route.answers
            self._timer = clock.call_later(PATIENCE_S, self._look)
            return
        self._found = self._held()
        if self._found is not None:
            if is_silent:
                route.fell_silent()
            self._give_up()
            self._task.cancel()

    def take_answer(self) -> H | None:
        """Return the answer from memory; None if there is none.  Also returns None if the task was cancelled by
        something other than this wait too."""
        if self._found is None or self._task.uncancel() > self._cancelled_before:
            return None
        answer, self._found = self._found, None
        return answer

    def settle(self) -> None:
        """End the wait, because the read has been answered or has failed."""
        self._timer.cancel()
        # A cancelled task keeps its traceback, whose frames refer to this object.  Break this reference cycle.
        del self._task
        if self._found is not None:
            self._found.close()
