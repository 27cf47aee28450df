"""Reads as server-sent events, and their encoding (S2's API reference, "Read records").

A `batch` event has records in JSON and an id.  The id consists of the last record's sequence number, and the number of
records and of metered bytes (`records.py`) that this response has delivered so far.  A client resumes by sending the id
as `Last-Event-ID`.  The server then continues after that record, and subtracts the two totals from the request's
`count` and `bytes`.  The totals count the records of one response.  So each response needs ids of its own
(`EventId.after`), even if several responses share their batches.

A `ping` keeps an idle response alive.  A response ends with the data `[DONE]`, which is final, or with an `error`
event, whose data is the body of a unary error.  A response that ends otherwise was interrupted.
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
    """A `Last-Event-ID` does not consist of three numbers (400 `bad_header`)."""


@dataclass(frozen=True, slots=True)
class EventId:
    """A response's progress: the last sequence number, and the records and metered bytes delivered."""

    seq_num: int
    count: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.seq_num},{self.count},{self.bytes}"

    @staticmethod
    def after(previous: EventId | None, batch: ReadBatch) -> EventId:
        """Return the id of a batch with records; `previous` is the id of the response's previous batch, if there is
        one."""
        count, size = (0, 0) if previous is None else (previous.count, previous.bytes)
        return EventId(batch.records[-1].seq_num, count + len(batch.records), size + total_metered_bytes(batch.records))


@dataclass(frozen=True, slots=True)
class BatchEvent:
    """Records of a read, and the response's progress after them."""

    id: EventId
    batch: ReadBatch


@dataclass(frozen=True, slots=True)
class Ping:
    """A heartbeat; `timestamp` is the server's time in Unix milliseconds."""

    timestamp: int
    tail: StreamPosition | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The read ends with an error; `body` is the error's JSON."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """The read is complete."""


Event = BatchEvent | Ping | Failure | Done


def parse_event_id(value: str) -> EventId:
    """Parse a `Last-Event-ID` header or the id of a batch.  Raises `BadEventId`."""
    parts = [parse_u64(part) for part in value.split(",", 3)]
    match parts:
        case [int(seq_num), int(count), int(size)]:
            return EventId(seq_num, count, size)
        case _:
            raise BadEventId("the event id is not a sequence number, a count and a size")


def encode_event(event: Event, format_: Format) -> bytes:
    """Return the whole event, including its blank line."""
    match event:
        case BatchEvent(id_, batch):
            return b"event: batch\nid: %s\ndata: %s\n\n" % (str(id_).encode(), encode_read_batch(batch, format_))
        case Ping(timestamp, tail):
            fields: dict[str, object] = {"timestamp": timestamp}
            if tail is not None:
                fields["tail"] = {"seq_num": tail.seq_num, "timestamp": tail.timestamp}
            return b"event: ping\ndata: %s\n\n" % orjson.dumps(fields)
        case Failure(body):
            # The body may come from another server, and have several lines.  Line breaks do not change the meaning of
            # JSON.
            lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            return b"event: error\n%s\n" % b"".join(b"data: %s\n" % line for line in lines)
        case Done():
            return b"data: %s\n\n" % DONE_DATA
