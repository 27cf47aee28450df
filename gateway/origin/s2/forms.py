"""The two forms of a read that stays: frames of a session, and events.

A form turns the same batches into bytes; it holds what its response has to remember, and nothing of the stream.
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
    """How a read that stays is encoded."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer."""

    def message(self, batch: ReadBatch, now_ms: int, *, advises_reconnect: bool) -> bytes:
        """A batch, or a heartbeat if it has no records."""

    def failure(self, status: int, body: bytes) -> bytes:
        """The end of a read that fails."""

    def finish(self) -> bytes:
        """The end of a read that is complete."""


class SessionForm:
    """Frames of protobuf."""

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
    """Events of JSON, with ids that count from the start of the response."""

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
