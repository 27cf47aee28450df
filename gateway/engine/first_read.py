"""A first read: the first request for a stream of which nothing is in memory.

Its answer is the reply to one fetch, which it launches, so nothing has to be decided until that reply has come.  It
therefore waits without a task, and its answer is made in one go.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import Future
from collections.abc import Callable
from typing import Final

from gateway.engine.answer import Answer, Parts
from gateway.tape.store import TapeStore
from gateway.tape.stream import Stream
from gateway.upstream.flight import Flight, StreamHead

SMALL_BYTES: Final = 1 << 16
"""A body up to this size is awaited, so that it is sent whole and with its length."""


def is_awaited(flight: Flight) -> bool:
    """Whether an answer that begins with the flight's bytes has to wait for more of the reply."""
    if flight.end is not None:
        return False
    head, expected = flight.head, flight.expected
    return head is None or (isinstance(head, StreamHead) and expected is not None and expected <= SMALL_BYTES)


class FirstRead(ABC):
    """A first read under way; it holds its stream.  The owner calls `wait` and then either `give_up`, or by
    `ReadRunner` `at_hand` or `answer`, which release the stream."""

    __slots__ = ("_flight", "_gate", "_ready", "parts", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.parts = Parts()

    def read_from(self, flight: Flight) -> None:
        """Read the stream's first bytes by this flight."""
        self._flight = flight
        self.parts.attach(flight)

    def wait(self, ready: Callable[[], None]) -> None:
        """Call `ready`, in a later turn of the loop, once the answer can be made or begun without waiting."""
        self._ready = ready
        self._gate: Future[bool] | None = self._flight.changed.gate(self._changed)

    def _changed(self, gate: Future[bool]) -> None:
        if gate is not self._gate:
            return
        if is_awaited(self._flight):
            self._gate = self._flight.changed.gate(self._changed)
            return
        ready, self._gate = self._ready, None
        # It refers to this object.
        del self._ready
        ready()

    def give_up(self, store: TapeStore) -> None:
        """Give the read up: its client has left."""
        if (gate := self._gate) is not None:
            self._gate = None
            self._flight.changed.leave_gate(gate)
            del self._ready
        self.parts.close()
        store.release(self.stream)

    @abstractmethod
    def at_hand(self) -> Answer | None:
        """The answer, whose `close` the caller must call, if the fetch has brought a part of the stream, whole; None if
        `answer` is needed."""

    @abstractmethod
    async def answer(self) -> Answer:
        """The answer, whose `close` the caller must call.  Raises Uncacheable, TailMovedBack or another
        GatewayError."""
