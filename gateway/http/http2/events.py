"""Events that a session derives from the client's frames."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gateway.http.http2.head import Http2Request
from gateway.http.http2.streams import Stream


class RequestReceived(NamedTuple):
    """A request has arrived; `is_whole` if it has no body."""

    stream: Stream
    request: Http2Request
    is_whole: bool


class DataReceived(NamedTuple):
    """A piece of a request's body.  The receiver owes a call to `acknowledge` for `size` bytes."""

    stream: Stream
    data: bytes
    size: int


class BodyEnded(NamedTuple):
    """A request's body is whole."""

    stream: Stream


class StreamReset(NamedTuple):
    """A stream was reset, by the client or for an error of the client's."""

    stream: Stream
    is_by_client: bool


class StreamDrained(NamedTuple):
    """All data queued for a stream has been written to the output."""

    stream: Stream


class ConnectionEvent(Enum):
    """An event of the connection as a whole."""

    PING_ACK = "ping ack"
    """The client has answered a PING."""


Event = RequestReceived | DataReceived | BodyEnded | StreamReset | StreamDrained | ConnectionEvent
