"""Parses the Server-Sent Events of S2 reads for clients.  `gateway.s2.sse` has the events.

Unknown events are ignored, as in S2's SDKs, and so are all events after the end of the read.
"""

from __future__ import annotations

from typing import Final

import orjson

from gateway.protocol.sse import SseEvent, SseParser, SseTooLarge
from gateway.s2.json_format import BadJson, Format, decode_read_batch, decode_tail
from gateway.s2.records import MAX_U64
from gateway.s2.sse import DONE_DATA, BadEventId, BatchEvent, Done, Event, Failure, Ping, parse_event_id

MAX_EVENT_BYTES: Final = 8 * 1024 * 1024
"""The longest event.  1 MiB of metered bytes is at most 6 MiB of JSON, if all bytes are control characters."""


class BadEvent(ValueError):
    """Bytes are not the events of an S2 read."""


class EventReader:
    """Parses the events of one response."""

    __slots__ = ("_format", "_parser", "is_ended")

    def __init__(self, format_: Format) -> None:
        self._format = format_
        self._parser = SseParser(MAX_EVENT_BYTES)
        self.is_ended = False
        """Whether the end of the read has arrived.  A response that ends before was truncated."""

    def feed(self, data: bytes) -> list[Event]:
        """Parse the next bytes; return the events that they complete.

        Raises BadEvent.  The reader cannot be used after that, and the events before the invalid one are lost.
        """
        if self.is_ended:
            return []
        events: list[Event] = []
        try:
            found = self._parser.feed(data)
        except SseTooLarge as error:
            raise BadEvent(str(error)) from error
        for one in found:
            event = self._event(one)
            if event is not None:
                events.append(event)
                if isinstance(event, Failure | Done):
                    self.is_ended = True
                    break
        return events

    def _event(self, event: SseEvent) -> Event | None:
        try:
            match event.name:
                case "batch":
                    return BatchEvent(parse_event_id(event.id), decode_read_batch(event.data, self._format))
                case "ping":
                    return _ping(event.data)
                case "error":
                    return Failure(event.data)
                case "message" if event.data == DONE_DATA:
                    return Done()
                case _:
                    return None
        except (BadJson, BadEventId) as error:
            raise BadEvent(f"{event.name} event: {error}") from error


def _ping(data: bytes) -> Ping:
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadJson("the data is not JSON") from error
    timestamp = fields.get("timestamp") if isinstance(fields, dict) else None
    if type(timestamp) is not int or not 0 <= timestamp <= MAX_U64:
        raise BadJson("the data has no timestamp")
    return Ping(timestamp, decode_tail(data) if fields.get("tail") is not None else None)
