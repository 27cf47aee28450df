"""What is noted of each request for the access log, without knowing who writes it, or where.

A `Record` is filled in as a request goes on its way and handed over once, when the request has ended; a long live read
is handed over several times, and only the last of them is final.  Whoever takes records is a `AccessLog`: every call is
synchronous, cheap, never fails and never waits.  `NoAccessLog` is the access log of a gateway that keeps none.

Every request to the origin, and every byte of its answer, is taken by one record.  What a request has alone is its own;
a shared fetch keeps its figures until a record settles it; what nobody has, such as a stream's one live request or a
fetch that went on after all who waited for it had been noted, is told as `unclaimed`.

What is known of a request is known in several places.  While it is being answered, `record_now` is its record, handed
down by the context of the running task, and whoever knows something says so by the functions below; where no access log is
kept, or a task works for nobody in particular, they say it to nobody.

A connection answers the same hit over and over, faster than records could be filled in: what such answers have in
common is noted once, as a `Repeated`, and each of them adds only when, to whom, and the request in the client's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import NamedTuple, Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode
from gateway.protocol.target import Target


class CloseReason(StrEnum):
    """Why a live read ended."""

    ANSWERED = auto()
    """A long-poll that was given bytes."""
    TIMED_OUT = auto()
    """A long-poll that waited its time and was given none."""
    LIFETIME = auto()
    """An SSE connection that reached its planned age."""
    CLOSED = auto()
    """The stream is closed and the client has all of it."""
    ENDED = auto()
    """The stream was deleted, expired, purged or re-created under its reader."""
    DRAINED = auto()
    """The gateway is leaving."""
    SLOW = auto()
    """The client did not keep up and was cut off."""
    LEFT = auto()
    """The client went away by itself."""
    FAILED = auto()
    """What lies ahead could not be had from the origin."""


class Place(NamedTuple):
    """What was asked for, as a record names it: route, path and other query, and who shares the tape."""

    route: str | None
    stream: str
    partition: str | None

    @classmethod
    def of(cls, route: str, target: Target, partition: str) -> Place:
        """The place of this target under a tape's partition."""
        stream = f"{target.path}?{target.query}" if target.query else target.path
        # That of all who share without showing anything is no news.
        return cls(route, stream, partition if partition != route else None)


class Fetch(Protocol):
    """A fetch that requests share, as far as a record tells of it."""

    fetched: int
    """Body bytes that have come from the origin so far, as they came."""
    accounted: int
    """How many of them some record has taken for its own."""
    requests: int
    """Requests that it has sent to the origin so far."""
    accounted_requests: int
    """How many of them some record has taken."""
    holders: int
    """Records that are still to settle it."""
    is_led: bool
    """Whether the record of who started it is still to settle."""
    sharers: int
    """Requests with a record that have started it or waited for it."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""


@dataclass(slots=True)
class Record:
    """The facts of one client request, as far as they are known; None and 0 where there is nothing to say.

    `gateway.ops.access_log` says how each of them is written.  Whoever answers the request owns it until it is handed
    to an access log, which then only reads it.
    """

    mode: Mode = Mode.OTHER
    outcome: Outcome = Outcome.REFUSED
    method: str = ""
    route: str | None = None
    """The configured route's name."""
    stream: str = ""
    """Path and other query as the client asked for them, in canonical form."""
    partition: str | None = None
    """`StreamKey.partition` where credentials or gateways on the way are a part of it, None where all of the route
    share.  It is made of credentials: an access log must not write it as it is."""
    status: int = 0
    """0 where no status was sent."""
    ended_at: float = 0.0
    """Unix seconds."""
    duration_s: float = 0.0
    first_byte_s: float | None = None
    """From reading the request to writing the first byte of the answer; None where none was written."""
    start: str | None = None
    next_offset: str | None = None
    sent_bytes: int = 0
    """Body bytes handed to the client's connection."""
    saved_bytes: int = 0
    """How many more the body had before it was coded."""
    fetched_bytes: int = 0
    """Body bytes that came from the origin because of this request: those of a shared flight are its leader's, and what
    comes after the leader has left is the next one's who ends."""
    origin_requests: int = 0
    """Requests that the origin was asked because of this one; of a shared flight in the same way."""
    collapsed: int = 0
    """How many requests shared the flight that this one was answered from, itself included; 0 where there was none."""
    subscribers: int | None = None
    """Live readers of the stream at the end of this one, itself included; live reads only."""
    coding: Coding | None = None
    client: str | None = None
    """The address of the connection's other end, in full: what of it is written is the access log's business."""
    user_agent: str | None = None
    trace_id: str | None = None
    """32 hexadecimal digits (W3C Trace Context)."""
    close_reason: CloseReason | None = None
    is_final: bool = True
    """False for what is noted of a live read that goes on."""

    is_parked: bool = False
    """Whether a live answer has taken the record over, and hands it to the access log."""
    fetches: tuple[tuple[Fetch, bool], ...] = ()
    """The shared fetches it waited for, and whether it was the one to start each; `finalize` makes figures of them."""
    is_final: bool = False
    """Whether it takes no more figures: what is still done on behalf of its request is nobody's."""

    def share(self, fetch: Fetch, *, leads: bool) -> None:
        """The request starts a shared fetch, or waits for one that others have started."""
        if not self.is_final and all(known is not fetch for known, _ in self.fetches):
            fetch.sharers += 1
            fetch.holders += 1
            fetch.is_led |= leads
            self.fetches += ((fetch, leads),)

    def finalize(self, *, goes_on: bool = False) -> None:
        """Take the figures of its fetches as they are now, and let go of them; of a request that goes on, only of those
        that are over."""
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
        self.is_final = not goes_on


record_now: ContextVar[Record | None] = ContextVar("record_now", default=None)
"""The record of the request that is being answered here."""


def note_asked(mode: Mode, place: Place, start: str | None) -> None:
    """What the request that is being answered asks for, once it is understood."""
    if (record := record_now.get()) is not None:
        record.mode, record.start = mode, start
        record.route, record.stream, record.partition = place


def note_answered(mode: Mode, outcome: Outcome, first_byte_s: float | None, sent_bytes: int, saved_bytes: int) -> None:
    """How the request that is being answered was answered; of a live answer that is told where it ends."""
    if (record := record_now.get()) is not None and not record.is_parked:
        record.mode, record.outcome = mode, outcome
        record.first_byte_s, record.sent_bytes, record.saved_bytes = first_byte_s, sent_bytes, saved_bytes


def note_fetch(fetch: Fetch, *, leads: bool) -> None:
    """The request that is being answered starts a shared fetch, or waits for one."""
    if (record := record_now.get()) is not None:
        record.share(fetch, leads=leads)


def note_fetched(size: int) -> None:
    """Body bytes have come from the origin for the request that is being answered alone."""
    if (record := record_now.get()) is not None:
        record.fetched_bytes += size


def note_origin_request() -> bool:
    """A request is sent to the origin for the one that is being answered alone; False where none is, or not any
    more."""
    record = record_now.get()
    if record is None or record.is_final:
        return False
    record.origin_requests += 1
    return True


def note_parked() -> Record | None:
    """Take the record of the request that is being answered, whose answer is a live one: it is for `AccessLog.live`."""
    record = record_now.get()
    if record is not None:
        record.is_parked = True
    return record


def note_nothing() -> None:
    """What the running task does from here on is noted of nobody."""
    record_now.set(None)


class Repeated:
    """What all answers of one ready answer have in common; `line` belongs to the access log that writes it."""

    __slots__ = ("line", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """Without time, client, user agent and trace."""
        self.line: bytes | None = None


def note_repeated(
    outcome: Outcome, status: int, next_offset: str | None, coding: Coding | None, sent_bytes: int, saved_bytes: int
) -> Repeated | None:
    """What further requests that are given this one's answer have in common with it; None where no access log is kept."""
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
            partition=record.partition,
            status=status,
            # They are answered in the very step in which they are read.
            first_byte_s=0.0,
            start=record.start,
            next_offset=next_offset,
            sent_bytes=sent_bytes,
            saved_bytes=saved_bytes,
            coding=coding,
        )
    )


class LiveNote(Protocol):
    """One live read in an access log, from its start to its end."""

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """The read has ended; a second call says nothing."""


class AccessLog(Protocol):
    """Takes note of requests."""

    @property
    def is_kept(self) -> bool:
        """Whether anybody will read it: where not, nothing need be filled in."""

    def record(self, record: Record) -> None:
        """A request has ended, or goes on where the record is not final.  The record is the access log's from here on."""

    def repeat(self, hit: Repeated, now: float, client: str | None, request: bytes) -> None:
        """A ready answer has been given again, at `now` (monotonic seconds), to the request of these bytes."""

    def live(self, record: Record, began: float, look: Callable[[Record], None]) -> LiveNote:
        """A live read has begun (`began`: monotonic seconds).  `look` is called when a line is to be written, to put
        into `record` how things stand then: offsets, bytes since the start, subscribers."""

    def unclaimed(self, place: Place, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """The origin was asked, or sent body bytes, for nobody in particular; `mode` is how it was asked."""


class NoAccessLog:
    """the access log of a gateway that keeps none."""

    is_kept = False

    def record(self, record: Record) -> None:
        """Nothing is kept."""

    def repeat(self, hit: Repeated, now: float, client: str | None, request: bytes) -> None:
        """Nothing is kept."""

    def live(self, record: Record, began: float, look: Callable[[Record], None]) -> LiveNote:
        return self

    def unclaimed(self, place: Place, mode: Mode, *, requests: int = 0, fetched_bytes: int = 0) -> None:
        """Nothing is kept."""

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Nothing is kept."""


NO_ACCESS_LOG = NoAccessLog()
