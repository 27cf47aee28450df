"""A flight: one upstream fetch that many readers share.

It is a growing list of chunks with an end, and knows neither HTTP nor tape.  The task that runs it announces the
head, adds chunks and lands it; readers attach, read at their own pace, and leave.  Ways it can end: landed (whole),
failed (an error, before or after the head).  Who started it is nobody special: it is cancelled only when the last
reader leaves.

Two bounds.  The task is held back while no reader is within `WINDOW_BYTES` of what has arrived, so an origin is not
read faster than the fastest client.  A body that grows past `keep_bytes` is not kept: chunks that every reader has
passed are let go, nobody may attach any more, and a reader that falls `keep_bytes` behind is thrown off, because one
slow client must not hold everything in memory nor stop the others.  (Never one within two windows: the fastest is that
far behind by rights, however little may be kept.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from multidict import CIMultiDict

from gateway.aio.signal import Signal
from gateway.errors import GatewayError, UpstreamBroken, UpstreamUnreachable, bare
from gateway.telemetry.tracing import NO_FLIGHT, FlightSpan

WINDOW_BYTES: Final = 1 << 20
METADATA: Final = "?metadata"
"""The `start` of a flight for what is known of a stream, without its bytes; no offset can look like it."""


@dataclass(frozen=True, slots=True)
class StreamHead:
    """The head of an answer that is a part of a stream."""

    next_offset: str
    up_to_date: bool
    is_closed: bool


@dataclass(frozen=True, slots=True)
class OriginError:
    """An answer that is no part of a stream but meant for everyone who waited: a 4xx or 5xx with its short body."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    asker: CIMultiDict[str] | None = None
    """The headers of the request, where it may be those that were refused: it is no answer to readers with others."""

    @classmethod
    def of_ended(cls, status: int) -> OriginError:
        """What the gateway itself says of a stream that has gone (404) or is gone for good (410)."""
        text = b"Stream is gone\n" if status == 410 else b"Stream not found\n"
        return cls(status, CIMultiDict({"Content-Type": "text/plain; charset=utf-8"}), text)


@dataclass(frozen=True, slots=True)
class NotShareable:
    """An answer that may not be shared or is not of the protocol; everyone is sent on alone.

    `is_lasting` says that the next answer will be no better, which is worth remembering; `is_personal`, that it forbids
    the sharing of what it shows, so that what is held of the stream may not be for everyone any more either.
    """

    reason: str
    is_lasting: bool = True
    is_personal: bool = False


@dataclass(frozen=True, slots=True)
class Beyond:
    """An empty answer to an offset behind the stream's tail, which it names: there is nothing to lay."""

    tail: str
    up_to_date: bool
    is_closed: bool


Head = StreamHead | Beyond | OriginError | NotShareable | GatewayError


def as_seen_by(head: Head, headers: CIMultiDict[str]) -> Head:
    """What a shared answer is to a reader who would have asked with `headers`."""
    if isinstance(head, OriginError) and head.asker is not None and head.asker != headers:
        return NotShareable("refused to another", is_lasting=False)
    return head


class FlightReader:
    """One reader of a flight.  `leave` is owed, in all cases."""

    __slots__ = ("_flight", "index", "position", "thrown_off")

    def __init__(self, flight: Flight) -> None:
        self._flight = flight
        self.index = 0
        self.position = 0
        self.thrown_off = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body from its beginning, as it arrives; raises what the flight failed with."""
        flight = self._flight
        while True:
            if self.thrown_off:
                raise UpstreamBroken("Reader fell too far behind")
            if self.index < flight.base + len(flight.kept):
                chunk = flight.kept[self.index - flight.base]
                self.index += 1
                self.position += len(chunk)
                flight.advanced()
                yield chunk
            elif flight.error is not None:
                raise flight.error.anew()
            elif flight.has_landed:
                return
            else:
                await flight.changed.wait()

    def leave(self) -> None:
        self._flight.leave(self)


class Flight:
    """State of one shared fetch of what lies after `start`.  Owner: the engine's flight fetches."""

    def __init__(self, start: str, keep_bytes: int) -> None:
        self.start = start
        self.keep_bytes = keep_bytes
        self.lag_bytes = max(keep_bytes, 2 * WINDOW_BYTES)
        """How far a reader may fall behind."""
        self.is_sent = False
        """Whether the request may have reached the origin: who arrives later cannot take it for a fresh look."""
        self.sent_at = 0.0
        self.incarnation = ""
        """That of the tape when it was sent."""
        self.write_version = (0, 0)
        """That of the stream when it was sent."""
        self.head: Head | None = None
        self.error: GatewayError | None = None
        self.has_landed = False
        self.kept: list[bytes] = []
        self.base = 0
        """Chunks let go so far: the index of `kept[0]`."""
        self.size = 0
        self.is_kept = True
        self.is_passing = False
        """Whether what it brings is not worth a place on the tape: it is for those who ride on it."""
        self.length: int | None = None
        """The body's length in bytes where it is known before the end."""
        self.expected: int | None = None
        """What the origin announced as the length, before anything is stripped."""
        self.changed = Signal()
        self.room = Signal()
        self.task: asyncio.Task[None] | None = None
        self.span: FlightSpan = NO_FLIGHT
        self.fetched = 0
        """Body bytes as they came from the origin, with what is stripped, of refusals and of tries that failed."""
        self.sharers = 0
        """Requests that started it or waited for it, where an access log is kept; what is accounted, held and led is
        such a access log's."""
        self.accounted = 0
        self.requests = 0
        """Requests sent to the origin, tries included."""
        self.accounted_requests = 0
        self.holders = 0
        self.is_led = False
        self._readers: set[FlightReader] = set()
        self._eager = 0

    @property
    def readers(self) -> int:
        return len(self._readers) + self._eager

    @property
    def is_over(self) -> bool:
        return self.has_landed or self.error is not None

    # -- the task's side

    def announce(self, head: Head, expected: int | None = None, *, is_verbatim: bool = True) -> None:
        """The answer's head is known, and the length that the origin announced; `is_verbatim` says that the chunks
        will be just the body.  Anything but a StreamHead ends the flight."""
        self.head = head
        self.expected = expected
        self.length = expected if is_verbatim else None
        if isinstance(head, GatewayError):
            self.error = bare(head)
        elif not isinstance(head, StreamHead):
            self.has_landed = True
        self.changed.fire()

    def add(self, chunk: bytes) -> None:
        """A part of the body has arrived."""
        if not chunk:
            return
        self.kept.append(chunk)
        self.size += len(chunk)
        if self.is_kept and self.size > self.keep_bytes:
            self.is_kept = False
        if not self.is_kept:
            self._throw_off()
            self._let_go()
        self.changed.fire()

    def land(self) -> None:
        """The body is whole."""
        self.has_landed = True
        self.length = self.size
        self.changed.fire()

    def fail(self, error: GatewayError) -> None:
        """The fetch ended before the body was whole."""
        bare(error)
        if self.head is None:
            self.head = error
        self.error = error
        self.changed.fire()

    def give_up(self) -> None:
        """The fetch ended because nobody waited for it, or without a word."""
        self.fail(UpstreamUnreachable("Fetch was given up"))

    async def until_wanted(self) -> None:
        """Wait while the fastest reader is a window behind what has arrived."""
        while not self._eager and self._readers:
            if self.size - max(reader.position for reader in self._readers) < WINDOW_BYTES:
                return
            await self.room.wait()

    # -- the readers' side

    def attach(self) -> FlightReader:
        """Join as a reader of the body."""
        assert self.base == 0, "a flight that lets go of its chunks takes no more readers"
        reader = FlightReader(self)
        self._readers.add(reader)
        self.room.fire()
        return reader

    def leave(self, reader: FlightReader) -> None:
        """A reader goes; the last one's going cancels the fetch."""
        if reader in self._readers:
            self._readers.discard(reader)
            self._let_go()
            self._rest()

    def watch(self) -> None:
        """Join without reading: interested in the head, or in the landing."""
        self._eager += 1
        self.room.fire()

    def unwatch(self) -> None:
        self._eager -= 1
        self._rest()

    def _rest(self) -> None:
        self.room.fire()
        if not self.readers and not self.is_over and self.task is not None:
            # Over from here on, not when the task comes to notice: nobody may attach what is being cancelled.
            self.give_up()
            self.task.cancel()

    def advanced(self) -> None:
        """A reader has read a chunk."""
        if not self.is_kept:
            self._let_go()
        self.room.fire()

    def _let_go(self) -> None:
        if self.is_kept:
            return
        first = min((reader.index for reader in self._readers), default=self.base + len(self.kept))
        if first > self.base:
            del self.kept[: first - self.base]
            self.base = first

    def _throw_off(self) -> None:
        for reader in [reader for reader in self._readers if self.size - reader.position > self.lag_bytes]:
            reader.thrown_off = True
            self._readers.discard(reader)

    async def until_head(self) -> Head:
        """Wait for the head; the caller has boarded or watches."""
        while self.head is None:
            await self.changed.wait()
        return self.head

    async def until_over(self) -> None:
        """Wait for the landing or the failure; the caller watches or rides."""
        while not self.is_over:
            await self.changed.wait()

    async def until_known(self) -> None:
        """Wait for the landing, the failure, or for the body to be too large to be kept; the caller watches."""
        while self.is_kept and not self.is_over:
            await self.changed.wait()
