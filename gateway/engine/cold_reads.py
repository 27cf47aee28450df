"""Cold reads: reads of streams that are not in memory, and the limit on their rate.

A *first read* is the first request for a stream that is not in memory.  The read launches one fetch (a *flight*, which
later reads may share), and its answer is the reply to this fetch.  Nothing has to be decided before the reply arrives.
The read therefore waits without a task, and is answered soon after the reply has arrived.

`ColdReadLimit` limits the rate of cold reads.  Clients can invent names and queries of streams.  Each read with an
invented name or query costs the gateway memory and the origin a request.  Two limits apply: one for each origin
(`negative_cache`), and one for each client network (`client_new_streams_per_s`).  The gateway's own reads have no
client network, so only the origin's limit applies to them.
"""

from __future__ import annotations

import random
from asyncio import Future
from collections.abc import Callable
from typing import Final, Protocol

from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.negative_cache import NegativeCache
from gateway.engine.read import Read
from gateway.engine.response_heads import Said, part_answer
from gateway.engine.route import Route
from gateway.errors import TooManyAbsent, TooManyRequests
from gateway.limits.accounts import Account, Accounts
from gateway.limits.rate_limits import Rate, retry_after_s
from gateway.protocol.cache_status import Outcome
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.telemetry.metrics import MetricsRecorder
from gateway.tuples import make
from gateway.upstream.collapse import FetchEnd
from gateway.upstream.flight import Flight, FlightReader, StreamHead, is_awaited

# Looking up a member of an enum is slow in Python 3.11, so every first read uses these constants.
_JOINED, _MISS, _REVALIDATED = Outcome.JOINED, Outcome.MISS, Outcome.REVALIDATED
_LANDED: Final = FetchEnd.LANDED


def miss_outcome(stream: Stream, start: str, head: StreamHead) -> Outcome:
    """Return the outcome of a read from `start`.  The read has launched the fetch with this reply."""
    if stream.tape.tail != start:
        return _MISS
    return _REVALIDATED if head.next_offset == start else _JOINED


class Resumer(Protocol):
    """Answers first reads before the whole reply has arrived."""

    async def resume(self, first: FirstRead) -> Answer:
        """Return the answer; the caller must call `Answer.close`.

        Raises Uncacheable, TailMovedBack or another GatewayError.
        """


class FirstRead(FlightReader):
    """A first read under way.  It is a reader of the flight that it launched.  Until the caller releases the stream,
    the stream stays in memory.

    The caller must call `wait`.  Then it must call either `give_up`, or a method of `ReadRunner` that calls `at_hand`
    or `answer`.  Either call releases the stream.
    """

    __slots__ = ("_gate", "_ready", "_resumer", "read", "stream", "version")

    def __init__(self, resumer: Resumer, read: Read, stream: Stream, flight: Flight) -> None:
        super().__init__(flight)
        self._resumer = resumer
        self.read = read
        self.stream = stream
        self.version = stream.version
        """The stream's version when the read began."""
        self._ready: Callable[[], object] | None = None
        self._gate: Future[bool] | None = None
        flight.add_reader(self)

    def wait(self, ready: Callable[[], object]) -> None:
        """Call `ready` when the answer can be made or begun without a wait.  `ready` is never called before this method
        has returned."""
        self._ready = ready
        self.flight.first = self

    def look(self) -> None:
        """Continue if enough of the reply has arrived, or if the fetch has ended; otherwise wait for more."""
        if self._ready is None:
            return
        if is_awaited(self.flight):
            self._gate = self.flight.changed.gate(self._changed)
            return
        # `ready` refers to this object.  Break this reference cycle.
        ready, self._ready = self._ready, None
        ready()

    def _changed(self, gate: Future[bool]) -> None:
        if gate is self._gate:
            self._gate = None
            self.look()

    def give_up(self, store: TapeStore) -> None:
        """Give up the read, because its client has left."""
        self._ready = self.flight.first = None
        if (gate := self._gate) is not None:
            self._gate = None
            self.flight.changed.leave_gate(gate)
        self.detach()
        store.release(self.stream)

    def at_hand(self) -> Answer | None:
        """Return the answer; None if the fetch has not received the whole body.  The caller must call
        `Answer.close`."""
        flight, stream, read, version = self.flight, self.stream, self.read, self.version
        head = flight.head
        if flight.end is not _LANDED or not isinstance(head, StreamHead):
            return None
        if stream.ended is not None or not version.same_incarnation_as(stream.version):
            return None
        end, up_to_date, is_closed, _ = head
        if head.is_stale:
            # `resume` makes the answer, because the origin has failed to confirm the bytes.
            return None
        outcome = miss_outcome(stream, read.start, head)
        is_stored = flight.is_kept and not flight.is_passing
        said = make(Said, (outcome, up_to_date or is_closed, is_closed, None, None, 200, is_stored, None))
        run = make(BodyRun, (stream, read.start, end, version.edition))
        return part_answer(read, run, said, Parts(self))

    async def answer(self) -> Answer:
        """Return the answer; the caller must call `Answer.close`.  Raises like `Resumer.resume`."""
        return await self._resumer.resume(self)


_BURST_S: Final = 2.0
"""The largest burst of a client network, as a number of seconds at its full rate."""
_ABSENT: Final = -1.0
"""The result of `_take` if the origin's limit on requests for absent streams is reached.  It replaces the seconds to
wait."""


class ColdReadLimit:
    """Applies both limits.  `accounts` have each client network's allowance.  `now` returns monotonic seconds."""

    def __init__(
        self,
        negative_cache: NegativeCache,
        accounts: Accounts,
        metrics: MetricsRecorder,
        rng: random.Random,
        now: Callable[[], float],
    ) -> None:
        self._accounts = accounts
        self._negative_cache = negative_cache
        self._metrics = metrics
        self._rng = rng
        self._now = now
        self._rate: Rate | None = None

    def __repr__(self) -> str:
        return f"<ColdReadLimit {self._rate}>"

    def set_rate(self, per_s: float) -> None:
        """Set the limit for each client network, in reads a second; 0 means no limit."""
        if not per_s:
            self._rate = None
        elif self._rate is None or self._rate.per_s != per_s:
            self._rate = Rate(per_s, max(1.0, per_s * _BURST_S), "cold reads")

    def suspend(self, account: Account, until: float) -> None:
        """Refuse cold reads of this client network until `until`.  From then on its allowance grows as usual."""
        if self._rate is not None:
            self._rate.keep_empty(account, self._now(), until)

    def admits(self, route: Route, client: str) -> bool:
        """Count a read by this client network.  Returns False, and counts nothing, if the read exceeds a limit."""
        return self._take(route, client) is None

    def admit_read(self, route: Route, client: str) -> None:
        """Count a read by this client network.

        Raises TooManyAbsent or TooManyRequests, and counts nothing, if the read exceeds a limit.
        """
        wait_s = self._take(route, client)
        if wait_s is None:
            return
        if wait_s == _ABSENT:
            raise TooManyAbsent(is_unsent=True)
        self._metrics.client_limited("client_new_streams_per_s")
        raise TooManyRequests(retry_after_s(wait_s, self._rng), "Too many reads of new streams")

    def _take(self, route: Route, client: str) -> float | None:
        """Count a read.  Returns None if the read is admitted, else the seconds to wait or `_ABSENT`."""
        if not self._negative_cache.may_ask(route, client):
            return _ABSENT
        rate = self._rate
        if rate is not None and (account := self._accounts.open_account(client)) is not None:
            now = self._now()
            if not rate.took_one(account, now):
                return rate.wait_s(account, now)
        return None
