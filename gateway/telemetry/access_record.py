"""Access records: the facts of each request, independent of the log that writes them.

A `Record` is filled in while a request is answered and handed to an `AccessLog` once, when the request has ended.  A
long live read hands it over several times, and only the last one is final.  Every call to an `AccessLog` is synchronous
and cheap, never fails and never waits.  `NoAccessLog` is the log of a gateway that keeps none.

Exactly one record accounts for each request to the origin and for each byte of its answer.  A request accounts for its
own traffic.  A shared fetch keeps its figures until a record claims them in `finalize`.  Traffic without a record, such
as a stream's live request or a fetch that outlived its waiters, goes to `AccessLog.unclaimed`.

Several layers know facts of a request.  While the request is being answered, the context variable `record_now` holds
its record, and the `note_*` functions below write to it.  Without an access log, or in a task that serves no single
request, they do nothing.

A connection can repeat the same hit faster than records can be filled in.  A `Repeated` holds what such answers have in
common; each of them adds only its times, its client and the bytes of its request.
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
    """Why a live read ended."""

    ANSWERED = auto()
    """A long-poll that was answered with bytes."""
    TIMED_OUT = auto()
    """A long-poll that reached its timeout without bytes."""
    LIFETIME = auto()
    """An SSE connection that reached its planned age."""
    CLOSED = auto()
    """The stream is closed and the client has received all of it."""
    ENDED = auto()
    """The stream was deleted, expired, purged or re-created during the read."""
    DRAINED = auto()
    """The gateway is draining."""
    SLOW = auto()
    """The client did not keep up and was disconnected."""
    LEFT = auto()
    """The client disconnected."""
    FAILED = auto()
    """The bytes that follow could not be fetched from the origin."""


class RecordedStream(NamedTuple):
    """The stream that a request names, as records show it: route, path with query, partition, and protocol."""

    route: str | None
    stream: str
    partition: Partition | None
    is_s2: bool = False

    @classmethod
    def of(cls, route: str, target: Target, partition: Partition) -> RecordedStream:
        """The name of `target` on `route`; the route's own public partition is recorded as None."""
        return cls.named(route, target.path, target.query, partition)

    @classmethod
    def named(cls, route: str, path: str, query: str, partition: Partition, *, is_s2: bool = False) -> RecordedStream:
        """The name of the stream with this path and query; the route's own public partition is recorded as None."""
        # The public partition is the default and carries no information.
        known = partition if partition != (route, 0, "") else None
        return cls(route, f"{path}?{query}" if query else path, known, is_s2)


class RecordedFetch(Protocol):
    """A shared fetch, as far as records account for it."""

    fetched: int
    """Body bytes received from the origin so far, as they came."""
    accounted: int
    """How many of these bytes a record has claimed."""
    requests: int
    """Requests sent to the origin so far."""
    accounted_requests: int
    """How many of these requests a record has claimed."""
    holders: int
    """Records that may still claim figures."""
    is_led: bool
    """Whether the record of the request that started the fetch may still claim figures."""
    sharers: int
    """Requests with a record that started the fetch or waited for it."""

    @property
    def is_over(self) -> bool:
        """Whether the fetch has ended."""


@dataclass(slots=True)
class Record:
    """The facts of one client request, as far as they are known; None and 0 where there is nothing to report.

    `gateway.ops.access_log.fields` documents the written form of each field.  The code that answers the request owns
    the record until it hands it to an access log, which only reads it.
    """

    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    method: str = ""
    route: str | None = None
    """The configured route's name."""
    stream: str = ""
    """Path and other query parameters of the request, in canonical form."""
    is_s2: bool = False
    """Whether the client speaks S2 and not Durable Streams."""
    partition: Partition | None = None
    """`StreamKey.partition` where credentials or gateways on the way are a part of it, None for the route's public
    partition.  It is derived from credentials: an access log must not write it as it is."""
    status: int = 0
    """0 where no status was sent."""
    ended_at: float = 0.0
    """Unix seconds."""
    duration_s: float = 0.0
    first_byte_s: float | None = None
    """Seconds from reading the request to writing the first byte of the response; None if none was written."""
    start: str | None = None
    next_offset: str | None = None
    sent_bytes: int = 0
    """Body bytes handed to the client's connection."""
    saved_bytes: int = 0
    """Bytes that content coding saved: size before coding minus size sent."""
    fetched_bytes: int = 0
    """Body bytes received from the origin for this request.  The leader of a shared flight claims the flight's bytes;
    bytes that arrive after the leader has left go to the next request that ends."""
    origin_requests: int = 0
    """Requests sent to the origin for this one; requests of a shared flight are claimed like its bytes."""
    collapsed: int = 0
    """How many requests shared the flight that answered this one, itself included; 0 without a flight."""
    subscribers: int | None = None
    """Live readers of the stream when this one ended, itself included; live reads only."""
    coding: Coding | None = None
    client: str | None = None
    """The peer's full address; the access log decides how much of it to write."""
    principal: str = ""
    """The party that an authorised request's credential speaks for."""
    tenant: str = ""
    issuer: str = ""
    """Who has named the principal and the tenant; empty for keys of signed URLs."""
    user_agent: str | None = None
    trace_id: str | None = None
    """32 hexadecimal digits (W3C Trace Context)."""
    close_reason: CloseReason | None = None
    is_final: bool = True
    """False for an interim record of a live read that continues."""

    fetches: tuple[tuple[RecordedFetch, bool], ...] = ()
    """The shared fetches that the request waited for, each with whether it started it; `finalize` claims their
    figures."""
    is_accounted: bool = False
    """Whether the record is complete: later work for its request is charged to no record."""

    def share(self, fetch: RecordedFetch, *, leads: bool) -> None:
        """Add a shared fetch that the request started (`leads`) or waits for."""
        if not self.is_accounted and all(known is not fetch for known, _ in self.fetches):
            fetch.sharers += 1
            fetch.holders += 1
            fetch.is_led |= leads
            self.fetches += ((fetch, leads),)

    def common(self) -> Record:
        """The facts that the records of equal requests of other clients share with this one."""
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
        """Claim the figures of the shared fetches and release them; if the request `goes_on`, release only those that
        have ended."""
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
    """Record what the current request asks for, once it is parsed."""
    if (record := record_now.get()) is not None:
        record.mode, record.start = mode, start
        record.route, record.stream, record.partition, record.is_s2 = stream


def note_principal(caller: Caller) -> None:
    """Record for whom the current request was allowed."""
    if (record := record_now.get()) is not None:
        record.principal, record.tenant, record.issuer = caller.principal, caller.tenant, caller.issuer


def note_span(start: str, next_offset: str) -> None:
    """Record from where to where the current answer goes, if its request and its headers do not say that."""
    if (record := record_now.get()) is not None:
        record.start, record.next_offset = record.start or start, next_offset


def note_fetch(fetch: RecordedFetch, *, leads: bool) -> None:
    """Record that the current request starts a shared fetch, or waits for one."""
    if (record := record_now.get()) is not None:
        record.share(fetch, leads=leads)


def detach_record() -> None:
    """Detach the running task from any record."""
    record_now.set(None)


_MOST_LINES: Final = 16
"""Different lines of the live reads that ask for the same, of which the common part is kept."""


class Repeated:
    """The facts that all repetitions of one remembered answer share; `line` belongs to the access log that writes
    it."""

    __slots__ = ("line", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """Without times, client, user agent and trace."""
        self.line: bytes | None = None


class CommonFacts:
    """The facts that the records of live reads that ask for the same share."""

    __slots__ = ("_lines", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """Without an end, times, client, user agent and trace."""
        self._lines: dict[tuple[Outcome, CloseReason | None, str | None, int], Repeated] = {}

    def line(self, outcome: Outcome, reason: CloseReason | None, next_offset: str | None, sent_bytes: int) -> Repeated:
        """What the lines of all such reads have in common that have come to the same; `reason` is None if they go
        on."""
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
"""The figures of an SSE read: the seconds until its first byte, the offset behind what was sent, the body bytes so
far, and the live readers of its stream."""


def note_repeated(
    outcome: Outcome, status: int, next_offset: str | None, coding: Coding | None, sent_bytes: int, saved_bytes: int
) -> Repeated | None:
    """The facts that repetitions of the current answer share; None without an access log."""
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
        )
    )


class CountedRead(Protocol):
    """An SSE read."""

    def live_counts(self) -> LiveCounts:
        """The figures of the read so far.  The access log asks before writing a line."""


class HeaderSection(Protocol):
    """The header section of a request that was not parsed."""

    text: bytes
    """Its bytes."""


Client = str | Caller | None
"""The client of a request that was not parsed: its address, with its principal if the request was authorised."""
LiveClient = tuple[Client, HeaderSection]
"""The client of a live request that was not parsed, and its header section."""
PolledBy = tuple[float, Client, HeaderSection]
"""The client of a long-poll that was not parsed.  The time at which its request was read, in seconds of the streams'
clock, comes first."""


class LiveNote(Protocol):
    """The access-log entry of one live read, from its start to its end."""

    @property
    def trace_id(self) -> str | None:
        """None: the access log keeps no trace."""

    def record_end(self, outcome: Outcome, reason: CloseReason) -> None:
        """The read has ended.  Further calls do nothing."""

    def discard(self) -> None:
        """Write no line any more: another record takes the read's place."""


class AccessLog(Protocol):
    """Receives the records of requests."""

    @property
    def is_kept(self) -> bool:
        """Whether records are kept; if not, callers need not fill any in."""

    def record(self, record: Record) -> None:
        """A request has ended, or continues if the record is not final.  The access log owns the record from now on."""

    def repeat(self, hit: Repeated, began: float, ended: float, client: Client, request: bytes) -> None:
        """A remembered answer was sent again: these request bytes were read at `began`, and the answer was handed to
        the connection at `ended` (monotonic seconds)."""

    def live(self, record: Record, began: float, update: Callable[[Record], None]) -> LiveNote:
        """A live read has begun at `began` (monotonic seconds).  The log calls `update` before writing a line, to fill
        the current offsets, bytes since the start and subscribers into a record."""

    def join(self, facts: CommonFacts, began: float, read: CountedRead, client: LiveClient) -> LiveNote:
        """An SSE read of this client has begun, which has these `facts` in common with others."""

    def watch(self, began: float, write: Callable[[int], bool]) -> LiveNote | None:
        """Live reads that began together go on: call `write` when their next lines are due, until `discard`.  It writes
        at most so many lines, and returns False if it has to be called again.  None if live reads have a line at their
        end only."""

    def repeat_live(self, hit: Repeated, ended: float, clients: Sequence[PolledBy]) -> None:
        """Long-polls were sent the same answer at `ended`: when each began, its client's address, and its header
        section."""

    def record_of(self, record: Record, began: float, client: Client, section: HeaderSection) -> None:
        """A live read that began at `began`, with this client and this header section, has ended or continues as the
        record says."""

    def unclaimed(self, stream: RecordedStream, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """Traffic with the origin that belongs to no record; `mode` is the mode of the request to the origin."""


class NoAccessLog:
    """The access log of a gateway that keeps none."""

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
