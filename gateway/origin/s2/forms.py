"""The two encodings of a long-lived read: frames of a session, and server-sent events.

A form turns batches into bytes, and keeps the state of one response.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from gateway.origin.s2.calls import EVENT_STREAM_TYPE, SESSION_TYPE
from gateway.s2 import protobuf, sse
from gateway.s2.json_format import Format
from gateway.s2.records import ReadBatch
from gateway.s2.session import Compression, encode_message, encode_terminal


class Form(Protocol):
    """An encoding of a long-lived read."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""

    def message(self, batch: ReadBatch, now_ms: int, *, advises_reconnect: bool) -> bytes:
        """Encode a batch; one without records is a heartbeat."""

    def failure(self, status: int, body: bytes) -> bytes:
        """Encode the end of a read that fails."""

    def finish(self) -> bytes:
        """Encode the end of a read that is complete."""


class SessionForm:
    """Session frames with protobuf messages."""

    def __init__(self, compression: Compression) -> None:
        self._compression = compression

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": SESSION_TYPE}

    def message(self, batch: ReadBatch, now_ms: int, *, advises_reconnect: bool) -> bytes:
        body = protobuf.encode_read_batch(batch)
        return encode_message(body, self._compression, is_reconnect_advised=advises_reconnect)

    def failure(self, status: int, body: bytes) -> bytes:
        return encode_terminal(status, body)

    def finish(self) -> bytes:
        return b""


class EventForm:
    """Events with JSON, whose ids count from the start of the response."""

    def __init__(self, format_: Format) -> None:
        self._format = format_
        self._last: sse.EventId | None = None

    @property
    def headers(self) -> Mapping[str, str]:
        return {"content-type": EVENT_STREAM_TYPE, "cache-control": "no-cache"}

    def message(self, batch: ReadBatch, now_ms: int, *, advises_reconnect: bool) -> bytes:
        if not batch.records:
            return sse.encode_event(sse.Ping(now_ms, batch.tail), self._format)
        self._last = sse.EventId.after(self._last, batch)
        return sse.encode_event(sse.BatchEvent(self._last, batch), self._format)

    def failure(self, status: int, body: bytes) -> bytes:
        return sse.encode_event(sse.Failure(body), self._format)

    def finish(self) -> bytes:
        return sse.encode_event(sse.Done(), self._format)
