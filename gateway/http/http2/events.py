"""Events that a session derives from the peer's frames."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from gateway.http.http2.head import Http2Request
from gateway.http.http2.streams import Stream
from gateway.http.reply import Head, Interim


class RequestReceived(NamedTuple):
    """A request has arrived; `is_whole` if it has no body."""

    stream: Stream
    request: Http2Request
    is_whole: bool


class ReplyReceived(NamedTuple):
    """The head of a final reply has arrived; `is_whole` if it has no body."""

    stream: Stream
    head: Head
    is_whole: bool


class InterimReceived(NamedTuple):
    """An interim reply (1xx) has arrived."""

    stream: Stream
    interim: Interim


class DataReceived(NamedTuple):
    """A piece of a body.  The receiver owes a call to `acknowledge` for `size` bytes."""

    stream: Stream
    data: bytes
    size: int


class BodyEnded(NamedTuple):
    """A body is whole."""

    stream: Stream


class StreamReset(NamedTuple):
    """A stream was reset, by the peer or for an error of the peer's; `stream.reset_code` says why."""

    stream: Stream
    is_by_peer: bool


class StreamDrained(NamedTuple):
    """All data queued for a stream has been written to the output."""

    stream: Stream


class ConnectionEvent(Enum):
    """An event of the connection as a whole."""

    PING_ACK = "ping ack"
    """The peer has answered a PING."""


Event = (
    RequestReceived
    | ReplyReceived
    | InterimReceived
    | DataReceived
    | BodyEnded
    | StreamReset
    | StreamDrained
    | ConnectionEvent
)
