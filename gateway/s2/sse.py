"""Reads as Server-Sent Events (S2's API reference, "Read records", `text/event-stream`)."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.s2.json_format import Format
from gateway.s2.records import ReadBatch, StreamPosition


class BadEvent(ValueError):
    """Bytes are not the events of an S2 read."""


@dataclass(frozen=True, slots=True)
class EventId:
    """How far this response is: the last record's number, and the records and metered bytes it has delivered."""

    seq_num: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of a read, and where the response is after them."""

    id: EventId
    batch: ReadBatch


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life; `timestamp` is the server's time in milliseconds."""

    timestamp: int
    tail: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The read ends here with an error: the text is the body of the error."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The read is complete."""


Event = Batch | Ping | Failure | Done


def parse_event_id(value: str) -> EventId:
    """The position in a `Last-Event-ID` header.  Raises `BadEvent`."""
    raise NotImplementedError


def encode_event(event: Event, format_: Format) -> bytes:
    """The whole event, its blank line included."""
    raise NotImplementedError


class EventReader:
    """Cuts an SSE read into events; one reader for each response."""

    def __init__(self, format_: Format) -> None:
        raise NotImplementedError

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return the events they complete.  Raises `BadEvent`."""
        raise NotImplementedError
