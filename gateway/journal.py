"""What is noted of each request for the access log, without knowing who writes it, or where.

A `Record` is filled in as a request goes on its way and handed over once, when the request has ended; a long live read
is handed over several times, and only the last of them is final.  Whoever takes records is a `Journal`: every call is
synchronous, cheap, never fails and never waits.  `Unkept` is the journal of a gateway that keeps none.

The front door answers the same hit over and over, faster than records could be filled in: what such answers have in
common is noted once, as a `Repeated`, and each of them adds only when, to whom, and the request in the client's bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Protocol

from gateway.protocol.cache_status import Outcome
from gateway.protocol.coding import Coding
from gateway.protocol.mode import Mode


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


@dataclass(slots=True)
class Record:
    """The facts of one client request, as far as they are known; None and 0 where there is nothing to say.

    `gateway.ops.access_log` says how each of them is written.  Whoever answers the request owns it until it is handed
    to a journal, which then only reads it.
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
    share.  It is made of credentials: a journal must not write it as it is."""
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
    fetched_bytes: int = 0
    """Body bytes that came from the origin because of this request; those who share a flight have 0 but its leader."""
    collapsed: int = 0
    """How many requests shared the flight that this one was answered from, itself included; 0 where there was none."""
    subscribers: int | None = None
    """Live readers of the stream at the end of this one, itself included; live reads only."""
    coding: Coding | None = None
    client: str | None = None
    """The address of the connection's other end, in full: what of it is written is the journal's business."""
    user_agent: str | None = None
    trace_id: str | None = None
    """32 hexadecimal digits (W3C Trace Context)."""
    close_reason: CloseReason | None = None
    is_final: bool = True
    """False for what is noted of a live read that goes on."""


class Repeated:
    """What all answers of one ready answer have in common; `line` belongs to the journal that writes it."""

    __slots__ = ("line", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        """Without time, client, user agent and trace."""
        self.line: bytes | None = None


class LiveNote(Protocol):
    """One live read in a journal, from its start to its end."""

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """The read has ended; a second call says nothing."""


class Journal(Protocol):
    """Takes note of requests."""

    @property
    def is_kept(self) -> bool:
        """Whether anybody will read it: where not, nothing need be filled in."""

    def record(self, record: Record) -> None:
        """A request has ended, or goes on where the record is not final.  The record is the journal's from here on."""

    def repeat(self, hit: Repeated, now: float, client: str | None, request: bytes) -> None:
        """A ready answer has been given again, at `now` (monotonic seconds), to the request of these bytes."""

    def live(self, record: Record, began: float, look: Callable[[Record], None]) -> LiveNote:
        """A live read has begun (`began`: monotonic seconds).  `look` is called when a line is to be written, to put
        into `record` how things stand then: offsets, bytes since the start, subscribers."""


class Unkept:
    """The journal of a gateway that keeps none."""

    is_kept = False

    def record(self, record: Record) -> None:
        """Nothing is kept."""

    def repeat(self, hit: Repeated, now: float, client: str | None, request: bytes) -> None:
        """Nothing is kept."""

    def live(self, record: Record, began: float, look: Callable[[Record], None]) -> LiveNote:
        return self

    def end(self, outcome: Outcome, reason: CloseReason) -> None:
        """Nothing is kept."""
