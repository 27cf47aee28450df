"""Warming: fetches the streams of a plan before clients need them, so that the first readers after a restart have hits.

Each fetch goes through the fetch table.  A reader that arrives meanwhile shares the fetch, and its bytes are stored by
the usual rules.  A round runs a few fetches at a time, and spreads their starts because gateways are often restarted
together.  It ends at a bound on bytes, when its time is over, or when the gateway shuts down.  After a failure the
round pauses, and retries the failed stream after the other streams.  The pause grows with each failure in a row.  The
requests carry no credentials.
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
from gateway.protocol.names import START
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tape.tape import Tape
from gateway.upstream.flight import METADATA, Head, NotShareable, OriginError, StreamHead

_SPREAD: Final = 0.1
"""The fraction of a round's time over which its fetches start."""
_STEP_BYTES: Final = 1 << 18
_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 8.0
_JITTER: Final = (0.5, 1.5)


class Warming:
    """One warming round, which `start` begins.  It owns its tasks."""

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
        concurrent: int,
    ) -> None:
        self._fetches = fetches
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._rng = rng
        self._waiting = deque(entries)
        self._remaining_bytes = most_bytes
        """Bytes that may still be fetched.  Each fetch in progress has reserved the plan's estimate of its size."""
        self._within_s = within_s
        self._concurrent = concurrent
        self.streams = 0
        """Streams that were fetched to the tail, or as far as the bound on bytes allowed."""
        self.bytes = 0
        """Stream bytes that this round has stored."""
        self._running: set[asyncio.Task[None]] = set()
        self._timer: Timer | None = None

    def __repr__(self) -> str:
        return f"<Warming {len(self._waiting)} waiting, {len(self._running)} running, {self.streams} fetched>"

    @property
    def is_over(self) -> bool:
        return not self._running

    def start(self) -> None:
        """Start the round."""
        if not self._waiting:
            return
        self._timer = self._clock.call_later(self._within_s, self.stop)
        for _ in range(min(self._concurrent, len(self._waiting))):
            delay_s = self._rng.uniform(0, self._within_s * _SPREAD)
            worker = self._tasks.start(self._work(delay_s), "warming")
            self._running.add(worker)
            worker.add_done_callback(self._ended)

    def stop(self) -> None:
        """Stop the round.  Stored bytes stay."""
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
            if await self._try_fetch(keyed):
                pause_s = _PAUSE_S
                continue
            # Retry the stream after the other streams, because the failure may affect only this stream.
            self._waiting.append(keyed)
            await pause(self._clock, pause_s * self._rng.uniform(*_JITTER))
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _try_fetch(self, keyed: KeyedEntry[Entry]) -> bool:
        """Fetch a stream if its estimated size fits.  Returns False if the origin failed."""
        expected = max(1, keyed.entry.bytes)
        if expected > self._remaining_bytes:
            return True
        self._remaining_bytes -= expected
        attempt = _Attempt(expected)
        try:
            await self._fetch(keyed, attempt)
        finally:
            self._remaining_bytes += expected - attempt.fetched
        return not attempt.has_failed

    async def _fetch(self, keyed: KeyedEntry[Entry], attempt: _Attempt) -> None:
        """Fetch one stream from its start to its tail."""
        stream = self._store.open(keyed.key, self._clock.now())
        if stream.has_expired(self._clock.now(), self._clock.wall()):
            # Leave the stream to a reader's request, which handles expiry.
            return
        held = stream.tape.size
        stream.hold()
        try:
            await self._fetch_to_tail(keyed, stream, attempt)
        finally:
            gained = max(0, stream.tape.size - held)
            self.streams += gained > 0
            self.bytes += gained
            self._store.release(stream)

    async def _fetch_to_tail(self, keyed: KeyedEntry[Entry], stream: Stream, attempt: _Attempt) -> None:
        # The HEAD gives the stream its lifetime, so that a reader's hit needs no HEAD of its own.
        head = await self._fetch_at(keyed, stream, METADATA, attempt)
        if not isinstance(head, NotShareable | StreamHead):
            return
        # If the origin does not support HEAD, the answers to GET have the same facts.
        tail, at = head.next_offset if isinstance(head, StreamHead) else None, START
        while stream.ended is None and attempt.fetched < attempt.expected + self._remaining_bytes:
            at = _end_of_held(stream.tape, at)
            if (tail is not None and at == stream.tape.resolve(tail)) or stream.tape.is_closed_at(at):
                return
            head = await self._fetch_at(keyed, stream, at, attempt)
            if not isinstance(head, StreamHead) or head.next_offset == at or not stream.tape.knows_after(at):
                # The origin has refused the request, or the answer is empty or cannot be stored.
                return
            if head.up_to_date:
                return

    async def _fetch_at(self, keyed: KeyedEntry[Entry], stream: Stream, at: str, attempt: _Attempt) -> Head:
        source = keyed.route.source(keyed.target, keyed.route.source_headers(CIMultiDict()))
        head, fetched = await self._fetches.fetched(stream, at, keyed.route, source)
        attempt.fetched += fetched
        attempt.has_failed = _is_failure(head)
        return head


@dataclass(slots=True)
class _Attempt:
    """The fetch of one stream: its reserved bytes, its received bytes, and whether the origin failed."""

    expected: int
    fetched: int = 0
    has_failed: bool = False


def _is_failure(head: Head) -> bool:
    """Whether the origin failed or is overloaded, so that another request may fail too."""
    if isinstance(head, OriginError):
        return head.status >= 500 or head.status == 429
    return isinstance(head, GatewayError) and not isinstance(head, TailMovedBack)


def _end_of_held(tape: Tape, at: str) -> str:
    """The end of the contiguous bytes held after `at`."""
    at = tape.resolve(at)
    while tape.knows_after(at):
        at = tape.read(at, _STEP_BYTES).end
    return at
