"""A first read: the first request for a stream of which nothing is in memory.

Its answer is the reply to one fetch, which it launches, so nothing has to be decided until that reply has come.  It
therefore waits without a task, and the call that brings the reply makes the answer.
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
from gateway.upstream.collapse import FetchEnd
from gateway.upstream.flight import Flight, FlightReader, StreamHead, is_awaited

# Enum members are slow to reach in Python 3.11.
_JOINED, _MISS, _REVALIDATED = Outcome.JOINED, Outcome.MISS, Outcome.REVALIDATED
_LANDED: Final = FetchEnd.LANDED


def miss_outcome(stream: Stream, start: str, head: StreamHead) -> Outcome:
    """The outcome of a read from `start` that launched the fetch of this reply."""
    if stream.tape.tail != start:
        return _MISS
    return _REVALIDATED if head.next_offset == start else _JOINED


class Resumer(Protocol):
    """Answers first reads that cannot be answered at once."""

    async def resume(self, first: FirstRead) -> Answer:
        """The answer, whose `close` the caller must call.  Raises Uncacheable, TailMovedBack or another
        GatewayError."""


class FirstRead(FlightReader):
    """A first read under way: the reader that its flight was launched for.  It holds its stream.

    The owner calls `wait` and then either `give_up`, or by `ReadRunner` `at_hand` or `answer`, which release the
    stream.
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
        """Call `ready`, not before this returns, once the answer can be made or begun without waiting."""
        self._ready = ready
        self.flight.first = self

    def look(self) -> None:
        """The fetch has got its reply or has ended: go on, or wait for more."""
        if self._ready is None:
            return
        if is_awaited(self.flight):
            self._gate = self.flight.changed.gate(self._changed)
            return
        # It refers to this object.
        ready, self._ready = self._ready, None
        ready()

    def _changed(self, gate: Future[bool]) -> None:
        if gate is self._gate:
            self._gate = None
            self.look()

    def give_up(self, store: TapeStore) -> None:
        """Give the read up: its client has left."""
        self._ready = self.flight.first = None
        if (gate := self._gate) is not None:
            self._gate = None
            self.flight.changed.leave_gate(gate)
        self.detach()
        store.release(self.stream)

    def at_hand(self) -> Answer | None:
        """The answer, whose `close` the caller must call, if the fetch has brought a part of the stream, whole; None if
        `answer` is needed."""
        flight, stream, read, version = self.flight, self.stream, self.read, self.version
        head = flight.head
        if flight.end is not _LANDED or not isinstance(head, StreamHead):
            return None
        if stream.ended is not None or not version.same_incarnation_as(stream.version):
            return None
        end, up_to_date, is_closed = head
        outcome = miss_outcome(stream, read.start, head)
        said = Said(
            outcome, up_to_date or is_closed, is_closed, None, None, 200, flight.is_kept and not flight.is_passing
        )
        return part_answer(read, BodyRun(stream, read.start, end, version.edition), said, Parts(self))

    async def answer(self) -> Answer:
        """The answer, whose `close` the caller must call.  Raises like `Resumer.resume`."""
        return await self._resumer.resume(self)
