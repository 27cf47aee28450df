"""A first read: the first request for a stream of which nothing is in memory.

A first read launches one fetch (a *flight*, which later reads may share), and its answer is that fetch's reply.
Nothing has to be decided before the reply arrives.  The read therefore waits without a task, and the answer is made
soon after the reply has arrived.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Final, Protocol

from gateway.engine.answer import Answer, BodyRun, Parts
from gateway.engine.read import Read
from gateway.engine.response_heads import Said, part_answer
from gateway.protocol.cache_status import Outcome
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.tuples import make
from gateway.upstream.collapse import FetchEnd
from gateway.upstream.flight import Flight, FlightReader, StreamHead, is_awaited

# Enum members are slow to reach in Python 3.11, so every first read uses these constants.
_JOINED, _MISS, _REVALIDATED = Outcome.JOINED, Outcome.MISS, Outcome.REVALIDATED
_LANDED: Final = FetchEnd.LANDED


def miss_outcome(stream: Stream, start: str, head: StreamHead) -> Outcome:
    """Return the outcome of a read from `start` that has launched the fetch of this reply."""
    if stream.tape.tail != start:
        return _MISS
    return _REVALIDATED if head.next_offset == start else _JOINED


class Resumer(Protocol):
    """Answers first reads whose reply has not arrived as a whole."""

    async def resume(self, first: FirstRead) -> Answer:
        """Return the answer; the caller must call `Answer.close`.

        Raises Uncacheable, TailMovedBack or another GatewayError.
        """


class FirstRead(FlightReader):
    """A first read under way, as a reader of the flight that it launched.  Until the owner releases the stream, the
    stream stays in memory.

    The owner must call `wait`.  Then it must call either `give_up`, or a method of `ReadRunner` that calls `at_hand` or
    `answer`.  Either call releases the stream.
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
        """Call `ready` when the answer can be made or begun without waiting, but not before this method has
        returned."""
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
        """Return the answer if the fetch has received the whole body, else None; the caller must call
        `Answer.close`."""
        flight, stream, read, version = self.flight, self.stream, self.read, self.version
        head = flight.head
        if flight.end is not _LANDED or not isinstance(head, StreamHead):
            return None
        if stream.ended is not None or not version.same_incarnation_as(stream.version):
            return None
        end, up_to_date, is_closed = head
        outcome = miss_outcome(stream, read.start, head)
        is_stored = flight.is_kept and not flight.is_passing
        said = make(Said, (outcome, up_to_date or is_closed, is_closed, None, None, 200, is_stored, None))
        run = make(BodyRun, (stream, read.start, end, version.edition))
        return part_answer(read, run, said, Parts(self))

    async def answer(self) -> Answer:
        """Return the answer; the caller must call `Answer.close`.  Raises like `Resumer.resume`."""
        return await self._resumer.resume(self)
