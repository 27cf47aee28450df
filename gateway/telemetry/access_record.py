"""Access records: the recorded data of each request, independent of the log that writes them.

A `Record` is filled in while a request is answered, and is passed to an `AccessLog` when the request has ended.  A long
live read produces several records, and only its last record is final.  All calls of an `AccessLog` are synchronous and
cheap.  They never fail and never wait.  `NoAccessLog` is used if there is no log.

Each request to the origin, and each byte of the origin's answer, is counted exactly once.  A client request's record
counts the traffic of this request.  A shared fetch keeps its figures until a record claims them in `finalize`.  Traffic
that belongs to no record is counted by `AccessLog.unclaimed`.  Examples are a stream's live request, and a fetch for
which no request waits any more.

Several layers contribute data.  While a request is answered, the context variable `record_now` refers to its record,
and the `note_*` functions of this module write to this record.  These functions do nothing if there is no access log,
or if the task does not serve a single request.

A connection can repeat a hit faster than a record can be filled in.  A `Repeated` therefore has the data that repeated
answers have in common.  Each answer adds its times, its client and the bytes of its request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Final, NamedTuple, Protocol

from gateway.auth.verdict import Caller
from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.protocol.sharing import Partition
from gateway.protocol.target import Target


class CloseReason(StrEnum):
    """The reason why a live read ended."""

    ANSWERED = auto()
    """The long-poll was answered with bytes."""
    TIMED_OUT = auto()
    """The long-poll reached its timeout without bytes."""
    LIFETIME = auto()
    """The SSE connection reached its planned age."""
    CLOSED = auto()
    """The stream is closed, and the client has received all of it."""
    ENDED = auto()
    """The stream was deleted, expired, purged or re-created during the read."""
    DRAINED = auto()
    """The gateway is draining."""
    SLOW = auto()
    """The client did not keep up and was disconnected."""
    LEFT = auto()
    """The client disconnected."""
    FAILED = auto()
    """The next bytes could not be fetched from the origin."""


class RecordedStream(NamedTuple):
    """The stream of a request, as records show it.  The fields are the route, the path with the query, the partition
    (the readers that share the stream in memory), and the protocol.
    """

    route: str | None
    stream: str
    partition: Partition | None
    is_s2: bool = False

    @classmethod
    def of(cls, route: str, target: Target, partition: Partition) -> RecordedStream:
        """Return the recorded form of the stream `target` on `route`.  Its partition is None if `partition` is the
        route's public partition."""
        return cls.named(route, target.path, target.query, partition)

    @classmethod
    def named(cls, route: str, path: str, query: str, partition: Partition, *, is_s2: bool = False) -> RecordedStream:
        """Return the recorded form of the stream with this path and query.  Its partition is None if `partition` is the
        route's public partition.
        """
        # Leave out the public partition, which is the default.
        known = partition if partition != (route, 0, "") else None
        return cls(route, f"{path}?{query}" if query else path, known, is_s2)


class RecordedFetch(Protocol):
    """A shared fetch, as records use it."""

    fetched: int
    """Body bytes received from the origin so far, before decoding."""
    accounted: int
    """Body bytes that records have claimed."""
    requests: int
    """Requests sent to the origin so far."""
    accounted_requests: int
    """Requests to the origin that records have claimed."""
    holders: int
    """The number of records that may still claim figures."""
    is_led: bool
    """Whether the record of the request that started the fetch may still claim figures."""
    sharers: int
    """The number of requests that have a record and have started the fetch or waited for it."""

    @property
    def is_over(self) -> bool:
        """Whether the fetch has ended."""


@dataclass(slots=True)
class Record:
    """The known data of one client request.  None and 0 mean that there is nothing to report.

    `gateway.ops.access_log.schema` documents the written form of each field.  The code that answers the request owns
    the record, and then passes it to an access log.  The access log only reads the record.
    """

    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    method: str = ""
    route: str | None = None
    """The name of the configured route."""
    stream: str = ""
    """The path of the request, and its query without `offset`, `live` and `cursor`, in canonical form."""
    is_s2: bool = False
    """Whether the client uses S2 instead of Durable Streams."""
    partition: Partition | None = None
    """`StreamKey.partition`, if the partition depends on credentials or on gateways before this gateway.  None for the
    route's public partition.  An access log must not write the partition unchanged, because it is derived from
    credentials.
    """
    status: int = 0
    """The status of the answer; 0 if no status was sent."""
    ended_at: float = 0.0
    """The time at which the request ended.  In an interim record, the time at which the record was created.  Both are
    in Unix seconds."""
    duration_s: float = 0.0
    first_byte_s: float | None = None
    """Seconds from reading the request to writing the response's first byte; None without a response."""
    start: str | None = None
    next_offset: str | None = None
    sent_bytes: int = 0
    """Body bytes given to the client's connection."""
    saved_bytes: int = 0
    """Bytes that content coding saved: the size before coding minus the size sent."""
    fetched_bytes: int = 0
    """Body bytes received from the origin for this request.  The bytes of a shared fetch count for its leader, the
    request that started the fetch.  Bytes that arrive after the leader has left count for the next request that ends.
    """
    origin_requests: int = 0
    """Requests sent to the origin for this request.  The requests of a shared fetch are counted in the same way as its
    bytes (`fetched_bytes`).
    """
    collapsed: int = 0
    """The number of requests that shared the fetch for this request, including itself; 0 without a shared fetch."""
    subscribers: int | None = None
    """The number of the stream's live readers at the end of this read, including this reader.  None if the read is not
    live."""
    coding: Coding | None = None
    client: str | None = None
    """The peer's full address.  The access log decides how much of it to write."""
    principal: str = ""
    """The principal of an authorised request."""
    tenant: str = ""
    issuer: str = ""
    """The issuer of the principal and the tenant; empty for keys of signed URLs."""
    user_agent: str | None = None
    trace_id: str | None = None
    """The id of the request's trace: 32 hexadecimal digits (W3C Trace Context).  None without a trace."""
    close_reason: CloseReason | None = None
    is_final: bool = True
    """False for an interim record of a live read that continues."""

    fetches: tuple[tuple[RecordedFetch, bool], ...] = ()
    """The shared fetches that the request waited for.  Each has a flag, which states whether the request started the
    fetch.  `finalize` claims the figures of the fetches.
    """
    is_accounted: bool = False
    """Whether the record is complete.  Later work for the request belongs to no record."""

    def share(self, fetch: RecordedFetch, *, leads: bool) -> None:
        """Add a shared fetch that the request waits for.  `leads` means that the request has started the fetch."""
        if not self.is_accounted and all(known is not fetch for known, _ in self.fetches):
            fetch.sharers += 1
            fetch.holders += 1
            fetch.is_led |= leads
            self.fetches += ((fetch, leads),)

    def common(self) -> Record:
        """Return the data that this record has in common with the records of other clients' equal requests."""
        return Record(
            mode=self.mode,
            method=self.method,
            route=self.route,
            stream=self.stream,
            is_s2=self.is_s2,
            partition=self.partition,
            start=self.start,
        )

    def finalize(self, *, goes_on: bool = False) -> None:
        """Claim the figures of the shared fetches, and release the fetches.  `goes_on` means that the request
        continues.  In this case, release only fetches that have ended."""
        for fetch, leads in self.fetches:
            self.collapsed = max(self.collapsed, fetch.sharers)
            if leads or not fetch.is_led:
                self.fetched_bytes += fetch.fetched - fetch.accounted
                self.origin_requests += fetch.requests - fetch.accounted_requests
                fetch.accounted, fetch.accounted_requests = fetch.fetched, fetch.requests
            if leads and not goes_on:
                fetch.is_led = False
            if fetch.is_over or not goes_on:
                fetch.holders -= 1
        self.fetches = tuple(one for one in self.fetches if not one[0].is_over) if goes_on else ()
        self.is_accounted = not goes_on


record_now: ContextVar[Record | None] = ContextVar("record_now", default=None)
"""The record of the request that the running task answers."""


def note_request(mode: Mode, stream: RecordedStream, start: str | None) -> None:
    """Record the mode, the stream and the start of the current request, once it is parsed."""
    if (record := record_now.get()) is not None:
        record.mode, record.start = mode, start
        record.route, record.stream, record.partition, record.is_s2 = stream


def note_principal(caller: Caller) -> None:
    """Record the principal of the current request."""
    if (record := record_now.get()) is not None:
        record.principal, record.tenant, record.issuer = caller.principal, caller.tenant, caller.issuer


def note_close_reason(reason: CloseReason) -> None:
    """Record why the current live request ends."""
    if (record := record_now.get()) is not None:
        record.close_reason = reason


def note_span(start: str, next_offset: str) -> None:
    """Record the offsets at which the current answer starts and ends.  Called if neither the request nor the response
    headers state these offsets.
    """
    if (record := record_now.get()) is not None:
        record.start, record.next_offset = record.start or start, next_offset


def note_fetch(fetch: RecordedFetch, *, leads: bool) -> None:
    """Record that the current request starts a shared fetch (`leads`), or waits for a shared fetch."""
    if (record := record_now.get()) is not None:
        record.share(fetch, leads=leads)


def detach_record() -> None:
    """Detach the running task from its record."""
    record_now.set(None)


_MOST_LINES: Final = 16
"""The maximum number of different lines that are kept for equal live reads."""


class Repeated:
    """The data that all repetitions of a remembered answer (a response kept in memory) have in common.  Only the access
    log sets and uses `line`."""

    __slots__ = ("line", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """A record without times, client, user agent and trace."""
        self.line: bytes | None = None


class CommonFacts:
    """The data that the records of equal live reads have in common."""

    __slots__ = ("_lines", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """A record without end, times, client, user agent and trace."""
        self._lines: dict[tuple[Outcome, CloseReason | None, str | None, int], Repeated] = {}

    def line(self, outcome: Outcome, reason: CloseReason | None, next_offset: str | None, sent_bytes: int) -> Repeated:
        """Return the common data of lines with these values.  `reason` is None for reads that continue."""
        key = outcome, reason, next_offset, sent_bytes
        if (line := self._lines.get(key)) is None:
            record = self.record.common()
            record.status, record.outcome, record.close_reason = 200, outcome, reason
            record.next_offset, record.sent_bytes, record.is_final = next_offset, sent_bytes, reason is not None
            if len(self._lines) >= _MOST_LINES:
                self._lines.clear()
            line = self._lines[key] = Repeated(record)
        return line


LiveCounts = tuple[float, str, int, int]
"""The figures of an SSE read: seconds until the first byte, the offset after the bytes sent, the body bytes so far, and
the stream's live readers."""


def note_repeated(
    outcome: Outcome, status: int, next_offset: str | None, coding: Coding | None, sent_bytes: int, saved_bytes: int
) -> Repeated | None:
    """Return the data that repetitions of the current answer have in common; None without an access log."""
    record = record_now.get()
    if record is None:
        return None
    return Repeated(
        Record(
            mode=record.mode,
            outcome=outcome,
            method=record.method,
            route=record.route,
            stream=record.stream,
            is_s2=record.is_s2,
            partition=record.partition,
            status=status,
            start=record.start,
            next_offset=next_offset or record.next_offset,
            sent_bytes=sent_bytes,
            saved_bytes=saved_bytes,
            coding=coding,
            close_reason=record.close_reason,
        )
    )


class CountedRead(Protocol):
    """An SSE read with its figures."""

    def live_counts(self) -> LiveCounts:
        """Return the figures of the read so far.  The access log calls this before it writes a line."""


class HeaderSection(Protocol):
    """The header section of a request that was not parsed."""

    text: bytes


Client = str | Caller | None
"""The client of a request that was not parsed: its address, or its principal if the request was authorised."""
LiveClient = tuple[Client, HeaderSection]
"""The client of a live request that was not parsed, and its header section."""
PolledBy = tuple[float, Client, HeaderSection, bytes | None]
"""A long-poll whose request was not parsed: the time when the request was read (in seconds of the streams' clock), the
client, the header section, and the request line, which is not logged.
"""


class LiveNote(Protocol):
    """The access-log entry of one live read, from its start to its end."""

    @property
    def trace_id(self) -> str | None:
        """The trace id for exemplars in the metrics.  Always None, because only spans have such an id."""

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Record the end of the read.  Further calls do nothing."""

    def discard(self) -> None:
        """Write no more lines, because another record replaces this one."""


class AccessLog(Protocol):
    """Receives the records of requests."""

    @property
    def is_kept(self) -> bool:
        """Whether records are kept.  If they are not kept, callers need not fill in records."""

    def record(self, record: Record) -> None:
        """Accept the record of a request that has ended, or an interim record (`is_final` is False) of a request that
        continues.  The access log owns the record from now on."""

    def repeat(self, hit: Repeated, began: float, ended: float, client: Client, request: bytes) -> None:
        """Record that a remembered answer was sent again.  The request bytes were read at `began`, and the answer was
        written at `ended`, in monotonic seconds."""

    def live(self, record: Record, began: float, update: Callable[[Record], None]) -> LiveNote:
        """Record that a live read began at `began`, in monotonic seconds.

        The log calls `update` before it writes a line.  `update` fills in the current offsets, the bytes since the
        start, and the number of subscribers.
        """

    def join(self, facts: CommonFacts, began: float, read: CountedRead, client: LiveClient) -> LiveNote:
        """Record that an SSE read of this client began.  `facts` has the data that this read has in common with other
        reads."""

    def watch(self, began: float, write: Callable[[int], bool]) -> LiveNote | None:
        """Call `write` whenever interim lines are due for live reads that began together.  The calls end when `discard`
        is called on the result.

        The argument of `write` is the maximum number of lines to write.  `write` returns False if it must be called
        again for the remaining lines.  Returns None if live reads have no interim lines.
        """

    def repeat_live(self, hit: Repeated, ended: float, clients: Sequence[PolledBy]) -> None:
        """Record that these long-polls were sent the same answer at `ended`."""

    def record_of(self, record: Record, began: float, client: Client, section: HeaderSection) -> None:
        """Record a live read of this client, which began at `began`.  `record.is_final` states whether the read has
        ended.
        """

    def unclaimed(self, stream: RecordedStream, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """Count traffic with the origin that belongs to no record.  `mode` is the mode of the request to the origin."""


class NoAccessLog:
    """An access log that keeps nothing.  It is used if there is no other access log."""

    is_kept = False
    trace_id = None

    def record(self, record: Record) -> None:
        """Do nothing."""

    def repeat(self, hit: Repeated, began: float, ended: float, client: Client, request: bytes) -> None:
        """Do nothing."""

    def live(self, record: Record, began: float, update: Callable[[Record], None]) -> LiveNote:
        return self

    def join(self, facts: CommonFacts, began: float, read: CountedRead, client: LiveClient) -> LiveNote:
        return self

    def watch(self, began: float, write: Callable[[int], bool]) -> LiveNote | None:
        return None

    def repeat_live(self, hit: Repeated, ended: float, clients: Sequence[PolledBy]) -> None:
        """Do nothing."""

    def record_of(self, record: Record, began: float, client: Client, section: HeaderSection) -> None:
        """Do nothing."""

    def unclaimed(self, stream: RecordedStream, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """Do nothing."""

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Do nothing."""

    def discard(self) -> None:
        """Do nothing."""


NO_ACCESS_LOG = NoAccessLog()
