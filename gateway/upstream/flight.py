"""A flight: one upstream fetch shared by many readers.

A flight is a growing list of chunks with an end; it knows neither HTTP nor tapes.  `gateway.engine.fetch_table` starts
flights and has readers share them.  Its fetch announces the head, adds chunks and lands the flight.  Readers attach,
read at their own pace, and leave.  It ends as any shared fetch does (`gateway.upstream.collapse`), and is given up when
the last reader leaves.

There are two bounds.  The fetch pauses while no reader is within `WINDOW_BYTES` of what has arrived, so the origin's
reply is not read faster than the fastest client reads.  A body larger than `keep_bytes` is not kept: chunks that every
reader has passed are dropped, no reader may attach any more, and a reader that falls `keep_bytes` behind is dropped.
Otherwise one slow client could keep the whole body in memory or stop the others.  A reader within two windows is never
dropped, however small `keep_bytes` is, because the fastest reader may rightly be that far behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from multidict import CIMultiDict

from gateway.aio.signal import Signal
from gateway.errors import GatewayError, UpstreamBroken
from gateway.limits.inflow import Inflow
from gateway.limits.memory import Holding, SharedBytes
from gateway.protocol.sharing import Ground
from gateway.protocol.stream_version import FIRST
from gateway.telemetry.tracing import NO_FLIGHT, FlightSpan
from gateway.upstream.collapse import FetchEnd, SharedFetch

WINDOW_BYTES: Final = 1 << 20
_UNBOUNDED: Final = Inflow()
CONFIRMATION: Final = "?confirmation"
"""The `key` of a flight that compares the bytes after its `start` with those held; no valid offset looks like it."""
METADATA: Final = "?metadata"
"""The `start` of a flight that fetches a stream's metadata without its bytes; no valid offset looks like it."""


class StreamHead(NamedTuple):
    """The head of a reply with a part of a stream."""

    next_offset: str
    up_to_date: bool
    is_closed: bool


@dataclass(frozen=True, slots=True)
class OriginError:
    """A 4xx or 5xx reply, with its short body, that answers all waiting requests."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    request_headers: CIMultiDict[str] | None = None
    """The request's headers, if the refusal may be due to them.  It is then not valid for readers with other
    headers."""
    varies_by_origin: bool = False
    """Whether the refusal is not valid for readers with an Origin header."""

    @classmethod
    def of_ended(cls, status: int) -> OriginError:
        """The gateway's own answer for a stream that is absent (404) or permanently gone (410)."""
        text = b"Stream is gone\n" if status == 410 else b"Stream not found\n"
        return cls(status, CIMultiDict({"Content-Type": "text/plain; charset=utf-8"}), text)


@dataclass(frozen=True, slots=True)
class NotShareable:
    """A reply that must not be shared, or does not follow the protocol; each waiting request is sent on its own.

    `is_lasting` means that the next reply will be no better, so the decision is worth remembering.  `is_personal` means
    that the reply forbids sharing its content, so stored bytes of the stream may not be shareable any more either.
    """

    reason: str
    is_lasting: bool = True
    is_personal: bool = False


VARIES_BY_ORIGIN: Final = NotShareable(Ground.ORIGIN, is_lasting=False)
"""Why a read with an Origin header is relayed while other reads of the stream are shared."""
CHANGES_TOO_FAST: Final = NotShareable("changes faster than it can be read", is_lasting=False)
"""The stream's bytes were forgotten too often while one read waited."""


REFUSED_TO_ANOTHER: Final = NotShareable("refused to another", is_lasting=False)
"""A refusal that may be due to the credentials of one reader.  The others send requests of their own."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """An empty reply to an offset beyond the stream's tail; it names the tail, and there is nothing to store."""

    tail: str
    up_to_date: bool
    is_closed: bool


Head = StreamHead | Beyond | OriginError | NotShareable | GatewayError


def as_seen_by(head: Head, headers: CIMultiDict[str]) -> Head:
    """The shared reply's head as it is valid for a reader whose own request would have had `headers`."""
    if isinstance(head, OriginError) and head.request_headers is not None and head.request_headers != headers:
        return REFUSED_TO_ANOTHER
    return head


class FlightReader:
    """One reader of a flight, whose body is the flight's.  `detach` must be called in all cases."""

    __slots__ = ("flight", "index", "is_dropped", "position")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.index = 0
        self.position = 0
        self.is_dropped = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body from its beginning, as it arrives.  Raises the error that the flight failed with."""
        flight = self.flight
        while True:
            if self.is_dropped:
                raise UpstreamBroken("Reader fell too far behind")
            if self.index < flight.base + len(flight.kept):
                if not flight.inflow.has_room:
                    await flight.inflow.renewed()
                    continue
                chunk = flight.kept[self.index - flight.base]
                flight.inflow.count_bytes(len(chunk))
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

    def detach(self) -> None:
        self.flight.detach(self)


class Flight(SharedFetch):
    """The state of one shared fetch of the bytes after `start`.  Owned by the engine's fetch table."""

    __slots__ = (
        "_readers",
        "_room",
        "_watchers",
        "accounted",
        "accounted_requests",
        "base",
        "charged_bytes",
        "dropped_bytes",
        "expected",
        "fetched",
        "head",
        "holders",
        "inflow",
        "is_detached",
        "is_kept",
        "is_led",
        "is_passing",
        "keep_bytes",
        "kept",
        "key",
        "lag_bytes",
        "length",
        "must_go",
        "on_unused",
        "requests",
        "sent_at",
        "shared",
        "sharers",
        "size",
        "span",
        "spools",
        "start",
        "version",
    )

    def __init__(self, start: str, keep_bytes: int, client: str = "", key: str | None = None) -> None:
        super().__init__(client)
        self.start = start
        self.key = key or start
        """The key by which readers find the flight."""
        self.keep_bytes = keep_bytes
        self.lag_bytes = max(keep_bytes, 2 * WINDOW_BYTES)
        """How far a reader may fall behind."""
        self.sent_at = 0.0
        self.version = FIRST
        """The stream's version when the request was sent."""
        self.head: Head | None = None
        self.kept: list[bytes] = []
        self.base = 0
        """Chunks dropped so far: the index of `kept[0]`."""
        self.size = 0
        self.dropped_bytes = 0
        """Bytes of the dropped chunks."""
        self.charged_bytes = 0
        """Arriving bytes that are charged to the cache's budget."""
        self.spools = False
        """Whether the body is read on although no reader takes it, because other requests wait for its connection."""
        self.must_go = False
        """Whether the flight is given up because other requests wait for its connection."""
        self.inflow = _UNBOUNDED
        """The account of the bytes that its arrival, and each of its readers, may add to memory."""
        self.shared: SharedBytes | None = None
        """The account of its bytes for its readers, and later for the tape; None if no holder has asked for it."""
        self.is_kept = True
        self.is_detached = False
        """Whether the flight goes on without readers, as long as its body may be kept."""
        self.is_passing = False
        """Whether its bytes are for its readers only, because they are not worth storing."""
        self.length: int | None = None
        """The body's length in bytes, if it is known before the end."""
        self.expected: int | None = None
        """The length that the origin announced, before brackets are stripped."""
        self._room: Signal | None = None
        """Fires when the body may go on; None if the fetch has never waited."""
        self.on_unused: Callable[[], object] | None = None
        """Cancels the fetch; None once the fetch is over."""
        self.span: FlightSpan = NO_FLIGHT
        self.fetched = 0
        """Body bytes received from the origin, including stripped bytes, refusals and failed attempts."""
        self.sharers = 0
        """Requests that started or awaited it, counted if an access log is kept.  The log also owns `accounted`,
        `accounted_requests`, `holders` and `is_led`."""
        self.accounted = 0
        self.requests = 0
        """Requests sent to the origin, including retries."""
        self.accounted_requests = 0
        self.holders = 0
        self.is_led = False
        self._readers: set[FlightReader] = set()
        self._watchers = 0

    def holdings(self) -> tuple[Holding]:
        """The part of the body that it keeps in memory."""
        size = self.size - self.dropped_bytes - self.charged_bytes
        if self.shared is None:
            self.shared = SharedBytes(0)
        if not self.shared.in_cache:
            self.shared.size = size
        return (Holding(self.shared, size),)

    def __repr__(self) -> str:
        return f"<Flight {self.end or 'under way'}, {self.readers} readers, {self.size} bytes>"

    @property
    def readers(self) -> int:
        return len(self._readers) + self._watchers

    @property
    def has_landed(self) -> bool:
        """Whether the reply has come, and its body, if there is one, is complete."""
        return self.end is not None and self.error is None

    # -- the fetch's side

    def announce(self, head: Head, expected: int | None = None, *, is_verbatim: bool = True) -> None:
        """Announce the reply's head, and `expected`, the length that the origin stated.  `is_verbatim` means that the
        chunks will be exactly the body.  Any head but a StreamHead ends the flight."""
        self.head = head
        self.expected = expected
        self.length = expected if is_verbatim else None
        match head:
            case StreamHead():
                self.changed.fire()
            case GatewayError():
                super().fail(head)
            case OriginError():
                super().land(FetchEnd.REFUSED)
            case NotShareable():
                super().land(FetchEnd.FOREIGN)
            case Beyond():
                super().land()

    def add_chunk(self, chunk: bytes) -> None:
        """Add a part of the body."""
        if not chunk:
            return
        self.kept.append(chunk)
        self.size += len(chunk)
        if self.is_kept and self.size > self.keep_bytes:
            self.is_kept = False
            if self.is_detached:
                self._cancel_if_unused()
        if not self.is_kept:
            self._drop_laggards()
            self._drop_read_chunks()
        self.changed.fire()

    def land(self, end: FetchEnd = FetchEnd.LANDED) -> None:
        """Land the flight: the body is complete."""
        self.length = self.size
        super().land(end)

    def fail(self, error: GatewayError, end: FetchEnd = FetchEnd.FAILED) -> None:
        """The fetch ended before the body was complete."""
        if self.head is None:
            self.head = error
        super().fail(error, end)

    async def until_begun(self) -> None:
        """Wait for the first byte of the body, or for the end."""
        while not (self.size or self.is_over):
            await self.changed.wait()

    @property
    def is_wanted(self) -> bool:
        """Whether the fastest reader is within a window of what has arrived."""
        return (
            self.size < WINDOW_BYTES
            or bool(self._watchers)
            or not self._readers
            or self.size - max(reader.position for reader in self._readers) < WINDOW_BYTES
        )

    async def until_wanted(self) -> None:
        """Wait while the fastest reader is more than a window behind, unless others wait for the connection."""
        if self._room is None:
            self._room = Signal()
        while not (self.is_wanted or self.spools or self.must_go):
            await self._room.wait()

    def go_on(self) -> None:
        """Have the body check again whether it may go on."""
        if self._room is not None:
            self._room.fire()

    # -- the readers' side

    def attach(self) -> FlightReader:
        """Add a reader of the body."""
        assert self.base == 0, "a flight that lets go of its chunks takes no more readers"
        reader = FlightReader(self)
        self._readers.add(reader)
        if self._room is not None:
            self._room.fire()
        return reader

    def detach(self, reader: FlightReader) -> None:
        """Remove a reader; removing the last one cancels the fetch."""
        if reader in self._readers:
            self._readers.discard(reader)
            if not (self.is_kept and self.is_over):
                self._drop_read_chunks()
                self._cancel_if_unused()

    def watch(self) -> None:
        """Join without reading the body, to wait for the head or the end."""
        self._watchers += 1
        self.go_on()

    def unwatch(self) -> None:
        self._watchers -= 1
        self._cancel_if_unused()

    def _cancel_if_unused(self) -> None:
        self.go_on()
        is_independent = self.is_detached and self.is_kept
        if not self.readers and not self.is_over and not is_independent and (cancel := self.on_unused) is not None:
            # The flight is over now: no reader may attach to a cancelled fetch.
            self.give_up()
            cancel()

    def advanced(self) -> None:
        """A reader has read a chunk."""
        if not self.is_kept:
            self._drop_read_chunks()
        self.go_on()

    def _drop_read_chunks(self) -> None:
        if self.is_kept:
            return
        first = min((reader.index for reader in self._readers), default=self.base + len(self.kept))
        if first > self.base:
            self.dropped_bytes += sum(map(len, self.kept[: first - self.base]))
            del self.kept[: first - self.base]
            self.base = first

    def _drop_laggards(self) -> None:
        for reader in [reader for reader in self._readers if self.size - reader.position > self.lag_bytes]:
            reader.is_dropped = True
            self._readers.discard(reader)

    async def until_known(self) -> None:
        """Wait until the flight has landed or failed, or its body is too large to keep; the caller watches."""
        while self.is_kept and not self.is_over:
            await self.changed.wait()
