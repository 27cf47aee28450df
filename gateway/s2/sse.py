"""Reads as Server-Sent Events: what the events are, and their encoding (S2's API reference, "Read records").

A `batch` has records in JSON and an id: the number of its last record, and how many records and metered bytes this
response has delivered so far.  A client resumes with the id in `Last-Event-ID`, and the server goes on after the record
and takes the two totals off the request's `count` and `bytes`.  They are totals of one response, so a response relayed
or shared needs ids of its own (`EventId.after`).

A `ping` keeps an idle response alive.  The end has two forms: the data `[DONE]`, which is final, or an `error` event
with the body that a unary request would have been answered with.  A response that ends with neither was broken off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import orjson

from gateway.s2.json_format import Format, encode_read_batch
from gateway.s2.records import ReadBatch, StreamPosition, parse_u64, total_metered_bytes

CONTENT_TYPE: Final = "text/event-stream"

DONE_DATA: Final = b"[DONE]"


class BadEventId(ValueError):
    """A `Last-Event-ID` is not three numbers (400 `bad_header`)."""


@dataclass(frozen=True, slots=True)
class EventId:
    """How far a response is: the last record's number, and the records and metered bytes it has delivered."""

    seq_num: int
    count: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.seq_num},{self.count},{self.bytes}"

    @staticmethod
    def after(previous: EventId | None, batch: ReadBatch) -> EventId:
        """The id of a batch with records; `previous` is that of the batch before it in the same response."""
        count, size = (0, 0) if previous is None else (previous.count, previous.bytes)
        return EventId(batch.records[-1].seq_num, count + len(batch.records), size + total_metered_bytes(batch.records))


@dataclass(frozen=True, slots=True)
class BatchEvent:
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
    """The read ends here with an error; `body` is the error's JSON."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The read is complete."""


Event = BatchEvent | Ping | Failure | Done


def parse_event_id(value: str) -> EventId:
    """The position in a `Last-Event-ID` header or in the id of a batch.  Raises `BadEventId`."""
    parts = [parse_u64(part) for part in value.split(",", 3)]
    match parts:
        case [int(seq_num), int(count), int(size)]:
            return EventId(seq_num, count, size)
        case _:
            raise BadEventId("the event id is not a sequence number, a count and a size")


def encode_event(event: Event, format_: Format) -> bytes:
    """The whole event, its blank line included."""
    match event:
        case BatchEvent(id_, batch):
            return b"event: batch\nid: %s\ndata: %s\n\n" % (str(id_).encode(), encode_read_batch(batch, format_))
        case Ping(timestamp, tail):
            fields: dict[str, object] = {"timestamp": timestamp}
            if tail is not None:
                fields["tail"] = {"seq_num": tail.seq_num, "timestamp": tail.timestamp}
            return b"event: ping\ndata: %s\n\n" % orjson.dumps(fields)
        case Failure(body):
            # A foreign body may have several lines; JSON means the same if they are joined again.
            lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            return b"event: error\n%s\n" % b"".join(b"data: %s\n" % line for line in lines)
        case Done():
            return b"data: %s\n\n" % DONE_DATA
