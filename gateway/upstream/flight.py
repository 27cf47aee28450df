"""A flight: one fetch from an origin, shared by many readers.

A flight has a head, and a list of body chunks that grows until the end.  The engine starts a flight
(`gateway.engine.fetch_table`), announces the head, adds chunks, and ends the flight.  Readers attach, read at their own
pace, and detach.  When the last reader detaches, the fetch is cancelled.

Two bounds apply to the body.  First, the fetch pauses while all readers are more than one window (`WINDOW_BYTES`)
behind the end of the received data.  The origin's reply is therefore read only as fast as the fastest reader reads.

Second, a body larger than `keep_bytes` is not kept.  Chunks of such a body are dropped after all readers have read
them, so no more readers may attach.  A reader that is more than `keep_bytes` behind the end of the received data is
dropped.  Otherwise one slow client would keep the whole body in memory.  A reader may always be two windows behind,
even if `keep_bytes` is smaller.  Otherwise even the fastest reader could be dropped.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from multidict import CIMultiDict

from gateway.aio.signal import Signal
from gateway.errors import GatewayError, UpstreamBroken
from gateway.limits.memory import Holding, SharedBytes
from gateway.protocol.sharing import Ground
from gateway.protocol.stream_version import FIRST
from gateway.telemetry.tracing import NO_FLIGHT, FlightSpan
from gateway.upstream.collapse import FetchEnd, SharedFetch
from gateway.upstream.incoming import Inflow

WINDOW_BYTES: Final = 1 << 20
_UNBOUNDED: Final = Inflow()
SMALL_BYTES: Final = 1 << 16
"""The answer waits until a body of up to this size is complete.  The body is then sent whole and with its length."""
CONFIRMATION: Final = "?confirmation"
"""The `key` of a flight that compares the origin's bytes after `start` with the bytes in memory.  This text is not a
valid offset, so no other flight has this key.
"""
PROOF: Final = "?proof "
"""The prefix of the `key` of a flight whose bytes will be compared with bytes on disk.  The rest of the key is the
flight's `start`."""
METADATA: Final = "?metadata"
"""The `start` of a flight that fetches a stream's metadata without bytes.  This text is not a valid offset."""


class StreamHead(NamedTuple):
    """The head of a reply whose body is a part of a stream."""

    next_offset: str
    up_to_date: bool
    is_closed: bool
    is_stale: bool = False
    """Whether the worker that owns the stream has answered from its memory because the origin has failed."""


@dataclass(frozen=True, slots=True)
class OriginError:
    """A 4xx or 5xx reply with its short body.  It answers all requests that wait for the flight."""

    status: int
    headers: CIMultiDict[str]
    body: bytes
    request_headers: CIMultiDict[str] | None = None
    """The headers of the fetch, if the refusal may depend on these headers.  The refusal is then valid only for readers
    with the same headers.  Otherwise None.
    """
    varies_by_origin: bool = False
    """Whether the refusal is invalid for readers with an Origin header."""

    @classmethod
    def of_ended(cls, status: int) -> OriginError:
        """Make the gateway's own error for a stream that does not exist (404) or is gone for good (410)."""
        text = b"Stream is gone\n" if status == 410 else b"Stream not found\n"
        return cls(status, CIMultiDict({"Content-Type": "text/plain; charset=utf-8"}), text)


@dataclass(frozen=True, slots=True)
class NotShareable:
    """A reply that must not be shared, or does not follow the protocol.  Each waiting request is then relayed.

    `is_lasting`: later replies will probably not be shareable either, so the decision should be remembered.
    `is_personal`: the reply forbids sharing of its content, so stored bytes of the stream may no longer be shared.
    """

    reason: str
    is_lasting: bool = True
    is_personal: bool = False


VARIES_BY_ORIGIN: Final = NotShareable(Ground.ORIGIN, is_lasting=False)
"""The reason for relaying a read with an Origin header while other reads of the stream are shared."""
CHANGES_TOO_FAST: Final = NotShareable("changes faster than it can be read", is_lasting=False)
"""The reason for relaying a read during which the stream's bytes were dropped too often."""


REFUSED_TO_ANOTHER: Final = NotShareable("refused to another", is_lasting=False)
"""The reason for relaying a reader's request after a refusal that may depend on another reader's credentials."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """An empty reply to a read at an offset beyond the stream's tail.  The reply states the tail."""

    tail: str
    up_to_date: bool
    is_closed: bool


Head = StreamHead | Beyond | OriginError | NotShareable | GatewayError


def as_seen_by(head: Head, headers: CIMultiDict[str]) -> Head:
    """Return the head of a shared reply as it applies to one reader.  The reader's own request would have had
    `headers`."""
    if isinstance(head, OriginError) and head.request_headers is not None and head.request_headers != headers:
        return REFUSED_TO_ANOTHER
    return head


class FlightReader:
    """One reader of a flight's body.  The caller must call `detach` at the end."""

    __slots__ = ("flight", "index", "is_dropped", "position")

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.index = 0
        self.position = 0
        self.is_dropped = False

    async def chunks(self) -> AsyncIterator[bytes]:
        """Iterate over the body from its beginning, as it arrives.  Raises the flight's error if the fetch fails."""
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


class FirstReader(Protocol):
    """The reader for which the flight was launched.  This reader waits for the flight without a task."""

    def look(self) -> None:
        """Answer the reader's request if enough of the reply has arrived."""


class Flight(SharedFetch):
    """One shared fetch of the bytes after `start`.  Owner: the engine's fetch table."""

    __slots__ = (
        "_readers",
        "_room",
        "_watchers",
        "accounted",
        "accounted_requests",
        "as_of",
        "base",
        "charged_bytes",
        "dropped_bytes",
        "expected",
        "facts_suffice",
        "fetched",
        "first",
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
        self.facts_suffice = False
        """Whether the readers need only metadata of the stream, and not its current tail."""
        self.keep_bytes = keep_bytes
        self.lag_bytes = max(keep_bytes, 2 * WINDOW_BYTES)
        """The most bytes that a reader may be behind the end of the received data.  A slower reader is dropped."""
        self.sent_at = 0.0
        self.as_of = -math.inf
        """The time at which the reply was current (monotonic seconds): the time of the request, or earlier by the
        reply's Age.  -inf until the reply has arrived."""
        self.version = FIRST
        """The version of the stream in memory when the request was sent.  A later comparison with this version shows
        whether the flight is overtaken (`gateway.engine.fetch_table`)."""
        self.head: Head | None = None
        self.kept: list[bytes] = []
        self.base = 0
        """The number of chunks dropped so far.  It is also the index of `kept[0]` among all chunks of the body."""
        self.size = 0
        self.dropped_bytes = 0
        """The number of bytes of the dropped chunks."""
        self.charged_bytes = 0
        """The number of bytes already charged to the cache budget.  `holdings` does not count them again."""
        self.spools = False
        """Whether to read the body without a wait for readers, because other requests wait for the connection."""
        self.must_go = False
        """Whether to abandon the fetch, because other requests wait for the connection."""
        self.inflow = _UNBOUNDED
        """Bounds the rate at which the flight's reply and its readers add bytes to memory."""
        self.shared: SharedBytes | None = None
        """Counts the body's bytes once for all objects that refer to them: the readers, and later the tape (the
        stream's bytes in memory).  None until one of these objects requests it.
        """
        self.is_kept = True
        """Whether the body is kept from its beginning."""
        self.is_detached = False
        """Whether the flight continues without readers while its body is kept."""
        self.is_passing = False
        """Whether the bytes are only sent to the readers, and are not stored."""
        self.length: int | None = None
        """The body's length in bytes, if it is known before the end."""
        self.expected: int | None = None
        """The Content-Length of the reply, which includes the brackets of a JSON array."""
        self._room: Signal | None = None
        """Fires when the fetch may continue; None if the fetch has never paused."""
        self.on_unused: Callable[[], object] | None = None
        """Cancels the fetch; None after the fetch has ended."""
        self.span: FlightSpan = NO_FLIGHT
        self.fetched = 0
        """The body bytes received from the origin, including the brackets of JSON arrays, the bodies of refusals, and
        the bytes of failed attempts."""
        self.sharers = 0
        """The number of requests that have started or joined the flight.  Only access records
        (`gateway.telemetry.access_record`) change this attribute, and the attributes `accounted`, `accounted_requests`,
        `holders` and `is_led`.
        """
        self.accounted = 0
        self.requests = 0
        """The number of requests sent to the origin, including retries."""
        self.accounted_requests = 0
        self.holders = 0
        self.is_led = False
        self.first: FirstReader | None = None
        """The reader that started the flight.  When the reply has arrived or the fetch has ended, the flight calls the
        reader's `look` and sets this attribute to None.
        """
        self._readers: set[FlightReader] = set()
        self._watchers = 0

    def holdings(self) -> tuple[Holding]:
        """Return the bytes of the body that the flight keeps in memory, without `charged_bytes`."""
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
        """Whether the complete reply has arrived."""
        return self.end is not None and self.error is None

    # -- for the fetch

    def announce(self, head: Head, expected: int | None = None, *, is_verbatim: bool = True) -> None:
        """Set the reply's head.  Any head except a StreamHead ends the flight.

        `expected`: the Content-Length of the reply.  `is_verbatim`: the chunks will be exactly the reply's body.
        """
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

    def land_whole(self, body: list[bytes], size: int) -> None:
        """Set the whole body, which has arrived at once, and end the flight.  The body has `size` bytes, in non-empty
        pieces.
        """
        self.kept, self.size, self.length = body, size, size
        if size > self.keep_bytes:
            self.is_kept = False
        super().land()

    def land(self, end: FetchEnd = FetchEnd.LANDED) -> None:
        """End the flight with a complete body."""
        self.length = self.size
        super().land(end)

    def fail(self, error: GatewayError, end: FetchEnd = FetchEnd.FAILED) -> None:
        """End the flight with an error before the body is complete."""
        if self.head is None:
            self.head = error
        super().fail(error, end)

    async def until_first_byte(self) -> None:
        """Wait for the first byte of the body, or for the end."""
        while not (self.size or self.is_over):
            await self.changed.wait()

    @property
    def is_wanted(self) -> bool:
        """Whether the fastest reader is within a window of the end of the received data."""
        return (
            self.size < WINDOW_BYTES
            or bool(self._watchers)
            or not self._readers
            or self.size - max(reader.position for reader in self._readers) < WINDOW_BYTES
        )

    async def until_wanted(self) -> None:
        """Wait while the fastest reader is more than one window behind.  If other requests wait for the connection
        (`spools`, `must_go`), return at once."""
        if self._room is None:
            self._room = Signal()
        while not (self.is_wanted or self.spools or self.must_go):
            await self._room.wait()

    def go_on(self) -> None:
        """Wake `until_wanted`, which then checks its condition again."""
        if self._room is not None:
            self._room.fire()

    # -- for the readers

    def attach(self) -> FlightReader:
        """Add a reader of the body."""
        reader = FlightReader(self)
        self.add_reader(reader)
        return reader

    def add_reader(self, reader: FlightReader) -> None:
        """Add this reader of the body.  The reader must have been created for this flight."""
        assert self.base == 0, "a flight that drops its chunks takes no more readers"
        self._readers.add(reader)
        if self._room is not None:
            self._room.fire()

    def detach(self, reader: FlightReader) -> None:
        """Remove a reader.  Removing the last reader cancels the fetch."""
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
            # End the flight first, so that no reader attaches to a cancelled fetch.
            self.give_up()
            cancel()

    def advanced(self) -> None:
        """Record that a reader has read a chunk."""
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
        """Wait until the flight has ended, or its body is too large to be kept.  The caller must call `watch` first."""
        while self.is_kept and not self.is_over:
            await self.changed.wait()


def is_awaited(flight: Flight) -> bool:
    """Return whether an answer that begins with the flight's bytes must wait for more data of the reply."""
    if flight.end is not None:
        return False
    head, expected = flight.head, flight.expected
    return head is None or (isinstance(head, StreamHead) and expected is not None and expected <= SMALL_BYTES)
