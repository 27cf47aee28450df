"""Confirmation of held bytes by the origin, and the time for which reads of held bytes wait for it.

A confirmation is one request, shared by all readers.  Held bytes are sent without asking the origin for as long as
their freshness allows, and never for longer than `route.trust_s` (`Stream.reusable_s`).  After that the origin is asked
for the bytes at the first position that is served, because only its reply shows whether it has trimmed them.  A
client's `no-cache` or `max-age` asks for a more recent confirmation, but a shared one that is at most `LEAST_AGE_S` old
suffices.  So these clients cost the origin no more than one request a second for each stream.

A reader that begins before the first confirmed position needs another confirmation.  The second one, while the first is
valid, begins at the first held position.  A stream therefore costs at most three confirmations, in whatever order its
readers begin; the third is for the start sentinel, which may name any position.

If the origin has trimmed the first position held, the tape begins after it from then on, the reader's own position is
confirmed, and further confirmations begin midway between the two.  Both a refusal and an answer halve the number of
positions between them, so a trim costs about twice the binary logarithm of that number.

Reads of held bytes do not wait for a silent origin (`Patience`).  A read that ends at the known tail asks the origin
for the bytes that follow, and a live read may ask whether the stream is still the same.  If the origin answers no
request of the route for `PATIENCE_S`, the read gets the held bytes, as if the origin had failed.  The answer says
nothing about the tail, so its client goes on from there.  The fetch goes on for other readers.  Until the origin
answers again, such reads do not wait at all.  If the origin answers other requests meanwhile, the read waits for
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
from gateway.errors import TailMovedBack
from gateway.protocol.names import START, is_before
from gateway.tape.stream import Stream
from gateway.upstream.collapse import Lead
from gateway.upstream.flight import CONFIRMATION, Head, OriginError, as_seen_by


class Confirming:
    """Has the origin confirm held bytes.  Keeps no state of its own."""

    def __init__(self, fetches: FetchTable, clock: Clock) -> None:
        self._fetches = fetches
        self._clock = clock

    async def confirm(self, read: Read, stream: Stream) -> Head | None:
        """The origin's answer to a request sent now for the bytes held after the read's offset; None if the request of
        another read has confirmed these bytes.

        Bytes that the origin does not have are forgotten.  Raises TailMovedBack if the bytes of the read are gone.
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
            is_trimmed = isinstance(found, OriginError) and found.status == 410
            if is_trimmed and flight.start == start != read.start:
                # The sentinel that the reader has asked for names another position now.
                raise TailMovedBack
            if not (is_trimmed and flight.start != start) and not is_before(start, flight.start):
                return as_seen_by(found, source.headers)
            if is_trimmed:
                is_refused = True
                stream.confirmed.refused_at = self._clock.now()


PATIENCE_S: Final = 1.0
"""How long a read of held bytes waits for an origin that answers no request."""
MOST_WAIT_S: Final = 5.0
"""How long a read of held bytes waits for an origin that answers other requests."""


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

    async def answer_or_held(
        self, read: Read, stream: Stream, asking: Callable[[], Coroutine[Any, Any, T]], held: Callable[[], H | None]
    ) -> T | H:
        """The answer of `asking`; if that takes too long, the answer of `held`, unless that is None."""
        # When the wait is over, the task that asks is cancelled, and the held bytes are sent.
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
            # Look only after the read has asked, because its fetch shows when the origin is back.
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

    def settle(self) -> None:
        """Stop the wait: the read has been answered, or is over."""
        self._timer.cancel()
        # A cancelled task keeps its traceback, whose frames refer to this wait.
        del self._task
        if self._found is not None:
            self._found.close()
