"""Warming: streams that a plan names are fetched before anybody asks, so that a restart is not paid for by the first
readers.

Fetches go the way of every other: each is a flight of the fetches, which a reader who comes meanwhile shares, and its
bytes are laid by the same rules.  They are few at once, begin spread in time (gateways are restarted together), stop at
a bound of bytes, and end as a whole when their time is over or the gateway leaves, whatever the origin does.  An origin
that fails is given time, longer with each failure in a row, and is asked for the same stream again when the others have
had their turn.  Nobody's credentials are shown.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.aio.clock import Clock, Timer, pause
from gateway.aio.tasks import Tasks
from gateway.config.cache_plan import Entry
from gateway.engine.fetch_table import FetchTable
from gateway.errors import GatewayError, TailMovedBack
from gateway.plan.entries import KeyedEntry
from gateway.protocol.offsets import START
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.upstream.flight import METADATA, Head, NotShareable, OriginError, StreamHead

_SPREAD: Final = 0.1
"""The part of its time over which a round of fetches begins."""
_STEP_BYTES: Final = 1 << 18
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
_JITTER: Final = (0.5, 1.5)


class Warming:
    """One round, begun with `start`.  Owner of its tasks."""

    def __init__(
        self,
        fetches: FetchTable,
        store: TapeStore,
        clock: Clock,
        tasks: Tasks,
        rng: random.Random,
        entries: Iterable[KeyedEntry[Entry]],
        *,
        most_bytes: int,
        within_s: float,
        fetches: int,
    ) -> None:
        self._fetches = fetches
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._rng = rng
        self._waiting = deque(entries)
        self._left = most_bytes
        """Bytes that may still be fetched; those that are under way are taken out as the plan estimates them."""
        self._within_s = within_s
        self._fetches = fetches
        self.streams = 0
        """Streams that have been fetched, to the tail or as far as there was room."""
        self.bytes = 0
        """Stream bytes laid for them."""
        self._running: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None

    @property
    def is_over(self) -> bool:
        return not self._running

    def start(self) -> None:
        """Begin."""
        if not self._waiting:
            return
        self._timer = self._clock.call_later(self._within_s, self.stop)
        for _ in range(min(self._fetches, len(self._waiting))):
            delay_s = self._rng.uniform(0, self._within_s * _SPREAD)
            worker = self._tasks.start(self._work(delay_s), "warming")
            self._running.add(worker)
            worker.add_done_callback(self._ended)

    def stop(self) -> None:
        """End it now; what it has laid stays."""
        self._waiting.clear()
        for worker in tuple(self._running):
            worker.cancel()

    def _ended(self, worker: asyncio.Task[None]) -> None:
        self._running.discard(worker)
        if not self._running and self._timer is not None:
            self._timer.cancel()

    async def _work(self, delay_s: float) -> None:
        await pause(self._clock, delay_s)
        pause_s = _PAUSE_S
        while self._waiting:
            keyed = self._waiting.popleft()
            if await self._is_done_with(keyed):
                pause_s = _PAUSE_S
                continue
            # Behind the others: it may be this one alone that fails.
            self._waiting.append(keyed)
            await pause(self._clock, pause_s * self._rng.uniform(*_JITTER))
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _is_done_with(self, keyed: KeyedEntry[Entry]) -> bool:
        """Fetch one stream, where there is room for what it is expected to be; False where the origin failed."""
        expected = max(1, keyed.entry.bytes)
        if expected > self._left:
            return True
        self._left -= expected
        trip = _Trip(expected)
        try:
            await self._fetch(keyed, trip)
        finally:
            self._left += expected - trip.fetched
        return not trip.has_failed

    async def _fetch(self, keyed: KeyedEntry[Entry], trip: _Trip) -> None:
        """Fetch one stream from its beginning to its tail."""
        stream = self._store.open(keyed.key, self._clock.now())
        if stream.has_expired(self._clock.now(), self._clock.wall()):
            # A reader finds that out, and knows what to do.
            return
        held = stream.tape.size
        stream.pins += 1
        try:
            await self._walk(keyed, stream, trip)
        finally:
            gained = max(0, stream.tape.size - held)
            self.streams += gained > 0
            self.bytes += gained
            self._store.release(stream)

    async def _walk(self, keyed: KeyedEntry[Entry], stream: Stream, trip: _Trip) -> None:
        # By this a reader's hit needs no look at the origin of its own.
        head = await self._ask(keyed, stream, METADATA, trip)
        if not isinstance(head, NotShareable | StreamHead):
            return
        # An origin without HEAD is no reason to fetch nothing: its reads tell what there is to know.
        tail, at = head.next_offset if isinstance(head, StreamHead) else None, START
        while stream.ended is None and trip.fetched < trip.expected + self._left:
            at = _furthest(stream.tape, at)
            if (tail is not None and at == stream.tape.resolve(tail)) or stream.tape.is_closed_at(at):
                return
            head = await self._ask(keyed, stream, at, trip)
            if not isinstance(head, StreamHead) or head.next_offset == at or not stream.tape.knows_after(at):
                # Refused, or not to be kept, or nothing there.
                return
            if head.up_to_date:
                return

    async def _ask(self, keyed: KeyedEntry[Entry], stream: Stream, at: str, trip: _Trip) -> Head:
        source = keyed.route.source(keyed.target, keyed.route.source_headers(CIMultiDict()))
        head, fetched = await self._fetches.fetched(stream, at, keyed.route, source)
        trip.fetched += fetched
        trip.has_failed = _is_failure(head)
        return head


@dataclass(slots=True)
class _Trip:
    """One stream's fetching: the bytes that were put aside for it, those that came, and whether the origin failed."""

    expected: int
    fetched: int = 0
    has_failed: bool = False


def _is_failure(head: Head) -> bool:
    """Whether the origin failed, or is asked too much, so that the next request may do no better."""
    if isinstance(head, OriginError):
        return head.status >= 500 or head.status == 429
    return isinstance(head, GatewayError) and not isinstance(head, TailMovedBack)


def _furthest(tape: Tape, at: str) -> str:
    """Where what is held after `at` ends."""
    at = tape.resolve(at)
    while tape.knows_after(at):
        at = tape.read(at, _STEP_BYTES).end
    return at
